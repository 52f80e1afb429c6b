"""`Loop(stall_ms=)`: stalls are logged while they last, and nothing else is logged."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from support.roles import PATIENCE, run_script, until, wait_until

import uringloop
from uringloop._cpython import gil
from uringloop._loop import options
from uringloop._turn.stats import turn_of, watch_stalls
from uringloop.monitor import stalls

THREAD = "uringloop-stalls"


class MessageLog(logging.Handler):
    """Collects log messages, and lets a thread wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.lines.append(record.getMessage())
            self.changed.notify_all()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Block until *count* messages contain *text*."""
        with self.changed:
            found = self.changed.wait_for(lambda: len(self.containing(text)) >= count, PATIENCE)
        assert found, (text, self.lines)

    def containing(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


@pytest.fixture
def log() -> Iterator[MessageLog]:
    """The messages of the logger during the test; the thread has ended after it."""
    handler = MessageLog()
    logger = logging.getLogger("uringloop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    wait_until(lambda: THREAD not in {thread.name for thread in threading.enumerate()})


def run(loop: uringloop.Loop, *blocking: object) -> None:
    """Run each of the coroutine functions to its end, and close the loop."""
    with contextlib.closing(loop):
        for function in blocking:
            assert callable(function)
            loop.run_until_complete(function())


# ── messages ─────────────────────────────────────────────────────────────────────────────────


def test_stall_is_logged_once_while_it_lasts_and_once_when_it_is_over(log: MessageLog) -> None:
    def block() -> None:
        log.wait_for("has been blocked")
        # The thread checks again and logs nothing.
        threading.Event().wait(0.06)

    async def culprit() -> None:
        block()
        await asyncio.get_running_loop().run_in_executor(None, log.wait_for, "in all")

    loop = uringloop.Loop(stall_ms=20)
    assert loop.stats()["stalls"] == 0
    run(loop, culprit)
    first, last = log.lines
    head, *stack = first.split("\n")
    loop_named = f"the loop of MainThread in process {os.getpid()}"
    assert head.startswith(f"{loop_named} has been blocked for 0.")
    assert (
        "(test_stall_is_logged_once_while_it_lasts_and_once_when_it_is_over.<locals>.culprit)"
        in head
    )
    # The frames of the loop and of its callers are left out; the innermost frame is last.
    places = [line for line in stack if line.startswith("  File")]
    assert places[0].endswith(", in culprit")
    assert f'"{__file__}"' in places[0]
    assert places[1].endswith(", in block")
    assert "    block()" in stack
    assert last.startswith(f"{loop_named} was blocked for 0.")
    assert loop.stats()["stalls"] == 1


def test_stall_in_compiled_code_is_logged(log: MessageLog) -> None:
    lock = threading.Lock()
    lock.acquire()

    def release() -> None:
        log.wait_for("has been blocked")
        lock.release()

    other = threading.Thread(target=release)
    other.start()

    async def culprit() -> None:
        asyncio.get_running_loop().call_soon(lock.acquire)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(uringloop.Loop(stall_ms=20), culprit)
    other.join()
    assert "no Python code" in log.containing("has been blocked")[0]


def test_message_names_the_thread_of_the_loop(log: MessageLog) -> None:
    both = threading.Barrier(2)

    def work() -> None:
        async def culprit() -> None:
            both.wait(PATIENCE)
            log.wait_for("has been blocked", 2)

        run(uringloop.Loop(stall_ms=20), culprit)

    threads = [threading.Thread(target=work, name=f"worker {number}") for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heads = {line.partition(" in process")[0] for line in log.containing("has been blocked")}
    assert heads == {"the loop of worker 1", "the loop of worker 2"}


@pytest.mark.slow
def test_code_that_keeps_the_gil_is_logged_afterwards(log: MessageLog) -> None:
    # Unlike CDLL, PyDLL does not release the GIL, or its thread state, for a call.
    usleep = ctypes.PyDLL(None).usleep
    expected = "keeps the GIL" if gil.enabled() else "keeps its thread state"

    async def stall() -> None:
        before = len(log.lines)
        usleep(400_000)
        await until(lambda: len(log.lines) > before)

    async def culprit() -> None:
        # Give the other thread time to begin its checks.
        await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE):
            # On a busy machine the loop may be late, and be logged, before it calls usleep().
            while not log.containing(expected):
                await stall()

    run(uringloop.Loop(stall_ms=50), culprit)
    (line,) = log.containing(expected)
    assert "blocked for 0." in line


def test_run_that_ends_by_an_exception_ends_the_stall(log: MessageLog) -> None:
    def block() -> None:
        log.wait_for("has been blocked")
        raise KeyboardInterrupt

    with contextlib.closing(uringloop.Loop(stall_ms=20)) as loop:
        loop.call_soon(block)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        log.wait_for("was blocked for")
    assert len(log.lines) == 2


# ── callbacks ────────────────────────────────────────────────────────────────────────────────


class Told:
    """What callbacks of on_stall() were told; the loop is blocked until one is."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, traceback.StackSummary, asyncio.Task[Any] | None]] = []
        self.threads: list[str] = []
        self.called = threading.Semaphore(0)

    def __call__(
        self, age: float, stack: traceback.StackSummary, task: asyncio.Task[Any] | None
    ) -> None:
        self.calls.append((age, stack, task))
        self.threads.append(threading.current_thread().name)
        self.called.release()

    def wait(self) -> None:
        assert self.called.acquire(timeout=PATIENCE)


