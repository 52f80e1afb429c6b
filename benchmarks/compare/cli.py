"""Comparison of event loops, row by row: `python benchmarks/compare [--rows NAME,...] [--quick]`.

The measured process (a server, a client or a program) and its load share one core under
SCHED_BATCH. The rows compare the CPU time of the measured process for each operation. Each
measurement starts new processes, and the loops take turns, so that a machine that slows down
affects every loop. If a loop or a program is not installed, or a measurement fails, the cell shows
the status, and a note below the table gives the reason.

The exit status is that of `python -m uringloop.bench`: 0 after a clean run, 1 if a cell failed, 2
for invalid options, 130 after Ctrl-C and 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from uringloop.bench import environment, loops, placement, process, rows, terminal
from uringloop.bench.cli import Parser, check_file, check_picture, guarded, names, refuse
from uringloop.bench.rows import OK, SUBJECT, Cell, Round, cells_of, require_installed
from uringloop.bench.settings import DEFAULT_LOOPS, BenchError, refusal_of

from . import reference, report, threads
from .methods import Bench
from .report import Table
from .rows import Row, named
from .threads import ThreadRow

# uringloop comes last, next to the servers in C.
ALL_LOOPS = (*(name for name in loops.KNOWN if name != SUBJECT), SUBJECT)
DEFAULT_ROUNDS = 5
DEFAULT_DURATION = 1.0

# With --quick: a smoke test of every row; the figures are not to be quoted.
QUICK_ROUNDS = 1
QUICK_DURATION = 0.2

# ── measuring ────────────────────────────────────────────────────────────────────────────────


def columns_of(row: Row, chosen: tuple[str, ...], programs: dict[str, Path]) -> list[str]:
    """Return the columns that take part in a row."""
    layers = [name for name in row.layers if loops.installed(name) and name not in chosen]
    return [*chosen, *layers, *(programs if row.references else ())]


def refusing(measure: Callable[[str], Round]) -> Callable[[str], Round]:
    """Return a function that measures a loop; an exception becomes Refused."""

    def measured(loop: str) -> Round:
        if loop not in reference.REFERENCES:
            require_installed(loop)
        try:
            return measure(loop)
        except Exception as exc:
            raise refusal_of(exc) from exc

    return measured


def measure_row(row: Row, bench: Bench, rounds: int, step: terminal.Step) -> None:
    """Measure a row: all its cells in every round."""
    assert row.method is not None
    with giving_up(row, step), row.method(bench) as measure:
        one_figure = refusing(lambda loop: measure(loop)[row.figure])
        row.measure(rounds, one_figure, lambda cell: step(described(row, cell)))


def measure_threads(row: ThreadRow, bench: Bench, rounds: int, step: terminal.Step) -> None:
    """Measure a thread row: every arrangement of all its cells in every round."""
    assert row.method is not None
    with giving_up(row, step), row.method(bench) as measure:
        row.measure(rounds, refusing(measure), lambda cell: step(threads.described(row, cell)))


@contextlib.contextmanager
def giving_up(row: rows.Row[Round], step: terminal.Step) -> Iterator[None]:
    """Record an exception of the block in the cells that have no rounds."""
    try:
        yield
    # If, for example, the server of a database dies, cells that have rounds keep them.
    except Exception as exc:
        refused = refusal_of(exc)
        for cell in row.cells.values():
            if not cell.rounds:
                cell.give_up(refused.kind, refused.reason)
        step(f"{row.name}: {refused.kind} {refused.reason}")


def described(row: Row, cell: Cell[float]) -> str:
    """Return a line about the last round of a cell, for the progress bar."""
    figure = f"{cell.rounds[-1]:,.0f}" if cell.status == OK else cell.status
    return f"{row.name}: {cell.loop}: {figure} {cell.note}".rstrip()


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
        help=f"loops to compare, or all that are installed: all ({','.join(DEFAULT_LOOPS)})",
    )
    add("--rounds", type=int, metavar="N", help=f"rounds of each cell ({DEFAULT_ROUNDS})")
    add("--duration", type=float, metavar="S", help=f"seconds of a round ({DEFAULT_DURATION:g})")
    add("--quick", action="store_true", help="one short round of each cell; not to be quoted")
    add("--no-reference", action="store_true", help="leave out the echo servers in C")
    add("--json", type=Path, metavar="FILE", help="write the report as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    add("--plot", type=Path, metavar="FILE", help="draw the report as .png or .svg (matplotlib)")
    add("--merge", type=Path, nargs="+", metavar="JSON", help="merge several reports into one")
    add("--list", action="store_true", help="print the rows with their goals")
    return made


def list_rows(rows: list[Row | ThreadRow]) -> None:
    width = max(len(row.name) for row in rows)
    for row in rows:
        goal = f"{row.goal:.2f}" if row.goal is not None else "   -"
        print(f"{row.name:<{width}}  {goal}  {row.figure} per {row.unit}")


def built_references(rows: list[Row], directory: Path) -> dict[str, Path]:
    """Build and return the C servers, if a row uses them and they can be built."""
    if not any(row.references for row in rows):
        return {}
    try:
        return reference.build(directory)
    except BenchError as exc:
        print(f"compare: without the servers in C: {exc}", file=sys.stderr)
        return {}


def measured(arguments: argparse.Namespace, every: list[Row | ThreadRow]) -> Table:
    """Measure the rows and return the report."""
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
        listed = [row for row in every if isinstance(row, Row)]
        programs = {} if arguments.no_reference else built_references(listed, directory)
        bench = Bench(where, directory, duration, quick, programs)
        listed = [replace(row, cells=cells_of(columns_of(row, chosen, programs))) for row in listed]
        threaded = [
            replace(row, cells=cells_of(chosen)) for row in every if isinstance(row, ThreadRow)
        ]
        columns = list(dict.fromkeys([*chosen, *(name for row in listed for name in row.cells)]))
        named_loops = [name for name in columns if name not in programs]
        facts = environment.describe(named_loops, where.note, idle)
        facts = {"python_version": ".".join(platform.python_version_tuple()[:2])} | facts
        settings = {"rounds": rounds, "seconds": duration, "quick": quick}
        table = Table([facts], [settings], columns, listed, threaded)
        with terminal.progress(rounds * len(table.cells)) as step:
            for row in listed:
                measure_row(row, bench, rounds, step)
            for thread_row in threaded:
                measure_threads(thread_row, bench, rounds, step)
    return table


def check(arguments: argparse.Namespace) -> list[Row | ThreadRow]:
    """Check the options before anything is measured; return the rows."""
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
    check_picture(arguments.plot)
    for path in (arguments.json, arguments.markdown, arguments.plot):
        check_file(path)
    return named(arguments.rows)


def run(argv: list[str] | None) -> int:
    arguments = parser().parse_args(argv)
    chosen = check(arguments)
    if arguments.list:
        list_rows(chosen)
        return 0
    if arguments.merge:
        table = report.merge([report.load(path) for path in arguments.merge])
    else:
        table = measured(arguments, chosen)
    text = report.markdown(table)
    print(text, end="")
    if arguments.json is not None:
        arguments.json.write_text(report.to_json(table))
    if arguments.markdown is not None:
        arguments.markdown.write_text(text)
    if arguments.plot is not None:
        from . import plot

        plot.draw(table, arguments.plot)
    failed = any(cell.status == "failed" for cell in table.cells)
    return 1 if failed and not arguments.merge else 0


def main(argv: list[str] | None = None) -> int:
    """Compare and return the exit status."""
    return guarded("compare", lambda: run(argv))
