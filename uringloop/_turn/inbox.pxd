"""Handles from other threads, and the loop's sleep."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from uringloop._cpython.pyapi cimport visitproc
from uringloop._turn.handles cimport Handle
from uringloop._turn.ready cimport ReadyQueue


cdef extern from "_turn/inbox.h" nogil:
    enum:
        INBOX_EMPTY
        INBOX_ASLEEP
        INBOX_CLOSED

    ctypedef struct inbox_word:
        uintptr_t newest
        int wake_fd

    bint inbox_has_new(const inbox_word *word)
    bint inbox_put(inbox_word *word, void *handle, void **older)
    void *inbox_take(inbox_word *word)
    bint inbox_fall_asleep(inbox_word *word)
    void inbox_wake_up(inbox_word *word)
    void *inbox_refuse(inbox_word *word)
    bint inbox_is_left(const inbox_word *word)


cdef enum:
    # The number of handles after which an inbox is much used. A program whose loops live for a few
    # calls from other threads stays below it, so that each loop is freed with its last reference.
    MUCH_USED = 1000


@cython.final
cdef class Inbox:
    cdef inbox_word word
    cdef PyObject *taken        # taken out, but the ready queue has no memory for it; owned
    cdef Py_ssize_t received    # handles that the loop has taken

    cdef inline bint has_new(self) noexcept:
        return inbox_has_new(&self.word)

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
    cdef int _drop_all(self, void *newest) except -1
    cdef int _drop(self, PyObject *first, list dropped) except -1


cdef int traverse_inbox(Inbox inbox, visitproc visit, void *argument) noexcept
