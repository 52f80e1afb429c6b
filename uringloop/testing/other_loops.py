"""The loops for tests that run in this process, each in its thread and with its own clock.

Once a loop has called another one by call_soon_threadsafe(), the two are partners and share the
time: a loop goes on to its next deadline only when none of its partners has anything to do before
then, and their clocks advance with its own. A loop without a deadline waits for every other loop
that may still call it.
"""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uringloop.testing.core import TestingCore

# The loops that run, by the native numbers of their threads.
running: dict[int, TestingCore] = {}
# Guards `running`, and what a loop's thread tells others: _partners, _rest_s and _owed_s. It is
# reentrant, because a signal handler, or __del__, may call a loop while its thread holds the lock.
lock = threading.RLock()


def began(thread: int, loop: TestingCore) -> TestingCore | None:
    """Note that *loop* runs in a thread, and return the loop that ran there before."""
    with lock:
        before = running.get(thread)
        running[thread] = loop
    return before


def ended(thread: int, before: TestingCore | None) -> None:
    """Note that the loop of a thread has stopped, and that *before* runs again."""
    with lock:
        stopped = running.pop(thread, None)
        if stopped is not None:
            stopped._rest_s = 0.0
        if before is not None:
            running[thread] = before


def forget() -> None:
    """Forget the parent's threads in a forked child; one of them may have held the lock."""
    global lock
    running.clear()
    lock = threading.RLock()


os.register_at_fork(after_in_child=forget)


def called(loop: TestingCore) -> None:
    """Note that the calling thread calls *loop*: a loop that it runs becomes a partner."""
    caller = running.get(threading.get_native_id())
    if caller is not None and caller is not loop and loop not in caller._partners:
        with lock:
            caller._partners.add(loop)
            loop._partners.add(caller)


def settle(loop: TestingCore, rest_s: float, left_out: dict[int, TestingCore]) -> tuple[bool, bool]:
    """Return whether *loop* must wait for others, and whether its clock goes on meanwhile.

    *loop* has nothing to do for *rest_s* seconds of its time, which may be for ever. *left_out* are
    the loops that had nothing to do either when it looked at the threads. All other loops are
    known to be blocked in a callback.
    """
    with lock:
        loop._rest_s = rest_s
        earlier = [
            other._rests() if running.get(thread) is other else 0.0
            for thread, other in (running | left_out).items()
            if concerns(loop, other, rest_s) and (thread in left_out or other._is_idle())
        ]
    earlier = [other_s for other_s in earlier if other_s < rest_s]
    return bool(earlier), 0 in earlier


def concerns(loop: TestingCore, other: TestingCore, rest_s: float) -> bool:
    """Return whether *loop* must know what *other* does before it goes on for *rest_s*."""
    return other is not loop and (rest_s == math.inf or other in loop._partners)


def share(loop: TestingCore, seconds: float) -> None:
    """Let the clocks of the partners of *loop* go on by *seconds*, as its own does."""
    with lock:
        for other in running.values():
            if other in loop._partners:
                other._owed_s += seconds


def goes_on(loop: TestingCore) -> None:
    """Note that *loop* has something to do."""
    with lock:
        loop._rest_s = 0.0


def take_owed(loop: TestingCore) -> float:
    """Return by how much the clocks of its partners have advanced since the last call."""
    with lock:
        seconds, loop._owed_s = loop._owed_s, 0.0
    return seconds
