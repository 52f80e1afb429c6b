"""Loops in virtual time: uringloop's for tests, and the oracle, stock asyncio with such a clock."""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uringloop import testing

# What is under way between two sockets of this process has arrived by then, in real time.
QUIET_S = 0.02
# An oracle that has no timer, and for which nothing comes for so long, waits for ever.
STUCK_S = 20.0

# What the clocks show at first, as those of uringloop's loops for tests do.
START_S = 1000.0
# The seeds under which tests run in virtual time, if they do not name others.
SEEDS = range(3)


class VirtualSelector(selectors.EpollSelector):
    """Advances its clock, instead of sleeping, when nothing comes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_S
        # Calls of run_in_executor() that have not ended: their threads work in real time.
        self.calls = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(STUCK_S)
            assert events, "the program can never go on"
            return events
        # The loop's own pair of sockets is always there.
        may_come = self.calls or len(self.get_map()) > 1
        events = super().select(min(timeout, QUIET_S) if may_come else 0)
        if not events and not self.calls:
            self.now += timeout
        return events


class Oracle(asyncio.SelectorEventLoop):
    """Stock asyncio in virtual time, for a program that talks to nobody outside of its process."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._virtual.calls += 1
        future.add_done_callback(self._call_ended)
        return future

    def _call_ended(self, future: asyncio.Future[Any]) -> None:
        self._virtual.calls -= 1


def new_virtual_loop(seed: int) -> testing.Loop:
    from uringloop import testing

    return testing.Loop(seed)


def has_virtual_time(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether *loop* does not wait in real time."""
    testing = sys.modules.get("uringloop.testing")
    return isinstance(loop, Oracle) or (testing is not None and isinstance(loop, testing.Loop))


class Stopwatch:
    """Measures virtual time, which depends on nothing but the program."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.began = loop.time()

    def shows(self, seconds: float) -> bool:
        """Return whether that many seconds have passed; begin again."""
        passed, self.began = self.loop.time() - self.began, self.loop.time()
        return abs(passed - seconds) < 1e-6
