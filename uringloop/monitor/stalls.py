"""Tells of a loop while it is blocked: `Loop(stall_ms=100)` logs it, `loop.on_stall()` calls back.

One thread for all loops of the process checks for how long the current turn of each loop has
lasted. It tells of each stall once, with the stack of the loop's thread, and logs once more when
the stall is over. The loop itself only reads the clock in each turn. A sleeping loop is not
blocked.

The thread checks a loop at intervals of its stall_ms, and ends when there is no loop left to check.
If it cannot be started, one warning is logged and the program continues.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any

from uringloop._cpython import gil
from uringloop._turn.stats import STALL_MS, turn_of, watch_stalls
from uringloop.monitor.snapshots import is_run_forever, task_of

if TYPE_CHECKING:
    from uringloop._loop.base_loop import BaseLoop

# How many frames of a stack are logged, the innermost ones: more are of no use in a recursion.
FRAMES_MAX = 50
# Time for the thread to end: it waits only for the GIL and for log handlers.
END_S = 5.0

# A process that was stopped, or got no processor, looks the same as one whose GIL was kept.
GIL_KEPT = "no other thread could run for {:.2f} s, as while C code keeps the GIL"
# Without a GIL a stack is taken while all threads stand still, and such C code must end first.
STATE_KEPT = "no stack could be taken for {:.2f} s, as while C code keeps its thread state"

logger = logging.getLogger("uringloop")


class WatchedLoop:
    """One loop: how long its turns may last, and of which stalls was told."""

    def __init__(self, loop: BaseLoop, milliseconds: int, *, logs: bool) -> None:
        self.loop = weakref.ref(loop)
        self.limit_s = milliseconds / 1000
        # Whether stalls are logged. The loop has the callbacks that are called.
        self.logs = logs
        # The start of the turn whose stall was told, until its end is told as well.
        self.told_turn: float | None = None
        self.name = "the loop of no thread"
        # Whether a check has raised an exception: then it is the last one.
        self.failed = False
        # How many stalls had ended at the last check.
        self.stalls = turn_of(loop)[3]

    def check(self, late_s: float) -> float | None:
        """Tell of a stall that has begun or ended; return the delay until the next check.

        Returns None if the loop needs no more checks. *late_s* is how late this check is: for that
        time this thread could not run.
        """
        loop = self.loop()
        if loop is None or not self.is_wanted_by(loop):
            return None
        thread, began, lasts, stalls, ended, took = turn_of(loop)
        # Another may have come after the one that was told, and be over as well.
        missed = stalls != self.stalls and ended != self.told_turn
        if self.told_turn is not None and (began != self.told_turn or not lasts):
            if self.logs:
                self._log_end(took if ended == self.told_turn else None)
            self.told_turn = None
        if missed:
            self._tell_missed(loop, took, late_s)
        self.stalls = stalls
        if not lasts or self.told_turn is not None:
            return self.limit_s
        if lasts < self.limit_s:
            return self.limit_s - lasts
        self.told_turn = began
        self._tell_begin(loop, thread, lasts, late_s)
        return self.limit_s

    def is_wanted_by(self, loop: BaseLoop) -> bool:
        return not loop.is_closed() and (self.logs or bool(loop._stall_callbacks))

    def _tell_begin(self, loop: BaseLoop, thread: int, lasts: float, late_s: float) -> None:
        asked = time.monotonic()
        stack = stack_of(thread)
        late_s += time.monotonic() - asked
        # Calls come first: a log handler may be slow, and the task may have ended by then.
        task = asyncio.current_task(loop)
        _call_back(loop, lasts, stack, task)
        if self.logs:
            self._log_begin(loop, thread, lasts, late_s, stack)

    def _log_begin(
        self,
        loop: BaseLoop,
        thread: int,
        lasts: float,
        late_s: float,
        stack: traceback.StackSummary,
    ) -> None:
        names = {one.ident: one.name for one in threading.enumerate()}
        # Workers of a service often share a log.
        self.name = f"the loop of {names.get(thread, f'thread {thread}')} in process {os.getpid()}"
        task = task_of(loop)
        where = f", in {task['name']} ({task['coroutine']})" if task is not None else ""
        if self._was_held_up(late_s):
            where += f"; {_reason(late_s)}, and this stack was taken after that"
        lines = "".join(stack.format()) or "  no Python code: the callback is compiled\n"
        logger.warning(
            "%s has been blocked for %.2f s%s:\n%s",
            self.name,
            lasts,
            where,
            lines.rstrip("\n"),
        )

    def _log_end(self, took_s: float | None) -> None:
        if took_s is None:
            logger.warning("%s is no longer blocked", self.name)
        else:
            logger.warning("%s was blocked for %.2f s in all", self.name, took_s)

    def _tell_missed(self, loop: BaseLoop, took_s: float, late_s: float) -> None:
        """Tell of a stall that ended before this thread could take its stack."""
        _call_back(loop, took_s, traceback.StackSummary(), None)
        if not self.logs:
            return
        reason = "it ended before its stack could be taken"
        if self._was_held_up(late_s):
            reason = f"{_reason(late_s)}, so its stack was not taken"
        logger.warning(
            "a loop of process %d was blocked for %.2f s: %s", os.getpid(), took_s, reason
        )

    def _was_held_up(self, late_s: float) -> bool:
        return late_s > self.limit_s / 2


def _reason(late_s: float) -> str:
    return (GIL_KEPT if gil.enabled() else STATE_KEPT).format(late_s)


def _call_back(
    loop: BaseLoop,
    age_s: float,
    stack: traceback.StackSummary,
    task: asyncio.Task[Any] | None,
) -> None:
    """Call the functions that want to know of a stall of *loop*."""
    for callback in list(loop._stall_callbacks.values()):
        try:
            callback(age_s, stack, task)
        except BaseException:
            # SystemExit would end this thread, and nobody would be told of other stalls. A log
            # handler can raise anything as well, and so can the callback's repr().
            with contextlib.suppress(BaseException):
                logger.exception("a callback of on_stall() has failed: %r", callback)


def stack_of(thread: int) -> traceback.StackSummary:
    """Return the frames of *thread* within its loop, innermost last.

    In a deep stack some are left out after the outermost one, the callback's.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    places = traceback.StackSummary()
    while frame is not None and not is_run_forever(frame):
        outer = frame.f_back
        if len(places) >= FRAMES_MAX and not (outer is None or is_run_forever(outer)):
            frame = outer
            continue
        code = frame.f_code
        # Read source lines later: a frame kept alive until then would keep its variables alive.
        place = traceback.FrameSummary(
            code.co_filename, frame.f_lineno, code.co_name, lookup_line=False
        )
        places.append(place)
        frame = outer
    places.reverse()
    return places


