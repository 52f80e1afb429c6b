"""The report as one self-contained page: table, charts, machine, how to repeat the measurement."""

from __future__ import annotations

import html
import string
from importlib import resources

from . import charts, report, summary
from .rows import SUBJECT
from .settings import Settings
from .summary import Result

# The markers of the charts, as paths around 0.
_MARKS = {
    "o": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "s": "M-4.5 -4.5h9v9h-9z",
    "D": "M0 -6L6 0L0 6L-6 0z",
    "^": "M0 -5.5L5.5 4.5H-5.5z",
    "v": "M0 5.5L5.5 -4.5H-5.5z",
    "P": "M-2 -5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z",
    "X": "M0 -2.5L3 -5.5L5.5 -3L2.5 0L5.5 3L3 5.5L0 2.5L-3 5.5L-5.5 3L-2.5 0L-5.5 -3L-3 -5.5z",
}


def page(
    settings: Settings,
    environment: dict[str, str],
    results: list[Result],
    notes: list[str],
    command: str,
) -> str:
    """Return the page; *command* is the command line."""
    template = resources.files(__package__).joinpath("page.html").read_text()
    rows = [report.cells_of(result) for result in results]
    names = report.names_of(results)
    return string.Template(template).substitute(
        title=html.escape(report.title(names)),
        verdict=html.escape(summary.verdict(results, settings.rate)),
        conditions=html.escape(report.sentence(report.conditions(settings))),
        date=html.escape(environment.get("date", "")),
        legend="\n".join(_key(name, names) for name in names),
        head=_row("th", list(report.HEADINGS)),
        rows="\n".join(_row("td", row) for row in rows),
        pictures="\n".join(
            f'<figure role="img" aria-label="{html.escape(title)}">{picture}</figure>'
            for title, picture in charts.pictures(settings, results)
        ),
        notes="\n".join(f"<li>{html.escape(note)}</li>" for note in notes),
        facts="\n".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
            for name, value in environment.items()
        ),
        command=html.escape(command),
    )


def _key(name: str, names: list[str]) -> str:
    """Return the line and the marker of a loop, and its name."""
    look = charts.style_of(name, names)
    colour = look["color"]
    return (
        f'<li><svg viewBox="-18 -8 36 16" width="36" height="16" aria-hidden="true">'
        f'<path d="M-18 0H18" stroke="{colour}" stroke-width="{look["linewidth"]}"/>'
        f'<path d="{_MARKS[look["marker"]]}" fill="{colour}"/></svg>{html.escape(name)}</li>'
    )


def _row(kind: str, cells: list[str]) -> str:
    parts = []
    for heading, text in zip(report.HEADINGS, cells, strict=True):
        side = ' class="word"' if heading in report.LEFT else ""
        # A heading may break after a slash: twelve columns must fit into a window of 1,200 pixels.
        words = html.escape(text).replace("/", "/<wbr>") if kind == "th" else html.escape(text)
        parts.append(f"<{kind}{side}>{words}</{kind}>")
    # The row of the loop that the page is about.
    judged = ' class="judged"' if SUBJECT in cells else ""
    return f"<tr{judged}>{''.join(parts)}</tr>"
