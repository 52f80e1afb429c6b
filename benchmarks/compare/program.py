"""The task that measures a program or a client: operations, nanoseconds of CPU and of wall time.

A tenth of the operations runs first, as the warm-up. Runs in a process of its own, see `task`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uringloop.bench import counters, loops
from uringloop.bench.settings import Address

from .workloads import CLIENTS, PROGRAMS

# Share of the operations for a first estimate and for the warm-up, which fills caches and prepares
# the allocator and specialised bytecode.
_ESTIMATE_SHARE = 0.01
_WARM_UP = 0.1

# Seconds that a measurement may take. Most take one at most; a loop that needs milliseconds where
# others need microseconds runs fewer operations.
_LIMIT = 10.0

# Loops that `create` makes in one measurement.
_LOOPS = 300


@dataclass(frozen=True)
class Task:
    """A program by name, or a client with its database's address; *scale* shortens it."""

    loop: str
    name: str
    scale: float = 1.0
    address: Address | None = None
    # The cores of the process; without any, those that it inherits.
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reading:
    """The cost of the operations."""

    operations: int
    cpu_ns: int
    elapsed_ns: int


class Stopwatch:
    """CPU and wall time since its creation."""

    def __init__(self) -> None:
        self._cpu_ns = counters.cpu_ns(os.getpid())
        self._wall_ns = time.perf_counter_ns()

    def read(self, operations: int) -> Reading:
        """Return the times since the start, as those of so many *operations*."""
        wall_ns = time.perf_counter_ns() - self._wall_ns
        return Reading(operations, counters.cpu_ns(os.getpid()) - self._cpu_ns, wall_ns)


def scaled(count: int, unit: int, scale: float) -> int:
    """Return *count* times *scale* in whole units, at least one unit."""
    return max(round(count * scale / unit), 1) * unit


Run = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def _prepared(task: Task) -> AsyncIterator[tuple[Run, int, int]]:
    """Yield the function to run, its number of operations, and the unit of that number."""
    if task.name in PROGRAMS:
        program = PROGRAMS[task.name]
        yield program.run, program.count, program.unit
    else:
        assert isinstance(task.address, (list, tuple))
        client = CLIENTS[task.name]
        async with client.connected(task.address[0], task.address[1]) as run:
            yield run, client.count, 1


async def measure(task: Task) -> Reading:
    """Run the program on the running loop."""
    async with _prepared(task) as (run, count, unit):
        watch = Stopwatch()
        sample = scaled(count, unit, task.scale * _ESTIMATE_SHARE)
        await run(sample)
        per_operation = watch.read(sample).elapsed_ns / 1e9 / sample
        scale = min(task.scale, _LIMIT / (per_operation * count))
        await run(scaled(count, unit, scale * _WARM_UP))
        operations = scaled(count, unit, scale)
        watch = Stopwatch()
        await run(operations)
        return watch.read(operations)


def measure_creation(task: Task) -> Reading:
    """Create and close loops, one after the other."""
    factory = loops.load(task.loop)
    factory().close()
    operations = scaled(_LOOPS, 1, task.scale)
    watch = Stopwatch()
    for _ in range(operations):
        factory().close()
    return watch.read(operations)


def run(task: Task) -> Reading:
    """Create the loop and measure on it; asyncio's debug mode is off."""
    if task.cpus:
        os.sched_setaffinity(0, task.cpus)
    if task.name == "create":
        return measure_creation(task)
    with asyncio.Runner(debug=False, loop_factory=loops.load(task.loop)) as runner:
        return runner.run(measure(task))
