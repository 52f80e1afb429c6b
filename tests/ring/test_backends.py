"""The ring that a loop gets: by choice, and by what the kernel allows.

A child process is refused io_uring by a seccomp filter (seccomp.py), as containers do it, or by the
sysctl kernel.io_uring_disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import TypedDict

import pytest
from support import machine, seccomp
from support.debug_reports import without_slow_calls
from support.leaks import open_fds
from support.loops import each_ring, on_io_uring
from support.roles import in_thread

import uringloop
from uringloop._ring import features
from uringloop._ring.backends import Backend, Choice

FEATURES = tuple(features.FEATURES)

# Errors of kernels, sandboxes and containers, with words of the cause and of the remedy.
ALLOWS = "allow io_uring_setup"
PROFILE = ("security policy", ALLOWS)
if machine.SYSCTL.exists() and machine.SYSCTL.read_text() != "0\n" and os.geteuid() != 0:
    # The sysctl is the more likely cause then.
    PROFILE = ("switched off", "sysctl")
REFUSALS = {
    "EPERM": PROFILE,
    "ENOSYS": ("no io_uring", ALLOWS),
    # This kernel is new enough.
    "EINVAL": ("sandbox", ALLOWS),
    "EOPNOTSUPP": ("sandbox", ALLOWS),
    "EACCES": PROFILE,
    "ENOMEM": ("not enough memory", "larger limit"),
    "enter-EPERM": PROFILE,
    "enter-ENOSYS": ("no io_uring", ALLOWS),
}
each_refusal = pytest.mark.parametrize("refusal", list(REFUSALS))


def ring_of_new_loop(backend: Choice | None = None) -> tuple[str, str]:
    """Make a loop and run it; return which ring it got and why."""
    with contextlib.closing(uringloop.Loop(backend=backend)) as loop:
        loop.run_until_complete(asyncio.sleep(0))
        return loop.backend, loop.backend_reason


# ── the choice ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without uringloop's variables, for the test to change."""
    monkeypatch.delenv("URINGLOOP_BACKEND", raising=False)
    monkeypatch.delenv("URINGLOOP_DISABLE", raising=False)
    return monkeypatch


@each_ring
def test_argument_chooses_the_ring(clean_environment: pytest.MonkeyPatch, backend: Choice) -> None:
    assert ring_of_new_loop(backend) == (backend, "asked for by backend=")
    clean_environment.setenv("URINGLOOP_BACKEND", "nonsense")
    assert ring_of_new_loop(backend) == (backend, "asked for by backend=")


@each_ring
def test_environment_chooses_the_ring(clean_environment: pytest.MonkeyPatch, backend: str) -> None:
    clean_environment.setenv("URINGLOOP_BACKEND", backend)
    assert ring_of_new_loop() == (backend, "asked for by URINGLOOP_BACKEND")
    assert ring_of_new_loop(None) == ring_of_new_loop()


@on_io_uring
@pytest.mark.parametrize("variable", [None, "", "auto"])
@pytest.mark.parametrize("argument", [None, "auto"])
def test_kernels_ring_is_the_default(
    clean_environment: pytest.MonkeyPatch, variable: str | None, argument: Choice | None
) -> None:
    if variable is not None:
        clean_environment.setenv("URINGLOOP_BACKEND", variable)
    assert ring_of_new_loop(argument) == ("io_uring", "the kernel has it")


@pytest.mark.parametrize(
    ("variable", "argument", "backend"),
    [
        ("io_uring", "soft", "soft"),
        pytest.param("soft", "io_uring", "io_uring", marks=on_io_uring),
        pytest.param("soft", "auto", "io_uring", marks=on_io_uring),
    ],
)
def test_argument_wins_over_the_environment(
    clean_environment: pytest.MonkeyPatch, variable: str, argument: Choice, backend: Backend
) -> None:
    clean_environment.setenv("URINGLOOP_BACKEND", variable)
    assert ring_of_new_loop(argument)[0] == backend


def test_run_and_runner_use_the_ring_of_the_environment(
    clean_environment: pytest.MonkeyPatch,
) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, uringloop.Loop)
        return loop.backend

    clean_environment.setenv("URINGLOOP_BACKEND", "soft")
    assert uringloop.run(main()) == "soft"
    with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
        assert runner.run(main()) == "soft"