class Checker:
    """The thread, and the loops that it checks."""

    def __init__(self) -> None:
        self.loops: list[WatchedLoop] = []
        self.changed = threading.Event()
        self.ending = False
        self.thread = threading.Thread(target=self._serve, name="uringloop-stalls", daemon=True)

    def _serve(self) -> None:
        # The kernel must deliver the program's signals to the program's own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        due = time.monotonic()
        while not self.ending:
            # Clear it before the check: a change during the check must end the wait that follows.
            self.changed.clear()
            delay = self._check(max(0.0, time.monotonic() - due))
            if delay is None:
                return
            due = time.monotonic() + delay
            if self.changed.wait(delay):
                # A loop was added.
                due = time.monotonic()

    def _check(self, late_s: float) -> float | None:
        """Check all loops; return the delay until the next check, None if no loop is left."""
        delays = []
        for one in list(self.loops):
            try:
                delay = one.check(late_s)
            except BaseException:
                # The program's own classes of loops and tasks, and log handlers, can raise
                # anything.
                with contextlib.suppress(BaseException):
                    logger.exception(
                        "stalls of a loop are no longer logged, because a check failed"
                    )
                one.failed = True
                delay = None
            if delay is not None:
                delays.append(delay)
                continue
            with _State.lock:
                self.loops.remove(one)
                # on_stall() may have been called since then, and have found it in the list.
                loop = one.loop()
                if loop is not None and not one.failed and one.is_wanted_by(loop):
                    self.loops.append(one)
                    delays.append(0.0)
        with _State.lock:
            if not self.loops:
                # A loop that is created from now on starts another thread.
                if _State.checker is self:
                    _State.checker = None
                return None
        return min(delays, default=0.0)


class _State:
    """The checker of this process; None while no loop is checked."""

    checker: Checker | None = None
    lock = threading.Lock()


def watch(loop: BaseLoop, milliseconds: int) -> None:
    """Log stalls of *loop* from that many *milliseconds* on."""
    watch_stalls(loop, milliseconds)
    with _State.lock:
        _add(WatchedLoop(loop, milliseconds, logs=True))


def watch_for_callbacks(loop: BaseLoop) -> None:
    """Call the callbacks of *loop* from its stall_ms on, or else from 100 ms."""
    with _State.lock:
        watched = _State.checker.loops if _State.checker is not None else []
        if any(one.loop() is loop and not one.failed for one in watched):
            return
        watch_stalls(loop, STALL_MS)
        _add(WatchedLoop(loop, STALL_MS, logs=False))


def _add(watched: WatchedLoop) -> None:
    """Have the thread check a loop; the caller has the lock."""
    if _State.checker is not None:
        _State.checker.loops.append(watched)
        _State.checker.changed.set()
    else:
        started = Checker()
        started.loops.append(watched)
        try:
            started.thread.start()
        except RuntimeError as exc:
            logger.warning("stalls are not logged: %s", exc)
        else:
            _State.checker = started


def _stop() -> None:
    """End the thread at exit: the interpreter could end it in the middle of a log line."""
    with _State.lock:
        checker, _State.checker = _State.checker, None
    if checker is not None:
        checker.ending = True
        checker.changed.set()
        checker.thread.join(END_S)


def _after_fork() -> None:
    """Reset the state: a child has neither the thread nor loops that could run."""
    _State.checker = None
    _State.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop)
