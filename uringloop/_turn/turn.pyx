"""The turn: one round of the loop, and the loop's compiled methods.

    expire_timers   note the timers that are due
    run_ready       run the callbacks that were ready when the turn began
    collect         dispatch the completions that were there when the turn began; the enters that
                    fetch completions held back by the kernel also submit what protocols wrote
    deliver_due     deliver what transports have kept for this turn
    sleeper.deliver run the callbacks for events that a sleep at epoll has brought
    run_due         run the timers that were due when the turn began
    flush_all       one send for each transport that wrote
    submit_and_wait submit everything in one enter, and sleep if nothing is ready

That is asyncio's order: callbacks, completions, timers. What these cause runs in the next turn.

LoopCore owns the ring, the buffer pools, the timers and the queues. Only the thread that runs the
loop uses them; other threads put handles into the inbox. What runs once for a loop is in
_loop/base_loop.py and loop.py.
"""

import asyncio
import inspect
import sys
from asyncio import coroutines, format_helpers
from asyncio.log import logger

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_GenericSetAttr
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.freelist cimport FreeList
from uringloop._cpython.interpreter cimport act_between_calls
from uringloop._cpython.pyapi cimport (
    PyErr_CheckSignals,
    PyList_GET_ITEM_borrowed,
    PyList_SetSlice,
    PyObject_Call,
    give_away,
    leave_to_collector,
    list_size,
    set_traverse,
    this_thread,
    traverseproc,
    visitproc,
)
from uringloop._kernel.addresses cimport SenderCache
from uringloop._kernel.atomics cimport (
    count_total,
    load_double,
    load_int,
    replace_int,
    store_double,
    store_int,
    store_long,
    store_ns,
)
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.errors cimport os_error
from uringloop._kernel.libc cimport close, pthread_getcpuclockid, pthread_self
from uringloop._kernel.wakeup cimport uring_new_wake_fd
from uringloop._ring.buffers cimport BufferPool, new_datagram_pool, new_stream_pool
from uringloop._ring.ring cimport (
    open_ring,
    open_ring_with_thread,
    open_software_ring,
    traverse_ring,
    wrong_thread,
)
from uringloop._ring.uring cimport URING_FOREVER
from uringloop._ring.wakeup cimport WakeUp
from uringloop._turn.fd_table cimport FdTable
from uringloop._turn.handles cimport (
    Handle,
    TimerHandle,
    fill,
    format_handle,
    is_unshared,
    nanoseconds,
    new_handle_for_threads,
    run_unshared,
)
from uringloop._turn.inbox cimport Inbox, traverse_inbox
from uringloop._turn.ready cimport ReadyQueue, traverse_ready
from uringloop._turn.sleeper cimport Sleeper
from uringloop._turn.spare_handles cimport SpareHandles, drop_chain
from uringloop._turn.timers cimport NO_DEADLINE, TimerHeap, traverse_timers
from uringloop._turn.timing cimport (
    TURN_FOR_HISTOGRAMS,
    add_duration,
    begin_sleep,
    end_sleep,
    end_turn,
    log2_at_most,
    times_begin_run,
    times_note_longest,
)


cdef enum:
    # One enter brings 20 deferred completions (kernel 6.13+). After this many enters in one turn,
    # callbacks run, however many sockets are ready.
    COLLECT_ROUNDS_MAX = 16
    # After so many callbacks the loop lets the interpreter act: functions in C do not.
    HANDLES_BETWEEN_ACTS = 16
# Longest sleep, as in asyncio: for a later deadline the loop sleeps several times.
cdef int64_t SLEEP_MAX_NS = 24 * 3600 * 1_000_000_000

cdef object FUTURE = asyncio.Future
cdef tuple NO_ARGS = ()


cdef class TurnUser:

    cdef int flush(self) except -1:
        """Do what is left for the end of the turn: send, or accept again."""
        raise NotImplementedError

    cdef int flush_alone(self) except -1:
        """Flush the only item of the list."""
        return self.flush()

    cdef int rearm(self) except -1:
        """Arm again, after the completions, the receive that has found no buffer."""
        raise NotImplementedError

    cdef int deliver_more(self) except -1:
        """Deliver, after the completions, what was left in an earlier turn."""
        raise NotImplementedError


