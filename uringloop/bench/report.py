"""The report: a table for the terminal, Markdown for documents, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from . import markdown as md
from .rows import BASELINE, OK, SUBJECT, Quantity
from .settings import Settings
from .summary import PERCENTILES, Result, verdict

# Incremented when a field of the JSON changes its meaning or is removed.
JSON_SCHEMA = 2

# The headings of the columns, in the order of `cells_of`.
HEADINGS = (
    "size",
    "clients",
    "loop",
    "requests/s",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "CPU µs/req",
    f"CPU/{BASELINE}",
    f"req/s/{BASELINE}",
    "entries/req",
    "RSS MiB",
)

# Columns of words are aligned to the left, columns of figures to the right.
LEFT = {"loop"}


def _entries(quantity: Quantity | None) -> str:
    if quantity is None:
        return "-"
    return f"{quantity.value:.2f}" if quantity.value >= 0.01 else f"{quantity.value:.4f}"


def cells_of(result: Result) -> list[str]:
    """Return the text of a row, one string per heading."""
    load, cell, summary = result.row.load, result.cell, result.summary
    head = [str(load.size), str(load.clients), cell.loop]
    if summary is None or cell.status != OK:
        return [*head, cell.status, *["-"] * (len(HEADINGS) - len(head) - 1)]
    ratio = result.ratio
    return [
        *head,
        summary.requests_per_second.text(1, 0),
        *(summary.latency_ns[percent].text(1e3, 0) for percent in PERCENTILES),
        summary.server_cpu_ns.text(1e3, 2),
        f"{ratio.server_cpu:.2f}" if ratio else "-",
        f"{ratio.requests_per_second:.2f}" if ratio else "-",
        _entries(summary.kernel_entries),
        f"{summary.peak_rss_bytes.value / 2**20:.1f}",
    ]


def environment_lines(environment: dict[str, str]) -> list[str]:
    """Return one line per fact about the machine."""
    width = max(len(name) for name in environment)
    return [f"{name:<{width}}  {value}" for name, value in environment.items()]


def _aligned(cells: list[str], widths: list[int]) -> str:
    parts = [
        f"{text:<{width}}" if heading in LEFT else f"{text:>{width}}"
        for text, width, heading in zip(cells, widths, HEADINGS, strict=True)
    ]
    return "  ".join(parts).rstrip()


def table_lines(results: list[Result]) -> list[str]:
    """Return the table in columns, a blank line between sizes and numbers of clients."""
    rows = [cells_of(result) for result in results]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [_aligned(list(HEADINGS), widths)]
    lines.append("  ".join("-" * width for width in widths))
    for before, result, row in zip([*results[:1], *results], results, rows, strict=False):
        if result.row is not before.row:
            lines.append("")
        lines.append(_aligned(row, widths))
    return lines


def title(names: list[str]) -> str:
    """Return the title: the loops that are compared, the one that the report is about first."""
    ordered = sorted(dict.fromkeys(names), key=lambda name: name != SUBJECT)
    if not ordered:
        return "An echo server"
    if len(ordered) == 1:
        return f"An echo server on {ordered[0]}"
    return f"An echo server on {', '.join(ordered[:-1])} and {ordered[-1]}"


def names_of(results: list[Result]) -> list[str]:
    """Return the loops that have figures, in the order of the rows."""
    return list(dict.fromkeys(one.cell.loop for one in results if one.summary is not None))


def conditions(settings: Settings) -> str:
    """Return the conditions of the run in one line."""
    transport = "UNIX sockets" if settings.unix else "TCP on loopback"
    load = f"open loop, {settings.rate:,.0f} requests/s" if settings.rate else "closed loop"
    return (
        f"{settings.mode} mode, {transport}, {load},"
        f" {settings.rounds} rounds of {settings.duration:g} s"
    )


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def markdown(
    settings: Settings, environment: dict[str, str], results: list[Result], notes: list[str]
) -> str:
    """Return the report as a Markdown document."""
    lines = [f"## {title(names_of(results))}", "", verdict(results, settings.rate), ""]
    lines += [f"{sentence(conditions(settings))}", ""]
    lines += [*md.table(HEADINGS, map(cells_of, results), LEFT), ""]
    lines += [*(f"- {note}" for note in notes), ""]
    lines += md.facts(environment)
    return "\n".join(lines) + "\n"


def _quantity(quantity: Quantity | None) -> dict[str, object] | None:
    return quantity.json() if quantity is not None else None


def _json_row(result: Result) -> dict[str, object]:
    load, cell, summary = result.row.load, result.cell, result.summary
    encoded: dict[str, object] = {
        "loop": cell.loop,
        "size": load.size,
        "clients": load.clients,
        "status": cell.status,
        "note": cell.note,
        "failures": [one.failures for one in cell.rounds],
    }
    if summary is None:
        return encoded
    return encoded | {
        "requests_per_second": _quantity(summary.requests_per_second),
        "latency_ns": {
            f"p{percent:g}": _quantity(summary.latency_ns[percent]) for percent in PERCENTILES
        },
        "server_cpu_ns_per_request": _quantity(summary.server_cpu_ns),
        "client_cpu_ns_per_request": _quantity(summary.client_cpu_ns),
        "kernel_entries_per_request": _quantity(summary.kernel_entries),
        "peak_rss_bytes": _quantity(summary.peak_rss_bytes),
        "unanswered": summary.unanswered,
        f"ratio_to_{BASELINE}": asdict(result.ratio) if result.ratio else None,
    }


def to_json(
    settings: Settings, environment: dict[str, str], results: list[Result], notes: list[str]
) -> str:
    """Return the report for programs: every quantity with its rounds, in base units."""
    document = {
        "schema": JSON_SCHEMA,
        "environment": environment,
        "settings": asdict(settings),
        "rows": [_json_row(result) for result in results],
        "verdict": verdict(results, settings.rate),
        "notes": notes,
    }
    return json.dumps(document, indent=2) + "\n"
