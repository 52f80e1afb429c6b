"""Durations of turns and callbacks, measured on request.

A turn is timed from the end of the previous turn, or of the sleep between them, until its last
callback has returned. The loop's thread marks these times (times.h). Other threads read the fields,
and so see how long an unfinished turn has lasted.

A loop works from the end of a sleep to the end of the turn before the next one. The time at work is
what is left of all time without the sleeps: these are added when they end, by the loop's thread.

The system call that sleeps submits operations first, and the kernel carries out many of them there:
half of the processor time of an echo. That is work, too. The system call that reads it takes 2 % of
an echo, twice: so it is measured in each sleep that follows a long one, and in one of each 16
others, which is chosen at random and stands for all.
"""

from libc.stdint cimport int64_t

from uringloop._kernel.atomics cimport count_ns, count_total


cdef extern from "_kernel/clock.h":
    int64_t uring_thread_cpu_ns()


# In seconds, the unit of Prometheus histograms: 10 microseconds to 10 seconds.
BOUNDS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

cdef int64_t[TURN_BOUNDS] BOUNDS_NS


cdef int note_bounds() except -1:
    cdef int index
    for index in range(TURN_BOUNDS):
        BOUNDS_NS[index] = round(BOUNDS[index] * 1e9)
    return 0


note_bounds()


cdef enum:
    # After a sleep of that length the measurement takes less than 0.1 % of the time.
    LONG_SLEEP_NS = 1_000_000
    # Of each block of 2**4 other sleeps one is measured, at any place in it.
    BLOCK_BITS = 4


cdef bint is_chosen(turn_times *times) noexcept:
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


cdef void mark_used(turn_times *times, int64_t before_ns) noexcept:
    """Count the processor time of a sleep, and of those for which it stands, as work."""
    count_ns(&times.idle_ns, (before_ns - uring_thread_cpu_ns()) * times.stands_for)


cdef void add_duration(turn_durations *durations, int64_t took_ns) noexcept:
    cdef int index = 0
    while index < TURN_BOUNDS and took_ns > BOUNDS_NS[index]:
        index += 1
    count_total(&durations.counts[index], 1)
    count_ns(&durations.sum_ns, took_ns)