@pytest.mark.parametrize("name", ["nonsense", "SOFT", "io-uring", " soft", ""])
def test_unknown_ring_is_refused(name: str) -> None:
    fds = open_fds()
    with pytest.raises(ValueError, match=r"is none of auto, io_uring, soft$") as caught:
        uringloop.Loop(backend=name)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"backend={name!r} ")
    assert open_fds() == fds


@pytest.mark.parametrize("name", ["nonsense", "SOFT"])
def test_unknown_ring_in_the_environment_is_refused(
    clean_environment: pytest.MonkeyPatch, name: str
) -> None:
    clean_environment.setenv("URINGLOOP_BACKEND", name)
    with pytest.raises(ValueError, match=r"is none of auto, io_uring, soft$") as caught:
        uringloop.Loop()
    assert str(caught.value).startswith(f"URINGLOOP_BACKEND={name!r} ")


@on_io_uring
def test_loops_of_both_kinds_talk_to_each_other_in_one_process() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()
        await writer.wait_closed()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def main(other: uringloop.Loop) -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(other.run_until_complete, ask(port))

    pairs: tuple[tuple[Backend, Backend], ...] = (("soft", "io_uring"), ("io_uring", "soft"))
    for served_by, asked_by in pairs:
        with contextlib.closing(uringloop.Loop(backend=asked_by)) as other:
            factory = functools.partial(uringloop.Loop, backend=served_by)
            with asyncio.Runner(loop_factory=factory) as runner:
                assert runner.run(main(other)) == b"hello"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


class Outcome(TypedDict):
    """The output of a child under a filter."""

    loops: list[list[str]]
    error: tuple[str, int, str]


OUTCOME = """
import asyncio, json
import uringloop

loops = []
for options in ({}, {"backend": "auto"}, {}, {"busy_poll_us": 1}, {"sqpoll": 1}):
    loop = uringloop.Loop(**options)
    loop.run_until_complete(asyncio.sleep(0.001))
    loops.append((loop.backend, loop.backend_reason))
    loop.close()
try:
    uringloop.Loop(backend="io_uring")
except OSError as exc:
    error = (type(exc).__name__, exc.errno, str(exc))
print(json.dumps({"loops": loops, "error": error}))
"""


@functools.cache
def outcome(refusal: str) -> Outcome:
    """Return the outcome of a process in which *refusal* is in force."""
    (line,) = seccomp.lines_of(OUTCOME, "-Werror", "-Xdev", under=refusal)
    parsed: Outcome = json.loads(line)
    return parsed


def number_of(refusal: str) -> int:
    number = getattr(errno, refusal.rpartition("-")[2])
    assert isinstance(number, int)
    return number


@each_refusal
def test_software_ring_replaces_a_refused_ring(refusal: str) -> None:
    loops = outcome(refusal)["loops"]
    backend, reason = loops[0]
    assert backend == "soft"
    assert reason.startswith(os.strerror(number_of(refusal)))
    assert all(words in reason for words in REFUSALS[refusal])
    assert loops == [loops[0]] * 5


@each_refusal
def test_forced_io_uring_fails_with_cause_and_remedy(refusal: str) -> None:
    kind, number, message = outcome(refusal)["error"]
    expected = OSError(number_of(refusal), "")
    assert (kind, number) == (type(expected).__name__, expected.errno)
    assert message.startswith(f"[Errno {number}] {os.strerror(number)}")
    assert all(words in message for words in REFUSALS[refusal])
    # One sentence, like other messages of exceptions.
    assert "\n" not in message
    assert ". " not in message
    assert not message.endswith(".")


def test_software_ring_replaces_a_ring_that_cannot_be_enabled() -> None:
    # A profile without io_uring_register: a ring can be made there, but not enabled.
    assert [backend for backend, _ in outcome("register-EPERM")["loops"]] == ["soft"] * 5


@functools.cache
def stock_output() -> list[str]:
    """Return the output of the program on stock asyncio."""
    return seccomp.lines_of(seccomp.PROGRAM)


@each_refusal
def test_program_for_asyncio_runs_unchanged_and_silently(refusal: str) -> None:
    # The program configures no logging: its own lines are the whole output.
    install = "uringloop.install()" if sys.version_info < (3, 16) else "asyncio.run = uringloop.run"
    on_ours = f"import asyncio, uringloop\n{install}\n{seccomp.PROGRAM}"
    assert seccomp.lines_of(on_ours, under=refusal) == stock_output()
    assert len(stock_output()) == 6


