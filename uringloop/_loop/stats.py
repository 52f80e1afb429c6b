"""The type of what Loop.stats() returns, for type checkers and documentation."""

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
