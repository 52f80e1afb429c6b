"""`Loop(stall_ms=)`: stalls are logged while they last, and nothing else is logged."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
from collections.abc import Iterator

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
    assert head.startswith("the loop of MainThread has been blocked for 0.")
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
    assert last.startswith("the loop of MainThread was blocked for 0.")
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
    heads = {line.partition(" has been")[0] for line in log.containing("has been blocked")}
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
        log.wait_for("is no longer blocked")
    assert len(log.lines) == 2


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
