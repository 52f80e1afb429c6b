"""The compiled part of a loop for tests: its clock, the order of its callbacks, its sleep.

The clock stands still while anything can run. When nothing can, and nothing can come from outside
(`Outside`, outside.py), it jumps to the next deadline; if there is none, the program can never go
on, and run_forever() raises DeadlockError. A program that spins, with `sleep(0)` in a loop, until a
timer has done something, would never see it: after SPIN_TURNS turns with nothing else the
clock goes on, too.

The order: asyncio promises that callbacks of call_soon() run in the order of the calls, and
nothing about the order in which tasks run that are ready in the same turn, or timers of the same
deadline. The seed chooses among the orders that keep the promise, and what programs take for one:
after `await sleep(0)` everything has run that was ready before. So a task that was woken or created
may change places with others, but not with a callback (`Place`).

Timers of the same deadline run in any order, and not all of them in the same turn: a time-out may
end a wait at each step of what another timer has begun at that instant.

Random numbers come from one sequence, the ring's faults included: the same seed and the same
program give the same run.
"""

import asyncio
import functools
import os
import threading
import types

from cpython.object cimport PyObject
from libc.math cimport INFINITY, fabs, nextafter
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from uringloop._kernel.atomics cimport count_total, load_int
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._ring.epoll_sleep cimport ALWAYS_IN_RING
from uringloop._ring.uring cimport URING_FOREVER, uring_pending
from uringloop._turn.handles cimport Handle, TimerHandle, nanoseconds
from uringloop._turn.timers cimport NO_DEADLINE
from uringloop._testing import thread_states
from uringloop._turn.tracing import trace
from uringloop._turn.turn cimport LoopCore


cdef extern from "_softring/softring.h" nogil:
    struct softring:
        pass
    void softring_simulate(softring *s, soft_simulation *simulation)
    bint softring_has_work(softring *s)
    bint softring_is_idle(softring *s)
    unsigned int softring_waits(softring *s, int *fds, unsigned int *events, unsigned int size)


# In the order of `soft_faults` (_softring/simulation.h).
FAULTS = (
    "late",
    "short",
    "starved",
    "ended",
    "overflow",
    "interrupted",
    "busy",
    "overtaken",
    "reordered",
    "reset",
    "no_memory",
    "no_files",
)

# A stall lasts that long, doubled less than STALL_DOUBLINGS times: at most 17 s.
STALL_MIN_S = 1e-6
STALL_DOUBLINGS = 25

cdef enum:
    WAITS_MAX = 1024

# Deadlines that differ by less are the same time: sums of delays differ by roundings.
SAME_NS = 100
cdef int64_t SAME = SAME_NS

# Deadlines from here on are at the end of the heap's range: 290 years after the clock's zero.
cdef double NEVER = 9.2e9

# After so many turns in a row in which nothing ran but `sleep(0)`, the clock goes on all the same.
SPIN_TURNS = 10_000
cdef int SPIN = SPIN_TURNS

# Where the seed may put a handle, in relation to those that were scheduled before it.
cdef enum Place:
    FIXED       # behind all of them, and before all later ones: a callback
    BEHIND      # behind all of them: a task that has yielded by sleep(0)
    ANYWHERE    # behind the callbacks: a task that was woken, or has not begun

# Random numbers have the precision of a double.
cdef uint64_t FRACTIONS = 1 << 53
cdef uint64_t DOUBLINGS = STALL_DOUBLINGS

cdef object TASK = asyncio.Task
# How asyncio's tasks, in C and in Python, are called: their steps and wake-ups.
cdef str STEP = "TaskStepMethWrapper"
cdef tuple STEPS = ("task_wakeup", "__step", "__wakeup")
cdef tuple METHODS = (types.BuiltinMethodType, types.MethodType)


