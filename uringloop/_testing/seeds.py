"""The seed of the test that runs, and the loops that it makes."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uringloop._testing.loop import Loop
from uringloop._testing.weak_list import WeakList


@dataclasses.dataclass
class Run:
    """One run of a test with one seed."""

    seed: int
    options: dict[str, Any]  # of the loops
    loops: list[Loop] = dataclasses.field(default_factory=list)
    real_s: float = 0.0

    @property
    def virtual_s(self) -> float:
        """How far the clocks of its loops have advanced."""
        return sum(loop.elapsed() for loop in self.loops)


_current: Run | None = None
_loops: WeakList[Loop] = WeakList()


def is_active() -> bool:
    """Return whether a test runs with a seed."""
    return _current is not None


def current_seed() -> int:
    """Return the seed of the test that runs; 0 if it has none."""
    return 0 if _current is None else _current.seed


def new_loop() -> Loop:
    """Return a new loop for the test that runs with a seed."""
    assert _current is not None
    # A test that makes several loops: each has a sequence of its own.
    loop = Loop(_current.seed + (len(_current.loops) << 32), **_current.options)
    _current.loops.append(loop)
    _loops.add(loop)
    return loop


@contextmanager
def run(seed: int, options: dict[str, Any]) -> Iterator[Run]:
    """Give *seed* to the loops that are made meanwhile, and to the module random."""
    global _current
    before, state = _current, random.getstate()
    # Loops of a wider scope than the test's: each test begins with its own numbers.
    for loop in _loops:
        loop.reseed(seed)
    _current = made = Run(seed, options)
    random.seed(seed)
    began = time.monotonic()
    try:
        yield made
    finally:
        made.real_s = time.monotonic() - began
        _current = before
        random.setstate(state)
