"""What a loop has done so far.

The counters are always on: each is one addition, at a place that does much more. Reading them
neither stops nor resets anything; any thread may.
"""

from uringloop._core.loop cimport BATCH_SIZES, LoopCore


def stats_of(LoopCore loop not None):
    """Return the counters and the present state of *loop*."""
    cdef int index
    return {
        "turns": loop.counters.turns,
        "kernel_entries": loop.ring.u.enters,
        "submissions": loop.ring.submissions,
        "completions": loop.ring.completions,
        "batched": loop.counters.batched,
        "batches": {1 << index: loop.counters.batches[index] for index in range(BATCH_SIZES)},
        "overflows": loop.counters.overflows,
        "starved": loop.counters.starved,
        "rearms": loop.counters.rearms,
        "operations": loop.ring.count,
        "buffers_out": loop.pool.out + loop.datagram_pool.out,
        "received_bytes": loop.counters.received_bytes,
        "sent_bytes": loop.counters.sent_bytes,
        "callbacks_ready": loop.ready.count,
        "timers_run": loop.counters.timers,
        "timers_pending": (
            loop.timers.count + loop.timers.due_end - loop.timers.due_begin
            - loop.timers.cancelled),
        "lag": loop.counters.lag_ns * 1e-9,
        "lag_max": loop.counters.lag_max_ns * 1e-9,
    }
