"""Output on the terminal: a bar while the benchmark runs, then the table; elsewhere plain lines.

Progress goes to standard error, so that standard output contains only the report.
`rich` is optional and imported only where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from . import report
from .client import Measurement
from .rows import OK, SUBJECT, Cell
from .runner import EchoRow
from .summary import Result

# Counts one more step of a run, and shows its description.
Step = Callable[[str], None]


def describe(row: EchoRow, cell: Cell[Measurement]) -> str:
    """Return a line about the last round of a cell."""
    if cell.status != OK or cell.rounds[-1].answers == 0:
        return f"{cell.loop}, {row.name}: {cell.status}"
    last = cell.rounds[-1]
    rate = last.requests / last.elapsed_ns * 1e9
    cost = last.server_cpu_ns / last.answers / 1e3
    return f"{cell.loop}, {row.name}: {rate:,.0f} requests/s, {cost:.2f} µs of CPU"


@contextmanager
def _lines(total: int) -> Iterator[Step]:
    done = 0

    def step(description: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total} {description}", file=sys.stderr, flush=True)

    yield step


@contextmanager
def _bar(total: int) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    # Once per second is too seldom to influence the figures.
    with Progress(
        *columns, console=Console(stderr=True), refresh_per_second=1, transient=True
    ) as bar:
        task = bar.add_task("starting", total=total)

        def step(description: str) -> None:
            bar.update(task, advance=1, description=description)

        yield step


@contextmanager
def progress(total: int) -> Iterator[Step]:
    """Show *total* steps; the function that is yielded is called after each."""
    try:
        import rich  # noqa: F401
    except ImportError:
        display = _lines
    else:
        display = _bar if sys.stderr.isatty() else _lines
    with display(total) as step:
        yield step


def print_table(results: list[Result]) -> None:
    """Print the table: with `rich` on a terminal, in plain columns elsewhere."""
    try:
        import rich  # noqa: F401
    except ImportError:
        plain = True
    else:
        plain = not sys.stdout.isatty()
    if plain:
        print("\n".join(report.table_lines(results)))
    else:
        _print_rich_table(results)


def _print_rich_table(results: list[Result]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement as Width
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in report.HEADINGS:
        justify: Literal["left", "right"] = "left" if heading in report.LEFT else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for result, following in zip(results, [*results[1:], None], strict=True):
        ends = following is None or following.row is not result.row
        style = "bold cyan" if result.cell.loop == SUBJECT else None
        table.add_row(*report.cells_of(result), style=style, end_section=ends)
    console = Console()
    # A terminal that is too narrow wraps the lines: better than columns without their figures.
    needed = Width.get(console, console.options.update(max_width=1000), table).maximum
    Console(width=max(console.width, needed)).print(table)
