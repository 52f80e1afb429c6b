"""The compiled part of a loop for tests: its clock, the order of its callbacks, its sleep.

The clock stands still while anything can run. When nothing can, and nothing can come from outside
(`Outside`, outside.py), it jumps to the next deadline; if there is none, the program can never go
on, and run_forever() raises DeadlockError. A program may also spin, with `sleep(0)` in a loop,
until a timer has done something. It would wait for ever, so the clock goes on after SPIN_TURNS
turns in which nothing else ran.

asyncio promises that callbacks of call_soon() run in the order of the calls. It promises nothing
about the order of tasks that are ready in the same turn, or of timers with the same deadline. The
seed chooses among the orders that keep this promise and a second one, on which programs rely: after
`await sleep(0)` everything that was ready before has run. So a task that was woken or created may
change places with others, but not with a callback (`Place`).

Timers whose deadlines differ by no more than SAME_NS run in any order, except that those that one
step of a task has made run in the order of their deadlines. Not all of them run in the same turn,
so that a time-out may end a wait at each step of what another timer has begun at that instant.

All random numbers, those of the ring's faults included, come from one sequence: the same seed and
the same program give the same run.
"""

import asyncio
import gc
import random
import threading
import weakref

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.math cimport INFINITY, fabs, nextafter
from libc.stdint cimport INT64_MAX, int64_t, uint64_t, uintptr_t

from uringloop._cpython.pyapi cimport FREE_THREADED
from uringloop._kernel.atomics cimport count_total, load_int, load_pointer, store_int
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._ring.uring cimport URING_FOREVER
from uringloop.files.scheduling cimport files_of
from uringloop.testing import other_loops
from uringloop.testing.places cimport ANYWHERE, BEHIND, FIXED, Place, name_of, place_of
from uringloop.testing.thread_states import Lagging
from uringloop._turn.handles cimport Handle, TimerHandle, nanoseconds
from uringloop._turn.inbox cimport INBOX_ASLEEP, INBOX_EMPTY
from uringloop._turn.timers cimport NO_DEADLINE
from uringloop._turn.tracing import trace
from uringloop._turn.turn cimport LoopCore


cdef extern from "unistd.h" nogil:
    int usleep(unsigned int microseconds)
    ssize_t write(int fd, const void *data, size_t size)


cdef extern from "testing/simulation.h" nogil:
    struct softring:
        pass
    struct simulation_bytes:
        uint64_t received
        uint64_t sent
    void simulation_begin(simulation *kernel, softring *s)
    simulation_bytes simulation_bytes_of(const simulation *kernel, int fd)
    enum ring_works:
        RING_NO_WORK
        RING_WAITS
        RING_WORKS
    ring_works ring_work(softring *s)
    bint ring_is_idle(const simulation *kernel, const softring *s)
    int64_t ring_kept_until(const softring *s)
    unsigned int ring_waits(const softring *s, int *fds, unsigned int *events, unsigned int size)


# In the order of `simulation_faults` (simulation.h).
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
    "missed_end",
    "reset",
    "no_memory",
    "no_files",
    "no_space",
    "bad_disk",
    "slow_disk",
)

# A stall lasts STALL_MIN_S, doubled fewer than STALL_DOUBLINGS times: at most 17 s.
cdef double STALL_MIN_S = 1e-6
cdef enum:
    STALL_DOUBLINGS = 25

cdef enum:
    # How many descriptors _waits() returns at most: its two arrays take 4 KiB each on the stack.
    WAITS_MAX = 1024

cdef enum:
    # Deadlines that differ by no more than this are equal: sums of delays differ by rounding.
    SAME_NS = 100

# Each call of time() advances the clock by this: 100,000 calls stay within SAME_NS.
cdef double TICK_S = 1e-12

# Deadlines from here on are at the end of the heap's range: 290 years after the clock's zero.
cdef double NEVER = 9.2e9

cdef enum:
    # After so many turns in a row in which only `sleep(0)` ran, the clock goes on all the same.
    SPIN_TURNS = 10_000

# The sequence number of a timer has two parts: so many bits for the timer, and above them a number
# that all timers made by one step of a task share, and no others.
cdef enum:
    STEP_BITS = 20
# The value of `maker` when a turn begins: an address that no task has. 0 stands for callbacks.
cdef enum:
    NOBODY = 1

# For how long, in real time, the loop waits for a thread that it has given work, and at most while
# threads wait for a processor; and how often it looks for the answer, and for such threads.
cdef enum:
    THREAD_NS = 20 * 1000 * 1000
    THREAD_LOOK_US = 20
    LAGGING_LOOK_US = 1000
