"""Statistics of a loop, why it has changed rings, and the list of open loops.

The counters are always on: each costs one addition, on a path that is far longer. Turns are timed
on request only. Any thread may read, even while the loop's thread works: reading neither stops nor
resets anything, and each figure is one that was true a moment ago.
"""

from weakref import ref

from libc.stdint cimport int64_t, uint64_t
from posix.time cimport clock_gettime, timespec

from uringloop._kernel.atomics cimport (
    clear_bits,
    load_int,
    load_int_acquire,
    load_ns,
    load_size,
    load_total,
    store_int,
    store_ns,
)
from uringloop._ring.ring cimport REPLACED
from uringloop._turn.introspection cimport sort_inbox
from uringloop._turn.timing cimport (
    TURN_BOUNDS,
    TURN_FOR_HISTOGRAMS,
    TURN_FOR_MONITOR,
    TURN_FOR_STALLS,
    times_blocked_ns,
    times_busy_ns,
    times_last_stall,
    times_note_longest,
    times_request,
    turn_durations,
)
from uringloop._turn.turn cimport (
    BATCH_SIZES,
    Counters,
    LoopCore,
    running_thread,
)


# A turn that takes this long is a stall unless Loop(stall_ms=) says otherwise: asyncio's
# slow_callback_duration.
STALL_MS = 100

# Whether new loops are timed for the monitor.
cdef int MONITORED = False

# Weak references to all loops that have not been freed. A set, unlike a WeakSet, costs only 0.2 us
# for a loop, and is copied atomically while other threads create loops.
cdef set LOOPS = set()


def register(LoopCore loop not None):
    """Have open_loops() return *loop* until it is closed or freed."""
    LOOPS.add(ref(loop, LOOPS.discard))
    if load_int(&MONITORED):
        request_timing(loop, TURN_FOR_MONITOR)


def fallback_of(LoopCore loop not None):
    """Return why *loop* has changed from the kernel's ring to the software ring.

    The result is the errno and the name of the system call that failed; None if *loop* has not
    changed rings.
    """
    cdef bint changed = load_int_acquire(&loop.ring.permission) >= REPLACED
    return loop.ring.forbidden_call if changed else None


def set_fallback_callback(LoopCore loop not None, function):
    """Have *function* called with errno and system call when *loop* changes rings.

    *function* must not keep the loop alive.
    """
    loop.ring.on_fallback = function


def open_loops():
    """Return the open loops of this process, in no order. Any thread may call.

    In a forked child its parent's are not among them.
    """
    loops = [one() for one in list(LOOPS)]
    return [loop for loop in loops if loop is not None and is_usable(loop)]


cdef bint is_usable(LoopCore loop) noexcept:
    return not load_int(&loop.closed) and not loop.ring.is_inherited()


