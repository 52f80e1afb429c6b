"""Event loops compared row by row: `python benchmarks/compare [--rows NAME,...] [--quick]`.

Server, client or program and its load share one core under SCHED_BATCH, and what is compared is the
CPU time of the measured process for each operation. Each measurement has fresh processes, and the
loops take turns, so that a machine that slows down does so for every loop. What is not installed,
does not work or is missing becomes a cell that says so.

The exit status is that of `python -m uringloop.bench`: 0 after a clean run, 1 when a cell failed, 2
for a request that cannot be met, 130 after Ctrl-C and 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from uringloop.bench import environment, loops, placement, process, reference
from uringloop.bench.child import Refused
from uringloop.bench.cli import Parser, check_file, guarded, names, refuse
from uringloop.bench.settings import BenchError, MissingError

from . import report
from .methods import Bench, Measure
from .report import Cell, Line, Table
from .rows import Row, chosen

DEFAULT_LOOPS = ("asyncio", "uvloop", "uringloop")
# The one that is judged comes last, beside the servers in C.
ALL_LOOPS = (*(name for name in loops.KNOWN if name != "uringloop"), "uringloop")
DEFAULT_ROUNDS = 5
DEFAULT_DURATION = 1.0

# What --quick leaves of both: a look at every row, no figures to quote.
QUICK_ROUNDS = 1
QUICK_DURATION = 0.2

Progress = Callable[[Row, str, Cell], None]


# ── measuring ────────────────────────────────────────────────────────────────────────────────


def status_of(exc: Exception) -> tuple[str, str]:
    """Return the status and the note of a cell that an error leaves without figures."""
    if isinstance(exc, Refused):
        return exc.kind, exc.reason
    if isinstance(exc, MissingError):
        return "missing", str(exc)
    if isinstance(exc, BenchError):
        return "failed", str(exc)
    return "failed", f"{type(exc).__name__}: {exc}"


def columns_of(row: Row, chosen: tuple[str, ...], programs: dict[str, Path]) -> list[str]:
    """Return the columns that take part in a row."""
    layers = [name for name in row.layers if loops.installed(name) and name not in chosen]
    return [*chosen, *layers, *(programs if row.references else ())]


def take_round(row: Row, column: str, cell: Cell, measure: Measure) -> None:
    """Take one round of a cell, unless an earlier one has shown that there is no use."""
    if cell.status != report.OK:
        return
    if column not in loops.REFERENCES and not loops.installed(column):
        cell.give_up("not installed", "")
        return
    try:
        cell.rounds.append(measure(column)[row.figure])
    # Whatever happens to one cell, the others are measured.
    except Exception as exc:
        cell.give_up(*status_of(exc))


def measure_row(row: Row, bench: Bench, columns: list[str], rounds: int, step: Progress) -> Line:
    """Measure a row: all columns in every round."""
    cells = {column: Cell() for column in columns}
    line = Line(row.name, row.goal, row.figure, row.unit, cells, row.remark)
    try:
        with row.method(bench) as measure:
            for _ in range(rounds):
                for column, cell in cells.items():
                    take_round(row, column, cell, measure)
                    step(row, column, cell)
    # As above; what was measured before the end of, say, a database's server is kept.
    except Exception as exc:
        for column, cell in line.cells.items():
            if not cell.rounds:
                cell.give_up(*status_of(exc))
                step(row, column, cell)
    line.compare()
    return line


def report_step(row: Row, column: str, cell: Cell) -> None:
    """Tell on standard error what has just been measured."""
    figure = f"{cell.rounds[-1]:,.0f}" if cell.rounds and cell.status == "ok" else cell.status
    print(f"{row.name}: {column}: {figure} {cell.note}".rstrip(), file=sys.stderr, flush=True)


# ── the command line ─────────────────────────────────────────────────────────────────────────


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="benchmarks/compare", description="Compare asyncio event loops row by row.")
    add = made.add_argument
    add("--rows", type=names, default=(), metavar="NAME,...", help="rows, groups or patterns (all)")
    add(
        "--loops",
        type=names,
        default=DEFAULT_LOOPS,
        metavar="NAME,...",
        help=f"what is compared, or all that are installed ({','.join(DEFAULT_LOOPS)})",
    )
    add("--rounds", type=int, metavar="N", help=f"per cell ({DEFAULT_ROUNDS})")
    add("--duration", type=float, metavar="S", help=f"of a round under load ({DEFAULT_DURATION:g})")
    add("--quick", action="store_true", help="one short round of everything: no figures to quote")
    add("--no-reference", action="store_true", help="leave the echo servers in C out")
    add("--json", type=Path, metavar="FILE", help="write the report as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    add(
        "--plot", type=Path, metavar="FILE", help="draw heat-map and curve: .png, .svg (matplotlib)"
    )
    add("--merge", type=Path, nargs="+", metavar="JSON", help="make one report of several")
    add("--list", action="store_true", help="print the rows with their goals")
    return made


def list_rows(rows: list[Row]) -> None:
    width = max(len(row.name) for row in rows)
    for row in rows:
        goal = f"{row.goal:.2f}" if row.goal is not None else "   -"
        print(f"{row.name:<{width}}  {goal}  {row.figure} per {row.unit}")


def built_references(rows: list[Row], directory: Path) -> dict[str, Path]:
    """Return the C servers, if a row has a use for them and they can be built."""
    if not any(row.references for row in rows):
        return {}
    try:
        return reference.build(directory)
    except BenchError as exc:
        print(f"compare: without the servers in C: {exc}", file=sys.stderr)
        return {}


def measured(arguments: argparse.Namespace, rows: list[Row]) -> Table:
    """Measure what is asked for and return the report."""
    quick: bool = arguments.quick
    rounds = arguments.rounds or (QUICK_ROUNDS if quick else DEFAULT_ROUNDS)
    duration = arguments.duration or (QUICK_DURATION if quick else DEFAULT_DURATION)
    chosen: tuple[str, ...] = arguments.loops
    process.raise_descriptor_limit()
    where = placement.choose(True)
    with (
        tempfile.TemporaryDirectory(prefix="uringloop-compare-") as name,
        placement.awake() as idle,
    ):
        directory = Path(name)
        programs = {} if arguments.no_reference else built_references(rows, directory)
        bench = Bench(where, directory, duration, quick, programs)
        taking_part = {row.name: columns_of(row, chosen, programs) for row in rows}
        columns = list(dict.fromkeys(sum(taking_part.values(), list(chosen))))
        facts = environment.describe(columns, where.note, idle)
        facts = {"python_version": ".".join(platform.python_version_tuple()[:2])} | facts
        lines = [
            measure_row(row, bench, taking_part[row.name], rounds, report_step) for row in rows
        ]
    settings = {"rounds": rounds, "seconds": duration, "quick": quick}
    return Table([facts], [settings], columns, lines)


def check(arguments: argparse.Namespace) -> list[Row]:
    """Refuse what can be refused before a minute of measuring; return the rows."""
    refuse(sys.platform != "linux", "the load generator needs Linux")
    rounds, duration = arguments.rounds, arguments.duration
    refuse(rounds is not None and rounds < 1, "--rounds: fewer than 1 measure nothing")
    timely = duration is None or 0 < duration < 3600
    refuse(not timely, "--duration: not between 0 and 3600 seconds")
    refuse(bool(arguments.merge and arguments.rows), "--merge takes all rows that the reports have")
    if arguments.loops == ("all",):
        arguments.loops = tuple(name for name in ALL_LOOPS if loops.installed(name))
    for name in arguments.loops:
        loops.check(name)
    if arguments.plot is not None:
        from . import plot

        plot.check(arguments.plot)
    for path in (arguments.json, arguments.markdown, arguments.plot):
        check_file(path)
    return chosen(arguments.rows)


def run(argv: list[str] | None) -> int:
    arguments = parser().parse_args(argv)
    rows = check(arguments)
    if arguments.list:
        list_rows(rows)
        return 0
    if arguments.merge:
        table = report.merge([report.load(path) for path in arguments.merge])
    else:
        table = measured(arguments, rows)
    text = report.markdown(table)
    print(text, end="")
    if arguments.json is not None:
        arguments.json.write_text(report.to_json(table))
    if arguments.markdown is not None:
        arguments.markdown.write_text(text)
    if arguments.plot is not None:
        from . import plot

        plot.draw(table, arguments.plot)
    failed = any(cell.status == "failed" for line in table.lines for cell in line.cells.values())
    return 1 if failed and not arguments.merge else 0


def main(argv: list[str] | None = None) -> int:
    """Compare and return the exit status."""
    return guarded("compare", lambda: run(argv))