cdef class TestingCore(LoopCore):

    def _simulate(self, uint64_t seed, double start, bint shuffles, outside, int trace_fd):
        """Begin. Called once, before the loop runs.

        *trace_fd*, if not -1, gets a line for each event.
        """
        self.outside = outside
        self.set_clock(start)
        self.shuffles = shuffles
        self.trace_fd = trace_fd
        trace(self, trace_fd)
        self.ring.trace.clock_ns = &self.clock_ns
        self.simulation.state = seed
        softring_simulate(<softring*>self.ring.u.soft, &self.simulation)
        # One sleep, in which the clock can be advanced.
        self.epoll_sleep.place = ALWAYS_IN_RING

    def _set_chances(self, chances, double stall):
        """Set the probability of each of FAULTS, and of a stall."""
        cdef int kind
        for kind, chance in enumerate(chances):
            self.simulation.chance[kind] = chance_of(chance)
        self.stall = chance_of(stall)

    def _reseed(self, uint64_t seed):
        """Begin the random numbers again."""
        self.simulation.state = seed

    def time(self):
        """Return the loop's clock in seconds. It stands still while a callback can run."""
        return self.clock

    cdef int set_clock(self, double seconds) except -1:
        self.outside.check_limit(seconds)
        self.clock = seconds
        self.clock_ns = nanoseconds(seconds)
        return 0

    cdef int move_to(self, double deadline) except -1:
        # Behind the deadline, by the least: rounding must not make a wait look too short.
        return self.set_clock(max(self.clock, nextafter(deadline, INFINITY)))

    cdef int trace_handle(self, str what, Handle handle) except -1:
        """Write a line that names a callback which is about to run."""
        cdef int64_t second = 1_000_000_000
        if not load_int(&handle.is_cancelled):
            when = f"{self.clock_ns // second}.{self.clock_ns % second:09d}"
            os.write(self.trace_fd, f"{when} {what} {name_of(handle)}\n".encode())
        return 0

    # ── the order ────────────────────────────────────────────────────────────────────────────

    cdef int run_turns(self) except -1:
        thread_states.simulated.add(threading.get_native_id())
        try:
            while True:
                self.begin_turn()
                self.run_turn()
                if load_int(&self.stopping):
                    return 0
        finally:
            thread_states.simulated.discard(threading.get_native_id())

    cdef int begin_turn(self) except -1:
        cdef Py_ssize_t index
        if self.inbox.has_new() or self.inbox.taken != NULL:
            self.inbox.take(self.ready)
        if self.ready.count or self.ring.completions != self.completions:
            self.idle_since_ns = 0
        if self.stall and soft_random_below(&self.simulation, SOFT_ALWAYS) < self.stall:
            self.stalls += 1
            self.set_clock(self.clock + STALL_MIN_S * (
                <int64_t>1 << soft_random_below(&self.simulation, DOUBLINGS)))
        if self.only_yields():
            self.turns_spun += 1
            if self.turns_spun == 1:
                self.spun_at_ns = uring_clock_ns()
            if self.turns_spun > SPIN:
                self.leave_spin()
        else:
            self.turns_spun = 0
        if self.shuffles and self.ready.count > 1:
            self.shuffle_ready()
        if self.trace_fd >= 0:
            for index in range(self.ready.count):
                self.trace_handle("run", <Handle>self.ready.place(index)[0])
        return 0

    cdef bint only_yields(self) except -1:
        """Return whether nothing but sleep(0), or timers of this instant, makes the loop turn."""
        cdef Py_ssize_t index
        cdef bint quiet = self.ring.completions == self.completions
        self.completions = self.ring.completions
        for index in range(self.ready.count):
            if not quiet or place_of(<Handle>self.ready.place(index)[0], None) != BEHIND:
                return False
        return quiet

    cdef int leave_spin(self) except -1:
        """Let the clock go on: the program waits for what a timer, or something outside, does."""
        cdef int64_t now = uring_clock_ns()
        cdef double seconds
        cdef bint flows
        cdef double when = INFINITY
        cdef double deadline
        cdef Py_ssize_t index
        seconds, flows = self.outside.look((now - self.spun_at_ns) * 1e-9, self.activity())
        if seconds > 0:
            if flows:
                self.set_clock(self.clock + (now - self.spun_at_ns) * 1e-9)
                self.spun_at_ns = now
            return 0
        if self.inbox.has_new():
            # A thread has done its work, and ended, before it was looked at.
            return 0
        for index in range(self.timers.count):
            deadline = (<TimerHandle>self.timers.entries[index].timer).deadline
            if self.clock + SAME * 1e-9 < deadline < when:
                when = deadline
        if when < NEVER:
            self.move_to(when)
        self.turns_spun = 0
        return 0

    cdef int shuffle_ready(self) except -1:
        """Give each task that was woken, or is new, another place; see `Place`."""
        cdef Py_ssize_t count = self.ready.count
        cdef Py_ssize_t index
        cdef Py_ssize_t begin = 0
        cdef list order = []
        cdef set seen = set()
        cdef Place place
        for index in range(count):
            handle = <Handle>self.ready.place(index)[0]
            place = place_of(handle, seen)
            if place == ANYWHERE and len(order) > begin:
                order.insert(begin + self.below(len(order) - begin + 1), handle)
            else:
                order.append(handle)
            if place == FIXED:
                begin = len(order)
        for index, handle in enumerate(order):
            # The queue keeps its references: this only changes their order.
            self.ready.place(index)[0] = <PyObject*>handle
        return 0

    cdef Py_ssize_t below(self, Py_ssize_t limit) noexcept:
        """Return a random number from 0 to *limit* - 1."""
        return <Py_ssize_t>soft_random_below(&self.simulation, limit)

    cdef int64_t now_ns(self) except? -1:
        # Timers that are due within SAME_NS are due now.
        return min(self.clock_ns, INT64_MAX - SAME) + SAME

    cdef int expire_timers(self) except -1:
        cdef double latest = -INFINITY
        cdef Py_ssize_t index
        LoopCore.expire_timers(self)
        for index in range(self.timers.due_begin, self.timers.due_end):
            latest = max(latest, (<TimerHandle>self.timers.due[index]).deadline)
        if latest >= self.clock:
            self.move_to(latest)
        if self.shuffles and self.timers.due_end - self.timers.due_begin > 1:
            self.shuffle_due()
        return 0

    cdef int run_due(self) except -1:
        """Run due timers; the seed leaves some of them to the next turn, at the same time."""
        cdef PyObject *timer
        while not self.shuffles or self.below(2):
            timer = self.timers.next_due()
            if timer == NULL:
                break
            if self.trace_fd >= 0:
                self.trace_handle("timer", <Handle>timer)
            count_total(&self.counters.timers, not load_int(&(<TimerHandle>timer).is_cancelled))
            self.run_owned(timer, self.timers.spare)
            self.ring.check_process()
        return 0

    cdef int shuffle_due(self) except -1:
        """Shuffle the due timers that have the same deadline."""
        cdef PyObject **due = self.timers.due
        cdef PyObject *other
        cdef Py_ssize_t begin = self.timers.due_begin
        cdef Py_ssize_t end, index, chosen
        while begin < self.timers.due_end:
            end = begin + 1
            while (end < self.timers.due_end
                    and is_same_time((<TimerHandle>due[begin]).deadline,
                                     (<TimerHandle>due[end]).deadline)):
                end += 1
            for index in range(end - 1, begin, -1):
                chosen = begin + self.below(index - begin + 1)
                other = due[index]
                due[index] = due[chosen]
                due[chosen] = other
            begin = end
        return 0

    # ── the sleep ────────────────────────────────────────────────────────────────────────────

    cdef int sleep(self, int64_t timeout_ns) except -1:
        """Submit; then wait for the world outside, or advance the clock to the next deadline."""
        cdef bint idle = False
        cdef double seconds = 0
        cdef bint flows = False
        if self.timers.due_end:
            self.inbox.wake_up()
            return self.ring.submit()
        try:
            self.ring.submit()
            if self.has_nothing():
                seconds, flows = self.outside.look(self.idle_s(), self.activity())
                # A thread may have done its work, and ended, before it was looked at.
                idle = self.has_nothing()
        finally:
            if seconds <= 0:
                self.inbox.wake_up()
        if seconds > 0:
            return self.sleep_outside(timeout_ns, seconds, flows)
        return self.advance() if idle else 0

    cdef bint has_nothing(self) noexcept:
        """Return whether nothing has come yet."""
        return (not self.inbox.has_new() and not uring_pending(&self.ring.u)
                and softring_is_idle(<softring*>self.ring.u.soft))

    cdef double idle_s(self) noexcept:
        """Return for how many seconds of real time nothing has happened."""
        cdef int64_t now = uring_clock_ns()
        if self.idle_since_ns == 0:
            self.idle_since_ns = now
        return (now - self.idle_since_ns) * 1e-9

    cdef uint64_t activity(self) noexcept:
        """Return a number that differs after anything was sent, submitted or completed."""
        return self.ring.completions + self.ring.submissions + self.counters.sent_bytes

    cdef int sleep_outside(self, int64_t timeout_ns, double seconds, bint flows) except -1:
        """Sleep for *seconds* of real time at most; if *flows*, the clock advances with it."""
        cdef int64_t began = uring_clock_ns()
        cdef int64_t limit = <int64_t>(seconds * 1e9) + 1
        if flows and timeout_ns != URING_FOREVER:
            limit = min(limit, timeout_ns)
        LoopCore.sleep(self, limit)
        if flows:
            # Something outside takes real time: so does the program's waiting for it.
            self.set_clock(self.clock + (uring_clock_ns() - began) * 1e-9)
        return 0

    cdef int advance(self) except -1:
        """Advance the clock to the next deadline. Raises DeadlockError if there is none."""
        cdef int64_t deadline = self.timers.next_deadline_ns()
        cdef double when = INFINITY
        if deadline != NO_DEADLINE:
            # Not the rounded nanoseconds: no timer may find that it is early.
            when = (<TimerHandle>self.timers.entries[0].timer).deadline
        if when >= NEVER:
            self.outside.nothing_left()
        else:
            self.move_to(when)
        self.turns_spun = 0
        return 0

    # ── for the Python modules ───────────────────────────────────────────────────────────────

    def _random(self):
        """Return a random number from 0 to below 1."""
        return soft_random_below(&self.simulation, FRACTIONS) / <double>FRACTIONS

    def _waits(self):
        """Return the descriptors that the ring waits for, each with the events of poll(2)."""
        cdef int[WAITS_MAX] fds
        cdef unsigned int[WAITS_MAX] events
        cdef unsigned int count = softring_waits(
            <softring*>self.ring.u.soft, fds, events, WAITS_MAX)
        cdef unsigned int index
        return [(fds[index], events[index]) for index in range(min(count, <unsigned int>WAITS_MAX))]

    def _has_file_work(self):
        """Return whether an operation of a file is under way."""
        return bool(softring_has_work(<softring*>self.ring.u.soft))

    def _faults_happened(self):
        """Return how often each of FAULTS has happened."""
        cdef int kind
        happened = {name: self.simulation.happened[kind] for kind, name in enumerate(FAULTS)}
        return happened | {"stall": self.stalls}


