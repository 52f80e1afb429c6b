"""The report as pictures: one for `--plot`, and one for each panel of the page.

Each message size has panels of its own; a panel without data is left out.

This is the only module of the benchmark that imports matplotlib, and it does so only to draw.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import report
from .loadgen import Histogram
from .rows import BASELINE, SUBJECT, Quantity
from .settings import Settings
from .summary import Result, Summary

# Okabe and Ito's palette for colour-blind readers, without yellow and black, which are invisible on
# a light or a dark background; each loop also has a marker. The last two, for more than six loops,
# are Paul Tol's.
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#882255", "#999933"),
)
_MARKERS = "osD^vPX"

# Inches of a panel, and dots per inch of a PNG.
_WIDTH, _HEIGHT, DENSITY = 4.2, 3.2, 130

# Share of a panel's width that a label and the space beside it take.
_LABEL_SHARE = 0.13

# Percentiles in the latency panels; one is drawn if at least _SLOWER_MIN requests were slower.
_PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99)
_SLOWER_MIN = 10

# Draws one panel on matplotlib's axes.
Drawing = Callable[[Any], None]

# Leaves out the metadata that matplotlib adds to an SVG.
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

# Colour of text and lines, which the page replaces by the colour of its own text.
INK = "#010203"


@dataclass(frozen=True)
class Panel:
    """A quantity that is drawn against the number of clients."""

    title: str
    unit: str
    take: Callable[[Summary], Quantity | None]
    scale: float


# The quantities are in nanoseconds and bytes; `scale` converts them to the unit.
_PANELS = (
    Panel("Throughput", "requests/s", lambda one: one.requests_per_second, 1.0),
    Panel("Server CPU", "µs per request", lambda one: one.server_cpu_ns, 1e3),
    Panel("Kernel entries", "per request", lambda one: one.kernel_entries, 1.0),
    Panel("Peak memory of the server", "MiB", lambda one: one.peak_rss_bytes, 2.0**20),
)


def draw(settings: Settings, results: list[Result], path: Path) -> None:
    """Draw the whole report into a file."""
    title = f"{report.title(report.names_of(results))}\n{report.conditions(settings)}"
    figure_of(settings, results, title).savefig(path, dpi=DENSITY)


def pictures(settings: Settings, results: list[Result]) -> list[tuple[str, str]]:
    """Return each panel as its title and an SVG element in the page's text colour."""
    return [
        (title, _svg(number, title, draw_on))
        for number, (title, draw_on) in enumerate(_drawings(settings, results))
    ]


def _svg(number: int, title: str, draw_on: Drawing) -> str:
    buffer = io.StringIO()
    with styled() as figure:
        figure.set_size_inches(_WIDTH, _HEIGHT)
        axes = figure.subplots()
        draw_on(axes)
        axes.set_title(title)
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # All panels are in one page, where an id must be unique.
    return re.sub(r'( id="|href="#|url\(#)', rf"\1panel{number}-", text)


