"""Statistics of a loop, why it has changed rings, and the list of open loops.

The counters are always on: each is one addition on a path that does much more. Turns are timed on
request only. Any thread may read; reading neither stops nor resets anything.
"""

from weakref import ref

from libc.stdint cimport int64_t
from posix.time cimport clock_gettime, timespec
from posix.types cimport clockid_t

from uringloop._ring.ring cimport REPLACED
from uringloop._turn.timing cimport (
    DURATION_BOUNDS,
    Durations,
    FOR_HISTOGRAMS,
    FOR_MONITOR,
    FOR_PRECISION,
    FOR_STALLS,
    turn_clock_ns,
)
from uringloop._turn.turn cimport BATCH_SIZES, LoopCore, running_thread


cdef extern from "<pthread.h>" nogil:
    # A pointer on musl.
    ctypedef unsigned long pthread_t
    int pthread_getcpuclockid(pthread_t thread, clockid_t *clock)


# A turn that takes this long is a stall unless Loop(stall_ms=) says otherwise: asyncio's
# slow_callback_duration.
STALL_MS = 100
# A shorter threshold needs the precise clock: the coarse one may be 10 ms old.
COARSE_STALL_MS = 50

# Whether new loops are timed for the monitor.
cdef bint MONITORED = False

# Every loop that has not been freed. A set of weak references, not a WeakSet: it costs 0.2 us for
# a loop, and is copied atomically while other threads create loops.
cdef set LOOPS = set()


def register(LoopCore loop not None):
    """Have open_loops() return *loop* until it is closed or freed."""
    LOOPS.add(ref(loop, LOOPS.discard))
    if MONITORED:
        request_timing(loop, FOR_MONITOR)


def fallback_of(LoopCore loop not None):
    """Return why *loop* has changed from the kernel's ring to the software ring.

    The result is the errno and the name of the system call that failed; None if *loop* has not
    changed rings.
    """
    return loop.ring.forbidden_call if loop.ring.permission >= REPLACED else None


def set_fallback_callback(LoopCore loop not None, function):
    """Have *function* called with errno and system call when *loop* changes rings.

    *function* must not keep the loop alive.
    """
    loop.ring.on_fallback = function


def open_loops():
    """Return the open loops of this process, in no order. Any thread may call."""
    loops = [one() for one in list(LOOPS)]
    return [loop for loop in loops if loop is not None and not (<LoopCore>loop).closed]


def thread_state_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, its CPU seconds, whether the loop sleeps, and the
    seconds that its present turn has lasted (0.0 if turns are not timed)."""
    cdef clockid_t clock = 0
    cdef timespec used
    if not running_thread(loop):
        return 0, 0.0, False, 0.0
    used.tv_sec = used.tv_nsec = 0
    # The thread is alive: it is in _run(), and this call holds the GIL.
    if pthread_getcpuclockid(<pthread_t>loop.thread_id, &clock) == 0:
        clock_gettime(clock, &used)
    cpu = used.tv_sec + used.tv_nsec * 1e-9
    return loop.thread_id, cpu, loop.sleeping, blocked_s(loop)


def stats_of(LoopCore loop not None):
    """Return the counters and the present state of *loop*."""
    cdef int index
    # A turn that has not ended delays every due timer.
    cdef int64_t lag_ns = max(loop.counters.lag_ns, <int64_t>(blocked_s(loop) * 1e9))
    # lag_max never decreases, so it includes every lag that was returned.
    loop.counters.lag_max_ns = max(loop.counters.lag_max_ns, lag_ns)
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
        "lag": lag_ns * 1e-9,
        "lag_max": loop.counters.lag_max_ns * 1e-9,
        "stalls": loop.times.stalls,
    }


# ── durations of turns and callbacks, measured on request ────────────────────────────────────────


def watch_stalls(LoopCore loop not None, long milliseconds):
    """Time the turns of *loop* from now on; one of *milliseconds* or more is a stall."""
    loop.times.stall_ns = milliseconds * 1_000_000
    request_timing(loop, FOR_STALLS | (FOR_PRECISION if milliseconds < COARSE_STALL_MS else 0))


def time_turns(bint wanted):
    """Start or stop timing the turns of every loop, also of loops that are created later."""
    global MONITORED
    MONITORED = wanted
    for loop in open_loops():
        if wanted:
            request_timing(<LoopCore>loop, FOR_MONITOR)
        else:
            (<LoopCore>loop).times.timing_users &= ~FOR_MONITOR


def keep_histograms(LoopCore loop not None):
    """Time the turns and the callbacks of *loop* by the precise clock from now on."""
    request_timing(loop, FOR_HISTOGRAMS)


cdef int request_timing(LoopCore loop, int timing_users) except -1:
    if loop.times.stall_ns == 0:
        loop.times.stall_ns = STALL_MS * 1_000_000
    if loop.times.timing_users == 0:
        # The loop may be in mid-turn, and when that turn began is not known.
        loop.times.began_ns = turn_clock_ns(&loop.times)
    loop.times.timing_users |= timing_users
    return 0


cdef double blocked_s(LoopCore loop) noexcept:
    """Return the seconds that the present turn of *loop* has lasted; 0.0 if it is not timed."""
    if not running_thread(loop) or loop.sleeping or loop.times.timing_users == 0:
        return 0.0
    return max(turn_clock_ns(&loop.times) - loop.times.began_ns, 0) * 1e-9


def turn_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, its present turn, and its stalls.

    The present turn: when it began, and how long it has lasted. While the loop sleeps the first is
    stale and the second 0. The stalls: how many have ended, when the last one began, and how long
    it took. Times are in seconds.
    """
    cdef double lasts = blocked_s(loop)
    return (
        running_thread(loop), loop.times.began_ns * 1e-9, lasts,
        loop.times.stalls, loop.times.stall_began_ns * 1e-9, loop.times.stall_took_ns * 1e-9)


cdef tuple counts_and_sum(const Durations *durations):
    cdef int index
    return (
        [durations.counts[index] for index in range(DURATION_BOUNDS + 1)], durations.sum_ns * 1e-9)


def histograms_of(LoopCore loop not None):
    """Return the histograms of lags, turns and callbacks of *loop*: counts, and sum in seconds.

    There is one count for each of timing.BOUNDS, and one for longer durations.
    """
    return {
        "lag": counts_and_sum(&loop.times.lags),
        "turn": counts_and_sum(&loop.times.turns),
        "callback": counts_and_sum(&loop.times.callbacks),
    }