cdef bint is_same_time(double first, double second) noexcept:
    return fabs(second - first) <= SAME * 1e-9


cdef uint64_t chance_of(double probability) noexcept:
    return <uint64_t>(probability * SOFT_ALWAYS)


cdef str name_of(Handle handle):
    """Return a name of the callback, without the addresses that differ from run to run."""
    callback = handle.callback
    owner = task_of(callback)
    if owner is not None:
        coroutine = owner.get_coro()
        return f"{owner.get_name()} {getattr(coroutine, '__qualname__', type(coroutine).__name__)}"
    while isinstance(callback, functools.partial):
        callback = callback.func
    try:
        return callback.__qualname__
    except Exception:
        return type(callback).__name__


cdef object task_of(object callback):
    """Return the task whose step *callback* is; None for another callback."""
    kind = type(callback)
    if kind.__name__ == STEP:
        return callback.__self__
    if kind not in METHODS or callback.__name__ not in STEPS:
        return None
    owner = callback.__self__
    return owner if isinstance(owner, TASK) else None


cdef Place place_of(Handle handle, set seen) except *:
    """Return where the seed may put *handle*; *seen*, if given, has the tasks before it."""
    owner = task_of(handle.callback)
    if owner is None:
        return FIXED
    if seen is not None:
        if id(owner) in seen:
            return BEHIND
        seen.add(id(owner))
    # asyncio passes the future that has woken a task; and a coroutine that has not begun is new.
    if handle.single or (type(handle.args) is tuple and len(<tuple>handle.args) == 1):
        return ANYWHERE
    return BEHIND if getattr(owner.get_coro(), "cr_suspended", True) else ANYWHERE
