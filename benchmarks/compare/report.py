"""The report: a table of rows and columns, written as JSON and as Markdown, and merged with others.

A ratio is the baseline's median divided by the column's, of the same run and interpreter: higher is
better, 1.4 means that the baseline costs 1.4 times as much. A merged table keeps the ratios of its
runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uringloop.bench import markdown as md
from uringloop.bench.rows import BASELINE, OK, SPREAD_NOTE, SUBJECT, Cell
from uringloop.bench.settings import BenchError

from .rows import Row, loop_of, python_of

# Incremented when a field changes its meaning.
SCHEMA = 1

# Prefix of the rows that plot.py draws as one curve.
CURVE = "curve/"

# Columns of the two tables that contain words, aligned to the left.
WORDS = ("row", "figure", "goal is met")

TIME_UNITS = ((1e6, "ms"), (1e3, "us"), (1.0, "ns"))
MEMORY_UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1.0, "B"))


@dataclass
class Table:
    """The report of one run, or of several merged runs."""

    environments: list[dict[str, str]]
    settings: list[dict[str, Any]]
    columns: list[str]
    rows: list[Row]

    @property
    def judged(self) -> list[str]:
        """The columns to which the goals apply."""
        return [column for column in self.columns if loop_of(column) == SUBJECT]


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


def _json_cell(row: Row, column: str) -> dict[str, Any]:
    cell, quantity = row.cells[column], row.quantity(column)
    encoded: dict[str, Any] = {"status": cell.status, "note": cell.note, "rounds": cell.rounds}
    return encoded | (quantity.json() if quantity else {}) | {"ratio": row.ratio(column)}


def to_json(table: Table) -> str:
    """Return the report as JSON, in base units: nanoseconds and bytes per operation."""
    document = {
        "schema": SCHEMA,
        "baseline": BASELINE,
        "environments": table.environments,
        "settings": table.settings,
        "columns": table.columns,
        "rows": [
            {
                "name": row.name,
                "goal": row.goal,
                "figure": row.figure,
                "unit": row.unit,
                "remark": row.remark,
                "met": {column: row.met(column) for column in table.judged},
                "cells": {column: _json_cell(row, column) for column in row.cells},
            }
            for row in table.rows
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _row_of(row: dict[str, Any]) -> Row:
    cells = {
        column: Cell[float](column, cell["status"], cell["note"], cell["rounds"])
        for column, cell in row["cells"].items()
    }
    read = Row(row["name"], row["goal"], None, row["figure"], row["unit"], cells=cells)
    return replace(read, remark=row["remark"])


def load(path: Path) -> Table:
    """Read a report written by to_json."""
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise BenchError(f"{path}: a report of schema {document['schema']}, not {SCHEMA}")
        return Table(
            document["environments"],
            document["settings"],
            document["columns"],
            [_row_of(row) for row in document["rows"]],
        )
    except OSError as exc:
        raise BenchError(f"{path}: {exc.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise BenchError(f"{path}: not a report of this benchmark") from None


# ── merging ──────────────────────────────────────────────────────────────────────────────────


def merge(tables: list[Table]) -> Table:
    """Merge tables; the columns of each run get the version of its Python."""
    merged = Table([], [], [], [])
    rows: dict[str, Row] = {}
    for table in tables:
        merged.environments += table.environments
        merged.settings += table.settings
        # The columns of a merged table have versions already.
        single = len(table.environments) == 1
        suffix = f" ({table.environments[0]['python_version']})" if single else ""
        renamed = {column: f"{column}{suffix}" for column in table.columns}
        for column in renamed.values():
            if column in merged.columns:
                raise BenchError(f"--merge: two reports have {column}")
            merged.columns.append(column)
        for row in table.rows:
            whole = rows.setdefault(row.name, replace(row, cells={}))
            whole.cells |= {renamed[column]: cell for column, cell in row.cells.items()}
    merged.rows = list(rows.values())
    return merged


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────


def scale_of(row: Row) -> tuple[float, str]:
    """Return the divisor for the values of a row, and the unit after the division."""
    values = [found.value for column in row.cells if (found := row.quantity(column))]
    base = row.quantity(BASELINE)
    units = MEMORY_UNITS if row.figure == "memory" else TIME_UNITS
    middle = base.value if base else statistics.median(values) if values else 1.0
    return next((unit for unit in units if middle >= unit[0]), units[-1])


def text_of(row: Row, column: str, scale: float) -> str:
    """Return a cell: value, spread and ratio, or the status."""
    if column not in row.cells:
        return ""
    quantity, ratio = row.quantity(column), row.ratio(column)
    if quantity is None:
        return row.cells[column].status
    return quantity.text(scale, 2) + (f" **{ratio:.2f}**" if ratio is not None else "")


def goal_of(row: Row) -> str:
    return f"{row.goal:.2f}" if row.goal is not None else ""


def verdict(row: Row, columns: list[str]) -> str:
    """Return yes, no or - (goal met), with the Python if the columns differ."""
    words = {True: "yes", False: "no", None: "-"}
    if row.goal is None or not columns:
        return ""
    verdicts = {column: words[row.met(column)] for column in columns}
    if len(set(verdicts.values())) == 1:
        return verdicts[columns[0]]
    return ", ".join(f"{word} {python_of(column).strip()}" for column, word in verdicts.items())


def cells_of(table: Table, row: Row) -> list[str]:
    scale, unit = scale_of(row)
    figures = [text_of(row, column, scale) for column in table.columns]
    what = {"cpu": f"CPU {unit}", "memory": unit, "wall": f"wall {unit}"}.get(row.figure)
    # A percentile of latency is not per operation.
    kind = f"{what}/{row.unit}" if what else f"{row.figure} {unit}"
    return [row.name, kind, goal_of(row), verdict(row, table.judged), *figures]


def notes(table: Table) -> Iterator[str]:
    """Yield the notes below the table."""
    yield SPREAD_NOTE
    yield f"Bold: {BASELINE}'s median divided by the column's; higher is better."
    yield "Each measured process first frees a large block, so that malloc() keeps large buffers."
    yield f"A goal is the ratio that {SUBJECT} has to reach."
    goals = [row.met(column) for row in table.rows for column in table.judged]
    if any(goal is not None for goal in goals):
        yield f"Goals: {goals.count(True)} met, {goals.count(False)} not met."
    yield from (f"{row.name}: {row.remark}." for row in table.rows if row.remark)
    rows_by_status: dict[tuple[str, str, str], list[str]] = {}
    for row in table.rows:
        for column, cell in row.cells.items():
            if cell.status != OK:
                rows_by_status.setdefault((column, cell.status, cell.note), []).append(row.name)
    for (column, status, note), names in rows_by_status.items():
        places = ", ".join(names) if len(names) < 6 else f"{len(names)} rows"
        yield f"{column}, {places}: {status}" + (f": {note}" if note not in ("", status) else "")


def ratio_of(row: Row, column: str) -> str:
    """Return the ratio of a column, bold if it meets the goal; or the status."""
    ratio, cell = row.ratio(column), row.cells.get(column)
    if ratio is None:
        return "" if cell is None or cell.status == OK else cell.status
    return f"**{ratio:.2f}**" if row.met(column) else f"{ratio:.2f}"


def markdown(table: Table) -> str:
    """Return the report as a Markdown document: a table of ratios, then one of figures."""
    lines = ["## Event loops compared", ""]
    for environment, settings in zip(table.environments, table.settings, strict=True):
        listed = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines += [*md.facts(environment | {"settings": listed}), ""]
    others = [column for column in table.columns if loop_of(column) != BASELINE]
    ratios = [[row.name, goal_of(row), *(ratio_of(row, c) for c in others)] for row in table.rows]
    lines += [f"### How many times as cheap as {BASELINE}", ""]
    lines += [*md.table(["row", "goal", *others], ratios, WORDS), ""]
    lines += ["Bold: the goal is reached.", "", "### The figures", ""]
    headings = ["row", "figure", "goal", "goal is met", *table.columns]
    lines += md.table(headings, (cells_of(table, row) for row in table.rows), WORDS)
    lines += ["", *(f"- {note}" for note in notes(table))]
    return "\n".join(lines) + "\n"
