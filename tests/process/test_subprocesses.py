"""subprocess_exec and subprocess_shell: exit codes, signals, pipes and options."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

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
from support.roles import Loop, noise, on_loop, turns, until

import uringloop


@pytest.fixture(autouse=True)
def plain_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not pass on the sanitizer that this process may run under to its children."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)


# ── exit codes and signals ────────────────────────────────────────────────────────────────


@on_loop
async def test_a_process_writes_and_exits(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo out; echo err >&2; exit 3", stdout=PIPE, stderr=PIPE
    )
    assert await process.communicate() == (b"out\n", b"err\n")
    assert process.returncode == 3
    assert await process.wait() == 3


@on_loop
async def test_a_shell_runs_a_command(each_loop: Loop) -> None:
    assert await output("echo $((6 * 7))") == (b"42\n", 0)
    assert await output("false && true") == (b"", 1)


@on_loop
async def test_large_data_passes_through_a_process_unchanged(each_loop: Loop) -> None:
    data = noise(PLENTY)
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    assert (await process.communicate(data))[0] == data


@pytest.mark.parametrize("code", [0, 1, 42, 127, 128, 255])
@on_loop
async def test_exit_codes_are_exact(each_loop: Loop, code: int) -> None:
    process = await asyncio.create_subprocess_shell(f"exit {code}")
    assert await process.wait() == code


@pytest.mark.parametrize("number", ["TERM", "KILL", "ABRT", "SEGV", "USR1", "RTMIN"])
@on_loop
async def test_a_signal_is_a_negative_exit_code(each_loop: Loop, number: str) -> None:
    code = signal.Signals[f"SIG{number}"].value
    process = await asyncio.create_subprocess_shell(f"ulimit -c 0; kill -{code} $$")
    assert await process.wait() == -code


@pytest.mark.parametrize("method", ["terminate", "kill", "send_signal"])
@on_loop
async def test_a_process_gets_signals(each_loop: Loop, method: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", FOREVER)
    if method == "send_signal":
        process.send_signal(signal.SIGUSR2)
    else:
        getattr(process, method)()
    expected = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL, "send_signal": signal.SIGUSR2}
    assert await process.wait() == -expected[method]
    with pytest.raises(ProcessLookupError):
        process.kill()


@on_loop
async def test_a_signal_to_a_process_that_has_ended_keeps_its_exit_code(
    loop: uringloop.Loop,
) -> None:
    # A grandchild keeps the pipe open: the transport outlives the process.
    process = await asyncio.create_subprocess_shell(
        f"sleep {FOREVER} & echo $!; exit 7", stdout=PIPE
    )
    assert process.stdout is not None
    grandchild = int(await process.stdout.readline())
    await until(lambda: process.returncode is not None)
    process.kill()
    process.terminate()
    process.send_signal(signal.SIGUSR1)
    os.kill(grandchild, signal.SIGKILL)
    assert await process.stdout.read() == b""
    assert await process.wait() == 7


@on_loop
async def test_a_signal_right_after_the_exit_keeps_the_exit_code(loop: uringloop.Loop) -> None:
    # Popen.send_signal() then reaps the child before the loop has noticed its exit.
    process = await exited_process(9, os.WEXITED | os.WNOWAIT)
    process.kill()
    assert await process.wait() == 9


@on_loop
async def test_killing_a_process_ends_communicate(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_exec("sleep", FOREVER, stdin=PIPE, stdout=PIPE)
    talk = asyncio.ensure_future(process.communicate(bytes(PLENTY)))
    await turns(5)
    assert not talk.done()
    process.kill()
    assert (await talk)[0] == b""
    assert process.returncode == -signal.SIGKILL


@on_loop
async def test_several_tasks_may_wait_for_one_process(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE)
    waits = [asyncio.ensure_future(process.wait()) for _ in range(5)]
    await turns(3)
    waits[0].cancel()
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.gather(*waits[1:]) == [0, 0, 0, 0]
    assert await process.wait() == 0


# ── pipes ─────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_process_that_does_not_read_ends_communicate(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_exec("true", stdin=PIPE)
    await process.communicate(bytes(PLENTY))
    assert process.returncode == 0


@on_loop
async def test_a_process_that_closes_its_input_fails_the_writer(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_shell(
        f"exec <&-; echo closed; exec sleep {FOREVER}", stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"closed\n"

    async def write_on(stdin: asyncio.StreamWriter) -> None:
        while True:
            stdin.write(bytes(PLENTY))
            await stdin.drain()

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await write_on(process.stdin)
    process.kill()
    await process.communicate()


@on_loop
async def test_output_may_go_to_devnull_to_one_pipe_or_to_a_file(each_loop: Loop) -> None:
    both = "echo out; echo err >&2"
    assert await output(both, stderr=subprocess.STDOUT) == (b"out\nerr\n", 0)
    assert await output(both, stderr=DEVNULL) == (b"out\n", 0)
    assert await output("cat", stdin=DEVNULL) == (b"", 0)
    with tempfile.TemporaryFile() as file:
        process = await asyncio.create_subprocess_shell(both, stdout=file, stderr=file)
        assert await process.wait() == 0
        file.seek(0)
        assert file.read() == b"out\nerr\n"
        file.seek(0)
        assert await output("cat", stdin=file) == (b"out\nerr\n", 0)
        file.seek(0)
        assert await output("cat", stdin=file.fileno()) == (b"out\nerr\n", 0)


@on_loop
async def test_processes_communicate_through_a_pipe_of_the_program(each_loop: Loop) -> None:
    source, sink = os.pipe()
    first = await asyncio.create_subprocess_exec("echo", "hello", stdout=sink)
    os.close(sink)
    second = await asyncio.create_subprocess_exec("cat", stdin=source, stdout=PIPE)
    os.close(source)
    assert (await second.communicate())[0] == b"hello\n"
    assert await first.wait() == 0


@on_loop
async def test_a_slow_reader_blocks_the_writing_process(each_loop: Loop) -> None:
    process = await asyncio.create_subprocess_exec(
        "head", "-c", str(PLENTY), "/dev/zero", stdout=PIPE, limit=1000
    )
    assert process.stdout is not None
    await turns(100)
    assert process.returncode is None
    size = 0
    while piece := await process.stdout.read(30_000):
        size += len(piece)
    assert size == PLENTY
    assert await process.wait() == 0


@on_loop
async def test_protocol_callbacks_are_called_in_order(each_loop: Loop) -> None:
    for _ in range(10):
        transport, recorder = await each_loop.subprocess_shell(
            lambda: Recorder(each_loop), "read go; echo hello", stderr=None
        )
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(b"\n")
        assert await recorder.lost is None
        assert recorder.data == b"hello\n"
        assert recorder.calls[:2] == ["connection_made", "data 1"]
        assert sorted(recorder.calls[2:5]) == ["lost 0", "lost 1", "process_exited"]
        assert recorder.calls[5:] == ["connection_lost"]
        assert transport.get_returncode() == 0
        transport.close()


@on_loop
async def test_a_transport_exposes_its_process(each_loop: Loop) -> None:
    transport, recorder = await each_loop.subprocess_exec(lambda: Recorder(each_loop), "cat")
    assert isinstance(transport, asyncio.SubprocessTransport)
    assert transport.get_pid() in children()
    assert transport.get_returncode() is None
    popen = transport.get_extra_info("subprocess")
    assert isinstance(popen, subprocess.Popen)
    assert popen.pid == transport.get_pid()
    assert transport.get_protocol() is recorder
    stdin, stdout = (transport.get_pipe_transport(fd) for fd in (0, 1))
    assert isinstance(stdin, asyncio.WriteTransport)
    assert isinstance(stdout, asyncio.ReadTransport)
    assert transport.get_pipe_transport(7) is None
    assert "running" in repr(transport)
    stdin.write(b"ping")
    await until(lambda: recorder.data == b"ping")
    stdin.close()
    await recorder.lost
    assert transport.get_returncode() == popen.returncode == 0
    transport.close()


# ── starting ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_options_of_popen_take_effect(each_loop: Loop, tmp_path: Path) -> None:
    assert await output("pwd -P", cwd=tmp_path) == (os.fsencode(tmp_path) + b"\n", 0)
    assert await output("echo $NAME", env={"NAME": "value"}) == (b"value\n", 0)
    ours = b"%d\n" % os.getpgid(0)
    grouped = "ps -o pgid= -p $$ | tr -d ' '"
    if (await output(grouped))[0] == ours:
        assert (await output(grouped, start_new_session=True))[0] != ours
        assert (await output(grouped, process_group=0))[0] != ours
    assert await output("umask", umask=0o077) == (b"0077\n", 0)


@on_loop
async def test_descriptors_are_passed_only_on_request(each_loop: Loop) -> None:
    source, sink = os.pipe()
    command = f"echo through >/dev/fd/{sink}"
    written, code = await output(f"({command}) 2>/dev/null")
    assert code != 0
    written, code = await output(command, pass_fds=(sink,))
    assert (written, code) == (b"", 0)
    assert os.read(source, 100) == b"through\n"
    os.close(source)
    os.close(sink)


@on_loop
async def test_preexec_fn_runs_before_the_program(each_loop: Loop) -> None:
    # preexec_fn makes Popen fork, and the parent has the loop's ring.
    for _ in range(3):
        assert await output("umask", preexec_fn=lambda: os.umask(0o027)) == (b"0027\n", 0)
    with pytest.raises(subprocess.SubprocessError, match="preexec_fn"):
        await output("true", preexec_fn=lambda: 1 // 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user")
@on_loop
async def test_a_process_runs_as_another_user(each_loop: Loop) -> None:
    assert await output("id -u; id -g", user=65534, group=65533) == (b"65534\n65533\n", 0)


@pytest.mark.parametrize(
    ("option", "value", "wording"),
    [
        ("universal_newlines", True, "universal_newlines must be False"),
        ("bufsize", 4096, "bufsize must be 0"),
        ("text", True, "text must be False"),
        ("encoding", "utf-8", "encoding must be None"),
        ("errors", "strict", "errors must be None"),
    ],
)
@on_loop
async def test_options_that_asyncio_refuses_are_refused(
    each_loop: Loop, option: str, value: object, wording: str
) -> None:
    starts: list[Callable[..., Awaitable[object]]]
    starts = [each_loop.subprocess_exec, each_loop.subprocess_shell]
    for start in starts:
        with pytest.raises(ValueError, match=f"^{wording}$"):
            await start(lambda: Recorder(each_loop), "true", **{option: value})


@on_loop
async def test_exec_and_shell_check_their_arguments(each_loop: Loop) -> None:
    with pytest.raises(ValueError, match=r"^shell must be False$"):
        await asyncio.create_subprocess_exec("true", shell=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^shell must be True$"):
        await asyncio.create_subprocess_shell("true", shell=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^cmd must be a string$"):
        await asyncio.create_subprocess_shell(["true"])  # type: ignore[arg-type]


@on_loop
async def test_a_program_that_cannot_be_run_raises_oserror(each_loop: Loop, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(0o644)
    fds = open_fds()
    for program, refusal in ((tmp_path / "nothing", FileNotFoundError), (plain, PermissionError)):
        with pytest.raises(refusal):
            await asyncio.create_subprocess_exec(program, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        with pytest.raises(NotADirectoryError):
            await asyncio.create_subprocess_exec("true", cwd=plain)
    gc.collect()
    assert open_fds() == fds


@pytest.mark.parametrize("count", range(8))
@on_loop
async def test_a_cancelled_start_leaves_no_process(each_loop: Loop, count: int) -> None:
    before = children()
    task = asyncio.ensure_future(
        asyncio.create_subprocess_exec("sleep", FOREVER, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    )
    await turns(count)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        process = await task
        process.kill()
        await process.wait()
    assert children() == before


@pytest.mark.parametrize("count", range(6))
def test_cancelling_all_tasks_during_a_start_leaves_no_process(
    loop: uringloop.Loop, count: int
) -> None:
    # asyncio.run() does the same after Ctrl-C: the task that connects the pipes is cancelled, too,
    # with count 0 before its first step.
    before = children()
    start = loop.create_task(
        asyncio.create_subprocess_exec("sleep", FOREVER, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    )

    async def cancel_everything() -> None:
        await turns(count)
        assert children() != before
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if not start.cancelled():
            process = start.result()
            process.kill()
            await process.communicate()
        await until(lambda: loop._operations_in_flight == 0)

    loop.run_until_complete(cancel_everything())
    assert children() == before