@contextmanager
def styled() -> Iterator[Any]:
    """Yield an empty figure, and the style that it is drawn and saved in."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    with rc_context(dict.fromkeys(ink, INK) | {"font.size": 9, "svg.hashsalt": "uringloop"}):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _drawings(settings: Settings, results: list[Result]) -> list[tuple[str, Drawing]]:
    """Return the title and the drawing function of each panel that has data."""
    clients = sorted(set(settings.clients))
    drawings: list[tuple[str, Drawing]] = []
    for size in dict.fromkeys(settings.sizes):
        some = [one for one in results if one.row.load.size == size and one.summary]
        drawings += [
            (f"{panel.title}, {size:,} B", partial(_draw_panel, panel, some, clients))
            for panel in _PANELS
            if any(one.summary and panel.take(one.summary) is not None for one in some)
        ]
        for count in clients:
            at_once = [one for one in some if one.row.load.clients == count]
            if at_once:
                title = f"Latency, {size:,} B, {count:,} {_clients(count)}"
                drawings.append((title, partial(_draw_latency, at_once)))
    return drawings


def figure_of(settings: Settings, results: list[Result], title: str) -> Any:
    drawings = _drawings(settings, results)
    columns = min(len(_PANELS), max(len(drawings), 1))
    rows = max(math.ceil(len(drawings) / columns), 1)
    with styled() as figure:
        figure.set_size_inches(_WIDTH * columns, _HEIGHT * rows + 0.9)
        places = figure.subplots(rows, columns, squeeze=False)
        every = [axes for row in places for axes in row]
        for axes, (heading, draw_on) in zip(every, drawings, strict=False):
            draw_on(axes)
            axes.set_title(heading)
        for axes in every[len(drawings) :]:
            axes.set_visible(False)
        handles, names = places[0][0].get_legend_handles_labels()
        # No frame: on its background the light text of a dark page would be invisible.
        figure.legend(
            handles, names, loc="outside lower center", ncols=max(len(names), 1), frameon=False
        )
        if title:
            figure.suptitle(title)
    return figure


def _clients(count: int) -> str:
    return "client" if count == 1 else "clients"


def style_of(name: str, names: list[str]) -> dict[str, Any]:
    """Return the look of a loop's line: the same in all panels."""
    # uringloop has the first colour, wherever it is listed.
    order = sorted(names, key=lambda each: (each != SUBJECT, each != BASELINE))
    return {
        "color": _COLOURS[order.index(name) % len(_COLOURS)],
        "marker": _MARKERS[names.index(name) % len(_MARKERS)],
        "linewidth": 2.4 if name == SUBJECT else 1.4,
        "markersize": 5,
        "label": name,
    }


def _names(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(one.cell.loop for one in results))


def _draw_panel(panel: Panel, results: list[Result], clients: list[int], axes: Any) -> None:
    """Draw medians against clients, with the lowest and the highest of the rounds."""
    names = _names(results)
    for name in names:
        points = []
        for one in results:
            quantity = panel.take(one.summary) if one.summary and one.cell.loop == name else None
            if quantity is not None:
                values = (quantity.value, quantity.low, quantity.high)
                points.append((one.row.load.clients, *(each / panel.scale for each in values)))
        if points:
            x, y, low, high = zip(*sorted(points), strict=True)
            below = [each - least for each, least in zip(y, low, strict=True)]
            above = [most - each for each, most in zip(y, high, strict=True)]
            axes.errorbar(x, y, (below, above), capsize=2, elinewidth=0.8, **style_of(name, names))
    _prepare(axes, "clients", panel.unit)
    clients_axis(axes, clients)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.yaxis.set_major_formatter("{x:,g}")


def clients_axis(axes: Any, clients: list[int]) -> None:
    """Make the axis of the clients logarithmic, and label it with these numbers."""
    axes.set_xscale("log")
    axes.set_xticks(clients, _spaced(clients))
    axes.set_xticks([], minor=True)


def _spaced(clients: list[int]) -> list[str]:
    """Return the labels of a logarithmic axis; one that would touch the next is empty."""
    room = math.log(clients[-1] / clients[0]) * _LABEL_SHARE
    labels = [""] * len(clients)
    last = math.inf
    for index in reversed(range(len(clients))):
        if math.log(last / clients[index]) >= room:
            last = clients[index]
            labels[index] = f"{last:,}"
    return labels


def _draw_latency(results: list[Result], axes: Any) -> None:
    """Draw percentiles of the latencies of all rounds, up to the slowest request."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = _names(results)
    shown: list[float] = []
    for one in results:
        merged = Histogram()
        for measurement in one.cell.rounds:
            merged.merge(Histogram.from_items(measurement.latencies))
        percentiles = [
            percent
            for percent in _PERCENTILES
            if merged.count() * (1 - percent / 100) >= _SLOWER_MIN
        ]
        times = [merged.percentile(percent) / 1e3 for percent in percentiles]
        axes.plot([_place(each) for each in percentiles], times, **style_of(one.cell.loop, names))
        shown = max(shown, percentiles, key=len)
    _prepare(axes, "percentile", "µs (log)")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xscale("log")
    named = [each for each in shown if each in (50.0, 90.0, 99.0, 99.9, 99.99)]
    axes.set_xticks([_place(each) for each in named], [f"{each:g}" for each in named])
    axes.set_xticks([], minor=True)


def _place(percent: float) -> float:
    """Return the x position of a percentile: the number of requests of which one is slower."""
    return 1 / (1 - percent / 100)


def _prepare(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, which="major")
    axes.spines[["top", "right"]].set_visible(False)
