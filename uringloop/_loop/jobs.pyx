"""Calls of functions in the threads of a pool, and the way of their results to the loop.

A Job is one call of run_in_executor(). The loop's thread makes it and puts it into a JobQueue; a
thread of the pool performs it and puts the handle that resolves the caller's future into the loop's
inbox, so that many results wake a sleeping loop once.

A JobQueue is the queue of a ThreadPoolExecutor, which puts items of its own into it for submit(),
and None to end its threads. Any thread may use it. With a GIL its methods are not interrupted;
without one they are critical sections of the queue. A thread that finds the queue empty parks, and
the thread that has parked last is woken first: its stack is still in the processor's cache. Only
one thread at a time is woken. It wakes the next one before it performs its job, if there are more,
so a burst of short jobs does not wake all threads, which would only wait for each other.
"""

import asyncio
import concurrent.futures
import queue

cimport cython
from libc.stdint cimport int64_t

from uringloop._cpython.interpreter cimport act_between_calls
from uringloop._cpython.pyapi cimport PyContext_New, PyErr_SetHandledException
from uringloop._cpython.stdlib cimport JOB_QUEUE, uses
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.park cimport uring_park, uring_unpark
from uringloop._ring.ring cimport PROCESS
from uringloop._turn.handles cimport Handle, fill
from uringloop._turn.turn cimport LoopCore


cdef tuple NO_ARGS = ()
# What a thread takes that is to end.
cdef Item END = Item.__new__(Item)
# asyncio's exceptions for those that a function may have got from a future of another kind.
cdef dict TRANSLATED = {
    concurrent.futures.CancelledError: asyncio.CancelledError,
    concurrent.futures.InvalidStateError: asyncio.InvalidStateError,
}


def is_used():
    """Return whether ThreadPoolExecutor has the known shape, and the switch is on."""
    return uses(JOB_QUEUE)


# A long chain of items is freed without recursion.
@cython.trashcan(True)
cdef class Item:
    pass


@cython.final
@cython.trashcan(True)
cdef class Job(Item):

    # ── for a thread of the pool ─────────────────────────────────────────────────────────────

    cdef int perform(self) except -1:
        """Call the function, unless the caller has cancelled its future."""
        if self.awaited.cancelled():
            self.function = self.args = self.handle = None
            return 0
        try:
            self.result = self.function(*self.args)
        except BaseException as exc:
            self.exception = exc
        return self.complete()

    cdef int complete(self) except -1:
        """Have the loop resolve the caller's future. The loop's thread has the job afterwards."""
        cdef LoopCore loop = self.loop
        cdef Handle handle = self.handle
        if handle is None:
            return 0
        self.function = self.args = self.handle = None
        handle.callback = self
        if not loop.try_put(handle):
            # The loop is closed, and nobody waits.
            handle.callback = None
        return 0

    def run(self, *context):
        """Perform the job, for a thread that has taken it by get_nowait()."""
        self.perform()

    # A ThreadPoolExecutor cancels `item.future`, or fails it, of an item that is not to run.

    @property
    def future(self):
        return self

    def cancel(self):
        """Have the loop cancel the caller's future."""
        self.cancelled = True
        self.complete()

    def set_exception(self, exception):
        """Have the loop raise *exception* in the caller."""
        self.exception = exception
        self.complete()

    # ── for the loop's thread ────────────────────────────────────────────────────────────────

    def __call__(self):
        """Resolve the caller's future."""
        cdef object awaited = self.awaited
        cdef object exception = self.exception
        if awaited.done():
            # It was cancelled while the function ran.
            return
        if self.cancelled:
            awaited.cancel()
            return
        if exception is None:
            awaited.set_result(self.result)
            return
        kind = TRANSLATED.get(type(exception))
        if kind is not None:
            exception = kind(*exception.args).with_traceback(exception.__traceback__)
        try:
            awaited.set_exception(exception)
        except TypeError as exc:
            # Before Python 3.12 no future takes a StopIteration.
            awaited.set_exception(exc)


