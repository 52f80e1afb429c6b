"""Durations of turns and callbacks, measured on request."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.atomics cimport load_int


cdef enum:
    # Bounds of a histogram, in timing.pyx; durations above the last have their own count.
    DURATION_BOUNDS = 19


cdef enum TimingUser:
    # Reasons to time the turns of a loop.
    FOR_STALLS = 1          # Loop(stall_ms=)
    FOR_MONITOR = 2         # uringloop.monitor
    FOR_HISTOGRAMS = 4      # uringloop.prometheus; times callbacks, too
    # The threshold of a stall is shorter than a few ticks of the kernel's coarse clock.
    FOR_PRECISION = 8


cdef struct Durations:
    uint64_t counts[DURATION_BOUNDS + 1]
    int64_t sum_ns


cdef struct Times:
    int timing_users        # bits of TimingUser; while it is 0, a turn reads no clock for this
    int64_t began_ns        # when the present turn began; stale while the loop sleeps or is stopped
    int64_t stall_ns        # a turn that takes this long is a stall
    uint64_t stalls
    int64_t stall_began_ns  # of the last stall that has ended
    int64_t stall_took_ns
    Durations turns
    Durations callbacks
    Durations lags          # always counted: the clock is read for the timers anyway


cdef int64_t turn_clock_ns(const Times *times) noexcept
cdef void mark_begin(Times *times) noexcept
cdef void mark_end(Times *times) noexcept
cdef void note_longest(int64_t *longest, int64_t ns) noexcept
cdef void add_duration(Durations *durations, int64_t took_ns) noexcept


cdef inline void begin_turn(Times *times) noexcept:
    """Note that the loop is awake: a turn, or the rest of one, begins."""
    if load_int(&times.timing_users):
        mark_begin(times)


cdef inline void end_turn(Times *times) noexcept:
    """Note that a turn's work is done; the next turn begins unless the loop sleeps."""
    if load_int(&times.timing_users):
        mark_end(times)


cdef inline int log2_at_most(uint64_t count, int most) noexcept:
    """Return the base-2 logarithm of *count*, rounded down, and at most *most*."""
    cdef int power = 0
    while count > 1 and power < most:
        count >>= 1
        power += 1
    return power
