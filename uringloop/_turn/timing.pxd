"""Durations of turns and callbacks, measured on request."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from uringloop._kernel.atomics cimport load_int


cdef enum:
    # Bounds of a histogram, in timing.pyx; durations above the last have their own count.
    DURATION_BOUNDS = 19


cdef enum TimingUser:
    # Reasons to time the turns of a loop.
    FOR_STALLS = 1          # Loop(stall_ms=)
    FOR_MONITOR = 2         # uringloop.monitor
    FOR_HISTOGRAMS = 4      # uringloop.prometheus; times callbacks, too
    FOR_BUSY = 8            # the first stats(): how long the loop works


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
    int64_t busy_since_ns   # when FOR_BUSY was set
    int64_t idle_ns         # since then: the sleeps that have ended, and the times between runs
    int64_t slept_ns        # the last sleep
    uint32_t chance         # a number that chooses one sleep of each block to be measured
    int left_in_block
    int stands_for          # how many sleeps the measured one stands for
    int64_t busy_ns         # the largest that was returned: it never decreases
    Durations turns
    Durations callbacks
    Durations lags          # always counted: the clock is read for the timers anyway


cdef bint is_chosen(Times *times) noexcept
cdef int64_t cpu_ns() noexcept
cdef void mark_used(Times *times, int64_t before_ns) noexcept
cdef void mark_begin(Times *times) noexcept
cdef void mark_end(Times *times) noexcept
cdef void note_longest(int64_t *longest, int64_t ns) noexcept
cdef void add_duration(Durations *durations, int64_t took_ns) noexcept


cdef inline void begin_turn(Times *times, int64_t cpu_before_ns = 0) noexcept:
    """Note that the loop is awake: a turn, or the rest of one, begins.

    *cpu_before_ns* is what begin_sleep() has returned.
    """
    if load_int(&times.timing_users):
        if cpu_before_ns:
            mark_used(times, cpu_before_ns)
        mark_begin(times)


cdef inline int64_t begin_sleep(Times *times) noexcept:
    """Return the processor time of the thread if it is to be measured, otherwise 0."""
    return cpu_ns() if load_int(&times.timing_users) & FOR_BUSY and is_chosen(times) else 0


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
