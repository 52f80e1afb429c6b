"""The report as one page that needs nothing else: table, pictures, machine, how to repeat it."""

from __future__ import annotations

import html
import string
from importlib import resources

from . import charts, report
from .settings import Settings
from .summary import Result


def page(
    settings: Settings,
    environment: dict[str, str],
    results: list[Result],
    notes: list[str],
    command: str,
) -> str:
    """Return the page; *command* is what was typed."""
    template = resources.files(__package__).joinpath("page.html").read_text()
    rows = [report.cells_of(result) for result in results]
    return string.Template(template).substitute(
        title=html.escape(report.title(settings)),
        head=_row("th", list(report.HEADINGS)),
        rows="\n".join(_row("td", row) for row in rows),
        pictures=charts.svg(settings, results),
        notes="\n".join(f"<li>{html.escape(note)}</li>" for note in notes),
        facts="\n".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
            for name, value in environment.items()
        ),
        command=html.escape(command),
    )


def _row(kind: str, cells: list[str]) -> str:
    parts = []
    for heading, text in zip(report.HEADINGS, cells, strict=True):
        side = ' class="word"' if heading in report.LEFT else ""
        parts.append(f"<{kind}{side}>{html.escape(text)}</{kind}>")
    # The row of the loop that the page is about.
    judged = ' class="judged"' if charts.JUDGED in cells else ""
    return f"<tr{judged}>{''.join(parts)}</tr>"
