"""Rows, cells and rounds, of which every comparison of loops consists.

A row is one workload under several loops; a cell is one loop in a row. Each round measures every
loop once (A B C, A B C), so that a machine that slows down affects every loop. The programs of
benchmarks/ use the same classes. Runs in the benchmark's own process, in which nothing is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from . import loops
from .settings import Refused

# The status of a cell whose rounds have all been taken so far.
OK = "ok"

# The loop with which every other loop is compared.
BASELINE = "uvloop"
# The loop that the reports are about.
SUBJECT = "uringloop"

# A note below the table of every report.
SPREAD_NOTE = "Medians of the rounds, ± half the distance between the lowest and the highest."

# The result of one round of a cell: one figure, or a record of several.
Round = TypeVar("Round")


@dataclass(frozen=True)
class Quantity:
    """A value with the lowest and the highest of its rounds."""

    value: float
    low: float
    high: float
    rounds: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Half the distance from lowest to highest, as a part of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    def text(self, scale: float, digits: int) -> str:
        """Return the value in units of *scale*, and its spread."""
        return f"{self.value / scale:,.{digits}f} ±{self.spread:.0%}"

    def json(self) -> dict[str, object]:
        """Return the value for a report in JSON, in base units."""
        return {
            "value": self.value,
            "min": self.low,
            "max": self.high,
            "rounds": list(self.rounds),
        }


def median_of(values: Sequence[float]) -> Quantity:
    """Return the median of the rounds, with the lowest and the highest of them."""
    return Quantity(statistics.median(values), min(values), max(values), tuple(values))


@dataclass
class Cell(Generic[Round]):
    """One loop in one row: its rounds, or the reason why there are none."""

    loop: str
    status: str = OK
    note: str = ""
    rounds: list[Round] = field(default_factory=list)

    def give_up(self, status: str, note: str) -> None:
        """Take no more rounds, and record the reason."""
        self.status = status
        self.note = note

    def take_round(self, measure: Callable[[str], Round]) -> None:
        """Take one round, unless an earlier one was refused."""
        if self.status != OK:
            return
        try:
            self.rounds.append(measure(self.loop))
        except Refused as exc:
            self.give_up(exc.kind, exc.reason)


@dataclass
class Row(Generic[Round]):
    """One workload, and a cell for each loop that takes part."""

    name: str
    cells: dict[str, Cell[Round]] = field(default_factory=dict, kw_only=True)

    def measure(
        self,
        rounds: int,
        measure: Callable[[str], Round],
        step: Callable[[Cell[Round]], None],
        *,
        rotating: bool = False,
    ) -> None:
        """Take *rounds* rounds of every cell in turn; *step* is called after each.

        With *rotating*, each round begins with another cell, for workloads that leave state behind,
        such as dirty pages, which the next cell meets.
        """
        cells = list(self.cells.values())
        for number in range(rounds):
            first = number % len(cells) if rotating else 0
            for cell in cells[first:] + cells[:first]:
                cell.take_round(measure)
                step(cell)


def cells_of(names: Iterable[str]) -> dict[str, Cell[Round]]:
    """Return an empty cell for each loop."""
    return {name: Cell(name) for name in names}


def require_installed(loop: str) -> None:
    """Refuse a loop whose module is missing."""
    if not loops.installed(loop):
        raise Refused("not installed", "")
