"""What may still come to an idle loop from outside: threads, files, children, other programs.

The clock of a loop for tests may jump only when nothing can come. What can is of three kinds:

- Something that is under way within this process and ends by itself: an operation of a file, or
  bytes on a TCP connection whose ends are both here. The loop waits for it, and the clock stands
  still: how long it takes is not the program's business.
- Something that works: a child process, a thread that is not blocked for ever, another program that
  has been asked. The loop waits in real time, and its clock advances with it: timeouts work.
- Something that may or may not speak: a connection to another program that was not asked, a thread
  that waits for a descriptor. The loop waits for QUIET_S, and then takes it that nothing comes.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from uringloop._testing import errors, thread_states
from uringloop._testing.peers import Peers, Traffic
from uringloop._testing.thread_states import ThreadState

if TYPE_CHECKING:
    from uringloop._testing.loop import Loop

# Seconds of real time for which the loop waits for what may or may not speak.
QUIET_S = 0.02
# What is under way on a connection of this process has come by then, or never will.
STUCK_S = 1.0
# While something works, the loop looks again after this time, and then ever more rarely.
LOOK_MIN_S = 0.0002
LOOK_MAX_S = 0.02


class Outside:
    """Watches what may come to one loop from outside. Only the loop's thread uses it."""

    def __init__(self, loop: Loop, time_limit: float) -> None:
        self.loop = loop
        self.time_limit = time_limit
        self.peers = Peers()
        # The activity of the loop when its sockets could get nothing.
        self.silent_at = -1

    def look(self, idle_s: float, activity: int) -> tuple[float, bool]:
        """Return how long to wait, in seconds of real time, and whether the clock goes on.

        *idle_s* is for how long nothing has happened; *activity* differs after anything has.
        (0, False): nothing can come.
        """
        pause = min(max(LOOK_MIN_S, idle_s), LOOK_MAX_S)
        if self.loop._has_file_work():
            return pause, False
        traffic = self.traffic(activity)
        if traffic is Traffic.UNDER_WAY and idle_s < STUCK_S:
            return pause, False
        threads = thread_states.others()
        if traffic is Traffic.ASKED or self.loop._children or threads is ThreadState.WORKS:
            return pause, True
        may_speak = traffic is Traffic.OPEN or threads is ThreadState.WAITS_OUTSIDE
        if may_speak and idle_s < QUIET_S:
            return QUIET_S - idle_s, False
        return 0, False

    def traffic(self, activity: int) -> Traffic:
        """Return what may come to the loop's sockets."""
        if activity == self.silent_at:
            return Traffic.NONE
        # Room for a send comes from whoever reads; only what is received may be under way.
        receiving = [fd for fd, events in self.loop._waits() if events & select.POLLIN]
        traffic = self.peers.traffic(receiving)
        if traffic is Traffic.NONE:
            self.silent_at = activity
        return traffic

    def nothing_left(self) -> None:
        """No timer is left, and nothing can come."""
        raise errors.DeadlockError(
            "the program can never go on: nothing can wake any of its tasks\n"
            + errors.describe_tasks(self.loop)
        )

    def advance(self, when: float) -> None:
        """The clock is about to jump to *when*."""
        if when - self.loop.START_S > self.time_limit:
            raise errors.TimeLimitError(
                f"the clock would pass its limit of {self.time_limit:g} s\n"
                + errors.describe_tasks(self.loop)
            )
