"""The report: a table for the terminal, Markdown for documents, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from .settings import Settings
from .summary import BASELINE, PERCENTILES, SUBJECT, Quantity, Result, verdict

# Raised when a field of the JSON changes its meaning or goes away.
JSON_SCHEMA = 1

# One for each column of a row, in the order of the cells.
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


def _with_spread(quantity: Quantity, scale: float, digits: int) -> str:
    return f"{quantity.value / scale:,.{digits}f} ±{quantity.spread:.0%}"


def _entries(quantity: Quantity | None) -> str:
    if quantity is None:
        return "-"
    return f"{quantity.value:.2f}" if quantity.value >= 0.01 else f"{quantity.value:.4f}"


def cells_of(result: Result) -> list[str]:
    """Return the text of a row, one string per heading."""
    row, summary = result.row, result.summary
    head = [str(row.cell.size), str(row.cell.clients), row.loop]
    if summary is None or row.status != "ok":
        return [*head, row.status, *["-"] * (len(HEADINGS) - len(head) - 1)]
    ratio = result.ratio
    return [
        *head,
        _with_spread(summary.requests_per_second, 1, 0),
        *(_with_spread(summary.latency_ns[percent], 1e3, 0) for percent in PERCENTILES),
        _with_spread(summary.server_cpu_ns, 1e3, 2),
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
    """Return the table in columns, a blank line between cells."""
    rows = [cells_of(result) for result in results]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [_aligned(list(HEADINGS), widths)]
    lines.append("  ".join("-" * width for width in widths))
    cell = results[0].row.cell if results else None
    for result, row in zip(results, rows, strict=True):
        if result.row.cell != cell:
            lines.append("")
            cell = result.row.cell
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
    return list(dict.fromkeys(one.row.loop for one in results if one.summary is not None))


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
    rule = [":--" if heading in LEFT else "--:" for heading in HEADINGS]
    rows = [list(HEADINGS), rule, *(cells_of(result) for result in results)]
    lines = [f"## {title(names_of(results))}", "", verdict(results, settings.rate), ""]
    lines += [f"{sentence(conditions(settings))}", ""]
    lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    lines += [*(f"- {note}" for note in notes), ""]
    lines += [f"- {name}: {value}" for name, value in environment.items()]
    return "\n".join(lines) + "\n"


def _quantity(quantity: Quantity | None) -> dict[str, object] | None:
    if quantity is None:
        return None
    return {
        "value": quantity.value,
        "min": quantity.low,
        "max": quantity.high,
        "rounds": list(quantity.rounds),
    }


def _json_row(result: Result) -> dict[str, object]:
    row, summary = result.row, result.summary
    encoded: dict[str, object] = {
        "loop": row.loop,
        "size": row.cell.size,
        "clients": row.cell.clients,
        "status": row.status,
        "note": row.note,
        "failures": [one.failures for one in row.rounds],
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
