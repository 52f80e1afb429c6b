"""Loops for tests: virtual time, every order of callbacks, faults, all from a seed.

import asyncio
from uringloop import testing

with asyncio.Runner(loop_factory=lambda: testing.Loop(seed=7)) as runner:
    runner.run(main())
"""

from __future__ import annotations

from uringloop.testing.errors import DeadlockError, TimeLimitError
from uringloop.testing.faults import Faults
from uringloop.testing.loop import Loop
from uringloop.testing.network import Network, Route

__all__ = ["DeadlockError", "Faults", "Loop", "Network", "Route", "TimeLimitError"]