cdef int64_t THREAD_MAX_NS = 10_000_000_000

# While the loop runs, it collects garbage itself, after so many turns in which something ran;
# Python's automatic collection, which counts new objects, is off. So `__del__` comes at the same
# points of each run. Without the GIL every collection looks at all objects.
cdef int GARBAGE = 8192 if FREE_THREADED else 256

# A program may wait for the clock without sleeping. After BUSY_TURNS turns at the same instant,
# each further turn advances the clock by BUSY_S, some microseconds of a processor's work. After
# LOOKS looks at the clock in one turn, each further look does so, too.
cdef double BUSY_S = 1e-5
cdef enum:
    BUSY_TURNS = 100 * 1000
    LOOKS = 10 * 1000

# Random numbers have the precision of a double.
cdef uint64_t FRACTIONS = 1 << 53

cdef class TestingCore(LoopCore):

    def __dealloc__(self):
        simulation_clear(&self.kernel)

    def _simulate(self, double start, bint shuffles, outside, int trace_fd):
        """Begin the simulation; called once, before the loop runs.

        *trace_fd*, if not -1, gets a line for each event.
        """
        self.outside = outside
        self._partners = weakref.WeakSet()
        self.set_clock(start)
        self.shuffles = shuffles
        self.trace_fd = trace_fd
        trace(self, trace_fd)
        self.ring.trace.clock_ns = &self.kernel.clock_ns
        simulation_begin(&self.kernel, <softring*>self.ring.u.soft)
        files_of(self).reproducible = True
        # There is one place to sleep, in which the clock can be advanced.
        self.sleeper.forbid_epoll()

    def _set_chances(self, chances, double stall):
        """Set the probability of each of FAULTS, and of a stall."""
        cdef int kind
        for kind, chance in enumerate(chances):
            self.kernel.chance[kind] = chance_of(chance)
        self.stall = chance_of(stall)

    def reseed(self, seed):
        """Begin again with the random numbers of *seed*; a random.Random makes the choices."""
        self.choice_failed = None
        self.choices_ended = False
        if isinstance(seed, random.Random):
            self.choices = seed
            self.kernel.owner = <void*>self
            self.kernel.choose = choose
        else:
            self.kernel.state = seed & (2**64 - 1)
            self.kernel.choose = NULL
            self.choices = None

    cdef int check_choices(self) except -1:
        """Raise what the random.Random has raised, by which hypothesis ends a run."""
        if self.choice_failed is not None:
            failed, self.choice_failed = self.choice_failed, None
            raise failed
        return 0

    def random(self):
        """Return a random number from 0 to below 1, from the seed's sequence."""
        return simulation_random_below(&self.kernel, FRACTIONS) / <double>FRACTIONS

    def time(self):
        """Return the loop's clock in seconds.

        It stands still while a callback runs, except that each call advances it by TICK_S. A real
        clock never shows the same time twice, and a program may divide by the time that something
        took, or compare two times to see which was first.
        """
        self.looks_at_clock += 1
        if self.looks_at_clock > LOOKS:
            self.set_clock(self.clock + BUSY_S)
        else:
            self.clock = max(self.clock + TICK_S, nextafter(self.clock, INFINITY))
            self.kernel.clock_ns = nanoseconds(self.clock)
        return self.clock

    def _replace_clock(self, patched):
        """Note that a test has replaced `time` or `call_at`."""
        self.clock_patched |= patched
        LoopCore._replace_clock(self, patched)

    def call_at(self, when, callback, *args, context=None):
        """Schedule *callback* for the time *when* on the loop's clock."""
        task = asyncio.current_task(self)
        maker = 0 if task is None else <uintptr_t><PyObject*>task
        if maker != self.maker:
            self.maker = maker
            self.timers.sequence = ((self.timers.sequence >> STEP_BITS) + 1) << STEP_BITS
        return LoopCore.call_at(self, when, callback, *args, context=context)

    cdef bint has_own_clock(self) except -1:
        """Return whether a test has replaced time(), and has not put it back."""
        return self.clock_patched and "time" in self.__dict__

    cdef int set_clock(self, double seconds) except -1:
        self.outside.check_limit(seconds)
        self.clock = seconds
        self.kernel.clock_ns = nanoseconds(seconds)
        return 0

    cdef int move_to(self, double deadline) except -1:
        # Go just past the deadline, so that rounding cannot make a wait look too short.
        return self.set_clock(max(self.clock, nextafter(deadline, INFINITY)))

    cdef int trace_handle(self, str what, Handle handle) except -1:
        """Write a line that names a callback which is about to run."""
        cdef int64_t second = 1_000_000_000
        cdef int64_t now
        cdef bytes line
        if not load_int(&handle.is_cancelled):
            now = self.kernel.clock_ns
            when = f"{now // second}.{now % second:09d}"
            line = f"{when} {what} {name_of(handle)}\n".encode()
            # Keep the GIL: no thread may add a callback to the turn before it begins.
            write(self.trace_fd, PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line))
        return 0

    # ── the order ────────────────────────────────────────────────────────────────────────────

    cdef int run_turns(self) except -1:
        thread = threading.get_native_id()
        before = other_loops.began(thread, self)
        self.collects = gc.isenabled()
        gc.disable()
        try:
            while True:
                self.begin_turn()
                self.run_turn()
                if load_int(&self.stopping):
                    return 0
        finally:
            if self.collects:
                gc.enable()
            other_loops.ended(thread, before)

    cdef int begin_turn(self) except -1:
        cdef Py_ssize_t index
        self.check_choices()
        if self.inbox.has_new() or self.inbox.taken != NULL:
            self.inbox.drain_to(self.ready)
        self.take_owed()
        self.maker = NOBODY
        if self.ready.count or self.ring.completions != self.completions:
            self.idle_since_ns = 0
        self.busy += self.ready.count > 0
        if self.busy >= GARBAGE and self.collects:
            self.collect_garbage()
        if simulation_happens(&self.kernel, self.stall):
            self.stalls += 1
            self.set_clock(self.clock + STALL_MIN_S * (
                <int64_t>1 << simulation_random_below(&self.kernel, STALL_DOUBLINGS)))
        self.let_time_pass()
        if self.only_yields():
            store_int(&self.turns_spun, self.turns_spun + 1)
            if self.turns_spun == 1:
                self.spun_at_ns = uring_clock_ns()
            if self.turns_spun > SPIN_TURNS:
                self.leave_spin()
        else:
            self.goes_on()
        if self.shuffles and self.ready.count > 1:
            self.shuffle_ready()
        if self.trace_fd >= 0:
            for index in range(self.ready.count):
                self.trace_handle("run", <Handle>self.ready.place(index)[0])
        return 0

    cdef int collect_garbage(self) except -1:
        """Collect garbage: the oldest generation rarely, and the middle one more often."""
        self.busy = 0
        self.collections += 1
        gc.collect(2 if self.collections % 1024 == 0 else self.collections % 16 == 0)
        return 0

    cdef int let_time_pass(self) except -1:
        """Let the clock go on after many turns at one instant: the program waits for the clock."""
        self.looks_at_clock = 0
        if (self.clock - self.busy_at > SAME_NS * 1e-9
                or self.ring.completions != self.completions):
            self.busy_turns = 0
        self.busy_turns += 1
        if self.busy_turns > BUSY_TURNS:
            self.set_clock(self.clock + BUSY_S)
        self.busy_at = self.clock
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
        cdef double spun_s = (now - self.spun_at_ns) * 1e-9
        cdef double seconds
        cdef bint flows
        cdef double when = INFINITY
        cdef double deadline
        cdef Py_ssize_t index
        for index in range(self.timers.count):
            deadline = (<TimerHandle>self.timers.entries[index].timer).deadline
            if self.clock + SAME_NS * 1e-9 < deadline < min(when, NEVER):
                when = deadline
        seconds, flows = self.outside.look(spun_s, when - self.clock, self.activity())
        if seconds > 0:
            if flows:
                self.set_clock(self.clock + spun_s)
                self.spun_at_ns = now
            return 0
        # A thread may have answered, and ended, before it was looked at: the inbox has the answer.
        if not self.inbox.has_new() and when < INFINITY:
            self.advance_to(when)
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
                order.insert(len(order) - self.below(len(order) - begin + 1), handle)
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
        return <Py_ssize_t>simulation_random_below(&self.kernel, limit)

    cdef int64_t now_ns(self) except? -1:
        if self.has_own_clock():
            return nanoseconds(self.time())
        # Timers that are due within SAME_NS are due now.
        return min(self.kernel.clock_ns, INT64_MAX - SAME_NS) + SAME_NS

    cdef int expire_timers(self) except -1:
        cdef double latest = -INFINITY
        cdef int64_t now = self.now_ns()
        cdef TimerHandle timer
        cdef Py_ssize_t index
        LoopCore.expire_timers(self)
        for index in range(self.timers.due_begin, self.timers.due_end):
            timer = <TimerHandle>self.timers.due[index]
            # The clock does not hide that a timer runs early.
            if timer.deadline_ns() <= now:
                latest = max(latest, timer.deadline)
        if latest >= self.clock:
            self.move_to(latest)
        if self.shuffles and self.timers.due_end - self.timers.due_begin > 1:
            self.shuffle_due()
        return 0

    cdef int run_due(self) except -1:
        """Run due timers; the seed leaves some to the next turn, which has the same time."""
        cdef PyObject *timer
        while not (self.shuffles and self.below(2)):
            timer = self.timers.next_due()
            if timer == NULL:
                break
            if self.trace_fd >= 0:
                self.trace_handle("timer", <Handle>timer)
            count_total(&self.counters.timers, not load_int(&(<TimerHandle>timer).is_cancelled))
            self.run_owned(timer, self.timers.spare)
            self.ring.check_not_forked()
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
                chosen = index - self.below(index - begin + 1)
                other = due[index]
                due[index] = due[chosen]
                due[chosen] = other
            self.order_by_step(begin, end)
            begin = end
        return 0

    cdef int order_by_step(self, Py_ssize_t begin, Py_ssize_t end) except -1:
        """Let due timers that one step of a task has made run in the order of their deadlines.

        On every loop the earliest runs first. Those that were given the same deadline may still run
        in any order.
        """
        cdef PyObject **due = self.timers.due
        cdef Py_ssize_t index
        places = {}
        for index in range(begin, end):
            step = (<TimerHandle>due[index]).sequence >> STEP_BITS
            places.setdefault(step, []).append(index)
        for indexes in places.values():
            timers = [<TimerHandle>due[<Py_ssize_t>index] for index in indexes]
            timers.sort(key=lambda timer: (<TimerHandle>timer).deadline)
            for index, timer in zip(indexes, timers):
                # The queue keeps its references: this only changes their order.
                due[index] = <PyObject*>timer
        return 0

    # ── the sleep ────────────────────────────────────────────────────────────────────────────

    cdef int sleep(self, int64_t timeout_ns) except -1:
        """Submit; then wait for the world outside, or advance the clock to the next deadline."""
        cdef bint idle = False
        cdef double seconds = 0
        cdef bint flows = False
        if self.timers.due_end:
            self.inbox.wake_up()
            return self.sleeper.submit()
        if self.has_own_clock():
            return LoopCore.sleep(self, timeout_ns)
        try:
            # This arms the request that waits for watched descriptors, which `look` has to see.
            self.sleeper.submit()
            if self.has_nothing():
                seconds, flows = self.outside.look(
                    self.idle_s(), self.next_deadline() - self.clock, self.activity())
                # Look again: a thread, or a loop, may have answered before it was looked at.
                idle = self.has_nothing()
        finally:
            if seconds <= 0:
                self.inbox.wake_up()
        if seconds > 0:
            return self.sleep_outside(timeout_ns, seconds, flows)
        return self.advance() if idle else 0

    cdef bint has_nothing(self) noexcept:
        """Return whether nothing has come yet."""
        return (not self.inbox.has_new() and not self.ring.has_submissions()
                and ring_is_idle(&self.kernel, <softring*>self.ring.u.soft))

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
        self.kernel.waiting = True
        try:
            LoopCore.sleep(self, limit)
        finally:
            self.kernel.waiting = False
        if flows:
            # What is outside takes real time, and so the program's wait for it takes as long.
            self.set_clock(self.clock + (uring_clock_ns() - began) * 1e-9)
        return 0

    cdef double next_deadline(self) except? -1:
        """Return when the next timer, or slow disk, is due; INFINITY: never."""
        cdef int64_t deadline = self.timers.next_deadline_ns()
        cdef int64_t disk = ring_kept_until(<softring*>self.ring.u.soft)
        cdef double when = INFINITY
        if disk != INT64_MAX and (deadline == NO_DEADLINE or disk < deadline):
            when = disk * 1e-9
            while nanoseconds(when) < disk:
                when = nextafter(when, INFINITY)
        elif deadline != NO_DEADLINE:
            # Use the unrounded time: a timer that ran on rounded time could see that it was early.
            when = (<TimerHandle>self.timers.entries[0].timer).deadline
        return when if when < NEVER else INFINITY

    cdef int advance(self) except -1:
        """Advance the clock to the next deadline. Raises DeadlockError if there is none."""
        cdef double when = self.next_deadline()
        if when == INFINITY:
            self.outside.nothing_left()
        return self.advance_to(when)

    cdef int advance_to(self, double when) except -1:
        """Advance the clock, and those of the partners."""
        cdef double before
        self.take_owed()
        before = self.clock
        self.move_to(when)
        if self._partners:
            other_loops.share(self, self.clock - before)
        self.goes_on()
        self.busy += 1
        return 0

    cdef int goes_on(self) except -1:
        """Note that the loop has something to do."""
        store_int(&self.turns_spun, 0)
        if self._rest_s:
            other_loops.goes_on(self)
        return 0

    cdef int take_owed(self) except -1:
        """Advance the clock by as much as its partners' clocks have advanced."""
        if self._partners:
            self.set_clock(self.clock + <double>other_loops.take_owed(self))
        return 0

    def call_soon_threadsafe(self, callback, *args, context=None):
        """Like the ordinary loop's; a loop that the calling thread runs becomes a partner."""
        other_loops.called(self)
        return LoopCore.call_soon_threadsafe(self, callback, *args, context=context)

    # ── for the Python modules ───────────────────────────────────────────────────────────────

    def _is_idle(self):
        """Return whether the loop sleeps, or spins, and nobody has woken it. For any thread."""
        cdef uintptr_t newest = load_pointer(&self.inbox.word.newest)
        return newest == INBOX_ASLEEP or (
            newest == INBOX_EMPTY and load_int(&self.turns_spun) > SPIN_TURNS)

    def _rests(self):
        """Return for how many seconds of its time the loop has nothing to do; 0: not known."""
        return self._rest_s - self._owed_s if self._is_idle() else 0.0

    def _waits(self):
        """Return the descriptors that the ring waits for, each with the events of poll(2).

        The descriptor by which signals wake the loop is left out.
        """
        cdef int[WAITS_MAX] fds
        cdef unsigned int[WAITS_MAX] events
        cdef unsigned int count = ring_waits(
            <softring*>self.ring.u.soft, fds, events, WAITS_MAX)
        cdef unsigned int index
        cdef int signals = -1 if self.signal_waker is None else self.signal_waker.fd
        return [
            (fds[index], events[index])
            for index in range(min(count, <unsigned int>WAITS_MAX))
            if fds[index] != signals
        ]

    def _newest_call(self):
        """Return a number that differs after another thread has called the loop."""
        return load_pointer(&self.inbox.word.newest)

    def _let_thread_work(self, uintptr_t before):
        """Wait until another thread has called the loop, in real time and not for long.

        *before* is what `_newest_call()` returned before the thread got its work. The answer of a
        thread that works without waiting thus comes at the same point of each run.
        """
        cdef int64_t begin = uring_clock_ns()
        while not self.was_called(before) and uring_clock_ns() < begin + THREAD_NS:
            with nogil:
                usleep(THREAD_LOOK_US)
        lagging = Lagging(THREAD_NS)
        while (not self.was_called(before) and uring_clock_ns() < begin + THREAD_MAX_NS
                and lagging.look()):
            with nogil:
                usleep(LAGGING_LOOK_US)

    cdef bint was_called(self, uintptr_t before) noexcept:
        """Return whether `_newest_call()` differs from *before*."""
        return load_pointer(&self.inbox.word.newest) != before

    def _files_work(self):
        """Return whether a thread works for a file."""
        return ring_work(<softring*>self.ring.u.soft) == RING_WORKS

    def _files_wait(self):
        """Return whether a thread waits for another program, at a terminal or a FIFO."""
        return ring_work(<softring*>self.ring.u.soft) == RING_WAITS

    def _end_with(self, uint64_t inode, int error):
        """Let a socket fail once with *error* where it would fail with ECONNRESET."""
        if simulation_end_with(&self.kernel, inode, error) < 0:
            raise MemoryError

    def _bytes_at_receive(self, int fd):
        """Return what a TCP socket had received and sent when the loop last received from it."""
        cdef simulation_bytes found = simulation_bytes_of(&self.kernel, fd)
        return found.received, found.sent

    def _faults_happened(self):
        """Return how often each of FAULTS has happened."""
        cdef int kind
        happened = {name: self.kernel.happened[kind] for kind, name in enumerate(FAULTS)}
        return happened | {"stall": self.stalls}


cdef uint64_t choose(void *owner, uint64_t limit) noexcept with gil:
    """The simulation_chooser of a loop with `choices`; once they have failed, it chooses 0."""
    cdef TestingCore loop = <TestingCore>owner
    if loop.choices_ended:
        return 0
    try:
        return loop.choices.randrange(limit)
    except BaseException as exc:
        loop.choice_failed = exc
        loop.choices_ended = True
        return 0


cdef bint is_same_time(double first, double second) noexcept:
    return fabs(second - first) <= SAME_NS * 1e-9


cdef uint64_t chance_of(double probability) noexcept:
    return <uint64_t>(probability * SIMULATION_ALWAYS)
