"""Runs one program under seeds; the interpreter of its process has the version to be tried."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import platform
import random
import time
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from uringloop import testing

from .table import Race

FOUND = (AssertionError, testing.DeadlockError, testing.TimeLimitError)
# Virtual time: a program ends within two minutes.
TIME_LIMIT_S = 100_000


@dataclass(slots=True)
class Outcome:
    """The outcome for one version; *errors* are exceptions other than the bug."""

    python: str = ""
    forced: bool = False
    found: list[int] = field(default_factory=list)
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


def fails(
    function: Callable[[], Coroutine[object, object, None]],
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> bool:
    """Run the coroutine function; return whether it has met its bug."""
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(function())
    except FOUND:
        return True
    return False


def run(race: Race, seeds: int) -> Outcome:
    """Run `forced()` on asyncio's own loop, then `main()` under each seed."""
    # The bugs leave tasks and connections behind.
    logging.disable()
    warnings.simplefilter("ignore")
    program = importlib.import_module(f"races.programs.{race.name}")
    outcome = Outcome(platform.python_version(), fails(program.forced))
    start = time.perf_counter()
    gc.freeze()
    for seed in range(seeds):
        # What a seed leaves behind is not the next one's.
        gc.collect()
        # aiohttp shuffles addresses.
        random.seed(seed)

        def factory(seed: int = seed) -> testing.Loop:
            return testing.Loop(seed, faults=race.faults, time_limit=TIME_LIMIT_S)

        try:
            if fails(program.main, factory):
                outcome.found.append(seed)
        except Exception as error:
            outcome.errors.append(f"seed {seed}: {error!r}")
    outcome.seconds = time.perf_counter() - start
    return outcome