def test_callback_gets_age_stack_and_task_while_the_loop_is_blocked(log: MessageLog) -> None:
    told = Told()

    async def culprit() -> asyncio.Task[Any] | None:
        asyncio.get_running_loop().on_stall(told)  # type: ignore[attr-defined]
        told.wait()
        return asyncio.current_task()

    with contextlib.closing(uringloop.new_event_loop()) as loop:
        task = loop.run_until_complete(culprit())
    ((age, stack, told_task),) = told.calls
    assert 0.1 <= age < PATIENCE
    assert [place.name for place in stack][:2] == ["culprit", "wait"]
    assert stack[0].line == "told.wait()"
    assert told_task is task
    assert told.threads == [THREAD]
    # Only Loop(stall_ms=) logs.
    assert log.lines == []


def test_stall_ms_is_the_limit_of_callbacks_and_both_are_told(log: MessageLog) -> None:
    told = [Told(), Told()]
    loop = uringloop.Loop(stall_ms=20)
    for one in told:
        loop.on_stall(one)

    async def culprit() -> None:
        log.wait_for("has been blocked")

    run(loop, culprit)
    assert [len(one.calls) for one in told] == [1, 1]
    assert 0.02 <= told[0].calls[0][0] < PATIENCE
    assert len({thread for one in told for thread in one.threads}) == 1


def test_removed_callback_is_not_called_and_the_thread_ends(log: MessageLog) -> None:
    told = Told()
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        remove = loop.on_stall(told)
        remove()
        remove()
        wait_until(lambda: THREAD not in {thread.name for thread in threading.enumerate()})
        loop.call_soon(threading.Event().wait, 0.15)
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert told.calls == []
        # It can be added again.
        loop.on_stall(told)
        loop.call_soon(told.wait)
        loop.call_soon(loop.stop)
        loop.run_forever()


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_callback_is_logged_and_the_others_are_called(
    log: MessageLog, raised: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise raised

    told = Told()

    async def culprit() -> None:
        told.wait()

    loop = uringloop.new_event_loop()
    loop.on_stall(fail)
    loop.on_stall(told)
    run(loop, culprit, lambda: asyncio.sleep(0), culprit)
    assert len(log.containing("a callback of on_stall() has failed: <function")) == 2


def test_stall_that_ended_before_the_thread_could_look_is_told_without_a_stack(
    log: MessageLog,
) -> None:
    told = Told()
    resume = threading.Event()

    def hold(*_: object) -> None:
        assert resume.wait(PATIENCE)

    async def culprit() -> None:
        told.wait()
        # The thread is held in the other callback while this stall begins and ends.
        await asyncio.sleep(0)
        threading.Event().wait(0.15)
        await asyncio.sleep(0)
        resume.set()
        await until(lambda: len(told.calls) == 2)

    loop = uringloop.new_event_loop()
    loop.on_stall(told)
    loop.on_stall(hold)
    run(loop, culprit)
    age, stack, task = told.calls[1]
    assert age >= 0.1
    assert (list(stack), task) == ([], None)


def test_on_stall_refuses_what_cannot_be_called_and_a_closed_loop(loop: uringloop.Loop) -> None:
    with pytest.raises(TypeError, match=r"a callable object was expected by on_stall\(\), got 3"):
        loop.on_stall(3)  # type: ignore[arg-type]
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.on_stall(print)


# ── no messages ──────────────────────────────────────────────────────────────────────────────


def test_sleeping_or_stopped_loop_is_not_blocked() -> None:
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        watch_stalls(loop, 1)
        assert (turn_of(loop)[0], turn_of(loop)[2]) == (0, 0)
        looked: list[tuple[int, float, float, int, float, float]] = []

        def look() -> None:
            wait_until(lambda: turn_of(loop)[1] > 0 and turn_of(loop)[2] == 0)
            looked.append(turn_of(loop))

        async def main() -> None:
            await loop.run_in_executor(None, look)
            # The current turn began a moment ago.
            assert turn_of(loop)[2] < PATIENCE

        loop.run_until_complete(main())
        assert looked[0][2] == 0
        assert turn_of(loop)[0] == turn_of(loop)[2] == 0


def test_turns_are_not_timed_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.STALL_MS.variable, raising=False)
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        seen: list[float] = []
        loop.call_soon(lambda: seen.append(turn_of(loop)[1]))
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert seen == [0]
        assert THREAD not in {thread.name for thread in threading.enumerate()}


