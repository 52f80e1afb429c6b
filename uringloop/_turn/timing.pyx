"""Durations of turns and callbacks, measured on request.

A turn is timed from the end of the previous turn, or of the sleep between them, until its last
callback has returned. The loop's thread marks these times. Other threads read the fields, and so
see how long an unfinished turn has lasted.

A read of the precise clock takes 36 ns, and an empty turn 450. The kernel's coarse clock takes 5 ns
and is up to one tick old, 4 ms mostly: enough for stalls, but not for the histograms, which are
kept for Prometheus only.
"""

from libc.stdint cimport int64_t

from uringloop._kernel.atomics cimport (
    count_ns,
    count_total,
    load_int,
    load_ns,
    replace_ns,
    store_ns,
)


cdef extern from "_kernel/clock.h":
    int64_t uring_clock_ns()
    int64_t uring_clock_coarse_ns()


# In seconds, the unit of Prometheus histograms: 10 microseconds to 10 seconds.
BOUNDS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

cdef int64_t[DURATION_BOUNDS] BOUNDS_NS


cdef int note_bounds() except -1:
    cdef int index
    for index in range(DURATION_BOUNDS):
        BOUNDS_NS[index] = round(BOUNDS[index] * 1e9)
    return 0


note_bounds()


cdef int64_t turn_clock_ns(const Times *times) noexcept:
    if load_int(&times.timing_users) & (FOR_HISTOGRAMS | FOR_PRECISION):
        return uring_clock_ns()
    return uring_clock_coarse_ns()


cdef void mark_begin(Times *times) noexcept:
    store_ns(&times.began_ns, turn_clock_ns(times))


cdef void mark_end(Times *times) noexcept:
    cdef int64_t now = turn_clock_ns(times)
    # If another thread asked for timing in mid-turn, request_timing() has stored this time.
    cdef int64_t began = load_ns(&times.began_ns)
    # Negative if the clock has changed from the precise one to the coarse one, which is behind.
    cdef int64_t took = max(now - began, 0)
    if took >= load_ns(&times.stall_ns):
        count_total(&times.stalls, 1)
        store_ns(&times.stall_began_ns, began)
        store_ns(&times.stall_took_ns, took)
    if load_int(&times.timing_users) & FOR_HISTOGRAMS:
        add_duration(&times.turns, took)
    store_ns(&times.began_ns, now)


cdef void note_longest(int64_t *longest, int64_t ns) noexcept:
    """Store *ns* if it is longer; any thread may call."""
    cdef int64_t before = load_ns(longest)
    while ns > before and not replace_ns(longest, &before, ns):
        pass


cdef void add_duration(Durations *durations, int64_t took_ns) noexcept:
    cdef int index = 0
    while index < DURATION_BOUNDS and took_ns > BOUNDS_NS[index]:
        index += 1
    count_total(&durations.counts[index], 1)
    count_ns(&durations.sum_ns, took_ns)
