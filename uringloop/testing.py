"""Loops for tests: virtual time, every order of callbacks, faults, all from a seed.

import asyncio
from uringloop import testing

with asyncio.Runner(loop_factory=lambda: testing.Loop(seed=7)) as runner:
    runner.run(main())
"""

from __future__ import annotations

import sys

from uringloop._testing import traces
from uringloop._testing.errors import DeadlockError, TimeLimitError
from uringloop._testing.faults import Faults
from uringloop._testing.loop import Loop
from uringloop._testing.network import Network, Route

__all__ = ["DeadlockError", "Faults", "Loop", "Network", "Route", "TimeLimitError"]

if __name__ == "__main__":
    sys.exit(traces.main())