def thread_state_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, its CPU seconds, whether the loop sleeps, and the
    seconds that its present turn has lasted (0.0 if turns are not timed)."""
    cdef timespec used
    cdef unsigned long thread = running_thread(loop)
    if not thread:
        return 0, 0.0, False, 0.0
    used.tv_sec = used.tv_nsec = 0
    # Fails if the thread has ended meanwhile.
    clock_gettime(load_int(&loop.cpu_clock), &used)
    cpu = used.tv_sec + used.tv_nsec * 1e-9
    return thread, cpu, load_int(&loop.times.sleeping) != 0, blocked_s(loop)


def stats_of(LoopCore loop not None):
    """Return the counters and the present state of *loop*."""
    cdef int index
    cdef Counters *counters = &loop.counters
    # A turn that has not ended delays every due timer.
    cdef int64_t lag_ns = max(load_ns(&counters.lag_ns), <int64_t>(blocked_s(loop) * 1e9))
    cdef Py_ssize_t timers = (
        load_size(&loop.timers.count) + load_size(&loop.timers.due_end)
        - load_size(&loop.timers.due_begin) - load_size(&loop.timers.cancelled))
    sort_inbox(loop)
    # lag_max never decreases, so it includes every lag that was returned.
    times_note_longest(&counters.lag_max_ns, lag_ns)
    return {
        "turns": load_total(&counters.turns),
        "kernel_entries": loop.ring.enters(),
        "submissions": load_total(&loop.ring.submissions),
        "completions": load_total(&loop.ring.completions),
        "batched": load_total(&counters.batched),
        "batches": {
            1 << index: load_total(&counters.batches[index]) for index in range(BATCH_SIZES)},
        "overflows": load_total(&counters.overflows),
        "starved": load_total(&counters.starved),
        "rearms": load_total(&counters.rearms),
        "operations": load_int(&loop.ring.count),
        "buffers_out": load_int(&loop.pool.out) + load_int(&loop.datagram_pool.out),
        "received_bytes": load_total(&counters.received_bytes),
        "sent_bytes": load_total(&counters.sent_bytes),
        "callbacks_ready": load_size(&loop.ready.count),
        "timers_run": load_total(&counters.timers),
        # In another thread than the loop's the four numbers may be of different moments.
        "timers_pending": max(timers, 0),
        "lag": lag_ns * 1e-9,
        "lag_max": load_ns(&counters.lag_max_ns) * 1e-9,
        "stalls": load_total(&loop.times.stall_version) // 2,
        "busy": busy_s(loop),
    }


# ── durations of turns and callbacks, measured on request ────────────────────────────────────────


def watch_stalls(LoopCore loop not None, long milliseconds):
    """Time the turns of *loop* from now on; one of *milliseconds* or more is a stall."""
    store_ns(&loop.times.stall_ns, milliseconds * 1_000_000)
    request_timing(loop, TURN_FOR_STALLS)


def time_turns():
    """Time the turns of every loop from now on, also of loops that are created later."""
    store_int(&MONITORED, True)
    for loop in open_loops():
        request_timing(<LoopCore>loop, TURN_FOR_MONITOR)


def stop_timing_turns():
    """Undo `time_turns`."""
    store_int(&MONITORED, False)
    for loop in open_loops():
        clear_bits(&(<LoopCore>loop).times.timing_users, TURN_FOR_MONITOR)


def keep_histograms(LoopCore loop not None):
    """Time the turns and the callbacks of *loop* from now on."""
    request_timing(loop, TURN_FOR_HISTOGRAMS)


cdef int request_timing(LoopCore loop, int timing_users) except -1:
    times_request(&loop.times, timing_users, STALL_MS * 1_000_000)
    return 0


cdef double blocked_s(LoopCore loop) noexcept:
    """Return the seconds that the present turn of *loop* has lasted; 0.0 if it is not timed."""
    return 0.0 if loop.ring.is_inherited() else times_blocked_ns(&loop.times) * 1e-9


cdef double busy_s(LoopCore loop) noexcept:
    """Return the seconds that *loop* has worked, since the first call."""
    if loop.ring.is_inherited():
        # In a forked child nobody runs it.
        return load_ns(&loop.times.busy_ns) * 1e-9
    return times_busy_ns(&loop.times, STALL_MS * 1_000_000) * 1e-9


def turn_of(LoopCore loop not None):
    """Return the thread that runs *loop* or 0, its present turn, and its stalls.

    The present turn: when it began, and how long it has lasted. While the loop sleeps the first is
    stale and the second 0. The stalls: how many have ended, when the last one began, and how long
    it took. Times are in seconds.
    """
    cdef int64_t stall_began_ns, stall_took_ns
    cdef double lasts = blocked_s(loop)
    cdef double began = load_ns(&loop.times.began_ns) * 1e-9
    cdef uint64_t stalls = times_last_stall(&loop.times, &stall_began_ns, &stall_took_ns)
    return (
        running_thread(loop), began, lasts, stalls, stall_began_ns * 1e-9, stall_took_ns * 1e-9)


cdef tuple counts_and_sum(const turn_durations *durations):
    cdef int index
    return (
        [load_total(&durations.counts[index]) for index in range(TURN_BOUNDS + 1)],
        load_ns(&durations.sum_ns) * 1e-9)


def histograms_of(LoopCore loop not None):
    """Return the histograms of lags, turns and callbacks of *loop*: counts, and sum in seconds.

    There is one count for each of timing.BOUNDS, and one for longer durations.
    """
    return {
        "lag": counts_and_sum(&loop.times.lags),
        "turn": counts_and_sum(&loop.times.turns),
        "callback": counts_and_sum(&loop.times.callbacks),
    }
