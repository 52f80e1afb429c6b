"""The turn: one round of the loop, and the loop's compiled methods."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.freelist cimport FreeList
from uringloop._cpython.pyapi cimport FREE_THREADED, list_size, this_thread
from uringloop._kernel.addresses cimport SenderCache
from uringloop._kernel.atomics cimport load_int, load_long, replace_long, store_long_release
from uringloop._kernel.libc cimport sched_yield
from uringloop._ring.buffers cimport BufferPool
from uringloop._ring.ring cimport Ring
from uringloop._ring.wakeup cimport WakeUp
from uringloop._turn.fd_table cimport FdTable
from uringloop._turn.handles cimport Handle, TimerHandle
from uringloop._turn.inbox cimport Inbox
from uringloop._turn.ready cimport ReadyQueue
from uringloop._turn.sleeper cimport Sleeper
from uringloop._turn.spare_handles cimport SpareHandles, owned_handle, owned_timer
from uringloop._turn.timers cimport TimerHeap
from uringloop._turn.timing cimport (
    TURN_CLAIMED,
    TURN_FOR_HISTOGRAMS,
    times_thread,
    turn_times,
)


cdef enum:
    # After this many written bytes in one turn, the sends are submitted early: dozens of live
    # 100 KB messages make the allocator return memory to the kernel and fault it in again, which
    # takes 45 % of the time.
    QUEUED_BYTES_MAX = 256 * 1024


cdef enum:
    # The most that read(2) takes from a pipe, as in asyncio, and recv(2) from a program's socket. A
    # pipe of default size holds a quarter of that. The kernel allocates only the pages that a call
    # has reached.
    SCRATCH_SIZE = 256 * 1024


cdef enum:
    # Turns by their number of completions: 1, 2 to 3, 4 to 7, ... and 128 or more.
    BATCH_SIZES = 8


cdef struct Counters:
    # Totals since the loop was created, for stats(); counting is one addition.
    uint64_t turns
    uint64_t batches[BATCH_SIZES]
    uint64_t batched            # completions in all these turns
    uint64_t timers             # timers that have run
    uint64_t received_bytes     # by transports
    uint64_t sent_bytes
    uint64_t rearms             # receives armed again
    uint64_t starved            # receives that found no buffer
    uint64_t overflows          # enters that fetched completions of a full queue from the kernel
    int64_t lag_ns              # how late the newest timer was
    int64_t lag_max_ns


cdef class TurnUser:
    # An object that the loop calls at certain points of a turn: a transport, or a listening socket.
    cdef bint flush_queued      # on the loop's flush list
    cdef bint delivery_queued   # on the loop's list of deliveries

    cdef int flush(self) except -1
    cdef int flush_alone(self) except -1
    cdef int rearm(self) except -1
    cdef int deliver_more(self) except -1


cdef class LoopCore:
    cdef Ring ring
    cdef BufferPool pool            # of the streams
    cdef BufferPool datagram_pool
    cdef TimerHeap timers
    cdef ReadyQueue ready
    cdef Inbox inbox            # of handles from other threads
    # Memory that lives with the loop. Each kind has a field of its own: an object that held them
    # all would cost one more load for each message.
    cdef FreeList freelist      # of bytes objects
    cdef SenderCache senders    # of datagrams
    # Memory of SCRATCH_SIZE bytes each; NULL before first need, freed with the loop.
    cdef char *scratch          # whoever fills it copies the bytes at once
    cdef char *tls_received     # TLS decrypts from it; OpenSSL may run the program's code meanwhile
    cdef object tls_scratch     # memory for TLS records that is not in use; None before the first
    # Of TurnUser, flushed at the end of the turn. While flush_all() runs, the items before
    # flush_next have been flushed; the next flush_left items belong to this turn. A run nested in
    # flush_all() continues from flush_next.
    cdef list flush_list
    cdef Py_ssize_t flush_next      # 0 while no flush_all() runs
    cdef Py_ssize_t flush_left
    cdef list deliveries        # of TurnUser: each delivers after the next turn's callbacks
    cdef Py_ssize_t delivered   # so many of them, at the front, have been asked in this turn
    cdef unsigned int handles_run   # a number that wraps
    cdef Py_ssize_t queued_bytes    # written in this turn, and left for the end of the turn
    cdef Sleeper sleeper        # decides where the loop sleeps
    cdef WakeUp waker           # an eventfd that call_soon_threadsafe writes to
    cdef WakeUp signal_waker    # the signal module's; None while no run handles signals
    # Flags that other threads read, or set.
    cdef int stopping           # stop() was called, by any thread
    cdef int closed
    cdef int debug
    cdef bint sending           # sends may be submitted in mid-turn: until the end of a run begins
    cdef bint nestable          # the loop may be run within its own callbacks
    cdef bint clock_replaced    # a subclass overrides, or a program replaces, time() or call_at()
    cdef int cpu_clock          # of the thread that runs the loop, or ran it last
    cdef object resolved_future   # whose result is None, for ReadWaiter; None before and at the end
    # Arguments of every Future and of most Tasks; None before the first and when closed.
    cdef dict future_options
    cdef Handle current_handle    # the handle that runs, if handles are timed; else None
    cdef FdTable fd_table         # the transports, by descriptor
    cdef Counters counters
    cdef turn_times times       # who runs the loop, and its times, measured on request
    cdef double slow_seconds    # slow_callback_duration
    # Whether the Python attribute _task_factory is not None. Without this field create_task() would
    # look the attribute up for each task.
    cdef int has_task_factory
    # __del__ closes the loop before the garbage collector clears it: only then may the collector
    # visit what the operations in flight refer to.
    cdef public bint _del_closes
    # BaseLoop has the weak references, not this class, because CPython clears them by atomics.

    cdef int64_t now_ns(self) except? -1
    cdef int check_closed(self) except -1
    cdef int check_thread(self) except -1
    cdef int check_call(self, object callback, str method) except -1
    cdef int note_caller(self, Handle handle) except -1
    cdef inline bint in_debug_mode(self) noexcept:
        return load_int(&self.debug) != 0
    cdef inline int check_owner(self) except -1:
        """Raise RuntimeError in a wrong thread: in debug mode, and without a GIL always."""
        if FREE_THREADED:
            return 0 if runs_here(self) else self.check_thread()
        return self.check_debug()
    cdef inline int check_debug(self) except -1:
        """Raise RuntimeError in a wrong thread, in debug mode only."""
        return self.check_thread() if self.in_debug_mode() else 0
    cdef inline int check_reader(self) except -1:
        """Raise RuntimeError, without a GIL, in a thread that may not read the loop's queues."""
        return self.check_thread() if FREE_THREADED else 0
    cdef inline Handle new_handle(self):
        """Return a handle without a callback, in the loop's thread a spare one."""
        cdef PyObject *spare = NULL
        if not FREE_THREADED or runs_here(self):
            spare = self.ready.spare.take()
        if spare != NULL:
            return owned_handle(spare)
        return Handle.__new__(Handle)
    cdef inline TimerHandle new_timer(self):
        """Return a timer without a callback, like `new_handle`."""
        cdef PyObject *spare = NULL
        if not FREE_THREADED or runs_here(self):
            spare = self.timers.spare.take()
        if spare != NULL:
            return owned_timer(spare)
        return TimerHandle.__new__(TimerHandle)
    cdef Handle schedule(self, object callback, tuple args, object context)
    cdef object new_future(self)
    cdef dict options_of_futures(self)
    cdef inline int push(self, Handle handle) except -1:
        """Append *handle* to the ready queue, behind all that were scheduled before."""
        if FREE_THREADED and not runs_here(self):
            return self.put(handle)
        if self.inbox.has_new():
            self.inbox.drain_to(self.ready)
        return self.ready.push(handle)
    cdef inline int push_from_any_thread(self, Handle handle) except -1:
        """Like `push`, and wake the loop if another thread runs it."""
        return self.push(handle) if runs_here(self) else self.put(handle)
    cdef int put(self, Handle handle) except -1
    cdef bint try_put(self, Handle handle) noexcept
    cdef inline char *scratch_memory(self) except NULL:
        """Return SCRATCH_SIZE bytes, which a system call fills and the caller copies at once."""
        if self.scratch != NULL:
            return self.scratch
        return self.allocate(&self.scratch)
    cdef inline char *tls_memory(self) except NULL:
        """Return SCRATCH_SIZE bytes for the receives of TLS."""
        if self.tls_received != NULL:
            return self.tls_received
        return self.allocate(&self.tls_received)
    cdef char *allocate(self, char **memory) except NULL
    cdef int run_turns(self) except -1
    cdef int run_turn(self) except -1
    cdef int collect(self, bint held_back) except -1
    cdef int dispatch(self) except -1
    cdef int rearm_starved(self) except -1
    cdef int expire_timers(self) except -1
    cdef int run_due(self) except -1
    cdef int run_ready(self) except -1
    cdef int run_owned(self, PyObject *handle, SpareHandles spare) except -1
    cdef inline bint times_handles(self) noexcept:
        """Return whether the time of each callback is taken."""
        return self.in_debug_mode() or load_int(&self.times.timing_users) & TURN_FOR_HISTOGRAMS
    cdef int run_handle(self, Handle handle) except -1
    cdef int run_timed(self, Handle handle) except -1
    cdef int report_slow(self, int64_t began, object subject) except -1
    cdef int flush_all(self) except -1
    cdef inline bint is_idle(self) noexcept:
        """Return whether no callback, completion, receive or flush waits; timers are left out."""
        return not (self.ready.count or self.inbox.has_new() or load_int(&self.stopping)
                    or self.ring.has_completions() or self.has_starved()
                    or list_size(<PyObject*>self.flush_list)
                    or self.deliveries_left())

    cdef inline Py_ssize_t deliveries_left(self) noexcept:
        return list_size(<PyObject*>self.deliveries) - self.delivered

    cdef int submit_and_wait(self) except -1
    cdef int sleep(self, int64_t timeout_ns) except -1
    cdef bint fetch_held_back(self) except -1
    cdef int submit(self) except -1
    cdef int add_flush(self, TurnUser item) except -1
    cdef int flush_early(self) except -1
    cdef int add_delivery(self, TurnUser item) except -1
    cdef int deliver_due(self, Py_ssize_t count) except -1
    cdef int starve(self, TurnUser item) except -1

    cdef inline bint has_starved(self) noexcept:
        """Return whether a receive waits for a buffer. Streams poll instead."""
        return self.datagram_pool.has_starved()

    cdef inline int push_timer(self, TimerHandle timer) except -1:
        if FREE_THREADED and not runs_here(self):
            return self.push_timer_from_elsewhere(timer)
        return self.timers.push(timer)
    cdef int push_timer_from_elsewhere(self, TimerHandle timer) except -1


cdef inline bint try_to_claim(LoopCore loop) noexcept:
    """Claim a loop that does not run, to use its queues; return False if a thread runs it."""
    cdef unsigned long before = 0
    while not replace_long(&loop.times.thread_id, &before, TURN_CLAIMED):
        if before != TURN_CLAIMED:
            return False
        before = 0
        # The other thread may be waiting for this one.
        with nogil:
            sched_yield()
    return True


cdef inline void unclaim(LoopCore loop) noexcept:
    """Give back a loop that this thread has claimed; another one may run it now."""
    store_long_release(&loop.times.thread_id, 0)


cdef inline unsigned long running_thread(LoopCore loop) noexcept:
    """Return the thread that runs *loop*; 0 if none does, or in a forked child, which lacks it."""
    return 0 if loop.ring.is_inherited() else times_thread(&loop.times)


cdef inline bint runs_here(LoopCore loop) noexcept:
    """Return whether the calling thread runs *loop*."""
    return load_long(&loop.times.thread_id) == this_thread()


cdef inline bint is_elsewhere(LoopCore loop) noexcept:
    """Return whether another thread runs *loop*."""
    return running_thread(loop) not in (0, this_thread())
