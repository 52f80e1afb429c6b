"""The task that measures a program or a client: operations, nanoseconds of CPU and of wall time.

A tenth of the operations runs first, as the warm-up. Runs in a process of its own, see `task`.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from uringloop.bench import counters, loops
from uringloop.bench.settings import Address

from .workloads import CLIENTS, PROGRAMS
from .workloads.programs import Program

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
        """Return the times since the start, as the cost of this number of *operations*."""
        wall_ns = time.perf_counter_ns() - self._wall_ns
        return Reading(operations, counters.cpu_ns(os.getpid()) - self._cpu_ns, wall_ns)


def _prepared(task: Task) -> AbstractAsyncContextManager[Program]:
    """Return the context of the program, or that of the client."""
    if task.name in PROGRAMS:
        return nullcontext(PROGRAMS[task.name])
    assert isinstance(task.address, (list, tuple))
    return CLIENTS[task.name](task.address[0], task.address[1])


async def measure(task: Task) -> Reading:
    """Run the program on the running loop."""
    async with _prepared(task) as program:
        count = program.count * task.scale
        watch = Stopwatch()
        sample = program.whole(count * _ESTIMATE_SHARE)
        await program.run(sample)
        per_operation = watch.read(sample).elapsed_ns / 1e9 / sample
        count = min(count, _LIMIT / per_operation)
        await program.run(program.whole(count * _WARM_UP))
        operations = program.whole(count)
        watch = Stopwatch()
        await program.run(operations)
        return watch.read(operations)


def measure_creation(task: Task) -> Reading:
    """Create and close loops, one after the other."""
    factory = loops.load(task.loop)
    factory().close()
    operations = max(round(_LOOPS * task.scale), 1)
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
