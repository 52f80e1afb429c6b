"""The report as a picture: a heat-map of the ratios, and beside it the cost by connections.

The only module that imports matplotlib; it is imported when a picture is asked for.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from uringloop.bench.loops import REFERENCES
from uringloop.bench.settings import BenchError

from .report import CURVE, JUDGED, Table

# matplotlib writes more, these are the ones that a document shows.
SUFFIXES = (".png", ".svg")

# Inches of a cell and of what is around the cells; dots per inch.
CELL_WIDTH, CELL_HEIGHT, NAMES_WIDTH, CURVE_WIDTH, FRAME_HEIGHT, DENSITY = (
    1.15,
    0.28,
    3,
    7,
    1.6,
    130,
)

# Where the colours end: half as good as the baseline, and twice.
LIMIT = 2.0

MISSING_COLOUR = "#dddddd"

# Of the Pythons in a merged report.
MARKERS = "os^Dv"

# Words of a cell without a ratio that fit.
WORD_LENGTH = 13


def check(path: Path) -> None:
    """Refuse what can not be drawn."""
    if path.suffix not in SUFFIXES:
        raise BenchError(f"--plot: {path} ends in neither {' nor '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib: pip install matplotlib")


def draw(table: Table, path: Path) -> None:
    """Draw the report into a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    map_lines = [line for line in table.lines if not line.name.startswith(CURVE)]
    has_curve = len(map_lines) < len(table.lines)
    map_width = NAMES_WIDTH + CELL_WIDTH * (len(table.columns) + 1)
    widths = [width for width, shown in ((map_width, map_lines), (CURVE_WIDTH, has_curve)) if shown]
    height = max(FRAME_HEIGHT + CELL_HEIGHT * len(map_lines), 4.5)
    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    if map_lines:
        draw_map(table, axes[0])
    if has_curve:
        draw_curve(table, axes[-1])
    figure.savefig(path, dpi=DENSITY)


def colour(ratio: float | None) -> Any:
    """Return red for worse than the baseline, white for equal, green for better."""
    from matplotlib import colormaps

    if ratio is None:
        return MISSING_COLOUR
    part = math.log(min(max(ratio, 1 / LIMIT), LIMIT)) / math.log(LIMIT)
    # Not to the ends of the map, where text could not be read.
    return colormaps["RdYlGn"](0.5 + 0.4 * part)


def draw_map(table: Table, axes: Any) -> None:
    """Draw one square for each ratio; a bold one meets its goal."""
    lines = [line for line in table.lines if not line.name.startswith(CURVE)]
    headings = ["goal", *table.columns]
    for y, line in enumerate(lines):
        goal = f"{line.goal:.2f}" if line.goal is not None else ""
        axes.text(0, y, goal, ha="center", va="center", fontsize=8, color="#555555")
        for x, column in enumerate(table.columns, 1):
            cell = line.cells.get(column)
            if cell is None:
                continue
            axes.add_patch(square(x, y, colour(cell.ratio)))
            text = f"{cell.ratio:.2f}" if cell.ratio is not None else cell.status[:WORD_LENGTH]
            met = column in table.judged and line.met(column)
            weight = "bold" if met else "normal"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, fontweight=weight)
    axes.set_xlim(-0.5, len(headings) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(headings)), [heading.replace(" ", "\n", 1) for heading in headings])
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("uvloop's cost divided by the loop's (bold: goal met)", fontsize=9)


def square(x: int, y: int, face: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=1)


def draw_curve(table: Table, axes: Any) -> None:
    """Draw CPU per request by the number of connections, one line for each column.

    A loop has one colour, a Python one kind of marker; those without an event loop are dashed.
    """
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    lines = [line for line in table.lines if line.name.startswith(CURVE)]
    names = list(dict.fromkeys(base_of(column) for column in table.columns))
    pythons = list(dict.fromkeys(column.removeprefix(base_of(column)) for column in table.columns))
    for column in table.columns:
        base = base_of(column)
        points = []
        for line in lines:
            quantity = line.cells[column].quantity if column in line.cells else None
            if quantity is not None:
                points.append((connections_of(line.name), quantity.value / 1e3))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                linestyle="--" if base in REFERENCES else "-",
                marker=MARKERS[pythons.index(column.removeprefix(base)) % len(MARKERS)],
                color=f"C{names.index(base) % 10}",
                linewidth=2.2 if base == SUBJECT else 1.2,
                markersize=4,
                label=column,
            )
    axes.set_xscale("log")
    # A loop that is ten times as dear must not press the others together.
    axes.set_yscale("log")
    axes.set_xticks([connections_of(line.name) for line in lines], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter() if few_decades(axes) else NullFormatter())
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("connections")
    axes.set_ylabel("us of CPU per request (128 B)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, ncols=2 if len(table.columns) > 8 else 1)
    axes.set_title("TCP echo with asyncio.Protocol", fontsize=9)


def base_of(column: str) -> str:
    """Return the loop of a column, without the Python that a merged report adds."""
    return column.partition(" (")[0]


def connections_of(name: str) -> int:
    return int(name.rpartition("x")[2])


def few_decades(axes: Any) -> bool:
    """Return whether the numbers between powers of ten have the room for labels."""
    low, high = axes.get_ylim()
    return bool(high / low < 50)