def test_kernel_is_not_asked_again_after_a_refusal() -> None:
    script = """
        import asyncio, uringloop
        from support import seccomp

        seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | 1)
        uringloop.Loop().close()
        # Filters stack, and the most severe action wins.
        seccomp.refuse(seccomp.SECCOMP_RET_KILL_PROCESS)
        for _ in range(3):
            loop = uringloop.Loop()
            loop.run_until_complete(asyncio.sleep(0))
            print(loop.backend)
            loop.close()
    """
    assert seccomp.lines_of(script) == ["soft"] * 3


@on_io_uring
def test_refusal_after_a_first_loop_gives_the_software_ring() -> None:
    script = """
        import asyncio, uringloop
        from support import seccomp

        first = uringloop.Loop()
        first.run_until_complete(asyncio.sleep(0))
        seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | 1, (seccomp.SETUP,))
        second = uringloop.Loop()
        for loop in (first, second):
            loop.run_until_complete(asyncio.sleep(0.001))
            print(loop.backend)
            loop.close()
    """
    assert seccomp.lines_of(script) == ["io_uring", "soft"]


@on_io_uring
def test_enomem_for_a_second_ring_concerns_that_loop_only() -> None:
    script = """
        import asyncio, errno, uringloop
        from support import seccomp
        from uringloop._ring import backends
        first = uringloop.Loop()
        seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | errno.ENOMEM, (seccomp.SETUP,))
        for options in ({}, {"sqpoll": 1}):
            loop = uringloop.Loop(**options)
            loop.run_until_complete(asyncio.sleep(0.001))
            print(loop.backend, "larger limit" in loop.backend_reason)
            loop.close()
        try:
            uringloop.Loop(backend="io_uring")
        except OSError as exc:
            print(exc.errno == errno.ENOMEM, "larger limit" in str(exc))
        print(backends.known_refusal())
        first.run_until_complete(asyncio.sleep(0.001))
        print(first.backend)
        first.close()
    """
    assert seccomp.lines_of(script) == ["soft True", "soft True", "True True", "None", "io_uring"]


@pytest.mark.parametrize(
    "backend", [*(pytest.param(b, marks=on_io_uring) for b in ("io_uring", "auto")), "soft"]
)
def test_lack_of_descriptors_stays_an_error(backend: str) -> None:
    script = """
        import contextlib, os, resource, sys
        import uringloop

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        free = os.dup(0)
        os.close(free)
        for spare in range(8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, most))
            try:
                with contextlib.closing(uringloop.Loop(backend=sys.argv[1])) as loop:
                    print(loop.backend)
            except OSError as exc:
                print(exc.errno, "`ulimit -n` gives more" in str(exc))
        print(os.dup(0) == free)
    """
    ended = seccomp.run("-Werror", "-c", textwrap.dedent(script), backend)
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, nothing_left = ended.stdout.splitlines()
    assert nothing_left == "True"
    errors = lines.count(f"{errno.EMFILE} True")
    assert errors > 0
    kind = "soft" if backend == "soft" else "io_uring"
    assert lines == [f"{errno.EMFILE} True"] * errors + [kind] * (8 - errors)


# ── what works on each ring ──────────────────────────────────────────────────────────────────


def test_software_ring_makes_no_io_uring_call() -> None:
    assert (
        seccomp.lines_of(seccomp.ROUNDS, "-Xdev", under="KILL", URINGLOOP_BACKEND="soft")
        == seccomp.ROUNDS_OUTPUT
    )
    # The filter is in force: it kills a process that uses io_uring.
    assert seccomp.run("-c", seccomp.ROUNDS, under="KILL").returncode == -signal.SIGSYS


# ── the sysctl kernel.io_uring_disabled ──────────────────────────────────────────────────────


needs_switch = pytest.mark.skipif(
    not machine.may_switch(), reason=f"{machine.SYSCTL} (6.6) is not there, or not ours to change"
)


