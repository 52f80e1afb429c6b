"""The report: a table of rows and columns, written as JSON and as Markdown, and merged with others.

A ratio is the baseline's median divided by the column's, of the same run and interpreter. Higher is
better: 1.4 means that the baseline costs 1.4 times as much. A merged table keeps the ratios of its
runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uringloop.bench import markdown as md
from uringloop.bench.rows import BASELINE, OK, SPREAD_NOTE, SUBJECT, Cell, Quantity
from uringloop.bench.settings import BenchError

from .rows import Row, loop_of, python_of
from .threads import IMBALANCE, ONE, PROCESSES, THREADS, ThreadRow

# Incremented when a field changes its meaning.
SCHEMA = 1

# Prefixes of the rows that plot.py draws as curves; those of memory are in the map, too.
CURVE = "curve/"
IDLE = "idle-rss/"

# Columns of the two tables that contain words, aligned to the left.
WORDS = ("row", "figure", "goal is met", "loop", "of")

TIME_UNITS = ((1e6, "ms"), (1e3, "us"), (1.0, "ns"))
MEMORY_UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1.0, "B"))


@dataclass
class Table:
    """The report of one run, or of several merged runs."""

    environments: list[dict[str, str]]
    settings: list[dict[str, Any]]
    columns: list[str]
    rows: list[Row]
    threads: list[ThreadRow] = field(default_factory=list)

    @property
    def cells(self) -> list[Cell[Any]]:
        """The cells of all rows."""
        cells: list[Cell[Any]] = [cell for row in self.rows for cell in row.cells.values()]
        return cells + [cell for row in self.threads for cell in row.cells.values()]

    def judged(self, row: Row | ThreadRow) -> list[str]:
        """Return the columns to which the goal of a row applies."""
        subject = row.subject if isinstance(row, Row) else SUBJECT
        return [column for column in self.columns if loop_of(column) == subject]


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


def _json_cell(cell: Cell[Any], quantity: Quantity | None) -> dict[str, Any]:
    encoded: dict[str, Any] = {"status": cell.status, "note": cell.note, "rounds": cell.rounds}
    return encoded | (quantity.json() if quantity else {}) | {"rounds": cell.rounds}


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
                "met": {column: row.met(column) for column in table.judged(row)},
                "cells": {
                    column: _json_cell(cell, row.quantity(column)) | {"ratio": row.ratio(column)}
                    for column, cell in row.cells.items()
                },
            }
            for row in table.rows
        ],
        "threads": [
            {
                "name": row.name,
                "goal": row.goal,
                "unit": row.unit,
                "met": {column: row.met(column) for column in table.judged(row)},
                "cells": {
                    column: _json_cell(cell, row.share(column))
                    for column, cell in row.cells.items()
                },
            }
            for row in table.threads
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _read_cells(row: dict[str, Any]) -> dict[str, Cell[Any]]:
    return {
        column: Cell(column, cell["status"], cell["note"], cell["rounds"])
        for column, cell in row["cells"].items()
    }


def _row_of(row: dict[str, Any]) -> Row:
    cells = _read_cells(row)
    read = Row(row["name"], row["goal"], None, row["figure"], row["unit"], cells=cells)
    subject = next((loop_of(column) for column in row["met"]), SUBJECT)
    return replace(read, remark=row["remark"], subject=subject)


def _thread_row_of(row: dict[str, Any]) -> ThreadRow:
    return ThreadRow(row["name"], None, row["unit"], row["goal"], cells=_read_cells(row))


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
            # Older reports have none.
            [_thread_row_of(row) for row in document.get("threads", [])],
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
    threads: dict[str, ThreadRow] = {}
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
        for each in table.threads:
            threaded = threads.setdefault(each.name, replace(each, cells={}))
            threaded.cells |= {renamed[column]: cell for column, cell in each.cells.items()}
    merged.rows = list(rows.values())
    merged.threads = list(threads.values())
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
    return [row.name, kind, goal_of(row), verdict(row, table.judged(row)), *figures]


def notes(table: Table) -> Iterator[str]:
    """Yield the notes below the table."""
    yield SPREAD_NOTE
    yield f"Bold: {BASELINE}'s median divided by the column's; higher is better."
    yield "Each measured process first frees a large block, so that malloc() keeps large buffers."
    yield f"A goal is the ratio that {SUBJECT} has to reach, if no other column is named."
    goals = [row.met(column) for row in table.rows for column in table.judged(row)]
    if any(goal is not None for goal in goals):
        yield f"Goals: {goals.count(True)} met, {goals.count(False)} not met."
    yield from (f"{row.name}: {row.remark}." for row in table.rows if row.remark)
    yield from refusals(table.rows)


def refusals(rows: Sequence[Row | ThreadRow]) -> Iterator[str]:
    """Yield the reasons why cells have no figure: a line for each loop and reason."""
    rows_by_status: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
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
    if table.rows:
        lines += ratios_and_figures(table)
    if table.threads:
        lines += threads_section(table)
    while lines[-1] == "":
        del lines[-1]
    return "\n".join(lines) + "\n"


def ratios_and_figures(table: Table) -> list[str]:
    """Return the tables of ratios and of figures, and the notes about them."""
    others = [column for column in table.columns if loop_of(column) != BASELINE]
    shared = [
        column
        for column in others
        if loop_of(column) == SUBJECT and any(row.share_of_c(column) for row in table.rows)
    ]
    ratios = [
        [
            row.name,
            goal_of(row),
            *(ratio_of(row, column) for column in others),
            *(f"{share:.2f}" if (share := row.share_of_c(c)) else "" for c in shared),
        ]
        for row in table.rows
    ]
    headings = ["row", "goal", *others, *(f"share of C{python_of(column)}" for column in shared)]
    lines = [f"### How many times as cheap as {BASELINE}", ""]
    lines += [*md.table(headings, ratios, WORDS), "", "Bold: the goal is reached."]
    if shared:
        lines[-1] += f" Share of C: the cost of the cheaper C server, divided by {SUBJECT}'s."
    lines += ["", "### The figures", ""]
    headings = ["row", "figure", "goal", "goal is met", *table.columns]
    lines += md.table(headings, (cells_of(table, row) for row in table.rows), WORDS)
    return [*lines, "", *(f"- {note}" for note in notes(table)), ""]


# ── the rows of threads ──────────────────────────────────────────────────────────────────────


def share_of(row: ThreadRow, column: str) -> str:
    """Return two threads' share of two processes, bold if it meets the goal; or the status."""
    share, cell = row.share(column), row.cells.get(column)
    if share is None:
        return "" if cell is None or cell.status == OK else cell.status
    text = share.text(1.0, 2)
    return f"**{text}**" if row.met(column) else text