cdef class LoopCore:

    def __cinit__(self, *args, **kwargs):
        self.ready = ReadyQueue()
        self.inbox = Inbox()
        self.flush_list = []
        self.deliveries = []
        self.timers = TimerHeap()
        self.sleeper = Sleeper()
        self.fd_table = FdTable()
        self.freelist = FreeList()
        self.senders = SenderCache()
        self.slow_seconds = 0.1
        # The loop is closed until __init__() has opened the ring.
        self.closed = True

    def __init__(
            self, backend, busy_poll_us=0, batch_wait_us=0, sqpoll=0, sqpoll_cpu=-1,
            ring_files=True):
        """Open the ring *backend*, "io_uring" or "soft". Raises OSError if the kernel refuses."""
        cdef int fd
        if backend == "soft":
            self.ring = open_software_ring()
        elif sqpoll:
            self.ring = open_ring_with_thread(ring_files, sqpoll, sqpoll_cpu)
        else:
            self.ring = open_ring(ring_files)
        self.ring.spin_ns = 1000 * <int64_t>busy_poll_us
        self.ring.batch_ns = 1000 * <int64_t>batch_wait_us
        # The pools allocate their memory at first use.
        self.pool = new_stream_pool(self.ring)
        self.datagram_pool = new_datagram_pool(self.ring)
        fd = uring_new_wake_fd()
        if fd < 0:
            exc = os_error(fd, "eventfd2")
            self.ring.close()
            raise exc
        self.waker = WakeUp(self.ring, fd)
        self.inbox.word.wake_fd = fd
        try:
            self.sleeper.open(self.ring, fd)
        except OSError:
            # Do not leave this to the garbage collector: the failure may be a lack of descriptors.
            self.ring.close()
            close(fd)
            self.waker.fd = -1
            raise
        self.closed = False
        self._replace_clock(False)
        self.debug = coroutines._is_debug_mode()

    def __dealloc__(self):
        if self.waker is not None and self.waker.fd >= 0:
            close(self.waker.fd)
        PyMem_Free(self.scratch)
        PyMem_Free(self.tls_received)

    # ── scheduling ───────────────────────────────────────────────────────────────────────────

    # call_soon(), call_soon_threadsafe(), call_later() and call_at() are in call_soon.pyx.

    cdef int put(self, Handle handle) except -1:
        """Put *handle* into the inbox, and wake the loop if it sleeps. Any thread may call it."""
        if not self.try_put(handle):
            raise RuntimeError("Event loop is closed")
        return 0

    cdef bint try_put(self, Handle handle) noexcept:
        """Do what `put` does; return False if the loop is closed."""
        Py_INCREF(handle)
        # The loop's thread frees the handle, without asking this thread.
        give_away(<PyObject*>handle)
        if self.inbox.put(handle):
            return True
        Py_DECREF(handle)
        return False

    cdef int push_timer_from_elsewhere(self, TimerHandle timer) except -1:
        """Push *timer*, without a GIL, in a thread that does not run the loop."""
        cdef PyObject *cancelled = NULL
        if not try_to_claim(self):
            return self.put(fill(new_handle_for_threads(), self, self._push_timer, (timer,), None))
        try:
            self.check_closed()
            if self.timers.is_sparse():
                cancelled = self.timers.compact()
            self.timers.push(timer)
        finally:
            unclaim(self)
            # Drop these timers only now: their destructors may wait for the loop.
            drop_chain(cancelled)
        return 0

    def _push_timer(self, TimerHandle timer not None):
        self.timers.push(timer)

    def time(self):
        """Return the loop's clock: CLOCK_MONOTONIC in seconds."""
        return uring_clock_ns() * 1e-9

    def __setattr__(self, name, value):
        PyObject_GenericSetAttr(self, name, value)
        if name == "time" or name == "call_at":
            # The program has a clock of its own.
            self._replace_clock(True)

    def _replace_clock(self, patched):
        """Use the methods `time` and `call_at` if one is overridden, or if *patched* is true."""
        self.clock_replaced = (patched or type(self).time is not LoopCore.time
                               or type(self).call_at is not LoopCore.call_at)

    cdef int64_t now_ns(self) except? -1:
        return nanoseconds(self.time()) if self.clock_replaced else uring_clock_ns()

    def get_debug(self):
        return self.in_debug_mode()

    @property
    def slow_callback_duration(self):
        return load_double(&self.slow_seconds)

    @slow_callback_duration.setter
    def slow_callback_duration(self, double seconds):
        store_double(&self.slow_seconds, seconds)

    def is_running(self):
        return running_thread(self) != 0

    def is_closed(self):
        return load_int(&self.closed) != 0

    def stop(self):
        """Stop after the current turn."""
        store_int(&self.stopping, True)

    cdef Handle schedule(self, object callback, tuple args, object context):
        cdef Handle handle = fill(self.new_handle(), self, callback, args, context)
        self.note_caller(handle)
        self.push(handle)
        return handle

    cdef int note_caller(self, Handle handle) except -1:
        """Note, in debug mode, where *handle* is made, for reports."""
        if self.in_debug_mode():
            handle.source_traceback = format_helpers.extract_stack(sys._getframe(0))
        return 0

    cdef int check_closed(self) except -1:
        if load_int(&self.closed):
            raise RuntimeError("Event loop is closed")
        return 0

    cdef int check_thread(self) except -1:
        if is_elsewhere(self):
            raise wrong_thread()
        return 0

    cdef int check_call(self, object callback, str method) except -1:
        if coroutines.iscoroutine(callback) or inspect.iscoroutinefunction(callback):
            raise TypeError(f"coroutines cannot be used with {method}()")
        if not callable(callback):
            raise TypeError(f"a callable object was expected by {method}(), got {callback!r}")
        return 0

    def create_future(self):
        return self.new_future()

    cdef object new_future(self):
        return PyObject_Call(<PyObject*>FUTURE, NO_ARGS, self.options_of_futures())

    cdef dict options_of_futures(self):
        """Return the arguments of a new Future or Task: the loop."""
        cdef dict options
        if FREE_THREADED and not runs_here(self):
            # Only the loop's thread may use the field.
            return {"loop": self}
        options = self.future_options
        if options is None:
            options = {"loop": self}
            if not self.closed:
                self.future_options = options
        return options

    # ── the turn ─────────────────────────────────────────────────────────────────────────────

    cdef int run_turns(self) except -1:
        """Run turns until stop() is called."""
        self.run_turn()
        while not load_int(&self.stopping):
            self.run_turn()
        return 0

    @cython.final
    cdef int run_turn(self) except -1:
        cdef bint held_back = self.ring.mark()
        cdef Py_ssize_t due = self.deliveries_left()
        # A signal handler that ran at the end of the previous turn may have forked.
        self.ring.check_not_forked()
        count_total(&self.counters.turns, 1)
        if self.inbox.has_new() or self.inbox.taken != NULL:
            self.inbox.drain_to(self.ready)
            if self.inbox.is_much_used():
                leave_to_collector(self)
        if self.timers.count:
            self.expire_timers()
        if self.ready.count:
            self.run_ready()
        self.collect(held_back)
        if due:
            self.deliver_due(due)
        self.sleeper.deliver()
        if self.timers.due_end:
            self.run_due()
        self.flush_all()
        end_turn(&self.times)
        self.submit_and_wait()
        return 0

    @cython.final
    cdef int collect(self, bint held_back) except -1:
        """Dispatch the completions that were there when the turn began.

        *held_back*: the kernel has more completions, which only an enter brings.
        """
        cdef int rounds = 0
        cdef uint64_t before = self.ring.completions
        if self.ring.must_fall_back():
            self.ring.fall_back()
        if self.ring.has_completions():
            self.dispatch()
        while held_back and self.ring.has_task_work() and rounds < COLLECT_ROUNDS_MAX:
            rounds += 1
            count_total(&self.counters.overflows, self.ring.has_overflow())
            # The enter also submits what protocols wrote: the connections are in the cache now.
            self.flush_all()
            self.ring.submit()
            if not self.ring.has_completions():
                # The flag is stale: the kernel has no task work (uring_has_task_work).
                break
            self.ring.mark()
            self.dispatch()
        if self.ring.completions != before:
            before = self.ring.completions - before
            count_total(&self.counters.batches[log2_at_most(before, BATCH_SIZES - 1)], 1)
            count_total(&self.counters.batched, before)
        if self.has_starved():
            self.rearm_starved()
        return 0

    @cython.final
    cdef int dispatch(self) except -1:
        """Dispatch completions. A MemoryError is reported and costs that completion only."""
        while True:
            try:
                return self.ring.dispatch_marked()
            except MemoryError as exc:
                self.call_exception_handler(
                    {"message": "No memory to handle a completion", "exception": exc})

    cdef int rearm_starved(self) except -1:
        """Re-arm as many starved receives as the pool has buffers; any more would starve again."""
        cdef BufferPool pool = self.datagram_pool
        cdef Py_ssize_t count = min(len(pool.starved), pool.published or pool.at_start)
        cdef TurnUser item
        while count > 0:
            count -= 1
            item = pool.starved[0]
            # If this raises, the next turn begins with the same item.
            item.rearm()
            del pool.starved[0]
        return 0

    cdef int expire_timers(self) except -1:
        """Move the due timers out of the heap; they run after the completions."""
        cdef int64_t now
        cdef int64_t deadline = self.timers.next_deadline_ns()
        if deadline != NO_DEADLINE:
            now = self.now_ns()
            if deadline <= now:
                store_ns(&self.counters.lag_ns, now - deadline)
                times_note_longest(&self.counters.lag_max_ns, now - deadline)
                add_duration(&self.times.lags, now - deadline)
            self.timers.expire(now)
        return 0

    cdef int run_due(self) except -1:
        # If a timer raises KeyboardInterrupt, the others run in the next run_forever().
        cdef PyObject *timer = self.timers.next_due()
        while timer != NULL:
            count_total(&self.counters.timers, not load_int(&(<TimerHandle>timer).is_cancelled))
            self.run_owned(timer, self.timers.spare)
            self.ring.check_not_forked()
            timer = self.timers.next_due()
        return 0

    @cython.final
    cdef int run_ready(self) except -1:
        cdef Py_ssize_t count = self.ready.count
        cdef SpareHandles spare = self.ready.spare
        while count > 0:
            # A callback may have shortened the queue: a nested run pops handles, _close() clears.
            count = min(count, self.ready.count) - 1
            if count < 0:
                break
            self.run_owned(self.ready.pop(), spare)
            self.ring.check_not_forked()
        return self.ready.shrink()

    @cython.final
    cdef int run_owned(self, PyObject *handle, SpareHandles spare) except -1:
        """Run *handle*, and give the reference of the caller to *spare*."""
        try:
            if is_unshared(handle) and not self.times_handles():
                run_unshared(<Handle>handle, self)
            else:
                self.run_handle(<Handle>handle)
        finally:
            spare.give(handle)
        self.handles_run += 1
        if self.handles_run % HANDLES_BETWEEN_ACTS == 0:
            act_between_calls()
        return 0

    @cython.final
    cdef int run_handle(self, Handle handle) except -1:
        return self.run_timed(handle) if self.times_handles() else handle.run(self)

    cdef int run_timed(self, Handle handle) except -1:
        cdef int64_t began = uring_clock_ns()
        self.current_handle = handle
        try:
            handle.run(self)
        finally:
            self.current_handle = None
        if load_int(&self.times.timing_users) & TURN_FOR_HISTOGRAMS:
            add_duration(&self.times.callbacks, uring_clock_ns() - began)
        return self.report_slow(began, handle) if self.in_debug_mode() else 0

    cdef int report_slow(self, int64_t began, object subject) except -1:
        cdef double took = (uring_clock_ns() - began) * 1e-9
        if took >= load_double(&self.slow_seconds):
            name = format_handle(subject) if isinstance(subject, Handle) else subject
            logger.warning("Executing %s took %.3f seconds", name, took)
        return 0

    @cython.final
    cdef int flush_all(self) except -1:
        """Flush the items of the list; those that an exception leaves are the next turn's.

        If an item's flush leads to another flush_all(), by a nested run or by writing much, that
        one flushes the rest, and nothing is left for this one.
        """
        cdef TurnUser item
        cdef Py_ssize_t count = list_size(<PyObject*>self.flush_list) - self.flush_next
        if count:
            self.flush_left = count
            try:
                while self.flush_left:
                    item = <TurnUser>PyList_GET_ITEM_borrowed(self.flush_list, self.flush_next)
                    self.flush_next += 1
                    self.flush_left -= 1
                    item.flush_queued = False
                    if count == 1:
                        item.flush_alone()
                    else:
                        item.flush()
            finally:
                self.flush_left = 0
                drop_front(self.flush_list, &self.flush_next)
        self.queued_bytes = 0
        return 0

    @cython.final
    cdef int submit_and_wait(self) except -1:
        cdef int64_t deadline
        cdef int64_t timeout = URING_FOREVER
        if self.ready.count:
            return self.submit()
        # This comes first: it may drop cancelled timers, whose destructors may schedule callbacks.
        deadline = self.timers.next_deadline_ns()
        if self.is_idle() and not self.fetch_held_back():
            if deadline != NO_DEADLINE:
                timeout = min(deadline - self.now_ns(), SLEEP_MAX_NS)
            # If another thread has put a handle into the inbox meanwhile, the loop stays awake.
            if (timeout == URING_FOREVER or timeout > 0) and self.inbox.fall_asleep():
                self.sleep(timeout)
                PyErr_CheckSignals()
                return 0
        return self.submit()

    cdef int sleep(self, int64_t timeout_ns) except -1:
        """Submit, and sleep until something happens, for *timeout_ns* at most."""
        assert self.waker.poll_op.in_flight, "no other thread could end the sleep"
        cdef int64_t cpu_before_ns = begin_sleep(&self.times)
        try:
            self.sleeper.wait(timeout_ns)
        finally:
            self.inbox.wake_up()
            end_sleep(&self.times, cpu_before_ns)
        return 0

    cdef bint fetch_held_back(self) except -1:
        """Fetch completions that the kernel holds back: a sleep would bring only one of them."""
        if not self.ring.has_task_work():
            return False
        self.ring.submit()
        return self.ring.has_completions()

    @cython.final
    cdef int submit(self) except -1:
        self.sleeper.submit()
        PyErr_CheckSignals()
        return 0

    # ── for transports ───────────────────────────────────────────────────────────────────────

    cdef int add_flush(self, TurnUser item) except -1:
        """Have *item* flushed at the end of this turn."""
        if not item.flush_queued:
            item.flush_queued = True
            self.flush_list.append(item)
        return 0

    cdef int add_delivery(self, TurnUser item) except -1:
        """Have *item* deliver more in the next turn, where a selector would report it again."""
        if not item.delivery_queued:
            item.delivery_queued = True
            self.deliveries.append(item)
        return 0

    cdef int deliver_due(self, Py_ssize_t count) except -1:
        """Let the first *count* items deliver: those that were queued before this turn."""
        cdef TurnUser item
        try:
            # A nested run may have taken some of them.
            while count and self.deliveries_left():
                count -= 1
                item = <TurnUser>PyList_GET_ITEM_borrowed(self.deliveries, self.delivered)
                self.delivered += 1
                item.delivery_queued = False
                item.deliver_more()
        finally:
            drop_front(self.deliveries, &self.delivered)
        return 0

    cdef char *allocate(self, char **memory) except NULL:
        memory[0] = <char*>PyMem_Malloc(SCRATCH_SIZE)
        if memory[0] == NULL:
            raise MemoryError
        return memory[0]

    cdef int flush_early(self) except -1:
        """Submit sends in mid-turn: an enter costs less than dozens of live large messages."""
        if self.sending and not self.ring.must_fall_back():
            self.flush_all()
            self.ring.submit_only()
        return 0

    cdef int starve(self, TurnUser item) except -1:
        """Have datagram endpoint *item* re-armed when this batch has given back its buffers."""
        count_total(&self.counters.starved, 1)
        self.datagram_pool.grow()
        self.datagram_pool.starved.append(item)
        return 0

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def _run(self):
        """Run turns until stop() is called; the caller does asyncio's bookkeeping."""
        cdef int cpu_clock
        self.check_closed()
        self.ring.check_usable()
        if not try_to_claim(self):
            raise RuntimeError("This event loop is already running")
        if load_int(&self.closed):
            # Another thread has claimed and closed the loop meanwhile.
            unclaim(self)
            self.check_closed()
        # Before other threads see this one as the loop's: they read the clock and the times then.
        if pthread_getcpuclockid(pthread_self(), &cpu_clock) == 0:
            store_int(&self.cpu_clock, cpu_clock)
        times_begin_run(&self.times, this_thread())
        try:
            self.ring.take_over()
            store_long(&self.ring.runner, this_thread())
            self.sending = True
            self.waker.arm()
            self.sleeper.look_again()
            self.run_turns()
        except BaseException:
            # The turn ends here.
            end_turn(&self.times)
            raise
        finally:
            # This may call resume_writing(): what that writes is sent in the next run.
            self.sending = False
            try:
                self.ring.end_run_operations()
            finally:
                store_long(&self.ring.runner, 0)
                store_int(&self.stopping, False)
                unclaim(self)

    def _begin_close(self):
        """Refuse work from now on; return True to the one caller that has to close the loop."""
        cdef int expected = False
        cdef bint inherited = self.ring.is_inherited()
        cdef bint is_running
        if load_int(&self.closed):
            return False
        if inherited:
            # The threads do not exist in a forked child, and nobody gives the loop back.
            is_running = runs_here(self)
        else:
            is_running = not try_to_claim(self)
        if is_running:
            raise RuntimeError("Cannot close a running event loop")
        # Whoever claims the loop from now on finds it closed.
        was_open = bool(replace_int(&self.closed, &expected, True))
        if not inherited:
            unclaim(self)
        return was_open

    def _close(self):
        """Close the ring and drop every callback, after _begin_close()."""
        try:
            if self.ring.is_inherited():
                self.inbox.close_alone()
            else:
                self.inbox.close()
            self.ready.clear()
            self.timers.clear()
            self.ring.drain()
        finally:
            self.future_options = self.resolved_future = None
            self.ready.spare.clear()
            self.timers.spare.clear()
            self.freelist.clear()
            for each in (self.flush_list, self.deliveries, self.datagram_pool.starved):
                each.clear()
            self.delivered = 0
            self.sleeper.close_epoll()
            self.ring.close()
            self.pool.close()
            self.datagram_pool.close()
            close(self.waker.fd)
            self.waker.fd = -1

    def _watch_signals(self, fd, on_wake):
        """Call *on_wake* in the loop's thread whenever *fd*, a non-blocking one, has data."""
        if self.signal_waker is None:
            self.signal_waker = WakeUp(self.ring, fd, on_wake)
        self.signal_waker.arm()

    # ── for the Python modules ───────────────────────────────────────────────────────────────

    def _check_closed(self):
        self.check_closed()
        self.ring.check_not_forked()

    def _check_owner(self):
        self.check_owner()
        self.ring.check_not_forked()

    def _check_callback(self, callback, method):
        self.check_call(callback, method)

    def _make_handle(self, callback, args):
        cdef Handle handle = fill(Handle.__new__(Handle), self, callback, args, None)
        self.note_caller(handle)
        return handle

    def _push_handle(self, handle):
        self.push(handle)

    def _set_debug(self, enabled):
        store_int(&self.debug, bool(enabled))

    def _note_task_factory(self, bint exists):
        store_int(&self.has_task_factory, exists)

    def _current_traceback(self):
        """Return where the running callback was scheduled, in debug mode; else None."""
        if FREE_THREADED and not runs_here(self):
            return None
        return None if self.current_handle is None else self.current_handle.source_traceback

    def _count_sent(self, size):
        """Count bytes that sendfile() has sent on a transport's descriptor."""
        count_total(&self.counters.sent_bytes, <uint64_t>size)

    # ── counters ─────────────────────────────────────────────────────────────────────────────

    @property
    def _operations_in_flight(self):
        return self.ring.count

    @property
    def _buffers_out(self):
        return self.pool.out + self.datagram_pool.out

    @property
    def _kernel_entries(self):
        return self.ring.enters()


cdef int drop_front(list items, Py_ssize_t *count) except -1:
    """Remove the first *count* items, which have been served, and set *count* to 0."""
    cdef Py_ssize_t served = count[0]
    # First: a destructor may queue an item.
    count[0] = 0
    return PyList_SetSlice(items, 0, served, NULL)


cdef traverseproc traverse_fields


cdef int traverse_all(PyObject *self, visitproc visit, void *argument) noexcept:
    """Visit, for the collector, also the untracked timers and the operations in flight."""
    # Use no variable: it would be the last reference to a loop that the collector is about to free.
    return (traverse_fields(self, visit, argument)
            or traverse_timers((<LoopCore>self).timers, visit, argument)
            or traverse_ready((<LoopCore>self).ready, visit, argument)
            or traverse_inbox((<LoopCore>self).inbox, visit, argument)
            or ((<LoopCore>self)._del_closes
                and traverse_ring((<LoopCore>self).ring, visit, argument)))


traverse_fields = set_traverse(LoopCore, traverse_all)
