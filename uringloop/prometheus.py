"""What `loop.stats()` tells, as text that Prometheus reads (exposition format 0.0.4)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from uringloop._turn.stats import histograms_of, keep_histograms
from uringloop._turn.timing import BOUNDS
from uringloop.loop import Loop

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Of these the value now; everything else only grows.
GAUGES = frozenset(
    ("operations", "buffers_out", "callbacks_ready", "timers_pending", "lag", "lag_max")
)
HELP = {
    "turns": "Passes of the loop.",
    "kernel_entries": "System calls that submit or wait.",
    "submissions": "Requests to the kernel.",
    "completions": "Answers of the kernel.",
    "overflows": "Enters that the kernel kept completions for.",
    "starved": "Receives that found no free buffer.",
    "rearms": "Receives that were armed anew.",
    "operations": "Requests in flight.",
    "buffers_out": "Receive buffers that are being read.",
    "received_bytes": "Bytes that transports have received.",
    "sent_bytes": "Bytes that transports have sent.",
    "callbacks_ready": "Callbacks for the next turn.",
    "timers_run": "Timers that were due.",
    "timers_pending": "Timers that are not due yet.",
    "lag": "How late the newest timer was, or for how long the loop is blocked now.",
    "lag_max": "How late a timer was at most, or for how long the loop is blocked now.",
    "stalls": "Turns that took 100 ms or what stall_ms says, since the first scrape.",
}
# By the names of histograms_of().
HISTOGRAMS = {
    "lag": ("timer_lag", "How late timers were, the first of each turn."),
    "turn": ("turn", "How long turns took without the sleep, since the first scrape."),
    "callback": (
        "callback",
        "How long callbacks and steps of tasks took, since the first scrape.",
    ),
}


def text(loop: Loop, prefix: str = "uringloop", labels: Mapping[str, str] | None = None) -> str:
    """Return the metrics of *loop*, each with *prefix* in front. Any thread may call it.

    Each sample has the *labels*, by default `pid` with the number of the process: workers that
    share a port answer in turn. The first call for a loop begins to time its turns and callbacks
    by the precise clock; docs/monitoring.md says what that costs.
    """
    keep_histograms(loop)
    chosen = {"pid": str(os.getpid())} if labels is None else labels
    return "\n".join(_lines(loop, prefix, chosen)) + "\n"


def _lines(loop: Loop, prefix: str, labels: Mapping[str, str]) -> Iterator[str]:
    stats = loop.stats()
    common = _labels(labels)
    for name, help_text in HELP.items():
        value = stats[name]  # type: ignore[literal-required]
        metric = f"{prefix}_{name}"
        if name.startswith("lag"):
            metric += "_seconds"
        elif name not in GAUGES:
            metric += "_total"
        yield from _head(metric, help_text, "gauge" if name in GAUGES else "counter")
        yield f"{metric}{common} {value}"
    # A batch counts under the power of two that it reaches: those of 4 to 7 under 4.
    *sizes, _ = stats["batches"]
    bounds = [2 * size - 1 for size in sizes]
    metric = f"{prefix}_completions_per_turn"
    yield from _head(metric, "Completions that a turn was told of.", "histogram")
    yield from _histogram(metric, bounds, stats["batches"].values(), stats["batched"], labels)
    for key, (counts, total) in histograms_of(loop).items():
        name, help_text = HISTOGRAMS[key]
        metric = f"{prefix}_{name}_seconds"
        yield from _head(metric, help_text, "histogram")
        yield from _histogram(metric, BOUNDS, counts, total, labels)


def _head(metric: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {metric} {help_text}"
    yield f"# TYPE {metric} {kind}"


def _histogram(
    metric: str,
    bounds: Iterable[float],
    counts: Iterable[int],
    total: float,
    labels: Mapping[str, str],
) -> Iterator[str]:
    """Yield the samples of a histogram, each bucket with all that are below it."""
    below = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        below += count
        yield f"{metric}_bucket{_labels({**labels, 'le': bound})} {below}"
    common = _labels(labels)
    yield f"{metric}_sum{common} {total}"
    yield f"{metric}_count{common} {below}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