def rates_of(row: ThreadRow, column: str) -> list[str]:
    """Return the line of one loop in a row: the rates of all arrangements, and the ratios."""
    rates = [row.rate(column, arrangement) for arrangement in (ONE, THREADS, PROCESSES)]
    shares = [row.share(column, base) for base in (ONE, PROCESSES)]
    return [
        row.name,
        column,
        row.unit,
        *(rate.text(1.0, 0) if rate else "" for rate in rates),
        *(share.text(1.0, 2) if share else "" for share in shares),
    ]


def thread_notes(table: Table) -> Iterator[str]:
    """Yield the notes about the thread rows."""
    yield SPREAD_NOTE
    yield (
        "Two loops in two threads of one process are compared with two processes and with one loop;"
        " each loop has a core of its own, and both ends of its connections."
    )
    yield "A ratio is that of two rates of the same round, measured one right after the other."
    for row in table.threads:
        for column in row.cells:
            if (imbalance := row.imbalance(column)) > IMBALANCE:
                yield f"{column}, {row.name}: one thread was {imbalance:.2f} times as fast."
    yield from refusals(table.threads)


def threads_section(table: Table) -> list[str]:
    """Return the tables and the notes of the thread rows, or why they were not measured."""
    rows, columns = table.threads, table.columns
    lines = ["### Two threads, as a share of the rate of two processes", ""]
    (status, note), *others = {(one.status, one.note) for row in rows for one in row.cells.values()}
    if status != OK and not others:
        return [*lines, f"{', '.join(row.name for row in rows)}: {status}: {note}."]
    shares = [
        [row.name, f"{row.goal:.2f}", *(share_of(row, column) for column in columns)]
        for row in rows
    ]
    lines += [*md.table(["row", "goal", *columns], shares, WORDS), ""]
    lines += ["Bold: the goal is reached.", "", "### Operations a second", ""]
    headings = ["row", "loop", "of", "one loop", "two threads", "two processes"]
    headings += ["threads / one", "threads / processes"]
    rates = (rates_of(row, column) for row in rows for column in columns if row.share(column))
    return [*lines, *md.table(headings, rates, WORDS), "", *(f"- {n}" for n in thread_notes(table))]
