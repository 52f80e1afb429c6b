"""What a loop has done so far, what has become of its ring, and which loops there are.

The counters are always on: each is one addition, at a place that does much more. Turns are timed
while somebody wants that. Reading neither stops nor resets anything; any thread may.
"""

from weakref import ref

from libc.stdint cimport int64_t
from posix.time cimport clock_gettime, timespec
from posix.types cimport clockid_t

from uringloop._turn.timing cimport (
    DURATION_BOUNDS,
    Durations,
    FOR_HISTOGRAMS,
    FOR_MONITOR,
    FOR_PRECISION,
    FOR_STALLS,
    turn_clock_ns,
)
from uringloop._turn.turn cimport BATCH_SIZES, LoopCore


cdef extern from "<pthread.h>" nogil:
    # musl has a pointer here.
    ctypedef unsigned long pthread_t
    int pthread_getcpuclockid(pthread_t thread, clockid_t *clock)


# A turn that takes this long is a stall where Loop(stall_ms=) says nothing else: what asyncio calls
# slow in debug mode.
STALL_MS = 100
# A stall that is shorter needs the precise clock: the coarse one may be 10 ms old.
COARSE_STALL_MS = 50

# Whether loops that are made now are timed, for the monitor.
cdef bint MONITORED = False

# Every loop that has not been freed. A set of weak references and no WeakSet: this one costs 0.2 us
# for a loop, and is copied at once, while other threads make loops.
cdef set LOOPS = set()


def register(LoopCore loop not None):
    """Have *loop* found by open_loops() until it is closed or freed."""
    LOOPS.add(ref(loop, LOOPS.discard))
    if MONITORED:
        wish(loop, FOR_MONITOR)


def fall_of(LoopCore loop not None):
    """Return why *loop* runs on the software ring instead of the kernel's, on which it began.

    The errno, and the name of the system call that answered so; None if it has not changed rings.
    """
    return loop.ring.fallen


def tell_fall_to(LoopCore loop not None, function):
    """Have *function* called with both when *loop* changes rings.

    It must not keep the loop alive.
    """
    loop.ring.on_fall = function


def open_loops():
    """Return the loops of this process that are open, in no order. Any thread may ask."""
    loops = [one() for one in list(LOOPS)]
    return [loop for loop in loops if loop is not None and not (<LoopCore>loop).closed]


def place_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, its CPU seconds, whether the loop sleeps, and for
    how long it is in its present turn, as far as turns are timed."""
    cdef clockid_t clock = 0
    cdef timespec used
    # A forked child has the number of a thread that is not there.
    if loop.thread_id == 0 or loop.ring.u.inherited:
        return 0, 0.0, False, 0.0
    used.tv_sec = used.tv_nsec = 0
    # That thread lives: it is in _run(), and nobody gives up the GIL before the answer.
    if pthread_getcpuclockid(<pthread_t>loop.thread_id, &clock) == 0:
        clock_gettime(clock, &used)
    cpu = used.tv_sec + used.tv_nsec * 1e-9
    return loop.thread_id, cpu, loop.sleeping, blocked_s(loop)


def stats_of(LoopCore loop not None):
    """Return the counters and the present state of *loop*."""
    cdef int index
    # A turn that has not ended holds up everything that is due.
    cdef int64_t lag_ns = max(loop.counters.lag_ns, <int64_t>(blocked_s(loop) * 1e9))
    # Who has been told of it is not told less later.
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


# ── turns and callbacks, while somebody wants to know how long they take ─────────────────────────


def watch_stalls(LoopCore loop not None, long milliseconds):
    """Time the turns of *loop* from now on: one of so many *milliseconds* is a stall."""
    loop.times.stall_ns = milliseconds * 1_000_000
    wish(loop, FOR_STALLS | (FOR_PRECISION if milliseconds < COARSE_STALL_MS else 0))


def time_turns(bint wanted):
    """Time the turns of every loop, those that are made later too, or do so no more."""
    global MONITORED
    MONITORED = wanted
    for loop in open_loops():
        if wanted:
            wish(<LoopCore>loop, FOR_MONITOR)
        else:
            (<LoopCore>loop).times.wishes &= ~FOR_MONITOR


def keep_histograms(LoopCore loop not None):
    """Time the turns and the callbacks of *loop* by the precise clock from now on."""
    wish(loop, FOR_HISTOGRAMS)


cdef int wish(LoopCore loop, int wishes) except -1:
    if loop.times.stall_ns == 0:
        loop.times.stall_ns = STALL_MS * 1_000_000
    if loop.times.wishes == 0:
        # It may be in the middle of a turn, whose beginning nobody knows.
        loop.times.began_ns = turn_clock_ns(&loop.times)
    loop.times.wishes |= wishes
    return 0


cdef double blocked_s(LoopCore loop) noexcept:
    """Return for how long the present turn of *loop* has lasted, if it is timed."""
    if (loop.thread_id == 0 or loop.ring.u.inherited or loop.sleeping
            or loop.times.wishes == 0):
        return 0.0
    return max(turn_clock_ns(&loop.times) - loop.times.began_ns, 0) * 1e-9


def turn_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, when its turn began, and for how long it lasts.

    And of the stalls: how many have ended, and of the last one when it began and how long it took.
    All times are in seconds; those of the present turn are 0 while the loop sleeps.
    """
    cdef double lasts = blocked_s(loop)
    return (
        0 if loop.ring.u.inherited else loop.thread_id, loop.times.began_ns * 1e-9, lasts,
        loop.times.stalls, loop.times.stall_began_ns * 1e-9, loop.times.stall_took_ns * 1e-9)


cdef tuple told(const Durations *durations):
    cdef int index
    return (
        [durations.counts[index] for index in range(DURATION_BOUNDS + 1)], durations.sum_ns * 1e-9)


def histograms_of(LoopCore loop not None):
    """Return how many lags, turns and callbacks of *loop* took how long, and the sums in seconds.

    The numbers are by the bounds of timing.BOUNDS, with one more for what took longer.
    """
    return {
        "lag": told(&loop.times.lags),
        "turn": told(&loop.times.turns),
        "callback": told(&loop.times.callbacks),
    }
