"""What may still come to an idle loop from outside: threads, files, children, other programs.

The clock of a loop for tests may jump only when nothing can come. What can come is of three kinds:

- Something that is under way within this process and ends by itself: an operation of a file, or
  bytes on a TCP connection whose ends are both here. The loop waits for it, and the clock stands
  still: how long it takes is not the program's business.
- Something that works: a child process, a thread that is not blocked for ever, another program that
  has been asked. The loop waits in real time, and its clock advances with it: timeouts work.
- Something that may or may not speak: a connection to another program that was not asked, a
  terminal, a thread that serves others. After each activity, of the loop or of that thread, the
  loop waits for QUIET_S, and then assumes that nothing comes.

A child that was there before the loop, or a thread that has not moved since, is not the program's.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import TYPE_CHECKING

from uringloop.testing import children, errors, other_loops, proc
from uringloop.testing.peers import Peers, Traffic, is_own, is_socket, kind_of, watched
from uringloop.testing.thread_states import WATCHDOG_S, Threads, ThreadState

if TYPE_CHECKING:
    from uringloop.testing.loop import Loop

# How long, in real time, the loop waits for what may or may not speak.
QUIET_S = 0.02
# A thread that serves others has begun to run this soon after the loop has asked it.
ASKED_S = 0.001
# A program that may have been asked, but not by TCP, is taken to have answered after this time:
# nothing tells whether it was asked.
ANSWER_S = 1.0
# What is under way on a connection of this process has come after this time, or never will.
STUCK_S = 1.0
# While something works, the loop looks again after this time, and then ever more rarely.
LOOK_MIN_S = 0.0002
LOOK_MAX_S = 0.02


def now() -> float:
    """Return the real time, even if tests freeze time.monotonic(), as freezegun does."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def pause_after(idle_s: float) -> float:
    """Return when to look again after nothing has happened for *idle_s*, in seconds."""
    return min(max(LOOK_MIN_S, idle_s), LOOK_MAX_S)


def may_answer(pids: set[int | None], waits: list[tuple[int, int]]) -> bool:
    """Return whether children may write to what the loop waits for.

    Both ends of such a pipe or pair are in this process, and a child has one of them, too. The
    kernel gives both ends of a pipe the same name, but not those of a pair.
    """
    own = [fd for fd, _ in watched(waits) if is_own(fd)]
    names = {kind_of(fd) for fd in own}
    if any(map(is_socket, own)):
        fds = map(int, proc.names("/proc/self/fd"))
        names |= {kind_of(fd) for fd in fds if is_socket(fd) and is_own(fd)}
    return any(names & children.files(pid) for pid in pids if pid is not None)


class Outside:
    """Watches what may come to one loop from outside. Only the loop's thread uses it."""

    def __init__(self, loop: Loop, time_limit: float) -> None:
        self.loop = loop
        self.time_limit = time_limit
        self.peers = Peers(loop)
        self.threads = Threads()
        self.older_children = children.running()
        self.had_alarm = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        self.start_s = loop.START_S
        # Calls of run_in_executor() that have not ended.
        self.calls = 0
        # The newest activity of the loop, and when it was seen, in real time.
        self.activity = -1
        self.active_at = now()

    def look(self, idle_s: float, rest_s: float, activity: int) -> tuple[float, bool]:
        """Return how long to wait, in seconds of real time, and whether the clock goes on.

        *idle_s* is for how long nothing has happened, in real time; *rest_s* is how far away the
        next deadline is, in the loop's time; *activity* differs after anything was sent, submitted
        or received. (0, False) means that nothing can come.
        """
        wait_s, flows = self.look_around(idle_s, activity)
        if wait_s > 0:
            other_loops.goes_on(self.loop)
        elif self.threads.left_out or len(other_loops.running) > 1:
            waits, flows = other_loops.settle(self.loop, rest_s, self.threads.left_out)
            wait_s = pause_after(idle_s) if waits else 0.0
        return wait_s, flows

    def look_around(self, idle_s: float, activity: int) -> tuple[float, bool]:
        """Do what look() does, except that the loops of other threads do not count."""
        if activity != self.activity:
            self.activity = activity
            self.active_at = now()
        time_s = now()
        quiet_s = time_s - self.active_at
        pause = pause_after(idle_s)
        if self.loop._files_work():
            return pause, False
        silent = self.loop._datagrams.silent()
        waits = [wait for wait in self.loop._waits() if wait[0] not in silent]
        traffic = self.peers.traffic(waits, asked_lately=quiet_s < ANSWER_S)
        if traffic is Traffic.UNDER_WAY and quiet_s < STUCK_S:
            return pause, False
        if traffic is Traffic.ASKED:
            return pause, True
        threads = self.threads.look(time_s)
        if self.works(threads, waits):
            return pause, True
        may_speak = traffic is Traffic.OPEN or self.loop._files_wait()
        rest_s = QUIET_S - quiet_s if may_speak else 0.0
        if threads is ThreadState.SERVES:
            served_s = time_s - self.threads.served_at
            rest_s = max(rest_s, QUIET_S - served_s, ASKED_S - quiet_s)
        return max(rest_s, 0.0), False

    def works(self, threads: ThreadState, waits: list[tuple[int, int]]) -> bool:
        """Return whether a thread, a child or a timer of the process does something by itself.

        *waits* are the descriptors that the loop waits for, with events of poll(2).
        """
        if threads is ThreadState.WORKS or self.loop._children:
            return True
        if self.calls and threads is not ThreadState.BLOCKED:
            return True
        # A signal that is due after more than WATCHDOG_S is a watchdog's. So is one whose timer was
        # set before the loop was made, such as pytest-timeout's.
        if not self.had_alarm and 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= WATCHDOG_S:
            return True
        found = children.running() - self.older_children - children.helpers()
        if not self.calls:
            # Processes of a pool wait for calls, but one that can answer at a descriptor may work.
            # If there is a fork server, they are its children and not in `found`.
            started = {child.pid for child in multiprocessing.active_children()}
            if started and may_answer(started, waits):
                return True
            found -= started
        return bool(found)

    def forget(self) -> None:
        """Drop the references to the loop, which is closed."""
        self.loop = self.peers.loop = None  # type: ignore[assignment]

    def nothing_left(self) -> None:
        """Raise DeadlockError: no timer is left, and nothing can come."""
        raise errors.DeadlockError(
            "the program can never go on: nothing can wake any of its tasks\n"
            + errors.describe_tasks(self.loop)
        )

    def check_limit(self, when: float) -> None:
        """Raise TimeLimitError if *when*, which the clock is about to be, is beyond the limit."""
        if when - self.start_s > self.time_limit:
            raise errors.TimeLimitError(
                f"the clock would pass its limit of {self.time_limit:g} s\n"
                + errors.describe_tasks(self.loop)
            )
