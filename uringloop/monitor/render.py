"""Formats answers of programs for `uringloop.top`: notes and a table, in plain text or with rich.

The table of a single program has a column for each loop and a line for each figure, because there
are more figures than loops, and more than fit side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from uringloop.monitor.client import LoopSample, Sample

if TYPE_CHECKING:
    from rich.console import RenderableType

# Spaces between two columns.
GAP = 2
# A command line may contain a whole program.
COMMAND_LENGTH_MAX = 100
# Longer names of loops are cut.
HEADING_LENGTH_MAX = 24
# A loop is shown as blocked when its turn has lasted longer than this, in seconds.
BLOCKED_S = 0.1
# Columns of text, which are aligned to the left.
LEFT = frozenset(("command",))
# The columns of the table of several processes.
OVERVIEW = ("state", "CPU", "turns/s", "received", "sent", "in flight", "lag", "command")


class Row(NamedTuple):
    """One line of the table: its cells, and for each cell whether it shows a problem."""

    label: str
    cells: list[str]
    alarms: list[bool]


class View(NamedTuple):
    """One state of the screen."""

    title: list[str]
    headings: list[str]
    rows: list[Row]
    notes: list[str]
    # The heading of the column of labels.
    corner: str = ""


# ── one process ──────────────────────────────────────────────────────────────────────────────


def printable(text: str) -> str:
    """Return *text*, which comes from another program, without control characters."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def number(value: float) -> str:
    if value and abs(value) < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Return a number of bytes in the largest unit that is not larger than it."""
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


def state_of(loop: LoopSample) -> str:
    snapshot = loop["snapshot"]
    if not snapshot["running"]:
        return "not running"
    state = "asleep" if snapshot["sleeping"] else "at work"
    if is_blocked(loop):
        state = f"BLOCKED {duration(snapshot['blocked'])}"
    return f"{state}, debug" if snapshot["debug"] else state


def is_blocked(loop: LoopSample) -> bool:
    return loop["snapshot"]["blocked"] > BLOCKED_S


def cells_of(loop: LoopSample) -> list[tuple[str, str, bool]]:
    """Return label, text and alarm of each figure of one loop."""
    snapshot, rates = loop["snapshot"], loop["rates"]
    stats = snapshot["stats"]

    def rated(text: Callable[[float], str], name: str, unit: str = "") -> str:
        # A first answer has no rates.
        return text(rates[name]) + unit if rates is not None else "-"  # type: ignore[literal-required]

    def trouble(label: str, name: str) -> tuple[str, str, bool]:
        happened = rates is not None and rates[name] > 0  # type: ignore[literal-required]
        return label, rated(number, name), happened

    return [
        ("ring", printable(snapshot["backend"]), False),
        ("state", state_of(loop), is_blocked(loop)),
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
        ("lag", duration(stats["lag"]), is_blocked(loop)),
        ("lag at most", duration(stats["lag_max"]), False),
        ("executor threads", f"{stats['executor_threads']:,}", False),
        ("executor queue", f"{stats['executor_queue']:,}", False),
        ("executor wait", duration(stats["executor_wait"]), False),
        trouble("starved/s", "starved"),
        ("rearms/s", rated(number, "rearms"), False),
        trouble("overflows/s", "overflows"),
    ]


def heading_of(loop: LoopSample) -> str:
    return cut(printable(loop["snapshot"]["name"]), HEADING_LENGTH_MAX)


def work_of(loop: LoopSample) -> str | None:
    """Return a line with the task and the place that a loop executes, or None for neither."""
    snapshot = loop["snapshot"]
    task, place = snapshot["task"], snapshot["place"]
    if task is None and place is None:
        return None
    text = f"{snapshot['name']}:"
    if is_blocked(loop):
        text += f" blocked for {duration(snapshot['blocked'])}{',' if task is not None else ''}"
    if task is not None:
        text += f" {task['name']} ({task['coroutine']})"
    if place is not None:
        text += f" in {place['function']}, {place['file']}:{place['line']}"
    return printable(text)


def view_of(sample: Sample, notes: list[str]) -> View:
    snapshot = sample.snapshot
    command = cut(printable(snapshot["command"]), COMMAND_LENGTH_MAX)
    cpu = percent(sample.cpu) if sample.cpu is not None else "-"
    versions = printable(f"uringloop {snapshot['uringloop']}, Python {snapshot['python']}")
    title = [f"{snapshot['pid']}  {command}", f"{versions}, CPU {cpu}"]
    columns = [cells_of(loop) for loop in sample.loops]
    rows = [
        Row(cells[0][0], [text for _, text, _ in cells], [alarm for _, _, alarm in cells])
        for cells in zip(*columns, strict=True)
    ]
    works = [work for loop in sample.loops if (work := work_of(loop)) is not None]
    if not sample.loops:
        works = ["no loop is open"]
    return View(title, [heading_of(loop) for loop in sample.loops], rows, works + notes)


# ── several processes ────────────────────────────────────────────────────────────────────────


def overview_of(
    title: list[str], samples: Sequence[tuple[Sample, float]], width: int, notes: list[str]
) -> View:
    """Return a table with a line for each loop of several processes.

    Each item of *samples* also has the seconds for which its process has not answered. Commands are
    cut so that no line is longer than *width*.
    """
    rows = [row for sample, silent_s in samples for row in _loop_rows(sample, silent_s)]
    taken = max((len(row.label) for row in rows), default=0)
    for index, heading in enumerate(OVERVIEW[:-1]):
        taken += GAP + max([len(heading), *(len(row.cells[index]) for row in rows)])
    room = max(width - taken - GAP, len(OVERVIEW[-1]))
    rows = [row._replace(cells=[*row.cells[:-1], cut(row.cells[-1], room)]) for row in rows]
    works = [
        f"{sample.snapshot['pid']} {work}"
        for sample, _ in samples
        for loop in sample.loops
        if is_blocked(loop) and (work := work_of(loop)) is not None
    ]
    return View(title, list(OVERVIEW), rows, works + notes, "PID     loop")


def _loop_rows(sample: Sample, silent_s: float) -> Iterator[Row]:
    for loop in sample.loops:
        snapshot, rates = loop["snapshot"], loop["rates"]
        cells = [
            f"NO ANSWER {duration(silent_s)}" if silent_s else state_of(loop),
            percent(rates["cpu"]) if rates is not None else "-",
            number(rates["turns"]) if rates is not None else "-",
            size(rates["received_bytes"]) + "/s" if rates is not None else "-",
            size(rates["sent_bytes"]) + "/s" if rates is not None else "-",
            f"{snapshot['stats']['operations']:,}",
            duration(snapshot["stats"]["lag"]),
            printable(_without_folders(sample.snapshot["command"])),
        ]
        alarms = [silent_s > 0 or is_blocked(loop), *[False] * (len(cells) - 1)]
        yield Row(f"{sample.snapshot['pid']:<7} {heading_of(loop)}", cells, alarms)


def _without_folders(command: str) -> str:
    """Return *command* without the folders of the interpreter and its program: both may be long."""
    words = command.split(" ")
    names = [os.path.basename(word) if word.startswith("/") else word for word in words[:2]]
    return " ".join([*names, *words[2:]])


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def parts_of(view: View, width: int) -> Iterator[list[int]]:
    """Yield the columns of *view* in groups that fit into *width*, at least one in each group."""
    room = width - max((len(row.label) for row in view.rows), default=0)
    part: list[int] = []
    used = 0
    for index, heading in enumerate(view.headings):
        needed = GAP + max([len(heading), *(len(row.cells[index]) for row in view.rows)])
        if part and used + needed > room:
            yield part
            part, used = [], 0
        part.append(index)
        used += needed
    if part:
        yield part


def plain_lines(view: View, width: int) -> list[str]:
    """Return *view* as lines of text; a figure that shows a problem has an exclamation mark."""
    lines = [*view.title]
    labels = max([len(view.corner), *(len(row.label) for row in view.rows)])
    for part in parts_of(view, width):
        table = [[view.corner, *(view.headings[index] for index in part)]]
        for row in view.rows:
            marked = [("! " if row.alarms[index] else "") + row.cells[index] for index in part]
            table.append([row.label, *marked])
        widths = [max(map(len, column)) for column in list(zip(*table, strict=True))[1:]]
        words = [view.headings[index] in LEFT for index in part]
        lines.append("")
        for label, *cells in table:
            texts = [
                " " * GAP + (cell.ljust(width) if is_word else cell.rjust(width))
                for cell, width, is_word in zip(cells, widths, words, strict=True)
            ]
            lines.append((label.ljust(labels) + "".join(texts)).rstrip())
    return [*lines, *([""] if view.notes else []), *view.notes]


def rich_group(view: View, width: int) -> RenderableType:
    """Return *view* as a renderable of rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text("\n".join(view.title), style="bold", overflow="fold")]
    for part in parts_of(view, width):
        # No borders: the table must fit into the 24 rows of a small terminal.
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column(Text(view.corner), no_wrap=True)
        for index in part:
            heading = view.headings[index]
            justify: Literal["left", "right"] = "left" if heading in LEFT else "right"
            table.add_column(Text(heading), justify=justify, no_wrap=True)
        for row in view.rows:
            cells = [
                Text(row.cells[index], style="bold red" if row.alarms[index] else "")
                for index in part
            ]
            table.add_row(Text(row.label), *cells)
        # An empty line between two tables.
        parts += [table] if len(parts) == 1 else [Text(), table]
    parts += [Text(note, overflow="fold") for note in view.notes]
    return Group(*parts)
