"""Durations of turns and callbacks, measured on request.

A turn is timed from the end of the previous turn, or of the sleep between them, until its last
callback has returned. The loop's thread marks these times. Other threads read the fields, and so
see how long an unfinished turn has lasted.

A loop works from the end of a sleep to the end of the turn before the next one. The time at work is
what is left of all time without the sleeps: these are added when they end, by the loop's thread.

The system call that sleeps submits operations first, and the kernel carries out many of them there:
half of the processor time of an echo. That is work, too. The system call that reads it takes 2 % of
an echo, twice: so it is measured in each sleep that follows a long one, and in one of each 16
others, which is chosen at random and stands for all.
"""

from libc.stdint cimport int64_t

from uringloop._kernel.atomics cimport (
    count_ns,
    count_total,
    load_int,
    load_ns,
    replace_ns,
    store_ns,
    store_ns_release,
)


cdef extern from "_kernel/clock.h":
    int64_t uring_clock_ns()
    int64_t uring_thread_cpu_ns()


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


cdef enum:
    # After a sleep of that length the measurement takes less than 0.1 % of the time.
    LONG_SLEEP_NS = 1_000_000
    # Of each block of 2**4 other sleeps one is measured, at any place in it.
    BLOCK_BITS = 4


cdef bint is_chosen(Times *times) noexcept:
    if times.slept_ns > LONG_SLEEP_NS:
        times.stands_for = 1
        return True
    times.stands_for = 1 << BLOCK_BITS
    if times.left_in_block == 0:
        times.left_in_block = 1 << BLOCK_BITS
        # The constants are those of the C standard's example of rand(); the upper bits are good
        # enough.
        times.chance = times.chance * 1103515245 + 12345
    times.left_in_block -= 1
    return times.left_in_block == <int>(times.chance >> (32 - BLOCK_BITS))


cdef int64_t cpu_ns() noexcept:
    return uring_thread_cpu_ns()


cdef void mark_used(Times *times, int64_t before_ns) noexcept:
    """Count the processor time of a sleep, and of those for which it stands, as work."""
    count_ns(&times.idle_ns, (before_ns - uring_thread_cpu_ns()) * times.stands_for)


cdef void mark_begin(Times *times) noexcept:
    cdef int64_t now = uring_clock_ns()
    # In this order: busy_s() reads the idle time after the other.
    if load_int(&times.timing_users) & FOR_BUSY:
        times.slept_ns = now - max(load_ns(&times.began_ns), load_ns(&times.busy_since_ns))
        count_ns(&times.idle_ns, times.slept_ns)
    store_ns_release(&times.began_ns, now)


cdef void mark_end(Times *times) noexcept:
    cdef int64_t now = uring_clock_ns()
    # If another thread asked for timing in mid-turn, request_timing() has stored this time.
    cdef int64_t began = load_ns(&times.began_ns)
    cdef int64_t took = now - began
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
