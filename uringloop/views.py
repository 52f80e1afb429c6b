"""A look at a program's loops as people read it: a table, in plain text or by rich, and notes.

For `uringloop.top`. The table has a column for each loop and a line for each figure: there are more
figures than loops, and than columns that fit beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from uringloop.watching import Look, Watched

if TYPE_CHECKING:
    from rich.console import RenderableType

# Between two columns.
GAP = 2
# Some are whole programs.
COMMAND_LENGTH_MAX = 100
# A name that is longer is nobody's to remember.
HEADING_LENGTH_MAX = 24
# A turn that lasts longer than this, in seconds, is nothing that a loop should do.
TURN_MAX_S = 1


class Row(NamedTuple):
    """One line of the table: a cell for each loop, and whether it should not be so."""

    label: str
    cells: list[str]
    alarms: list[bool]


class View(NamedTuple):
    """What is shown at one moment."""

    title: list[str]
    headings: list[str]
    rows: list[Row]
    notes: list[str]


# ── one look as text ─────────────────────────────────────────────────────────────────────────


def printable(text: str) -> str:
    """Return *text* without what would move the cursor: it is another program's."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


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
        ("state", state_of(watched), watched["turn_s"] > TURN_MAX_S),
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
    command = printable(told["command"])
    if len(command) > COMMAND_LENGTH_MAX:
        command = command[: COMMAND_LENGTH_MAX - 1] + "…"
    cpu = percent(look.cpu) if look.cpu is not None else "-"
    versions = printable(f"uringloop {told['uringloop']}, Python {told['python']}")
    title = [f"{told['pid']}  {command}", f"{versions}, CPU {cpu}"]
    columns = [cells_of(watched) for watched in look.loops]
    rows = [
        Row(cells[0][0], [text for _, text, _ in cells], [alarm for _, _, alarm in cells])
        for cells in zip(*columns, strict=True)
    ]
    works = [work for watched in look.loops if (work := work_of(watched)) is not None]
    if not look.loops:
        works = ["no loop is open"]
    return View(title, [heading_of(watched) for watched in look.loops], rows, works + notes)


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


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def plain_lines(view: View, width: int) -> list[str]:
    """Return *view* as lines; a figure that should not be so has an exclamation mark."""
    lines = [*view.title]
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

    parts: list[RenderableType] = [Text("\n".join(view.title), style="bold", overflow="fold")]
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
