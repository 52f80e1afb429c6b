"""Child processes are reaped in any thread, whatever happens to their transport and loop."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import ctypes
import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.leaks import open_fds
from support.processes import (  # noqa: F401  (fixtures)
    DEVNULL,
    FOREVER,
    PIPE,
    PLENTY,
    Recorder,
    children,
    exited_process,
    orphans,
    output,
    wait_for,
    watcher,
)
from support.roles import (
    PATIENCE,
    Loop,
    in_thread,
    kernel_version,
    noise,
    nothing_comes,
    on_loop,
    record_handler_calls,
    refuse_thread,
    run_script,
    turns,
    until,
    wait_until,
)

import uringloop
from uringloop._process import subprocesses

knows_ends = pytest.mark.skipif(
    kernel_version() < (6, 15), reason="this kernel forgets a child that has been reaped"
)

# ── reaping ───────────────────────────────────────────────────────────────────────────────


async def endless_child(loop: uringloop.Loop) -> asyncio.SubprocessTransport:
    transport, _ = await loop.subprocess_exec(
        lambda: Recorder(loop), "sleep", FOREVER, stdin=None, stdout=None, stderr=None
    )
    return transport


@on_loop
async def test_a_child_reaped_by_other_code_is_reported_as_255(
    each_loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "exit_code_of_reaped", lambda pidfd: None)
    process = await exited_process(1, os.WEXITED)
    assert await process.wait() == 255
    assert "exit status already read" in caplog.text


def reap_all() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


@knows_ends
@on_loop
async def test_the_kernel_knows_how_a_child_has_ended_that_other_code_has_reaped(
    loop: uringloop.Loop, caplog: pytest.LogCaptureFixture
) -> None:
    for code in (0, 1, 254):
        process = await exited_process(code, os.WEXITED)
        assert await process.wait() == code
    process = await asyncio.create_subprocess_exec("sleep", FOREVER)
    process.kill()
    # Blocks on purpose.
    os.waitid(os.P_PID, process.pid, os.WEXITED)  # noqa: ASYNC222
    assert await process.wait() == -signal.SIGKILL
    assert caplog.text == ""


@knows_ends
@on_loop
async def test_a_signal_to_a_child_that_other_code_has_reaped_does_not_change_its_exit_code(
    loop: uringloop.Loop,
) -> None:
    process = await exited_process(7, os.WEXITED)
    # Popen.poll(), which this calls, takes a child that has gone for a success.
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    assert await process.wait() == 7


@pytest.mark.parametrize("added", [False, True], ids=["alone", "over a handler of the loop"])
@knows_ends
def test_a_handler_of_the_signal_module_that_reaps_all_children_takes_no_exit_code(
    loop: uringloop.Loop, added: bool
) -> None:
    async def codes() -> list[int]:
        starts = [asyncio.create_subprocess_shell(f"exit {code}") for code in range(1, 11)]
        return [await process.wait() for process in await asyncio.gather(*starts)]

    if added:
        loop.add_signal_handler(signal.SIGCHLD, lambda: None)
    before = signal.signal(signal.SIGCHLD, lambda number, frame: reap_all())
    try:
        assert loop.run_until_complete(codes()) == list(range(1, 11))
    finally:
        signal.signal(signal.SIGCHLD, before)


SA_RESTART = 0x10000000


class SignalAction(ctypes.Structure):
    """The C library's struct sigaction, of glibc and musl on x86-64 and AArch64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def restarts_system_calls(number: int) -> bool:
    """Return whether the kernel restarts a system call that the signal has interrupted."""
    action = SignalAction()
    assert ctypes.CDLL(None).sigaction(number, None, ctypes.byref(action)) == 0
    return bool(action.flags & SA_RESTART)


def test_starting_a_child_leaves_sigchld_as_add_signal_handler_has_set_it(each_loop: Loop) -> None:
    each_loop.add_signal_handler(signal.SIGCHLD, lambda: None)
    handler = signal.getsignal(signal.SIGCHLD)
    assert restarts_system_calls(signal.SIGCHLD)
    assert each_loop.run_until_complete(output("exit 3")) == (b"", 3)
    assert signal.getsignal(signal.SIGCHLD) is handler
    assert restarts_system_calls(signal.SIGCHLD)
    each_loop.remove_signal_handler(signal.SIGCHLD)


