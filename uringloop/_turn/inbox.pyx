"""Handles from other threads, and the loop's sleep.

The inbox is one word (inbox.h), which says all that other threads need to know of the loop:

    CLOSED <──close()── EMPTY <──fall_asleep(), wake_up()──> ASLEEP
                          │ ^                                  │
                    put() │ │ drain_to()                       │ put() wakes the loop
                          v │                                  │
              the newest handle, linked to older ones <────────┘

Any thread may put a handle, by one atomic operation that is repeated only if another thread came
first. The loop's thread takes all at once, in the order in which they were put. The loop falls
asleep only if the word is EMPTY, so no wake-up is lost; and only the first handle put into the
inbox of a sleeping loop costs a wake-up, so a loop that is awake is never written to.

The descriptor of the wake-up may be closed only when every thread that found the loop asleep has
written to it: another file could get its number. The loop counts such sleeps as it wakes, and
these threads count themselves when they have written.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uintptr_t

from uringloop._kernel.atomics cimport load_pointer_acquire
from uringloop._kernel.libc cimport sched_yield
from uringloop._turn.handles cimport Handle, traverse_queued


@cython.final
cdef class Inbox:

    def __dealloc__(self):
        self.close_alone()

    # ── for any thread ───────────────────────────────────────────────────────────────────────

    cdef bint put(self, Handle handle) noexcept nogil:
        """Put *handle*, and wake the loop if it sleeps; return False if the loop is closed.

        The inbox takes the caller's reference, unless the loop is closed.
        """
        return inbox_put(&self.word, <void*><PyObject*>handle, <void**>&handle.older)

    # ── for the loop's thread ────────────────────────────────────────────────────────────────

    cdef int drain_to(self, ReadyQueue ready) except -1:
        """Move all handles to *ready*, the oldest first. A MemoryError leaves the rest here."""
        self._push_taken(ready)
        self.taken = <PyObject*>inbox_take(&self.word)
        return self._push_taken(ready)

    cdef int _push_taken(self, ReadyQueue ready) except -1:
        cdef Py_ssize_t before = ready.count
        if self.taken != NULL:
            ready.push_chain(self.taken)
            self.taken = NULL
            self.received += ready.count - before
        return 0

    cdef bint fall_asleep(self) noexcept:
        """Have other threads wake the loop from now on; return False if a handle is there."""
        return self.taken == NULL and inbox_fall_asleep(&self.word)

    cdef void wake_up(self) noexcept:
        """Note that the loop is awake."""
        inbox_wake_up(&self.word)

    cdef int close(self) except -1:
        """Refuse handles from now on, await threads that wake, and drop the handles."""
        cdef void *newest = inbox_refuse(&self.word)
        while not inbox_is_left(&self.word):
            with nogil:
                sched_yield()
        return self._drop_all(newest)

    cdef int close_alone(self) except -1:
        """Like `close`, where no other thread can be waking the loop, as in a forked child."""
        return self._drop_all(inbox_refuse(&self.word))

    cdef int _drop_all(self, void *newest) except -1:
        cdef list dropped = []
        self._drop(self.taken, dropped)
        self.taken = NULL
        self._drop(<PyObject*>newest, dropped)
        # Freed last: destructors may run code that uses the loop.
        return 0

    cdef int _drop(self, PyObject *first, list dropped) except -1:
        cdef PyObject *next
        while first != NULL:
            next = (<Handle>first).older
            dropped.append(<Handle>first)
            Py_DECREF(<Handle>first)
            first = next
        return 0


cdef int traverse_inbox(Inbox inbox, visitproc visit, void *argument) noexcept:
    """Visit the handles, for the garbage collector, which has stopped all threads of Python.

    A thread of C may put a handle meanwhile. To the collector it is one that is referred to.
    """
    cdef uintptr_t newest
    if inbox is None:
        return 0
    newest = load_pointer_acquire(&inbox.word.newest)
    return (traverse_chain(inbox.taken, visit, argument)
            or (newest > INBOX_CLOSED and traverse_chain(<PyObject*>newest, visit, argument)))


cdef bint traverse_chain(PyObject *handle, visitproc visit, void *argument) noexcept:
    while handle != NULL:
        if traverse_queued(handle, visit, argument):
            return True
        handle = (<Handle>handle).older
    return False
