"""What the rounds come to: a table of rows and columns, as JSON, as Markdown, merged with others.

A ratio is the baseline's median divided by the column's, of the same run and interpreter: more is
better, 1.4 means 1.4 times as cheap. A merged table keeps the ratios of the runs it is made of.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uringloop.bench.settings import BenchError
from uringloop.bench.summary import BASELINE, Quantity, median_of

# Counts up when a field changes its meaning.
SCHEMA = 1

# Whose goals the rows have.
SUBJECT = "uringloop"

# The curve's rows are drawn as one.
CURVE = "curve/"

# What a column shows in the place of a figure.
OK = "ok"

TIME_UNITS = ((1e6, "ms"), (1e3, "us"), (1.0, "ns"))
MEMORY_UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1.0, "B"))


@dataclass
class Cell:
    """One column of a row: its rounds, or the reason why there are none."""

    status: str = OK
    note: str = ""
    rounds: list[float] = field(default_factory=list)
    ratio: float | None = None

    def give_up(self, status: str, note: str) -> None:
        """Take no more rounds and say why."""
        self.status = status
        self.note = note

    @property
    def quantity(self) -> Quantity | None:
        return median_of(self.rounds) if self.rounds and self.status == OK else None


@dataclass
class Line:
    """One row of the table; a column that has no cell does not take part in it."""

    name: str
    goal: float | None
    figure: str
    unit: str
    cells: dict[str, Cell]
    # What must be known of this row only.
    remark: str = ""

    def compare(self) -> None:
        """Set the ratios to the baseline."""
        base = self.cells.get(BASELINE, Cell()).quantity
        for cell in self.cells.values():
            own = cell.quantity
            cell.ratio = base.value / own.value if base and own and own.value > 0 else None

    def met(self, column: str) -> bool | None:
        """Return whether a column meets the goal; None if there is no goal or no ratio."""
        cell = self.cells.get(column)
        if cell is None or cell.ratio is None or self.goal is None:
            return None
        return cell.ratio >= self.goal


@dataclass
class Table:
    """A report: of one run, or of several that were merged."""

    environments: list[dict[str, str]]
    settings: list[dict[str, Any]]
    columns: list[str]
    lines: list[Line]

    @property
    def judged(self) -> list[str]:
        """The columns that the goals are for."""
        return [column for column in self.columns if column.partition(" ")[0] == SUBJECT]


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


def _json_cell(cell: Cell) -> dict[str, Any]:
    encoded: dict[str, Any] = {"status": cell.status, "note": cell.note, "rounds": cell.rounds}
    if (quantity := cell.quantity) is not None:
        encoded |= {"value": quantity.value, "min": quantity.low, "max": quantity.high}
    return encoded | {"ratio": cell.ratio}


def to_json(table: Table) -> str:
    """Return the report for programs, in base units: nanoseconds and bytes per operation."""
    document = {
        "schema": SCHEMA,
        "baseline": BASELINE,
        "environments": table.environments,
        "settings": table.settings,
        "columns": table.columns,
        "rows": [
            {
                "name": line.name,
                "goal": line.goal,
                "figure": line.figure,
                "unit": line.unit,
                "remark": line.remark,
                "met": {column: line.met(column) for column in table.judged},
                "cells": {column: _json_cell(cell) for column, cell in line.cells.items()},
            }
            for line in table.lines
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _line_of(row: dict[str, Any]) -> Line:
    cells = {
        column: Cell(cell["status"], cell["note"], cell["rounds"], cell["ratio"])
        for column, cell in row["cells"].items()
    }
    return Line(row["name"], row["goal"], row["figure"], row["unit"], cells, row["remark"])


def load(path: Path) -> Table:
    """Read a report that to_json has made."""
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise BenchError(f"{path}: a report of schema {document['schema']}, not {SCHEMA}")
        return Table(
            document["environments"],
            document["settings"],
            document["columns"],
            [_line_of(row) for row in document["rows"]],
        )
    except OSError as exc:
        raise BenchError(f"{path}: {exc.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise BenchError(f"{path}: not a report of this benchmark") from None


# ── merging ──────────────────────────────────────────────────────────────────────────────────


def merge(tables: list[Table]) -> Table:
    """Return one table of several; the columns of a run get its Python's version."""
    merged = Table([], [], [], [])
    lines: dict[str, Line] = {}
    for table in tables:
        merged.environments += table.environments
        merged.settings += table.settings
        # A table that was merged before has the versions in its columns.
        single = len(table.environments) == 1
        suffix = f" ({table.environments[0]['python_version']})" if single else ""
        renamed = {column: f"{column}{suffix}" for column in table.columns}
        for column in renamed.values():
            if column in merged.columns:
                raise BenchError(f"--merge: two reports have {column}")
            merged.columns.append(column)
        for line in table.lines:
            whole = lines.get(line.name)
            if whole is None:
                whole = replace(line, cells={})
                lines[line.name] = whole
            whole.cells |= {renamed[column]: cell for column, cell in line.cells.items()}
    merged.lines = list(lines.values())
    return merged


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────


