"""The seed of the test that runs, and the loops that it makes."""

from __future__ import annotations

import dataclasses
import random
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uringloop._testing.loop import Loop


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
_loops: list[weakref.ref[Loop]] = []


def is_active() -> bool:
    """Return whether a test runs with a seed."""
    return _current is not None


def new_loop() -> Loop:
    """Return a new loop for the test that runs with a seed."""
    assert _current is not None
    # A test that makes several loops: each has a sequence of its own.
    loop = Loop(_current.seed + (len(_current.loops) << 32), **_current.options)
    _current.loops.append(loop)
    _loops.append(weakref.ref(loop))
    return loop


@contextmanager
def run(seed: int, options: dict[str, Any]) -> Iterator[Run]:
    """Give *seed* to the loops that are made meanwhile, and to the module random."""
    global _current, _loops
    before, state = _current, random.getstate()
    # Loops of a wider scope than the test's: each test begins with its own numbers.
    _loops = [known for known in _loops if (loop := known()) is not None and not loop.is_closed()]
    for known in _loops:
        if (loop := known()) is not None:
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