@on_loop
async def test_a_handler_of_sigchld_that_raises_at_a_start_leaves_no_process_and_no_pipe(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_after_the_end(pid: int, flags: int = 0) -> int:
        wait_until(lambda: has_ended(pid))
        return open_pidfd(pid, flags)

    def fail(number: int, frame: object) -> None:
        raise ZeroDivisionError

    open_pidfd = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", open_after_the_end)
    fds, before = open_fds(), children()
    handler = signal.signal(signal.SIGCHLD, fail)
    try:
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_subprocess_shell("exit 3", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    finally:
        signal.signal(signal.SIGCHLD, handler)
    await until(lambda: children() == before and not loop._children)
    await until(lambda: open_fds() == fds)


# The compiled modules load in the first interpreter that imports them, which here is the second.
SECOND_INTERPRETER = """
import signal, sys
signal.signal(signal.SIGCHLD, lambda number, frame: None)
script = f'''
import sys
sys.path[:0] = {sys.path}
import asyncio
try:
    import uringloop
except ImportError:
    print("refused")
else:
    async def main():
        process = await asyncio.create_subprocess_shell("exit 3")
        print("exited with", await process.wait())
    uringloop.run(main())
'''
# Interpreters that share the GIL: others may not start processes.
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    second = interpreters.create("legacy")
else:
    import _xxsubinterpreters as interpreters
    second = interpreters.create(isolated=False)
failure = interpreters.run_string(second, script)
if failure is not None:
    print(failure.formatted)
interpreters.destroy(second)
"""


def test_a_child_starts_in_an_interpreter_that_cannot_set_handlers() -> None:
    done = run_script(SECOND_INTERPRETER)
    if done.stdout == "refused\n":
        pytest.skip("this Python loads the compiled modules only in its main interpreter")
    assert (done.returncode, done.stdout) == (0, "exited with 3\n"), done.stderr


def test_an_interrupt_at_the_start_of_a_child_leaves_the_handler_of_sigchld(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(number: int, frame: object) -> None: ...

    def set_and_interrupt(number: int, other: Any) -> None:
        # Python raises KeyboardInterrupt after the call of a C function, such as this one.
        monkeypatch.setattr(signal, "signal", set_handler)
        set_handler(number, other)
        raise KeyboardInterrupt

    set_handler = signal.signal
    before = signal.signal(signal.SIGCHLD, handler)
    monkeypatch.setattr(signal, "signal", set_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(output("true"))
    finally:
        left = set_handler(signal.SIGCHLD, before)
    assert left is handler


# ── traced children ───────────────────────────────────────────────────────────────────────

# A debugger that seizes a process, says so, and ends at the end of its input.
TRACER = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
done = ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
print("seized" if done else "refused", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def traced(pid: int) -> Iterator[None]:
    """Have a debugger trace a process for the duration of the block."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", TRACER, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as debugger:
        assert debugger.stdout is not None
        try:
            if debugger.stdout.readline() != b"seized\n":
                os.kill(pid, signal.SIGKILL)
                pytest.skip("this machine lets no process trace another")
            yield
        finally:
            debugger.communicate()


def has_ended(pid: int) -> bool:
    """Return whether the process is a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [True, False], ids=["thread", "no thread"])
@on_loop
async def test_the_loop_goes_on_while_a_debugger_keeps_a_child_that_has_ended(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    process = await asyncio.create_subprocess_exec("sleep", FOREVER)
    waiting = asyncio.ensure_future(process.wait())
    with traced(process.pid):
        process.kill()
        await until(lambda: has_ended(process.pid))
        await nothing_comes(loop)
        assert not waiting.done()
    assert await waiting == -signal.SIGKILL


@pytest.mark.slow
def test_closing_the_loop_does_not_wait_for_a_debugger(loop: uringloop.Loop) -> None:
    before = children()
    transport = loop.run_until_complete(endless_child(loop))
    pid = transport.get_pid()
    with traced(pid):
        transport.close()
        wait_until(lambda: has_ended(pid))
        loop.close()
        assert pid in children()
    wait_for(lambda: children() == before)


def test_a_sigchld_handler_that_reaps_all_children_takes_no_exit_code(
    loop: uringloop.Loop,
) -> None:
    loop.add_signal_handler(signal.SIGCHLD, reap_all)
    for code in range(20):
        start = asyncio.create_subprocess_shell(f"exit {code}")
        process = loop.run_until_complete(start)
        # The signal arrives while the loop does not run, or has arrived before.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert loop.run_until_complete(process.wait()) == code
    loop.remove_signal_handler(signal.SIGCHLD)


def test_exit_codes_are_unknown_to_a_program_that_ignores_sigchld() -> None:
    done = run_script(
        """
        import asyncio, signal, uringloop
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        async def main():
            for _ in range(3):
                process = await asyncio.create_subprocess_shell("echo x", stdout=-1)
                assert await process.communicate() == (b"x\\n", None)
                assert process.returncode in (255, 0), process.returncode
            assert not asyncio.get_running_loop()._children
        uringloop.run(main())
        """
    )
    assert done.returncode == 0, done.stderr
    # From 6.15 on the kernel knows the end of a child that was there when its pidfd was opened.
    assert done.stderr.count("exit status already read") == 3 or kernel_version() >= (6, 15)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSYS])
@on_loop
async def test_without_a_pidfd_a_thread_waits_for_the_exit(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert await output("echo hello; exit 5") == (b"hello\n", 5)
    process = await asyncio.create_subprocess_exec("sleep", FOREVER)
    process.terminate()
    assert await process.wait() == -signal.SIGTERM


def no_pidfd(pid: int, flags: int = 0) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def pidfd_of_no_use(pid: int, flags: int = 0) -> int:
    """Return a descriptor that epoll refuses, as it refuses any if it may watch no more."""
    return os.open(os.devnull, os.O_RDONLY)


@on_loop
async def test_a_thread_waits_for_the_exit_if_epoll_refuses_the_pidfd(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fds = open_fds()
    monkeypatch.setattr(os, "pidfd_open", pidfd_of_no_use)
    assert await output("echo hello; exit 5") == (b"hello\n", 5)
    process = await asyncio.create_subprocess_exec("sleep", FOREVER)
    process.terminate()
    assert await process.wait() == -signal.SIGTERM
    assert not loop._children
    await until(lambda: open_fds() == fds)


WITHOUT_PIDFD = {"no pidfd": no_pidfd, "pidfd of no use": pidfd_of_no_use}


@pytest.mark.slow
@pytest.mark.parametrize("way", WITHOUT_PIDFD)
@on_loop
async def test_the_loop_looks_for_the_exit_if_no_thread_can_wait(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(os, "pidfd_open", WITHOUT_PIDFD[way])
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    assert await output("echo hello; exit 5") == (b"hello\n", 5)
    assert not loop._children


@pytest.mark.parametrize("way", ["pidfd", *WITHOUT_PIDFD])
def test_closing_the_loop_reaps_killed_children(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(os, "pidfd_open", WITHOUT_PIDFD.get(way, os.pidfd_open))
    before = children()
    transport = loop.run_until_complete(endless_child(loop))
    transport.close()
    loop.close()
    wait_for(lambda: children() == before)


def test_closing_the_loop_reaps_a_child_that_a_thread_has_reported(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda pid, flags=0: os.open("/nowhere", 0))
    before = children()
    transport = loop.run_until_complete(endless_child(loop))
    transport.kill()
    # The thread ends after it has scheduled the callback on the loop, which no longer runs.
    wait_for(lambda: not any("uringloop-child" in t.name for t in threading.enumerate()))
    assert children() != before
    loop.close()
    assert children() == before
    transport.close()


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_a_process_may_outlive_its_loop(loop: uringloop.Loop) -> None:
    before = children()
    process = loop.run_until_complete(
        asyncio.wait_for(asyncio.create_subprocess_exec("sleep", FOREVER), 10)
    )
    loop.close()
    assert children() - before == {process.pid}
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: children() == before)
    assert process.returncode is None


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.parametrize("way", ["pidfd", *WITHOUT_PIDFD])
def test_children_may_outlive_a_loop_that_can_start_no_thread(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    before = children()
    monkeypatch.setattr(os, "pidfd_open", WITHOUT_PIDFD.get(way, os.pidfd_open))
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    started = [loop.run_until_complete(endless_child(loop)) for _ in range(3)]
    assert len(children() - before) == 3
    loop.close()
    assert not loop._children
    for transport in started:
        transport.close()
    wait_until(lambda: all(map(has_ended, children() - before)))
    # The subprocess module reaps them when it starts the next child.
    del started, transport
    gc.collect()
    subprocess.run(["true"], check=True)
    assert children() == before


def test_an_unreferenced_transport_warns_and_kills_the_process(loop: uringloop.Loop) -> None:
    before = children()

    async def start() -> None:
        await asyncio.create_subprocess_exec("sleep", FOREVER, stdin=PIPE, stdout=PIPE)

    loop.run_until_complete(start())
    loop.close()
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    assert any(text.startswith("unclosed transport <SubprocessTransport") for text in messages)
    wait_for(lambda: children() == before)


@on_loop
async def test_closing_the_transport_kills_the_process(each_loop: Loop) -> None:
    before = children()
    transport, recorder = await each_loop.subprocess_shell(
        # The grandchild holds the pipes open.
        lambda: Recorder(each_loop),
        f"sleep {FOREVER} & echo $!; exec sleep {FOREVER}",
    )
    await until(lambda: recorder.data.endswith(b"\n"))
    transport.close()
    transport.close()
    assert transport.is_closing()
    assert await recorder.lost is None
    assert transport.get_returncode() == -signal.SIGKILL
    os.kill(int(recorder.data), signal.SIGKILL)
    assert children() == before


@pytest.mark.parametrize("steps", range(4))
@on_loop
async def test_a_start_that_is_cancelled_twice_reports_nothing(each_loop: Loop, steps: int) -> None:
    before = children()

    async def start() -> None:
        process = await asyncio.create_subprocess_exec("sleep", FOREVER)
        process.kill()
        await process.wait()

    task = each_loop.create_task(start())
    await turns(steps)
    task.cancel()
    await turns()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    # A report would be made when the child is reaped.
    await until(lambda: children() == before)
    await turns(3)


# ── threads, many processes, errors ───────────────────────────────────────────────────────


def test_processes_work_outside_the_main_thread() -> None:
    async def main() -> tuple[bytes, int | None]:
        return await output("echo thread; exit 2")

    assert in_thread(lambda: uringloop.run(main())) == (b"thread\n", 2)


@pytest.mark.skipif(sys.version_info >= (3, 16), reason="asyncio has no policies since 3.16")
def test_processes_work_in_threads_under_the_policy() -> None:
    done = run_script(
        """
        import asyncio, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import uringloop
        asyncio.set_event_loop_policy(uringloop.EventLoopPolicy())
        async def main():
            process = await asyncio.create_subprocess_shell("echo x; exit 4", stdout=-1)
            assert await process.communicate() == (b"x\\n", None)
            codes.append(process.returncode)
        codes = []
        threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(main())
        for thread in threads:
            thread.join()
        assert codes == [4] * 5, codes
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_continues_when_the_loop_changes_threads(loop: uringloop.Loop) -> None:
    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        await turns(3)
        return process

    process = in_thread(lambda: loop.run_until_complete(start()))
    data = noise(PLENTY)
    assert loop.run_until_complete(process.communicate(data))[0] == data
    assert in_thread(lambda: loop.run_until_complete(process.wait())) == 0


@on_loop
async def test_thirty_processes_run_at_once(each_loop: Loop) -> None:
    data = [noise(100_000, seed) for seed in range(30)]

    async def echo(piece: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        written, _ = await process.communicate(piece)
        assert process.returncode == 0
        return written

    assert await asyncio.gather(*map(echo, data)) == data


@pytest.mark.slow
@on_loop
async def test_two_hundred_processes_leave_nothing_behind(loop: uringloop.Loop) -> None:
    before = children()
    fds = open_fds()
    for code in range(200):
        process = await asyncio.create_subprocess_shell(
            f"cat; exit {code}", stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert await process.communicate(b"x") == (b"x", b"")
        assert process.returncode == code
    assert children() == before
    assert not loop._children
    await until(lambda: open_fds() == fds)
    await until(lambda: loop._operations_in_flight == 0)


@pytest.mark.parametrize("factory", [lambda: None, object])
def test_an_invalid_protocol_raises_and_leaves_no_process(
    loop: uringloop.Loop, factory: Callable[[], Any]
) -> None:
    # asyncio's own loop hangs here.
    async def start(command: str) -> None:
        with pytest.raises(AttributeError, match="has no attribute 'connection_made'"):
            await asyncio.wait_for(loop.subprocess_shell(factory, command), PATIENCE)
        assert not children()

    for command in ("true", f"sleep {FOREVER}"):
        record_handler_calls(loop)
        loop.run_until_complete(start(command))


@on_loop
async def test_debug_mode_logs_starts_and_exit_codes(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncio")
    each_loop.set_debug(True)
    await output("exit 6")
    each_loop.set_debug(False)
    assert "run shell command 'exit 6' stdin=" not in caplog.text
    assert "run shell command 'exit 6' stdout=<pipe>" in caplog.text
    assert "exited with return code 6" in caplog.text