def scale_of(line: Line) -> tuple[float, str]:
    """Return by what the values of a row are divided, and the unit that they are then in."""
    values = [cell.quantity.value for cell in line.cells.values() if cell.quantity is not None]
    base = line.cells.get(BASELINE, Cell()).quantity
    units = MEMORY_UNITS if line.figure == "memory" else TIME_UNITS
    middle = base.value if base else statistics.median(values) if values else 1.0
    return next((unit for unit in units if middle >= unit[0]), units[-1])


def text_of(cell: Cell, scale: float) -> str:
    """Return a value, its spread and its ratio; or the status."""
    quantity = cell.quantity
    if quantity is None:
        return cell.status
    ratio = f" **{cell.ratio:.2f}**" if cell.ratio is not None else ""
    return f"{quantity.value / scale:.2f} ±{quantity.spread:.0%}{ratio}"


def verdict(line: Line, columns: list[str]) -> str:
    """Return in words whether the goal is met, for each column that is judged."""
    words = {True: "yes", False: "no", None: "-"}
    if line.goal is None or not columns:
        return ""
    said = {column: words[line.met(column)] for column in columns}
    if len(set(said.values())) == 1:
        return said[columns[0]]
    return ", ".join(f"{word} {column.partition(' ')[2]}" for column, word in said.items())


def cells_of(table: Table, line: Line) -> list[str]:
    scale, unit = scale_of(line)
    figures = [text_of(line.cells[c], scale) if c in line.cells else "" for c in table.columns]
    goal = f"{line.goal:.2f}" if line.goal is not None else ""
    what = {"cpu": f"CPU {unit}", "memory": unit, "wall": f"wall {unit}"}.get(line.figure)
    # A percentile is of no operation in particular.
    kind = f"{what}/{line.unit}" if what else f"{line.figure} {unit}"
    return [line.name, kind, goal, verdict(line, table.judged), *figures]


def notes(table: Table) -> Iterator[str]:
    """Yield what must be said below the table."""
    yield "Medians of the rounds, ± half the distance between the lowest and the highest."
    yield f"In bold: {BASELINE}'s median divided by the column's; more is better."
    yield "Every measured process has freed one large block first: large buffers cost all the same."
    yield f"A goal is the ratio that {SUBJECT} is to reach."
    goals = [line.met(column) for line in table.lines for column in table.judged]
    if any(goal is not None for goal in goals):
        yield f"Goals: {goals.count(True)} met, {goals.count(False)} not met."
    yield from (f"{line.name}: {line.remark}." for line in table.lines if line.remark)
    told: dict[tuple[str, str, str], list[str]] = {}
    for line in table.lines:
        for column, cell in line.cells.items():
            if cell.status != OK:
                told.setdefault((column, cell.status, cell.note), []).append(line.name)
    for (column, status, note), rows in told.items():
        places = ", ".join(rows) if len(rows) < 6 else f"{len(rows)} rows"
        yield f"{column}, {places}: {status}" + (f": {note}" if note not in ("", status) else "")


def ratio_of(line: Line, column: str) -> str:
    """Return how much cheaper a column is than the baseline, bold where that is the goal."""
    cell = line.cells.get(column)
    if cell is None or cell.ratio is None:
        return "" if cell is None or cell.status == OK else cell.status
    return f"**{cell.ratio:.2f}**" if line.met(column) else f"{cell.ratio:.2f}"


def ratios(table: Table) -> Iterator[str]:
    """Yield the lines of a table of ratios only: the report at a glance."""
    columns = [column for column in table.columns if column.partition(" ")[0] != BASELINE]
    yield f"| {' | '.join(['row', 'goal', *columns])} |"
    yield f"| {' | '.join([':--', *['--:'] * (1 + len(columns))])} |"
    for line in table.lines:
        goal = f"{line.goal:.2f}" if line.goal is not None else ""
        yield f"| {' | '.join([line.name, goal, *(ratio_of(line, c) for c in columns)])} |"


def markdown(table: Table) -> str:
    """Return the report as a Markdown document."""
    heading = ["row", "figure", "goal", "goal is met", *table.columns]
    rule = [":--", ":--", "--:", ":--", *["--:"] * len(table.columns)]
    lines = ["## Event loops compared", ""]
    for environment, settings in zip(table.environments, table.settings, strict=True):
        lines += [f"- {name}: {value}" for name, value in environment.items()]
        lines += [f"- settings: {', '.join(f'{k} {v}' for k, v in settings.items())}", ""]
    lines += [f"### How many times as cheap as {BASELINE}", ""]
    lines += [*ratios(table), "", "Bold: the goal is reached.", "", "### The figures", ""]
    rows = [heading, rule, *(cells_of(table, line) for line in table.lines)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", *(f"- {note}" for note in notes(table))]
    return "\n".join(lines) + "\n"
