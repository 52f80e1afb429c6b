"""The task of the thread rows: one loop for each of its cores, all with the same work.

Each loop has a thread of its own. The process (`task`) prints a line when every loop is up and
warm, waits for SIGUSR1, works for the task's time, and prints a Reading. Processes that are to work
at the same time get the signal at the same time.

Every worker counts whole batches of operations, and leaves out the first and the last one. All that
is counted therefore happens while every other worker is also working, although they do not start or
end at exactly the same moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from uringloop._cpython import gil
from uringloop.bench import loops
from uringloop.bench.settings import Refused

from .workloads import PAIRS, PROGRAMS
from .workloads.programs import Program

# Batches in the time of a measurement. More would make timers and connections few in each, fewer
# would leave out more of the work.
_BATCHES = 50

# Share of a workload's operations for a first estimate of their time.
_ESTIMATE_SHARE = 0.01

# Share of the time for the warm-up. Every thread specialises its own copy of the bytecode.
_WARM_UP = 0.25

# Starts the work of a process that has reported that it is ready.
START = signal.SIGUSR1


@dataclass(frozen=True)
class Task:
    """A workload by name, on one loop for each core; *seconds* is the time that is measured."""

    loop: str
    name: str
    cpus: tuple[int, ...]
    seconds: float
    # Data for the workload that reads a file.
    file: str


@dataclass(frozen=True)
class Reading:
    """Operations a second of each worker."""

    rates: tuple[float, ...]


def _prepared(task: Task) -> AbstractAsyncContextManager[Program]:
    """Return the context of the program, or that of the pair."""
    if task.name in PROGRAMS:
        return nullcontext(PROGRAMS[task.name])
    return PAIRS[task.name](Path(task.file))


async def work(task: Task, meet: Callable[[], object]) -> float:
    """Run the workload on the running loop and return its operations a second."""
    async with _prepared(task) as program:
        sample = program.whole(program.count * _ESTIMATE_SHARE)
        await program.run(sample)
        began = time.perf_counter()
        await program.run(sample)
        each = (time.perf_counter() - began) / sample
        batch = program.whole(task.seconds / _BATCHES / each)
        until = time.perf_counter() + task.seconds * _WARM_UP
        while time.perf_counter() < until:
            await program.run(batch)
        # Blocks the loop, whose other callbacks have nothing to do.
        meet()
        until = time.perf_counter() + task.seconds
        await program.run(batch)
        began = ended = time.perf_counter()
        done = 0
        while True:
            await program.run(batch)
            now = time.perf_counter()
            # One batch at least, if a worker is so slow that none ends in time.
            if now > until and done:
                break
            ended = now
            done += batch
    return done / (ended - began)


def _report_and_wait() -> None:
    print(json.dumps({"ready": True}), flush=True)
    signal.sigwait([START])


def run(task: Task) -> Reading:
    """Run the workers: one alone in this thread, several in threads of their own.

    That is how programs are written. The main thread then owns the objects that are created by
    imports, so no worker has an advantage over the other.
    """
    # All threads inherit this; sigwait() takes the blocked signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, [START])
    barrier = threading.Barrier(len(task.cpus), action=_report_and_wait)
    rates = [0.0] * len(task.cpus)
    errors: list[Exception] = []
    factory = loops.load(task.loop)

    def worker(number: int, cpu: int) -> None:
        try:
            os.sched_setaffinity(0, {cpu})
            with asyncio.Runner(debug=False, loop_factory=factory) as runner:
                rates[number] = runner.run(work(task, barrier.wait))
        except threading.BrokenBarrierError:
            # The worker that broke it has kept its own error.
            return
        except Exception as exc:
            errors.append(exc)
            barrier.abort()

    if len(task.cpus) == 1:
        worker(0, task.cpus[0])
    else:
        threads = [threading.Thread(target=worker, args=each) for each in enumerate(task.cpus)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    # Afterwards, because a loop may import modules when it first needs them.
    if gil.enabled():
        built = gil.free_threaded()
        raise Refused(
            "GIL on",
            "a module of the loop switched it on" if built else "this Python cannot run without it",
        )
    return Reading(tuple(rates))
