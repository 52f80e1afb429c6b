"""class Loop: a loop for tests."""

from __future__ import annotations

import math
import os
from typing import Literal

import uringloop.loop
from uringloop._testing import outside
from uringloop._testing.core import FAULTS, TestingCore
from uringloop._testing.faults import Faults
from uringloop._turn import tracing


class Loop(TestingCore, uringloop.loop.Loop):
    """A loop for tests: virtual time, and an order of callbacks that *seed* chooses.

    `time()` stands still while anything can run, and jumps to the next deadline when nothing can.
    While something outside works (a child, a thread, another program that was asked), it advances
    as real time does. If nothing can ever run, run_forever() raises DeadlockError.

    *order*: "random" lets the seed choose among the orders in which tasks may run, "fifo" keeps
    that of ordinary loops.

    *faults*: what goes wrong, with what probability; nothing by default.

    *time_limit*: seconds that the clock may advance; then run_forever() raises TimeLimitError.

    *trace*: a file to append to, with a line for each callback, timer, submission and completion.
    The same seed gives the same lines.
    """

    # The clock of a new loop. Not 0: a program that takes 0 for "never" would differ from what it
    # does on a machine, whose clock counts from its start.
    START_S = 1000.0

    def __init__(
        self,
        seed: int = 0,
        *,
        order: Literal["random", "fifo"] = "random",
        faults: Faults | None = None,
        time_limit: float | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        if order not in ("random", "fifo"):
            raise ValueError(f"order must be 'random' or 'fifo', not {order!r}")
        super().__init__(backend="soft", warn_fallback=False, nestable=False, stall_ms=0)
        limit = math.inf if time_limit is None else time_limit
        trace_fd = -1 if trace is None else tracing.output(os.fspath(trace))
        self._simulate(
            seed, self.START_S, order == "random", outside.Outside(self, limit), trace_fd
        )
        self.faults = Faults() if faults is None else faults

    @property
    def faults(self) -> Faults:
        """What goes wrong, and how often; a test may change it at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._set_chances([faults.chance(kind) for kind in FAULTS], faults.stall)

    def faults_happened(self) -> dict[str, int]:
        """Return how often each kind of fault has happened."""
        return self._faults_happened()

    def elapsed(self) -> float:
        """Return for how many seconds the loop's clock has advanced."""
        return self.time() - self.START_S
