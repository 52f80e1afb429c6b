"""run_threads(): results, failures, cancellation, signals; a loop in each of several threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator

import pytest
from support.leaks import open_fds
from support.roles import PATIENCE, run_script, wait_until

import uringloop
from uringloop import run_threads

pytestmark = pytest.mark.filterwarnings("ignore:the threads of run_threads:RuntimeWarning")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Fail a test that leaves a thread, a descriptor or a signal handler behind."""
    gc.collect()
    before = open_fds(), threading.active_count(), signal.set_wakeup_fd(-1)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    gc.collect()
    assert (open_fds(), threading.active_count(), signal.set_wakeup_fd(-1)) == before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


class Meeting:
    """Lets the mains of several threads wait for each other."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        # The threads whose mains were cancelled in sleep().
        self.cancelled: list[str] = []

    def place(self) -> int:
        """Wait for the other threads; return a different number in each, from 0 on.

        This blocks the loop, so that a cancellation comes only where main awaits next.
        """
        return self._barrier.wait(PATIENCE)

    async def sleep(self) -> None:
        """Sleep until cancelled, and record that."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(threading.current_thread().name)
            raise


# ── results ──────────────────────────────────────────────────────────────────────────────────


def test_every_thread_runs_main_on_a_loop_of_its_own() -> None:
    meeting = Meeting(4)

    async def main() -> tuple[str, int, str]:
        meeting.place()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, uringloop.Loop)
        return threading.current_thread().name, id(loop), type(loop).__name__

    results = run_threads(main, 4)
    assert [name for name, _, _ in results] == [f"uringloop-{number}" for number in range(4)]
    assert len({loop for _, loop, _ in results}) == 4


def test_there_is_a_thread_for_each_processor() -> None:
    async def main() -> None:
        pass

    count = getattr(os, "process_cpu_count", lambda: len(os.sched_getaffinity(0)))()
    assert run_threads(main) == [None] * count


def test_main_may_be_any_callable_that_returns_a_coroutine() -> None:
    async def main(one: int, *, two: int) -> int:
        return one + two

    assert run_threads(functools.partial(main, 1, two=2), 2) == [3, 3]


def test_loop_factory_and_debug_are_those_of_the_runner() -> None:
    async def main() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        return isinstance(loop, uringloop.Loop), loop.get_debug()

    assert run_threads(main, 1, loop_factory=None, debug=True) == [(False, True)]
    assert run_threads(main, 1, debug=False) == [(True, False)]


def test_each_main_has_a_copy_of_the_context_of_the_caller() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    meeting = Meeting(2)

    async def main() -> list[str]:
        before = variable.get()
        variable.set(threading.current_thread().name)
        meeting.place()
        return [before, variable.get()]

    variable.set("caller")
    assert run_threads(main, 2) == [["caller", "uringloop-0"], ["caller", "uringloop-1"]]
    assert variable.get() == "caller"


def test_the_end_of_a_loop_is_that_of_asyncio_run() -> None:
    ended: list[str] = []

    async def numbers() -> object:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def task() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def main() -> None:
        kept.append(numbers())
        await anext(kept[0])  # type: ignore[call-overload]
        asyncio.create_task(task())
        await asyncio.to_thread(ended.append, "executor")

    kept: list[object] = []
    run_threads(main, 1)
    assert ended == ["executor", "task", "generator"]


def test_a_thread_beside_a_running_loop_may_call_it() -> None:
    meeting = Meeting(2)

    async def main() -> int:
        return meeting.place()

    async def beside() -> list[int]:
        return await asyncio.to_thread(run_threads, main, 2)

    assert sorted(uringloop.run(beside())) == [0, 1]


# ── arguments ────────────────────────────────────────────────────────────────────────────────


async def nothing() -> None:
    pass


@pytest.mark.parametrize("threads", [0, -1])
def test_less_than_one_thread_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads must be at least 1, not {threads}"):
        run_threads(nothing, threads)


