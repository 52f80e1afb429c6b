"""Thread rows: two loops in two threads of a process, two in two processes, and one alone.

All do the same work, which has both ends in its loop. Each loop has a core of its own, the same two
cores in every arrangement. Two threads are slower than two processes by the time that they wait for
each other, for locks and for cache lines: in the loop, in CPython and in the kernel. The three
arrangements are measured one after the other in every round of a loop, so a machine that slows down
between rounds does not affect a round's ratio.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from uringloop._cpython import gil
from uringloop.bench import rows
from uringloop.bench.child import Child
from uringloop.bench.placement import choose
from uringloop.bench.rows import OK, Cell, Quantity, median_of
from uringloop.bench.settings import Refused

from . import workers
from .methods import ANSWER_SECONDS, Bench, task_command

ONE, THREADS, PROCESSES = "one", "threads", "processes"

# The processes of each arrangement, and the numbers of the cores that they have a loop on.
ARRANGEMENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    ONE: ((1,),),
    THREADS: ((0, 1),),
    PROCESSES: ((0,), (1,)),
}

# Two threads have to reach this share of the rate of two processes.
GOAL = 0.95

# A faster worker is not a mistake, but with more than this its core was not that of the slower one.
IMBALANCE = 1.25

# Bytes of the file that is read: it stays in the page cache.
FILE_BYTES = 4 * 2**20

# Operations a second of each worker, by arrangement.
Rates = dict[str, list[float]]
Measure = Callable[[str], Rates]


@dataclass(frozen=True)
class Threads:
    """A workload that is named in `workloads`, in every arrangement."""

    name: str

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        if not gil.free_threaded():
            raise Refused("not run", "needs a free-threaded Python, and this one has a GIL")
        where = choose(False)
        if where.shared:
            raise Refused("missing", "two loops need two cores")
        cores = where.client_cpu, where.server_cpu
        file = bench.directory / "cached"
        file.write_bytes(bytes(FILE_BYTES))

        def task(loop: str, numbers: tuple[int, ...]) -> workers.Task:
            cpus = tuple(cores[number] for number in numbers)
            return workers.Task(loop, self.name, cpus, bench.duration, str(file))

        def measure(loop: str) -> Rates:
            return {
                arrangement: run_together([task(loop, numbers) for numbers in processes])
                for arrangement, processes in ARRANGEMENTS.items()
            }

        yield measure


def run_together(tasks: list[workers.Task]) -> list[float]:
    """Run processes that work at the same time; return the rates of all their workers."""
    with contextlib.ExitStack() as stack:
        children = []
        for task in tasks:
            # Threads of a loop share its core, under the policy of all measured processes.
            child = Child(task_command("workers", task), task.cpus[0], True)
            stack.callback(child.stop)
            children.append(child)
        for child in children:
            child.read_answer("a process", ANSWER_SECONDS)
        for child in children:
            os.kill(child.process.pid, workers.START)
        return [
            rate
            for child in children
            for rate in child.read_answer("a process", ANSWER_SECONDS)["rates"]
        ]


@dataclass
class ThreadRow(rows.Row[Rates]):
    """One workload in every arrangement; the figure is a share of the rate of two processes."""

    # None in a row that was read from a report.
    method: Threads | None
    # The kind of operation, for the reader.
    unit: str
    goal: float = GOAL
    figure: str = "threads"

    def _rounds(self, column: str) -> list[Rates]:
        cell = self.cells.get(column)
        return cell.rounds if cell and cell.status == OK else []

    def rate(self, column: str, arrangement: str) -> Quantity | None:
        """Return the operations a second of all workers of an arrangement."""
        rounds = self._rounds(column)
        return median_of([sum(each[arrangement]) for each in rounds]) if rounds else None

    def share(self, column: str, base: str = PROCESSES) -> Quantity | None:
        """Return the rate of two threads divided by that of *base* in the same round."""
        rounds = self._rounds(column)
        return median_of([share_of(each, base) for each in rounds]) if rounds else None

    def met(self, column: str) -> bool | None:
        """Return whether a column meets the goal; None if it has no figures."""
        share = self.share(column)
        return share.value >= self.goal if share else None

    def imbalance(self, column: str) -> float:
        """Return the rate of the faster thread divided by that of the slower one."""
        rounds = self._rounds(column)
        each = [max(one[THREADS]) / min(one[THREADS]) for one in rounds]
        return median_of(each).value if each else 1.0


def share_of(rates: Rates, base: str = PROCESSES) -> float:
    """Return the rate of two threads divided by that of another arrangement."""
    return sum(rates[THREADS]) / sum(rates[base])


def described(row: ThreadRow, cell: Cell[Rates]) -> str:
    """Return a line about the last round of a cell, for the progress bar."""
    if cell.status != OK:
        return f"{row.name}: {cell.loop}: {cell.status} {cell.note}".rstrip()
    return f"{row.name}: {cell.loop}: {share_of(cell.rounds[-1]):.2f} of two processes"


ROWS = [
    ThreadRow("threads-echo", Threads("pair-protocol"), "message"),
    ThreadRow("threads-streams", Threads("pair-streams"), "message"),
    ThreadRow("threads-sleep", Threads("sleep-1"), "turn"),
    ThreadRow("threads-spawn", Threads("create-task"), "task"),
    ThreadRow("threads-timers", Threads("timers"), "timer"),
    ThreadRow("threads-files", Threads("read-4k"), "read"),
]