@cython.final
cdef class JobQueue:

    def __cinit__(self):
        self.process = PROCESS

    def add_job(self, LoopCore loop not None, function, tuple args not None):
        """Have a thread call *function*; return the future, or None if the queue is closed."""
        cdef Job job = Job.__new__(Job)
        job.loop = loop
        job.awaited = loop.create_future()
        job.function = function
        job.args = args
        # Made here, so that no lack of memory can lose the result; complete() sets the callback.
        job.handle = fill(loop.new_handle(), loop, None, NO_ARGS, PyContext_New())
        with cython.critical_section(self):
            if self.closed:
                return None
            self.append(job)
        return job.awaited

    def waits(self):
        """Return the number of items, and for how many seconds the last one has waited.

        The last one that a thread has taken; or the first one in the queue, if it waits longer.
        """
        cdef int64_t waited_ns
        with cython.critical_section(self):
            waited_ns = self.waited_ns
            if self.first is not None:
                waited_ns = max(waited_ns, uring_clock_ns() - self.first.put_ns)
            return self.count, waited_ns * 1e-9

    def has_idle(self):
        """Return whether there are as many idle threads as items."""
        with cython.critical_section(self):
            self.forget_threads()
            return self.parked_count + self.one_is_waking >= self.count

    def close(self):
        """Refuse jobs from now on."""
        with cython.critical_section(self):
            self.closed = True

    cdef int append(self, Item item) except -1:
        item.put_ns = uring_clock_ns()
        if self.first is None:
            self.first = item
        else:
            self.last.next = item
        self.last = item
        self.count += 1
        self.wake_one()
        return 0

    cdef Item take(self, Parked *here):
        """Remove and return the first item; if there is none, park *here* and return None."""
        with cython.critical_section(self):
            self.forget_threads()
            if here.woken:
                here.woken = False
                self.one_is_waking = False
            if self.first is not None:
                return self.remove_first()
            if self.ends:
                self.ends = False
                return END
            here.below = self.parked
            self.parked = here
            self.parked_count += 1
            return None

    cdef Item remove_first(self):
        """Remove and return the first item, and wake a thread if more are left."""
        cdef Item item = self.first
        self.waited_ns = uring_clock_ns() - item.put_ns
        self.first = item.next
        item.next = None
        self.count -= 1
        if self.first is None:
            self.last = None
        else:
            self.wake_one()
        return item

    cdef void wake_one(self) noexcept:
        """Wake a thread, unless one that was woken has not looked for an item yet."""
        cdef Parked *parked
        self.forget_threads()
        parked = self.parked
        if parked != NULL and not self.one_is_waking:
            self.parked = parked.below
            self.parked_count -= 1
            self.one_is_waking = True
            uring_unpark(&parked.woken)

    cdef void forget_threads(self) noexcept:
        """Forget, in a forked child, the threads of the parent, whose stacks are gone."""
        if self.process != PROCESS:
            self.process = PROCESS
            self.parked = NULL
            self.parked_count = 0
            self.one_is_waking = False

    # ── the methods of queue.SimpleQueue that ThreadPoolExecutors and programs use ───────────

    def put(self, foreign):
        """Append *foreign*; None ends a thread once the queue is empty, and refuses jobs."""
        cdef Item item
        if foreign is None:
            with cython.critical_section(self):
                self.closed = True
                # The thread that gets it puts it again, for the next one.
                self.ends = True
                self.wake_one()
            return
        item = Item.__new__(Item)
        item.foreign = foreign
        with cython.critical_section(self):
            self.append(item)

    def get(self, block=True):
        """Perform the jobs; remove and return the first item that is none."""
        cdef Parked here
        cdef Item item
        if not block:
            return self.get_nowait()
        # From Python 3.12 on this is called while queue.Empty is handled, which is none of the
        # functions' business.
        PyErr_SetHandledException(NULL)
        here.woken = False
        while True:
            item = self.take(&here)
            if item is None:
                with nogil:
                    uring_park(&here.woken)
            elif type(item) is Job:
                (<Job>item).perform()
                act_between_calls()
            else:
                return item.foreign
            # Keep nothing of the job while the thread waits.
            item = None

    def put_nowait(self, foreign):
        self.put(foreign)

    def get_nowait(self):
        """Remove and return the first item, a job too; raise queue.Empty if there is none."""
        cdef Item item = None
        with cython.critical_section(self):
            if self.first is not None:
                item = self.remove_first()
        if item is None:
            raise queue.Empty
        return item if type(item) is Job else item.foreign

    def empty(self):
        return self.qsize() == 0

    def qsize(self):
        with cython.critical_section(self):
            return self.count
