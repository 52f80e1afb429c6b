"""The seed of the test that runs, and the loops that it makes."""

from __future__ import annotations

import dataclasses
import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uringloop.testing.faults import Faults
from uringloop.testing.loop import Loop, total_elapsed
from uringloop.testing.weak_list import WeakList


@dataclasses.dataclass
class Run:
    """One run of a test with one seed."""

    seed: int
    options: dict[str, Any]  # of the loops
    loops: int = 0  # how many it has made
    real_s: float = 0.0
    virtual_s: float = 0.0  # how far the clocks of all loops have advanced


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
    # If a test makes several loops, each has a sequence of its own.
    loop = Loop(_current.seed + (_current.loops << 32), **_current.options)
    _current.loops += 1
    _loops.add(loop)
    return loop


def begin_again(seed: int, faults: Faults | None) -> None:
    """Give the loops of wider scopes a seed, and the faults of the test that is about to run."""
    for loop in _loops:
        loop.reseed(seed)
        loop.faults = faults or Faults()


@contextmanager
def garbage_set_aside() -> Iterator[None]:
    """Hide what was made before from the garbage collector.

    What `__del__` does to a loop is then done at the same points of each run of a test, whatever
    has run before it, and run() can collect the garbage of one run within microseconds.
    """
    frozen_before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


@contextmanager
def run(seed: int, options: dict[str, Any]) -> Iterator[Run]:
    """Give *seed* to the loops that are made meanwhile, and to the module random."""
    global _current
    before, state = _current, random.getstate()
    gc.collect()
    # On loops of a wider scope than the test's, too, each test begins with its own numbers.
    began_at = total_elapsed()
    begin_again(seed, options.get("faults"))
    _current = made = Run(seed, options)
    random.seed(seed)
    began = time.monotonic()
    try:
        yield made
    finally:
        made.real_s = time.monotonic() - began
        made.virtual_s = total_elapsed() - began_at
        _current = before
        random.setstate(state)