def test_arguments_of_wrong_types_are_refused() -> None:
    coroutine = nothing()
    with pytest.raises(TypeError, match="coroutines cannot be used with run_threads"):
        run_threads(coroutine)  # type: ignore[arg-type]
    coroutine.close()
    with pytest.raises(TypeError, match="a callable object was expected by run_threads"):
        run_threads(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'float' object"):
        run_threads(nothing, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup) as caught:
        run_threads(lambda: 5, 1)  # type: ignore[arg-type, return-value]
    assert [type(exc) for exc in caught.value.exceptions] == [TypeError]


def test_a_running_loop_in_the_calling_thread_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            run_threads(nothing, 1)

    uringloop.run(main())


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def test_the_first_failure_cancels_the_other_mains() -> None:
    meeting = Meeting(3)

    async def main() -> None:
        if meeting.place() == 0:
            raise LookupError("lost")
        await meeting.sleep()

    with pytest.raises(ExceptionGroup, match="unhandled errors in run_threads") as caught:
        run_threads(main, 3)
    assert [repr(exc) for exc in caught.value.exceptions] == ["LookupError('lost')"]
    assert len(meeting.cancelled) == 2


def test_all_failures_are_in_the_group() -> None:
    meeting = Meeting(3)

    async def main() -> None:
        place = meeting.place()
        try:
            if place == 0:
                raise LookupError
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError(place) from None

    with pytest.raises(ExceptionGroup) as caught:
        run_threads(main, 3)
    assert sorted(type(exc).__name__ for exc in caught.value.exceptions) == [
        "LookupError",
        "OSError",
        "OSError",
    ]


def test_a_main_that_cancels_itself_is_a_failure() -> None:
    async def main() -> None:
        raise asyncio.CancelledError("by itself")

    with pytest.raises(BaseExceptionGroup) as caught:
        run_threads(main, 1)
    assert [repr(exc) for exc in caught.value.exceptions] == ["CancelledError('by itself')"]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that waits until the supervisor has joined a thread, by its name."""
    names: set[str] = set()
    join = threading.Thread.join

    def join_and_note(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        names.add(thread.name)

    monkeypatch.setattr(threading.Thread, "join", join_and_note)
    return lambda name: wait_until(lambda: name in names)


def test_a_main_may_take_its_time_to_end_and_is_cancelled_once(
    joined: Callable[[str], None],
) -> None:
    meeting = Meeting(3)
    ended: list[str] = []

    async def main() -> None:
        meeting.place()
        name = threading.current_thread().name
        if name == "uringloop-0":
            raise LookupError
        try:
            await asyncio.Event().wait()
        finally:
            if name == "uringloop-1":
                raise OSError
            await asyncio.to_thread(joined, "uringloop-1")
            # A second cancellation would come by now.
            await asyncio.to_thread(gc.collect)
            ended.append(name)

    with pytest.raises(ExceptionGroup):
        run_threads(main, 3)
    assert ended == ["uringloop-2"]


def test_a_main_is_cancelled_that_has_not_begun_when_another_fails(
    joined: Callable[[str], None],
) -> None:
    def factory() -> uringloop.Loop:
        if threading.current_thread().name == "uringloop-1":
            joined("uringloop-0")
        return uringloop.new_event_loop()

    async def main() -> None:
        if threading.current_thread().name == "uringloop-0":
            raise LookupError
        await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

    with pytest.raises(ExceptionGroup) as caught:
        run_threads(main, 2, loop_factory=factory)
    assert [type(exc) for exc in caught.value.exceptions] == [LookupError]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_leaving_exceptions_are_raised_themselves(
    leaving: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    meeting = Meeting(3)

    async def main() -> None:
        place = meeting.place()
        if place == 0:
            raise leaving(5)
        if place == 1:
            try:
                await meeting.sleep()
            finally:
                raise LookupError("also")
        await meeting.sleep()

    with caplog.at_level(logging.ERROR, "asyncio"), pytest.raises(leaving) as caught:
        run_threads(main, 3)
    assert caught.value.args == (5,)
    assert len(meeting.cancelled) == 2
    (record,) = [one for one in caplog.records if one.name == "asyncio"]
    assert "uringloop-" in record.getMessage()
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == "LookupError('also')"


def test_a_loop_that_can_not_be_made_is_a_failure() -> None:
    made: list[uringloop.Loop] = []

    def factory() -> uringloop.Loop:
        if threading.current_thread().name == "uringloop-1":
            raise OSError("no ring")
        made.append(uringloop.new_event_loop())
        return made[-1]

    with pytest.raises(ExceptionGroup) as caught:
        run_threads(asyncio.Event().wait, 2, loop_factory=factory)
    assert [repr(exc) for exc in caught.value.exceptions] == ["OSError('no ring')"]
    assert all(one.is_closed() for one in made)


def test_a_thread_that_can_not_be_started_cancels_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meeting = Meeting(3)
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "uringloop-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_threads(meeting.sleep, 3)
    assert {"uringloop-0", "uringloop-1"} >= set(meeting.cancelled)


# ── the GIL ──────────────────────────────────────────────────────────────────────────────────


def test_a_process_is_warned_of_the_gil_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uringloop.threads._warned", False)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_threads(nothing, 1)
        assert caught == []
        run_threads(nothing, 2)
        run_threads(nothing, 2)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    assert "take turns because of the GIL" in str(warning.message)


def test_without_the_gil_there_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uringloop.threads._warned", False)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_threads(nothing, 2)


# ── signals in this process ──────────────────────────────────────────────────────────────────


def when_all_sleep(meeting: Meeting, act: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Return a main that sleeps; one of them calls *act* when all do."""

    async def main() -> None:
        if meeting.place() == 0:
            act()
        await meeting.sleep()

    return main


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_cancels_sleeping_mains_and_raises_keyboard_interrupt() -> None:
    meeting = Meeting(3)
    with pytest.raises(KeyboardInterrupt):
        run_threads(when_all_sleep(meeting, interrupt), 3)  # type: ignore[arg-type]
    assert len(meeting.cancelled) == 3


def test_a_signal_that_another_thread_receives_wakes_the_supervisor() -> None:
    meeting = Meeting(2)

    def act() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_threads(when_all_sleep(meeting, act), 2)  # type: ignore[arg-type]
    assert len(meeting.cancelled) == 2


def test_a_signal_after_the_last_thread_has_ended_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = threading.Thread.join

    def join_and_interrupt(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "join", join_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_threads(nothing, 1)


def test_a_failure_while_ctrl_c_ends_the_threads_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        finally:
            raise LookupError("at the end")

    with caplog.at_level(logging.ERROR, "asyncio"), pytest.raises(KeyboardInterrupt):
        run_threads(main, 1)
    assert "LookupError: at the end" in caplog.text


def test_handlers_of_the_program_are_left_alone() -> None:
    meeting = Meeting(2)
    got: list[int] = []
    both = threading.Event()

    def note(number: int, frame: object) -> None:
        got.append(number)
        if len(got) == 2:
            both.set()

    async def main() -> None:
        if meeting.place() == 0:
            interrupt()
            os.kill(os.getpid(), signal.SIGTERM)
        assert both.wait(PATIENCE)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in numbers]
    try:
        assert run_threads(main, 2) == [None, None]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert sorted(got) == [signal.SIGINT, signal.SIGTERM]


def test_an_exception_of_a_handler_of_the_program_cancels_the_mains() -> None:
    meeting = Meeting(2)
    errors = [LookupError("first"), LookupError("second")]
    raised: list[Exception] = []

    def fail(number: int, frame: object) -> None:
        raised.append(errors[len(raised)])
        raise raised[-1]

    async def main() -> None:
        if meeting.place() == 0:
            interrupt()
        try:
            await meeting.sleep()
        finally:
            if meeting.place() == 0:
                interrupt()
            while len(raised) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)

    before = signal.signal(signal.SIGINT, fail)
    try:
        with pytest.raises(LookupError, match="first"):
            run_threads(main, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(meeting.cancelled) == 2


def test_other_signals_reach_the_wakeup_descriptor_of_the_program() -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(writer)

    async def main() -> bytes:
        os.kill(os.getpid(), signal.SIGUSR1)
        return await asyncio.to_thread(os.read, reader, 10)

    try:
        assert run_threads(main, 1) == [bytes([signal.SIGUSR1])]
    finally:
        assert signal.set_wakeup_fd(-1) == writer
        signal.signal(signal.SIGUSR1, before)
        os.close(reader)
        os.close(writer)


# ── signals to a program ─────────────────────────────────────────────────────────────────────

# Says when all mains run; each waits until it is cancelled.
PROGRAM = """
import asyncio, os, signal, sys, threading, time, warnings
import uringloop
warnings.simplefilter("ignore")
begun = threading.Barrier(3)

async def work():
    await asyncio.Event().wait()

async def main():
    if begun.wait() == 0:
        print("ready", flush=True)
    try:
        await work()
    finally:
        os.write(1, b"ended\\n")
"""
RUN = """
try:
    uringloop.run_threads(main, 3)
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
"""
BUSY = """
async def work():
    while True:
        await asyncio.sleep(0)
        sum(range(10_000))
"""


class Program:
    """A program whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.out = process.stdout
        self.err = process.stderr

    def lines(self, count: int = 1) -> list[str]:
        return [self.out.readline() for _ in range(count)]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[str, str, int]:
        """Return the rest of the output, the errors and the status."""
        return self.out.read(), self.err.read(), self.process.wait(PATIENCE)


@contextlib.contextmanager
def running(*parts: str) -> Iterator[Program]:
    """Run a program, and yield when its threads run."""
    with subprocess.Popen(
        [sys.executable, "-c", "".join(map(textwrap.dedent, parts))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Also ends a read that waits for output in vain.
        watchdog = threading.Timer(3 * PATIENCE, process.kill)
        watchdog.start()
        try:
            program = Program(process)
            assert program.lines() == ["ready\n"]
            yield program
        finally:
            process.kill()
            watchdog.cancel()
            watchdog.join()


@pytest.mark.parametrize("work", ["", BUSY], ids=["asleep", "busy"])
def test_ctrl_c_ends_a_program(work: str) -> None:
    with running(PROGRAM, work, RUN) as program:
        program.send(signal.SIGINT)
        assert program.end() == ("ended\n" * 3 + "interrupted 1\n", "", 0)


@pytest.mark.parametrize("work", ["", BUSY], ids=["asleep", "busy"])
def test_sigterm_ends_a_program_after_its_threads(work: str) -> None:
    with running(PROGRAM, work, RUN) as program:
        program.send(signal.SIGTERM)
        assert program.end() == ("ended\n" * 3, "", -signal.SIGTERM)


def test_a_failure_while_sigterm_ends_the_threads_is_logged() -> None:
    failing = """
    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("at the end")
    """
    with running(PROGRAM, failing, RUN) as program:
        program.send(signal.SIGTERM)
        _, errors, status = program.end()
    assert errors.count("LookupError: at the end") == 3
    assert status == -signal.SIGTERM


# Mains that ignore their first cancellation.
STUBBORN = """
ignored = threading.Barrier(3)

async def work():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if ignored.wait() == 0:
            print("ignored", flush=True)
        {how}
"""


def test_the_second_ctrl_c_ends_mains_that_ignore_the_first() -> None:
    stubborn = STUBBORN.format(how="await asyncio.Event().wait()")
    with running(PROGRAM, stubborn, RUN) as program:
        program.send(signal.SIGINT)
        assert program.lines() == ["ignored\n"]
        program.send(signal.SIGINT)
        assert program.end() == ("ended\n" * 3 + "interrupted 1\n", "", 0)


def test_the_third_ctrl_c_ends_a_process_whose_threads_are_blocked() -> None:
    stubborn = STUBBORN.format(how="threading.Event().wait()")
    with running(PROGRAM, stubborn, RUN) as program:
        program.send(signal.SIGINT)
        assert program.lines() == ["ignored\n"]
        # Two are one if the second comes while the first is pending.
        while program.process.poll() is None:
            program.send(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(0.01)
        assert program.end() == ("", "", -signal.SIGINT)


def test_ctrl_c_while_threads_start_ends_all() -> None:
    script = """
    import asyncio, os, signal, threading, warnings, uringloop
    warnings.simplefilter("ignore")

    def factory():
        os.kill(os.getpid(), signal.SIGINT)
        return uringloop.new_event_loop()

    async def main():
        await asyncio.Event().wait()

    try:
        uringloop.run_threads(main, 1, loop_factory=factory)
    except KeyboardInterrupt:
        print("interrupted", threading.active_count())
    """
    done = run_script(script)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted 1\n", "", 0)


def test_the_first_process_of_a_container_exits_after_sigterm() -> None:
    # Such a process survives signals without a handler; so does one that has blocked the signal.
    script = """
    import asyncio, os, signal, uringloop

    async def main():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    signal.raise_signal = lambda number: None
    uringloop.run_threads(main, 1)
    """
    done = run_script(script)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 128 + signal.SIGTERM)
