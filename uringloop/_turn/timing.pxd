"""Durations of turns and callbacks, measured on request."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from uringloop._kernel.atomics cimport load_int


cdef extern from "_turn/times.h" nogil:
    enum:
        TURN_CLAIMED
        TURN_BOUNDS

    ctypedef enum turn_users:
        TURN_FOR_STALLS
        TURN_FOR_MONITOR
        TURN_FOR_HISTOGRAMS
        TURN_FOR_BUSY

    ctypedef struct turn_durations:
        uint64_t counts[20]
        int64_t sum_ns

    ctypedef struct turn_times:
        unsigned long thread_id
        int sleeping
        int timing_users
        int64_t began_ns
        int64_t stall_ns
        uint64_t stall_version
        int64_t busy_ns
        int64_t idle_ns
        int64_t slept_ns
        uint32_t chance
        int left_in_block
        int stands_for
        turn_durations turns
        turn_durations callbacks
        turn_durations lags

    void times_begin_turn(turn_times *times)
    int64_t times_end_turn(turn_times *times)
    void times_fall_asleep(turn_times *times)
    void times_wake_up(turn_times *times)
    void times_begin_run(turn_times *times, unsigned long thread)
    unsigned long times_thread(const turn_times *times)
    void times_request(turn_times *times, int users, int64_t stall_ns)
    int64_t times_blocked_ns(const turn_times *times)
    int64_t times_busy_ns(turn_times *times, int64_t stall_ns)
    uint64_t times_last_stall(const turn_times *times, int64_t *began_ns, int64_t *took_ns)
    void times_note_longest(int64_t *longest, int64_t ns)


cdef bint is_chosen(turn_times *times) noexcept
cdef int64_t cpu_ns() noexcept
cdef void mark_used(turn_times *times, int64_t before_ns) noexcept
cdef void add_duration(turn_durations *durations, int64_t took_ns) noexcept


cdef inline int64_t begin_sleep(turn_times *times) noexcept:
    """Note that the loop sleeps.

    Return the processor time of the thread if it is to be measured, otherwise 0.
    """
    times_fall_asleep(times)
    return cpu_ns() if load_int(&times.timing_users) & TURN_FOR_BUSY and is_chosen(times) else 0


cdef inline void end_sleep(turn_times *times, int64_t cpu_before_ns) noexcept:
    """Note that the loop is awake. *cpu_before_ns* is what begin_sleep() has returned."""
    if cpu_before_ns:
        mark_used(times, cpu_before_ns)
    times_wake_up(times)


cdef inline void end_turn(turn_times *times) noexcept:
    """Note that a turn's work is done; the next turn begins unless the loop sleeps."""
    cdef int64_t took_ns = times_end_turn(times)
    if took_ns >= 0 and load_int(&times.timing_users) & TURN_FOR_HISTOGRAMS:
        add_duration(&times.turns, took_ns)


cdef inline int log2_at_most(uint64_t count, int most) noexcept:
    """Return the base-2 logarithm of *count*, rounded down, and at most *most*."""
    cdef int power = 0
    while count > 1 and power < most:
        count >>= 1
        power += 1
    return power
