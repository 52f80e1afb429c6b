"""python -m uringloop.top: what the loops of a running program do, once in a second.

The program must have been started with URINGLOOP_MONITOR=1, or have called
`uringloop.monitor.start()`. Without an argument the programs that can be watched are listed.

On a terminal and with `rich` the table stays in its place; else each one is printed below the last.
The exit status is 0 after Ctrl-C and --once, 1 for a program that cannot be watched, 2 for wrong
arguments, and 3 when the program has ended while it was watched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from uringloop import watching
from uringloop.watching import CannotWatch, Connection, Ended, Look, Watched

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A monitor lets go of those who do not ask for a minute.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 30.0
# For the first answer: one thread that keeps the GIL may be in the way.
FIRST_ANSWER_S = 10.0
# Where there is no terminal to ask.
WIDTH = 120
# Between two columns.
GAP = 2
# A name that is longer is nobody's to remember.
HEADING_LENGTH_MAX = 24

# The exit status when the program has ended.
ENDED = 3

HELD = "something in that process keeps the GIL, and no other thread of it runs"

Show = Callable[["View"], None]


class Row(NamedTuple):
    """One line of the table: a cell for each loop, and whether it should not be so."""

    label: str
    cells: list[str]
    alarms: list[bool]


class View(NamedTuple):
    """What is shown at one moment."""

    title: str
    headings: list[str]
    rows: list[Row]
    notes: list[str]


# ── one look as text ─────────────────────────────────────────────────────────────────────────


def printable(text: str) -> str:
    """Return *text* without what would move the cursor: it is another program's."""
    return "".join(c if c.isprintable() else "?" for c in text)


def number(value: float) -> str:
    if value and abs(value) < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Return bytes in the largest unit of which there is one."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} GB"


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.2f} ms"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def state_of(watched: Watched) -> str:
    told = watched["told"]
    if not told["running"]:
        return "not running"
    state = "asleep" if told["sleeping"] else "at work"
    return f"{state}, debug" if told["debug"] else state


def cells_of(watched: Watched) -> list[tuple[str, str, bool]]:
    """Return label, text and alarm of everything that is shown of one loop."""
    told, rates = watched["told"], watched["rates"]
    stats = told["stats"]

    def rated(text: Callable[[float], str], name: str, unit: str = "") -> str:
        # One answer has no rates.
        return text(rates[name]) + unit if rates is not None else "-"  # type: ignore[literal-required]

    def trouble(label: str, name: str) -> tuple[str, str, bool]:
        happened = rates is not None and rates[name] > 0  # type: ignore[literal-required]
        return label, rated(number, name), happened

    return [
        ("ring", printable(told["backend"]), False),
        ("state", state_of(watched), watched["turn_s"] > 1),
        ("CPU of the thread", rated(percent, "cpu"), False),
        ("turns/s", rated(number, "turns"), False),
        ("kernel entries/s", rated(number, "kernel_entries"), False),
        ("completions/s", rated(number, "completions"), False),
        ("completions per turn", rated(number, "completions_per_turn"), False),
        ("operations in flight", f"{stats['operations']:,}", False),
        ("buffers out", f"{stats['buffers_out']:,}", False),
        ("received", rated(size, "received_bytes", "/s"), False),
        ("sent", rated(size, "sent_bytes", "/s"), False),
        ("callbacks ready", f"{stats['callbacks_ready']:,}", False),
        ("timers pending", f"{stats['timers_pending']:,}", False),
        ("lag", duration(stats["lag"]), False),
        ("lag at most", duration(stats["lag_max"]), False),
        trouble("starved/s", "starved"),
        trouble("rearms/s", "rearms"),
        trouble("overflows/s", "overflows"),
    ]


def heading_of(watched: Watched) -> str:
    name = printable(watched["told"]["thread"] or "no thread")
    return name if len(name) <= HEADING_LENGTH_MAX else name[: HEADING_LENGTH_MAX - 1] + "…"


def work_of(watched: Watched) -> str | None:
    """Return what a loop is doing, if it is seen to do anything."""
    told = watched["told"]
    task, place = told["task"], told["place"]
    if task is None and place is None:
        return None
    text = f"{told['thread'] or 'no thread'}:"
    if task is not None:
        text += f" {task['name']} ({task['coroutine']})"
    if place is not None:
        text += f" in {place['function']}, {place['file']}:{place['line']}"
    if watched["turn_s"]:
        text += f", for {duration(watched['turn_s'])} in this turn"
    return printable(text)


def view_of(look: Look, notes: list[str]) -> View:
    told = look.told
    title = (
        f"{told['pid']}  {told['command']}\n"
        f"uringloop {told['uringloop']}, Python {told['python']}, "
        f"CPU {percent(look.cpu) if look.cpu is not None else '-'}"
    )
    columns = [cells_of(watched) for watched in look.loops]
    rows = [
        Row(cells[0][0], [text for _, text, _ in cells], [alarm for _, _, alarm in cells])
        for cells in zip(*columns, strict=True)
    ]
    works = [work for watched in look.loops if (work := work_of(watched)) is not None]
    if not look.loops:
        works = ["no loop is open"]
    lines = "\n".join(map(printable, title.split("\n")))
    return View(lines, [heading_of(watched) for watched in look.loops], rows, works + notes)


def parts_of(view: View, width: int) -> Iterator[list[int]]:
    """Yield the columns of *view* in groups that fit into *width*, one at least in each."""
    room = width - max((len(row.label) for row in view.rows), default=0)
    part: list[int] = []
    used = 0
    for index, heading in enumerate(view.headings):
        needed = GAP + max(len(heading), *(len(row.cells[index]) for row in view.rows))
        if part and used + needed > room:
            yield part
            part, used = [], 0
        part.append(index)
        used += needed
    if part:
        yield part


