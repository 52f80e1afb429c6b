"""Handles from other threads, and the loop's sleep."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from uringloop._cpython.pyapi cimport visitproc
from uringloop._kernel.atomics cimport load_pointer
from uringloop._turn.handles cimport Handle
from uringloop._turn.ready cimport ReadyQueue


# Values of `newest` that are not the address of a handle.
cdef enum:
    EMPTY = 0       # the loop is awake, or about to find out that it need not sleep
    ASLEEP = 1      # the next handle wakes the loop
    CLOSED = 2      # the loop is closed


cdef enum:
    # The number of handles after which an inbox is much used. A program whose loops live for a few
    # calls from other threads stays below it, so that each loop is freed with its last reference.
    MUCH_USED = 1000


@cython.final
cdef class Inbox:
    cdef int wake_fd            # ends the loop's sleep; not changed while the loop is open
    cdef uintptr_t newest       # a value above, or the newest handle; the inbox owns each handle
    cdef PyObject *taken        # taken out, but the ready queue has no memory for it; owned
    cdef Py_ssize_t received    # handles that the loop has taken
    cdef unsigned int wakes_due     # sleeps that another thread has ended, or is ending
    cdef unsigned int wakes_done    # of these, the ones whose thread has written to the wake-up

    cdef inline bint has_new(self) noexcept:
        return load_pointer(&self.newest) > CLOSED

    cdef inline bint is_much_used(self) noexcept:
        """Return whether other threads have called the loop often."""
        return self.received >= MUCH_USED

    cdef bint put(self, Handle handle) noexcept nogil
    cdef int drain_to(self, ReadyQueue ready) except -1
    cdef bint fall_asleep(self) noexcept
    cdef void wake_up(self) noexcept
    cdef int close(self) except -1
    cdef int close_alone(self) except -1
    cdef int _push_taken(self, ReadyQueue ready) except -1
    cdef int _drop_all(self, uintptr_t newest) except -1
    cdef int _drop(self, PyObject *first, list dropped) except -1


cdef int traverse_inbox(Inbox inbox, visitproc visit, void *argument) noexcept