def test_option_overrides_the_variable(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.STALL_MS.variable, "20")
    uringloop.Loop(stall_ms=0).close()
    assert THREAD not in {thread.name for thread in threading.enumerate()}

    async def culprit() -> None:
        log.wait_for("has been blocked")

    run(uringloop.new_event_loop(), culprit)


@pytest.mark.parametrize("value", [-1, 60_001])
def test_option_out_of_range_raises_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="stall_ms must be between 0 and 60,000"):
        uringloop.Loop(stall_ms=value)


# ── the thread ───────────────────────────────────────────────────────────────────────────────


def test_thread_is_started_again_for_later_loops(log: MessageLog) -> None:
    for number in (1, 2):

        async def culprit(number: int = number) -> None:
            log.wait_for("has been blocked", number)

        run(uringloop.Loop(stall_ms=20), culprit)
        wait_until(lambda: THREAD not in {thread.name for thread in threading.enumerate()})


def test_exception_of_a_check_does_not_end_the_thread(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(loop: asyncio.AbstractEventLoop) -> None:
        raise RuntimeError("no name")

    async def culprit() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stalls, "task_of", refuse)
            log.wait_for("are no longer logged")

    async def another() -> None:
        log.wait_for("has been blocked")

    run(uringloop.Loop(stall_ms=20), culprit)
    run(uringloop.Loop(stall_ms=20), another)


def test_system_exit_of_a_task_does_not_end_the_thread(log: MessageLog) -> None:
    class Rude(asyncio.Task[None]):
        def get_name(self) -> str:
            raise SystemExit

    async def culprit() -> None:
        log.wait_for("are no longer logged")

    async def another() -> None:
        log.wait_for("has been blocked")

    with contextlib.closing(uringloop.Loop(stall_ms=20)) as loop:
        loop.run_until_complete(Rude(culprit(), loop=loop))
        run(uringloop.Loop(stall_ms=20), another)


def test_failure_to_start_the_thread_logs_a_warning(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    run(uringloop.Loop(stall_ms=20), lambda: asyncio.sleep(0))
    assert log.lines == ["stalls are not logged: can't start new thread"]


FORKED = """
import asyncio, os, threading, logging, sys
import uringloop

seen = threading.Event()

class MessageLog(logging.Handler):
    def emit(self, record):
        seen.set()

logging.getLogger("uringloop").addHandler(MessageLog())

async def culprit():
    assert seen.wait(30)

parents = uringloop.Loop(stall_ms=20)
pid = os.fork()
assert (pid == 0) == ("uringloop-stalls" not in [one.name for one in threading.enumerate()])
if pid == 0:
    # A thread of the child watches this loop.
    uringloop.Loop(stall_ms=20).run_until_complete(culprit())
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
parents.run_until_complete(culprit())
parents.close()
# The thread for this loop still runs at exit.
uringloop.Loop(stall_ms=1000).run_until_complete(asyncio.sleep(0))
print("done")
"""


def test_forked_child_has_a_thread_of_its_own_and_the_exit_is_quiet() -> None:
    done = run_script(FORKED)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
