"""What a loop has done so far, what has become of its ring, and which loops there are.

The counters are always on: each is one addition, at a place that does much more. Reading them
neither stops nor resets anything; any thread may.
"""

from weakref import ref

from posix.time cimport clock_gettime, timespec
from posix.types cimport clockid_t

from uringloop._core.loop cimport BATCH_SIZES, LoopCore


cdef extern from "<pthread.h>" nogil:
    # musl has a pointer here.
    ctypedef unsigned long pthread_t
    int pthread_getcpuclockid(pthread_t thread, clockid_t *clock)


# Every loop that has not been freed. A set of weak references and no WeakSet: this one costs 0.2 us
# for a loop, and is copied at once, while other threads make loops.
cdef set LOOPS = set()


def register(LoopCore loop not None):
    """Have *loop* found by open_loops() until it is closed or freed."""
    LOOPS.add(ref(loop, LOOPS.discard))


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
    """Return the thread that runs *loop* or 0, its CPU seconds, and whether the loop sleeps."""
    cdef clockid_t clock = 0
    cdef timespec used
    # A forked child has the number of a thread that is not there.
    if loop.thread_id == 0 or loop.ring.u.inherited:
        return 0, 0.0, False
    used.tv_sec = used.tv_nsec = 0
    # That thread lives: it is in _run(), and nobody gives up the GIL before the answer.
    if pthread_getcpuclockid(<pthread_t>loop.thread_id, &clock) == 0:
        clock_gettime(clock, &used)
    return loop.thread_id, used.tv_sec + used.tv_nsec * 1e-9, loop.sleeping


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
