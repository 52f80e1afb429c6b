"""What Loop.stats() returns: the type, and what each figure means.

The metrics for Prometheus are made from the tables below. `_turn/stats.pyx` makes the figures.
"""

from __future__ import annotations

from typing import TypedDict


class Stats(TypedDict):
    """The result of `Loop.stats()`; times are in seconds."""

    turns: int
    kernel_entries: int
    submissions: int
    completions: int
    batched: int
    batches: dict[int, int]
    overflows: int
    starved: int
    rearms: int
    operations: int
    buffers_out: int
    received_bytes: int
    sent_bytes: int
    callbacks_ready: int
    timers_run: int
    timers_pending: int
    lag: float
    lag_max: float
    stalls: int
    busy: float
    executor_threads: int
    executor_queue: int
    executor_wait: float


# Figures that only grow.
COUNTERS = {
    "turns": "Turns of the event loop.",
    "kernel_entries": "System calls that submit operations or wait for completions.",
    "submissions": "Operations submitted to the ring.",
    "completions": "Completions received from the ring.",
    "overflows": "Times that the kernel held completions back because the queue was full.",
    "starved": "Receives that found no free buffer in the pool.",
    "rearms": "Receives, and polls for them, that were armed again.",
    "received_bytes": "Bytes received by transports.",
    "sent_bytes": "Bytes sent by transports.",
    "timers_run": "Timers that have run.",
    "stalls": "Turns of at least 100 ms, or of at least stall_ms, since turns are timed.",
    "busy": "Time in which the loop worked, since the first call of stats().",
}
# Figures of the present.
GAUGES = {
    "operations": "Operations in flight.",
    "buffers_out": "Receive buffers whose data the loop is delivering.",
    "callbacks_ready": "Callbacks queued for the next turn.",
    "timers_pending": "Timers that have not run yet.",
    "lag": "Lateness of the last timer, or time for which the loop has been blocked, if longer.",
    "lag_max": "Largest lag so far.",
    "executor_threads": "Threads of the default executor.",
    "executor_queue": "Calls that wait for a thread of the default executor.",
    "executor_wait": "Wait of the last call that left the queue, or of the first in it, if longer.",
}
# The figures that are times.
TIMES = {"lag", "lag_max", "executor_wait", "busy"}
# Completions by turn, and their sum: a histogram.
HISTOGRAM = {"batches", "batched"}