# ── screens ──────────────────────────────────────────────────────────────────────────────────


def plain_lines(view: View, width: int) -> list[str]:
    """Return *view* as lines; a figure that should not be so has an exclamation mark."""
    lines = view.title.split("\n")
    labels = max((len(row.label) for row in view.rows), default=0)
    for part in parts_of(view, width):
        table = [["", *(view.headings[index] for index in part)]]
        for row in view.rows:
            marked = [("! " if row.alarms[index] else "") + row.cells[index] for index in part]
            table.append([row.label, *marked])
        widths = [max(map(len, column)) + GAP for column in list(zip(*table, strict=True))[1:]]
        lines.append("")
        for label, *cells in table:
            texts = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append(label.ljust(labels) + "".join(texts))
    return [*lines, *([""] if view.notes else []), *view.notes]


def rich_group(view: View, width: int) -> RenderableType:
    """Return *view* for a console of rich's."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(view.title, style="bold", overflow="fold")]
    for part in parts_of(view, width):
        # No lines, for all of it has to fit into the 24 rows of a small terminal.
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column("", no_wrap=True)
        for index in part:
            table.add_column(Text(view.headings[index]), justify="right", no_wrap=True)
        for row in view.rows:
            cells = [
                Text(row.cells[index], style="bold red" if row.alarms[index] else "")
                for index in part
            ]
            table.add_row(Text(row.label), *cells)
        # A line between two tables.
        parts += [table] if len(parts) == 1 else [Text(), table]
    parts += [Text(note, overflow="fold") for note in view.notes]
    return Group(*parts)


@contextmanager
def _plain() -> Iterator[Show]:
    def show(view: View) -> None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        print("\n".join(plain_lines(view, width)), end="\n\n", flush=True)

    yield show


@contextmanager
def rich_screen(console: Console) -> Iterator[Show]:
    """Show each view in the place of the last; that one stays at the end."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda view: live.update(rich_group(view, console.width), refresh=True)


@contextmanager
def screen() -> Iterator[Show]:
    if importlib.util.find_spec("rich") is None or not sys.stdout.isatty():
        chosen = _plain()
    else:
        from rich.console import Console

        chosen = rich_screen(Console())
    with chosen as show:
        yield show


# ── the program ──────────────────────────────────────────────────────────────────────────────


def watch(connection: Connection, options: argparse.Namespace, show: Callable[..., None]) -> None:
    """Call *show* with each look and its notes: once, or until the program ends."""
    told = connection.ask(FIRST_ANSWER_S)
    if told is None:
        raise CannotWatch(f"no answer in {FIRST_ANSWER_S:.0f} s: {HELD}")
    look = Look(told)
    # What is compared with nothing has no rates.
    follows = not (options.once or options.json)
    if follows:
        show(look, [])
    while True:
        connection.rest(options.interval)
        silent_s = 0.0
        while (told := connection.ask(options.interval)) is None:
            silent_s += options.interval
            if follows:
                show(look, [f"no answer for {duration(silent_s)}: {HELD}"])
        look = Look(told, look)
        show(look, [])
        if options.once:
            return


def _json(look: Look, notes: list[str]) -> None:
    loops = [
        {**watched["told"], "rates": watched["rates"], "turn_s": watched["turn_s"]}
        for watched in look.loops
    ]
    told = {**look.told, "loops": loops, "seconds": look.seconds, "cpu_share": look.cpu}
    print(json.dumps(told), flush=True)


def print_list() -> int:
    """Print the programs that can be watched, and return the exit status."""
    rows = [
        (str(told["pid"]), str(len(told["loops"])), printable(path), printable(told["command"]))
        for path, told in watching.listed()
    ]
    if not rows:
        print(f"no program that can be watched: {watching.HINT}", file=sys.stderr)
        return 1
    rows.insert(0, ("PID", "loops", "socket", "command"))
    pids, loops, paths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for pid, count, path, command in rows:
        print(f"{pid:>{pids}}  {count:>{loops}}  {path:<{paths}}  {command}")
    return 0


def interval(text: str) -> float:
    seconds = float(text)
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text} is not between {INTERVAL_MIN_S:g} and {INTERVAL_MAX_S:g}"
        )
    return seconds


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m uringloop.top",
        description="Show what the loops of a running program do.",
        epilog="The exit status is 0 after Ctrl-C and --once, 1 for a program that cannot be "
        "watched, 2 for wrong arguments, 3 when the program has ended.",
    )
    parser.add_argument(
        "target", nargs="?", metavar="PID|SOCKET", help="what to watch; a list without it"
    )
    parser.add_argument(
        "--interval",
        type=interval,
        default=1.0,
        metavar="SECONDS",
        help=f"between two looks, {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}; 1 by default",
    )
    parser.add_argument("--once", action="store_true", help="show one interval, and end")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each interval")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    if options.target is None:
        return print_list()
    with Connection(watching.path_of(options.target)) as connection:
        if options.json:
            watch(connection, options, _json)
            return 0
        with screen() as show:
            watch(connection, options, lambda look, notes: show(view_of(look, notes)))
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        return run(options)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # `| head` has seen enough. Python would complain of what is left, at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CannotWatch as exc:
        print(printable(str(exc)), file=sys.stderr)
        return 1
    except Ended as exc:
        print(printable(str(exc)), file=sys.stderr)
        return ENDED


if __name__ == "__main__":
    sys.exit(main())
