"""The figures of each row: medians of its rounds, their spread, and the ratio to uvloop."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .client import Measurement
from .loadgen import Histogram
from .rows import BASELINE, SPREAD_NOTE, SUBJECT, Cell, Quantity, median_of
from .runner import EchoRow

PERCENTILES = (50.0, 99.0, 99.9)


@dataclass(frozen=True)
class Summary:
    """The figures of one cell."""

    requests_per_second: Quantity
    # By percentile, in nanoseconds: of all rounds' latencies together.
    latency_ns: dict[float, Quantity]
    server_cpu_ns: Quantity
    client_cpu_ns: Quantity
    kernel_entries: Quantity | None
    peak_rss_bytes: Quantity
    unanswered: int


def _latency(rounds: list[Measurement], percent: float) -> Quantity:
    """Return a percentile of the merged rounds; its spread is that of the single rounds."""
    merged = Histogram()
    single = []
    for measurement in rounds:
        histogram = Histogram.from_items(measurement.latencies)
        merged.merge(histogram)
        single.append(float(histogram.percentile(percent)))
    return Quantity(float(merged.percentile(percent)), min(single), max(single), tuple(single))


def _per_answer(rounds: list[Measurement], take: Callable[[Measurement], int]) -> Quantity:
    return median_of([take(one) / one.answers for one in rounds])


def summarise(cell: Cell[Measurement]) -> Summary | None:
    """Return the figures of a cell; None when no round of it answered a request."""
    rounds = [one for one in cell.rounds if one.requests and one.answers and one.failure is None]
    if not rounds:
        return None
    counted = [
        one.kernel_entries / one.kernel_entries_requests
        for one in rounds
        if one.kernel_entries is not None and one.kernel_entries_requests
    ]
    return Summary(
        requests_per_second=median_of([one.requests / one.elapsed_ns * 1e9 for one in rounds]),
        latency_ns={percent: _latency(rounds, percent) for percent in PERCENTILES},
        server_cpu_ns=_per_answer(rounds, lambda one: one.server_cpu_ns),
        client_cpu_ns=median_of([one.client_cpu_ns / one.requests for one in rounds]),
        kernel_entries=median_of(counted) if counted else None,
        peak_rss_bytes=median_of([float(one.peak_rss_bytes) for one in rounds]),
        unanswered=sum(one.unanswered for one in rounds),
    )


@dataclass(frozen=True)
class Ratio:
    """The medians of a cell, divided by those of the baseline in the same row."""

    server_cpu: float
    requests_per_second: float


@dataclass(frozen=True)
class Result:
    """One cell in the report: a line of the table."""

    row: EchoRow
    cell: Cell[Measurement]
    summary: Summary | None
    ratio: Ratio | None


def compare(rows: list[EchoRow]) -> list[Result]:
    """Summarise all cells and compare each with the baseline of its row."""
    results = []
    for row in rows:
        summaries = {loop: summarise(cell) for loop, cell in row.cells.items()}
        base = summaries.get(BASELINE)
        for loop, summary in summaries.items():
            ratio = None
            if summary is not None and base is not None:
                ratio = Ratio(
                    summary.server_cpu_ns.value / base.server_cpu_ns.value,
                    summary.requests_per_second.value / base.requests_per_second.value,
                )
            results.append(Result(row, row.cells[loop], summary, ratio))
    return results


def verdict(results: list[Result], rate: float) -> str:
    """Return the result in a sentence: SUBJECT compared with each other loop, over all cells.

    A quantity whose rounds overlap those of the other loop has no verdict.
    """
    measured = {(one.cell.loop, one.row.name): one.summary for one in results if one.summary}
    rows = list(dict.fromkeys(one.row.name for one in results))
    others = {one.cell.loop for one in results} - {SUBJECT}
    parts: list[str] = []
    open_questions: list[str] = []
    for name in sorted(others, key=lambda name: (name != BASELINE, name)):
        pairs = [
            (measured[SUBJECT, row], measured[name, row])
            for row in rows
            if (SUBJECT, row) in measured and (name, row) in measured
        ]
        if not pairs:
            continue
        cost = _mean_ratio(pairs, lambda one: one.server_cpu_ns)
        # In an open loop the rate is given.
        speed = "" if rate else _mean_ratio(pairs, lambda one: one.requests_per_second)
        parts += _claim(name, speed, cost)
        if not (speed or rate):
            open_questions.append(f"the requests per second of {name}")
        if not cost:
            open_questions.append(f"the CPU time of {name}")
    if not parts and not open_questions:
        return f"{SUBJECT} was not compared with another loop."
    means = f", on average over {len(rows)} cells" if len(rows) > 1 else ""
    told = [f"{SUBJECT} {'; '.join(parts)}{means}."] if parts else []
    if open_questions:
        told.append(f"The rounds overlap, so no verdict on {' and '.join(open_questions)}.")
    return " ".join(told)


def _claim(name: str, speed: str, cost: str) -> list[str]:
    """Return the statement about the loop *name*, without ratios that are empty."""
    if speed and cost:
        return [
            f"served {speed} times the requests per second of {name} "
            f"with {cost} of its CPU time for each"
        ]
    if speed:
        return [f"served {speed} times the requests per second of {name}"]
    return [f"took for each request {cost} of the CPU time of {name}"] if cost else []


def _mean_ratio(pairs: list[tuple[Summary, Summary]], take: Callable[[Summary], Quantity]) -> str:
    """Return the geometric mean of one quantity's ratios; nothing if the rounds allow none."""
    quantities = [(take(ours), take(theirs)) for ours, theirs in pairs]
    least = statistics.geometric_mean([a.low / b.high for a, b in quantities])
    most = statistics.geometric_mean([a.high / b.low for a, b in quantities])
    if least <= 1 <= most:
        return ""
    return f"{statistics.geometric_mean([a.value / b.value for a, b in quantities]):.2f}"


def notes(results: list[Result], rate: float) -> list[str]:
    """Return the notes below the table."""
    lines = [
        SPREAD_NOTE,
        "Percentiles are of all rounds' latencies together, ± the same of the single rounds.",
    ]
    if rate:
        lines.append(
            f"Open loop at {rate:,.0f} requests/s in all: latency counts from the scheduled time."
        )
    rounds = [one for result in results for one in result.cell.rounds]
    if any(one.kernel_entries is not None for one in rounds):
        lines.append("Kernel entries are counted in a short pass after the measurement.")
    refused = sorted({one.kernel_entries_refused for one in rounds} - {""})
    lines += [f"Kernel entries are not counted: {reason}" for reason in refused]
    for result in results:
        lines += _remarks(result)
    return list(dict.fromkeys(lines))


def _remarks(result: Result) -> list[str]:
    cell, summary = result.cell, result.summary
    if cell.status in ("not supported", "failed"):
        return [f"{cell.loop}: {cell.status}: {cell.note}"]
    answered = sum(one.requests for one in cell.rounds)
    # A request in flight when the interval ends is unanswered too; a backlog is much more.
    if summary is not None and summary.unanswered > answered // 100 + result.row.load.clients:
        where = f"{cell.loop}, {result.row.name}"
        return [f"{where}: slower than the rate, {summary.unanswered:,} requests were left over."]
    return []