def while_switched(value: str, script: str) -> list[str]:
    """Run *script* in a child that has imported uringloop, while the sysctl has *value*."""
    prelude = "import asyncio, os, uringloop\nprint('ready', flush=True)\ninput()\n"
    command = [sys.executable, "-Werror", "-Xdev", "-c", prelude + textwrap.dedent(script)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=seccomp.environment(), text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            with machine.switched(value):
                out, err = child.communicate("go\n", timeout=10)
        finally:
            child.kill()
    assert (child.returncode, without_slow_calls(err)) == (0, "")
    return out.splitlines()


@needs_switch
def test_io_uring_disabled_for_all_gives_the_software_ring() -> None:
    script = """
        loop = uringloop.Loop()
        loop.run_until_complete(asyncio.sleep(0))
        print(loop.backend, loop.backend_reason, sep="\\n")
        loop.close()
    """
    backend, reason = while_switched("2", script)
    assert backend == "soft"
    assert "io_uring is switched off (kernel.io_uring_disabled = 2)" in reason
    assert "sysctl kernel.io_uring_disabled=0 allows it" in reason


@needs_switch
@on_io_uring
def test_loop_made_after_dropping_privileges_gets_the_software_ring() -> None:
    script = """
        loops = [uringloop.Loop()]
        # The user nobody has no CAP_SYS_ADMIN.
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        loops.append(uringloop.Loop())
        for loop in loops:
            loop.run_until_complete(asyncio.sleep(0))
            print(loop.backend)
            loop.close()
        print(loop.backend_reason)
    """
    first, second, reason = while_switched("1", script)
    assert (first, second) == ("io_uring", "soft")
    assert "kernel.io_uring_disabled = 1" in reason


@needs_switch
def test_forced_io_uring_fails_with_the_sysctl_as_the_cause() -> None:
    script = """
        os.setgid(65534)
        os.setuid(65534)
        try:
            uringloop.Loop(backend="io_uring")
        except PermissionError as exc:
            print(exc)
    """
    (message,) = while_switched("1", script)
    assert "kernel.io_uring_disabled = 1" in message
    assert "sysctl kernel.io_uring_disabled=0 allows it" in message


# ── processes and threads of the software ring ───────────────────────────────────────────────


def test_forked_child_must_make_a_software_loop_of_its_own() -> None:
    script = """
        import asyncio, os, sys
        import uringloop

        async def open_pair():
            async def serve(reader, writer):
                writer.write(await reader.readexactly(4))
                kept.append(writer)
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            return server, *await asyncio.open_connection(*server.sockets[0].getsockname())

        async def echo(reader, writer):
            writer.write(b"ping")
            return await reader.readexactly(4)

        async def with_threads():
            # A forked child has none of the parent's threads for files.
            async with uringloop.open(sys.executable, "rb") as file:
                return len(await file.pread(4, 1))

        async def whole():
            server, *pair = await open_pair()
            return [await echo(*pair), await with_threads()]

        kept = []
        loop = uringloop.Loop(backend="soft")
        server, *pair = loop.run_until_complete(open_pair())
        print(loop.run_until_complete(with_threads()), flush=True)
        # Keep the tasks alive in the child: asyncio would report pending tasks of the parent.
        pending = asyncio.all_tasks(loop)
        pid = os.fork()
        if pid == 0:
            try:
                loop.run_forever()
            except RuntimeError as exc:
                print(exc)
            loop.close()
            own = uringloop.Loop(backend="soft")
            print(own.run_until_complete(whole()), flush=True)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(loop.run_until_complete(echo(*pair)), loop.run_until_complete(with_threads()))
        os._exit(0)
    """
    # Python 3.12 and later warn about a fork in a process with threads.
    lines = seccomp.lines_of(script, "-Wignore:This process:DeprecationWarning")
    refusal = "the event loop was inherited through a fork; a child process must create its own"
    assert lines == ["4", refusal, "[b'ping', 4]", "7", "b'ping' 4"]


def test_software_loop_keeps_its_connections_from_thread_to_thread() -> None:
    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pair = await asyncio.open_connection(*server.sockets[0].getsockname())
        pair[1].write(b"0")
        await pair[0].readexactly(1)
        # No wait_closed(): since 3.12 it also waits for the end of the connection.
        server.close()
        return pair

    async def echo(size: int, before: bytes = b"") -> bool:
        data = os.urandom(size)
        writer.write(data)
        return await reader.readexactly(len(before) + size) == before + data

    async def end() -> bytes:
        writer.write_eof()
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        await served[0].wait_closed()
        return rest

    fds = open_fds()
    with contextlib.closing(uringloop.Loop(backend="soft")) as loop:
        reader, writer = in_thread(lambda: loop.run_until_complete(connect()))
        assert loop.run_until_complete(echo(500_000))
        for size in (1, 1000, 500_000):
            # Data written while no thread runs the loop is sent in the next run.
            served[0].write(b"unasked")
            turn = functools.partial(loop.run_until_complete, echo(size, b"unasked"))
            assert in_thread(turn)
        assert in_thread(lambda: loop.run_until_complete(end())) == b""
    assert open_fds() == fds
