"""What `loop.stats()` tells, as text that Prometheus reads (exposition format 0.0.4)."""

from __future__ import annotations

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
    "lag": "How late the newest timer was.",
    "lag_max": "How late a timer was at most.",
}


def text(loop: Loop, prefix: str = "uringloop") -> str:
    """Return the metrics of *loop*, each with *prefix* in front. Any thread may call it."""
    lines = []
    stats = loop.stats()
    for name, help_text in HELP.items():
        value = stats[name]  # type: ignore[literal-required]
        metric = f"{prefix}_{name}"
        if name.startswith("lag"):
            metric += "_seconds"
        elif name not in GAUGES:
            metric += "_total"
        lines.append(f"# HELP {metric} {help_text}")
        lines.append(f"# TYPE {metric} {'gauge' if name in GAUGES else 'counter'}")
        lines.append(f"{metric} {value}")
    metric = f"{prefix}_completions_per_turn"
    lines.append(f"# HELP {metric} Completions that a turn was told of.")
    lines.append(f"# TYPE {metric} histogram")
    # A batch counts under the power of two that it reaches: those of 4 to 7 under 4.
    total = 0
    *inner, _ = batches = list(stats["batches"].items())
    for size, count in inner:
        total += count
        lines.append(f'{metric}_bucket{{le="{2 * size - 1}"}} {total}')
    total += batches[-1][1]
    lines.append(f'{metric}_bucket{{le="+Inf"}} {total}')
    lines.append(f"{metric}_sum {stats['batched']}")
    lines.append(f"{metric}_count {total}")
    return "\n".join(lines) + "\n"
