"""What holds a loop up, told while it does: `Loop(stall_ms=100)`, or URINGLOOP_STALL_MS=100.

One thread for all loops of the process looks at how long the present turn of each has lasted. Each
stall is logged once, with the stack of the loop's thread, and once more when it is over. The loop
itself reads a coarse clock in each turn and does nothing else; a loop that sleeps is not blocked.

The thread looks as often as a stall may last, and ends with the last loop. What it lacks is one
warning, and the program goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from types import FrameType
from typing import TYPE_CHECKING

from uringloop._monitor.server import RUNNING, task_of
from uringloop._net import argument_checks
from uringloop._turn.stats import turn_of, watch_stalls

if TYPE_CHECKING:
    from uringloop._loop.base import RunningLoop

VARIABLE = "URINGLOOP_STALL_MS"
# A turn of more than a minute is looked for by nobody.
STALL_MAX_MS = argument_checks.IDLE_MAX_MS
# Of a stack: those of recursions are of no use beyond.
FRAMES_MAX = 50
# For the thread to end: it waits for nothing but the GIL, and for what logs.
END_S = 5.0

# A process that was stopped, or had no processor, looks the same.
KEPT = "no other thread could run for {:.2f} s, as while C code keeps the GIL"

logger = logging.getLogger("uringloop")


class Watched:
    """One loop: how long its turns may last, and what has been told of it."""

    def __init__(self, loop: RunningLoop, milliseconds: int) -> None:
        self.loop = weakref.ref(loop)
        self.limit_s = milliseconds / 1000
        # When the turn began that was told to be blocked and has not been told to have ended.
        self.told: float | None = None
        self.name = "no thread"
        # So many stalls have ended, and were told or will not be.
        self.stalls = turn_of(loop)[3]

    def look(self, late_s: float) -> float | None:
        """Tell what there is to tell, and return when to look again; None if the loop is closed.

        *late_s* is how much later than wanted this is: so long no other thread could run.
        """
        loop = self.loop()
        if loop is None or loop.is_closed():
            return None
        thread, began, lasts, stalls, ended, took = turn_of(loop)
        if self.told is not None and (began != self.told or not lasts):
            self._tell_end(took if ended == self.told else None)
        elif stalls != self.stalls:
            self._tell_missed(took, late_s)
        self.stalls = stalls
        if not lasts or self.told is not None:
            return self.limit_s
        if lasts < self.limit_s:
            return self.limit_s - lasts
        self.told = began
        self._tell(loop, thread, lasts, late_s)
        return self.limit_s

    def _tell(self, loop: RunningLoop, thread: int, lasts: float, late_s: float) -> None:
        names = {one.ident: one.name for one in threading.enumerate()}
        self.name = names.get(thread, f"thread {thread}")
        stack = stack_of(thread)
        task = task_of(loop)
        where = f", in {task['name']} ({task['coroutine']})" if task is not None else ""
        if self._kept(late_s):
            where += f"; {KEPT.format(late_s)}, and this is where it was after that"
        lines = (
            "".join(traceback.format_list(stack)) or "  no Python code: the callback is compiled\n"
        )
        logger.warning(
            "the loop of %s has been blocked for %.2f s%s:\n%s",
            self.name,
            lasts,
            where,
            lines.rstrip("\n"),
        )

    def _tell_end(self, took_s: float | None) -> None:
        self.told = None
        if took_s is None:
            logger.warning("the loop of %s is not blocked any more", self.name)
        else:
            logger.warning("the loop of %s was blocked for %.2f s in all", self.name, took_s)

    def _tell_missed(self, took_s: float, late_s: float) -> None:
        """Tell of a stall that was over before this thread could look."""
        reason = "it ended just before its stack was looked at"
        if self._kept(late_s):
            reason = f"{KEPT.format(late_s)}, and look at its stack"
        logger.warning("a loop was blocked for %.2f s: %s", took_s, reason)

    def _kept(self, late_s: float) -> bool:
        return late_s > self.limit_s / 2


def stack_of(thread: int) -> list[traceback.FrameSummary]:
    """Return what *thread* executes within its loop, the innermost last."""
    frame: FrameType | None = sys._current_frames().get(thread)
    places: list[traceback.FrameSummary] = []
    while frame is not None and len(places) < FRAMES_MAX:
        code = frame.f_code
        if code.co_name == "run_forever" and code.co_filename == RUNNING:
            break
        # Lines are read from files later: a frame that is held meanwhile would hold its variables.
        place = traceback.FrameSummary(
            code.co_filename, frame.f_lineno, code.co_name, lookup_line=False
        )
        places.append(place)
        frame = frame.f_back
    places.reverse()
    return places


class Watch:
    """The thread, and the loops that it looks at."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self.changed = threading.Event()
        self.ending = False
        self.thread = threading.Thread(target=self._serve, name="uringloop-stalls", daemon=True)

    def _serve(self) -> None:
        # The program's signals interrupt its own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        due = time.monotonic()
        while not self.ending:
            delay = self._look(max(0.0, time.monotonic() - due))
            if delay is None:
                return
            self.changed.clear()
            due = time.monotonic() + delay
            if self.changed.wait(delay):
                # Another loop has come.
                due = time.monotonic()

    def _look(self, late_s: float) -> float | None:
        """Look at all loops, and return when to do so again; None at the end of the last."""
        delays = []
        for one in list(self.watched):
            try:
                delay = one.look(late_s)
            except Exception:
                # A class of the program's own, of a loop or a task, can raise anything.
                logger.exception("stalls of a loop are not told any more")
                delay = None
            if delay is not None:
                delays.append(delay)
                continue
            with _State.lock:
                self.watched.remove(one)
        with _State.lock:
            if not self.watched:
                # Whoever wants a thread from now on starts another.
                if _State.watch is self:
                    _State.watch = None
                return None
        return min(delays, default=0.0)


class _State:
    """What this process has of it."""

    watch: Watch | None = None
    lock = threading.Lock()


def watch(loop: RunningLoop, wanted: int | str) -> None:
    """Tell what holds *loop* up for so many milliseconds; a text is the variable's."""
    try:
        milliseconds = int(wanted)
        argument_checks.check_range(VARIABLE, milliseconds, STALL_MAX_MS)
    except ValueError:
        logger.warning(
            "stalls are not told: %s must be between 0 and %d milliseconds, not %r",
            VARIABLE,
            STALL_MAX_MS,
            wanted,
        )
        return
    if milliseconds == 0:
        return
    watch_stalls(loop, milliseconds)
    with _State.lock:
        if _State.watch is not None:
            _State.watch.watched.append(Watched(loop, milliseconds))
            _State.watch.changed.set()
            return
        started = Watch()
        started.watched.append(Watched(loop, milliseconds))
        try:
            started.thread.start()
        except RuntimeError as exc:
            logger.warning("stalls are not told: %s", exc)
        else:
            _State.watch = started


def _stop() -> None:
    """End the thread before the interpreter does: it could be in the middle of a line."""
    with _State.lock:
        watch, _State.watch = _State.watch, None
    if watch is not None:
        watch.ending = True
        watch.changed.set()
        watch.thread.join(END_S)


def _after_fork() -> None:
    """Begin anew: a child has neither the thread nor loops that could run."""
    _State.watch = None
    _State.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop)
