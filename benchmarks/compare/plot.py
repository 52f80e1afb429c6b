"""Draws the report: a heat map of the ratios, next to it cost against connections, below it bars.

The bars show the thread rows, each in a panel of its own. A part without measured rows is left out.

This module is imported only for --plot, because it needs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from uringloop.bench import charts
from uringloop.bench.rows import BASELINE

from .reference import REFERENCES
from .report import CURVE, IDLE, Table
from .rows import Row, loop_of, python_of
from .threads import ONE, PROCESSES, THREADS, ThreadRow

# Sizes in inches, of a cell and of the space around the cells.
CELL_WIDTH, CELL_HEIGHT, NAMES_WIDTH, CURVE_WIDTH, FRAME_HEIGHT = 1.15, 0.28, 3, 7, 1.6

# The ends of the colour scale: half and twice the baseline.
LIMIT = 2.0

MISSING_COLOUR = "#dddddd"

# The look of the servers in C, in place of a colour.
REFERENCE = {"color": "#888888", "linestyle": "--"}

# One marker for each Python in a merged report.
MARKERS = "os^Dv"

# Inches of a panel of bars, panels side by side, and the width of a bar: the three of a loop leave
# space before those of the next one.
PANEL_WIDTH, PANEL_HEIGHT, PANELS, BAR = 4.6, 2.8, 3, 0.28

# Name and look of the bars, in the colour of their loop.
BARS: dict[str, tuple[str, dict[str, Any]]] = {
    ONE: ("one loop", {"alpha": 0.35}),
    THREADS: ("two threads", {}),
    PROCESSES: ("two processes", {"alpha": 0.6, "hatch": "///", "edgecolor": "white"}),
}

# Characters that fit into a cell without a ratio.
WORD_LENGTH = 13


@dataclass(frozen=True)
class Curve:
    """A cost against the number of connections, from the rows whose names begin with *prefix*."""

    prefix: str
    scale: float
    axis: str
    title: str


CURVES = (
    Curve(CURVE, 1e3, "us of CPU per request (128 B)", "TCP echo with asyncio.Protocol"),
    Curve(IDLE, 2.0**10, "KiB per connection", "Memory of a server's idle connections"),
)


def draw(table: Table, path: Path) -> None:
    """Draw the report into a file."""
    bars = [row for row in table.threads if any(map(row.share, table.columns))]
    parts = [part for part in (costs(table), threads(table, bars)) if part is not None]
    with charts.styled() as figure:
        if parts:
            heights = [part.height for part in parts]
            figure.set_size_inches(max(part.width for part in parts), sum(heights))
            places = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)
            for part, (place,) in zip(parts, places, strict=True):
                part.draw(place)
        else:
            figure.text(0.5, 0.5, "no row was measured", ha="center")
        figure.savefig(path, dpi=charts.DENSITY)


@dataclass(frozen=True)
class Part:
    """A part of the picture: its size in inches, and the function that draws it on a figure."""

    width: float
    height: float
    draw: Callable[[Any], None]


def costs(table: Table) -> Part | None:
    """Return the part for the rows that have a cost."""
    mapped = [row for row in table.rows if not row.name.startswith(CURVE)]
    panels: list[tuple[float, Callable[[Any], None]]] = [
        (CURVE_WIDTH, partial(draw_curve, table, rows, curve))
        for curve in CURVES
        if len(rows := [row for row in table.rows if row.name.startswith(curve.prefix)]) > 1
    ]
    if mapped:
        map_width = NAMES_WIDTH + CELL_WIDTH * (len(table.columns) + 1)
        panels.insert(0, (map_width, partial(draw_map, table, mapped)))
    widths = [width for width, _ in panels]

    def draw_on(figure: Any) -> None:
        (row,) = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)
        for axes, (_, draw_panel) in zip(row, panels, strict=True):
            draw_panel(axes)

    height = max(FRAME_HEIGHT + CELL_HEIGHT * len(mapped), 4.5)
    return Part(sum(widths), height, draw_on) if panels else None


def colour(ratio: float | None) -> Any:
    """Return red for worse than the baseline, white for equal, green for better."""
    from matplotlib import colormaps

    if ratio is None:
        return MISSING_COLOUR
    part = math.log(min(max(ratio, 1 / LIMIT), LIMIT)) / math.log(LIMIT)
    # Without the ends of the colour map, on which text is hard to read.
    return colormaps["RdYlGn"](0.5 + 0.4 * part)


def draw_map(table: Table, rows: list[Row], axes: Any) -> None:
    """Draw one square for each ratio; a ratio that meets its goal is bold."""
    headings = ["goal", *table.columns]
    for y, row in enumerate(rows):
        goal = f"{row.goal:.2f}" if row.goal is not None else ""
        axes.text(0, y, goal, ha="center", va="center", fontsize=8, color="#555555")
        for x, column in enumerate(table.columns, 1):
            if column not in row.cells:
                continue
            ratio = row.ratio(column)
            axes.add_patch(square(x, y, colour(ratio)))
            text = f"{ratio:.2f}" if ratio is not None else row.cells[column].status[:WORD_LENGTH]
            met = column in table.judged(row) and row.met(column)
            weight = "bold" if met else "normal"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, fontweight=weight)
    axes.set_xlim(-0.5, len(headings) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(headings)), [heading.replace(" ", "\n", 1) for heading in headings])
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(f"{BASELINE}'s cost divided by the loop's (bold: goal met)", fontsize=9)


def square(x: int, y: int, face: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=1)


def draw_curve(table: Table, rows: list[Row], curve: Curve, axes: Any) -> None:
    """Draw a cost against the number of connections, one line for each column.

    Each loop has a colour and each Python a marker; lines of the C servers are dashed.
    """
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    columns = [each for each in table.columns if any(row.quantity(each) for row in rows)]
    # Last, so that the colours go to the loops.
    names = sorted(dict.fromkeys(map(loop_of, columns)), key=lambda name: name in REFERENCES)
    pythons = list(dict.fromkeys(map(python_of, columns)))
    for column in columns:
        points = [
            (connections_of(row), quantity.value / curve.scale)
            for row in rows
            if (quantity := row.quantity(column)) is not None
        ]
        look = charts.style_of(loop_of(column), names)
        if loop_of(column) in REFERENCES:
            look |= REFERENCE
        marker = MARKERS[pythons.index(python_of(column)) % len(MARKERS)]
        look |= {"marker": marker, "markersize": 4, "label": column}
        axes.plot(*zip(*points, strict=True), **look)
    charts.clients_axis(axes, list(map(connections_of, rows)))
    # Logarithmic: a loop that costs ten times as much would compress the other lines.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter() if few_decades(axes) else NullFormatter())
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("connections")
    axes.set_ylabel(curve.axis)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, ncols=2 if len(table.columns) > 8 else 1)
    axes.set_title(curve.title, fontsize=9)


def connections_of(row: Row) -> int:
    return int(row.name.rpartition("x")[2])


def few_decades(axes: Any) -> bool:
    """Return whether labels between the powers of ten fit."""
    low, high = axes.get_ylim()
    return bool(high / low < 50)


# ── the rows of threads ──────────────────────────────────────────────────────────────────────


def threads(table: Table, rows: list[ThreadRow]) -> Part | None:
    """Return the part of the thread rows."""
    across = min(PANELS, len(rows))
    down = math.ceil(len(rows) / PANELS)

    def draw_on(figure: Any) -> None:
        every = [axes for line in figure.subplots(down, across, squeeze=False) for axes in line]
        for axes, row in zip(every, rows, strict=False):
            draw_bars(table, row, axes)
        for axes in every[len(rows) :]:
            axes.set_visible(False)
        handles = [patch({"facecolor": "#888888"} | look) for _, look in BARS.values()]
        names = [name for name, _ in BARS.values()]
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.suptitle(
            "Rates of loops with a core each; above two threads their share of two processes",
            fontsize=9,
        )

    return Part(PANEL_WIDTH * across, PANEL_HEIGHT * down + 0.8, draw_on) if rows else None


def draw_bars(table: Table, row: ThreadRow, axes: Any) -> None:
    """Draw the rates of each loop, and above them the share, bold if it meets the goal."""
    columns = [column for column in table.columns if row.share(column)]
    names = list(dict.fromkeys(map(loop_of, columns)))
    for x, column in enumerate(columns):
        face = charts.style_of(loop_of(column), names)["color"]
        for place, (arrangement, (_, look)) in enumerate(BARS.items(), -1):
            rate = row.rate(column, arrangement)
            assert rate is not None
            error = [[rate.value - rate.low], [rate.high - rate.value]]
            thin = {"elinewidth": 0.8, "capsize": 2, "ecolor": charts.INK}
            look = {"width": BAR, "facecolor": face, "error_kw": thin} | look
            axes.bar(x + place * BAR, rate.value, yerr=error, **look)
            if arrangement == THREADS and (share := row.share(column)) is not None:
                weight = "bold" if row.met(column) else "normal"
                label = {"ha": "center", "va": "bottom", "fontsize": 8, "fontweight": weight}
                axes.text(x, rate.high * 1.02, f"{share.value:.2f}", **label)
    axes.set_xticks(range(len(columns)), [column.replace(" ", "\n", 1) for column in columns])
    axes.tick_params(axis="x", length=0, labelsize=8)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25, axis="y")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
    axes.set_title(f"{row.name}: {row.unit}s a second", fontsize=9)


def patch(look: dict[str, Any]) -> Any:
    from matplotlib.patches import Patch

    return Patch(**look)
