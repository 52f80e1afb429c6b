"""The report as a picture: a heat-map of the ratios, and beside it the cost by connections.

The only module that imports matplotlib; it is imported when a picture is asked for.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from compare_report import CURVE, Table

from uringloop.bench.settings import BenchError

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

# Words of a cell without a ratio that fit.
WORD_LENGTH = 13


def check(path: Path) -> None:
    """Refuse what can not be drawn."""
    if path.suffix not in SUFFIXES:
        raise BenchError(f"--plot: {path} ends in neither {' nor '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib: pip install 'uringloop[compare]'")


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
    """Draw CPU per request by the number of connections, one line for each column."""
    lines = [line for line in table.lines if line.name.startswith(CURVE)]
    for column in table.columns:
        points = []
        for line in lines:
            quantity = line.cells[column].quantity if column in line.cells else None
            if quantity is not None:
                points.append((int(line.name.rpartition("x")[2]), quantity.value / 1e3))
        if points:
            xs, ys = zip(*points, strict=True)
            style = "--" if column.startswith("C ") else "-"
            axes.plot(xs, ys, style, marker="o", markersize=3, linewidth=1.4, label=column)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("connections")
    axes.set_ylabel("us of CPU per request (128 B)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("TCP echo with asyncio.Protocol", fontsize=9)
