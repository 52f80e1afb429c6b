"""Handles that are ready to run, in the order of their scheduling."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from uringloop._cpython.pyapi cimport prefetch, visitproc
from uringloop._kernel.atomics cimport count_size
from uringloop._turn.handles cimport Handle
from uringloop._turn.spare_handles cimport SpareHandles


# A handle is prefetched when this many others come before it, because the memory of a handle from
# another thread is not in this processor's cache.
cdef enum:
    AHEAD = 4
    # The capacity at first, a power of two; it grows by doubling.
    AT_START = 64
    # The queue keeps room for so many handles: a turn of a busy loop runs some hundred.
    KEPT = 4096


@cython.final
cdef class ReadyQueue:
    cdef PyObject **items       # circular; owns `count` handles from `head` on
    cdef Py_ssize_t capacity    # a power of two
    cdef Py_ssize_t head
    cdef Py_ssize_t count
    cdef SpareHandles spare

    cdef inline PyObject **place(self, Py_ssize_t index) noexcept:
        """Return the place of the handle that has *index* others before it."""
        return &self.items[(self.head + index) & (self.capacity - 1)]

    cdef inline int push(self, Handle handle) except -1:
        if self.count == self.capacity:
            self.resize(self.count, 2 * self.capacity or AT_START)
        Py_INCREF(handle)
        self.place(self.count)[0] = <PyObject*>handle
        count_size(&self.count, 1)
        return 0

    cdef inline PyObject *pop(self) noexcept:
        """Remove the oldest handle, which the caller then owns; the queue must not be empty."""
        cdef PyObject *handle = self.items[self.head]
        self.head = (self.head + 1) & (self.capacity - 1)
        count_size(&self.count, -1)
        if self.count > AHEAD:
            prefetch(self.place(AHEAD)[0])
        return handle

    cdef int push_chain(self, PyObject *newest) except -1
    cdef int resize(self, Py_ssize_t used, Py_ssize_t capacity) except -1
    cdef inline int shrink(self) except -1:
        """Give memory back if three quarters are empty."""
        if self.capacity > KEPT and 4 * self.count < self.capacity:
            return self.give_back_memory()
        return 0
    cdef int give_back_memory(self) except -1
    cdef int clear(self) except -1


cdef int traverse_ready(ReadyQueue ready, visitproc visit, void *argument) noexcept
