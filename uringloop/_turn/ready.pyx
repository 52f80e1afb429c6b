"""Handles that are ready to run: a circular queue. Push and pop are inline, in the .pxd.

Only the loop's thread pushes and pops. Other threads use the inbox. With a GIL they may also push,
as a program does that calls call_soon() from a wrong thread.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from uringloop._cpython.pyapi cimport Py_DECREF_owned, prefetch
from uringloop._kernel.atomics cimport store_size
from uringloop._turn.handles cimport traverse_queued
from uringloop._turn.spare_handles cimport new_spare_handles


cdef enum:
    # Going through so many handles takes as long as a read from memory; with 4, two thirds as much
    # of that time was hidden as with 16.
    HANDLES_AHEAD = 16


@cython.final
cdef class ReadyQueue:

    def __cinit__(self):
        self.spare = new_spare_handles()

    def __dealloc__(self):
        self.clear()
        PyMem_Free(self.items)

    cdef int push_chain(self, PyObject *newest) except -1:
        """Append a chain of handles, which the queue then owns: *newest*, linked to older ones.

        A MemoryError leaves the chain and the queue as they were.
        """
        cdef Py_ssize_t begin = self.count
        cdef Py_ssize_t end = begin
        cdef PyObject *handle = newest
        while handle != NULL:
            if end == self.capacity:
                self.resize(end, 2 * self.capacity or AT_START)
            self.place(end)[0] = handle
            end += 1
            prefetch_ahead(handle, (<Handle>handle).older)
            handle = (<Handle>handle).older
        store_size(&self.count, end)
        # Reverse the chain, so that the oldest comes first.
        while begin < end - 1:
            end -= 1
            swap(self.place(begin), self.place(end))
            begin += 1
        return 0

    cdef int resize(self, Py_ssize_t used, Py_ssize_t capacity) except -1:
        """Set the capacity, and keep the first *used* items."""
        cdef PyObject **items = <PyObject**>PyMem_Malloc(capacity * sizeof(PyObject*))
        cdef Py_ssize_t index
        if items == NULL:
            raise MemoryError
        for index in range(used):
            items[index] = self.place(index)[0]
        PyMem_Free(self.items)
        self.items = items
        self.capacity = capacity
        self.head = 0
        return 0

    cdef int give_back_memory(self) except -1:
        """Halve the capacity: the queue is nearly empty, after a burst of callbacks."""
        try:
            self.resize(self.count, self.capacity // 2)
        except MemoryError:
            # The queue keeps the memory that it has.
            return 0
        if self.capacity == KEPT:
            # Drop the burst's handles: each keeps the memory around it from being given back.
            self.spare.clear()
        return 0

    cdef int clear(self) except -1:
        # Destructors may run code that schedules callbacks: each finds a queue that is in order.
        while self.count:
            Py_DECREF_owned(self.pop())
        return 0


cdef inline void prefetch_ahead(PyObject *handle, PyObject *older) noexcept:
    """Load a handle that comes later in a chain into the processor's cache, by a guess.

    Each handle was written by another processor, and only the one before it tells where it lies.
    Those that one thread has made often lie at equal distances; a wrong address does no harm.
    """
    cdef uintptr_t distance = <uintptr_t>older - <uintptr_t>handle
    if older != NULL:
        prefetch(<PyObject*>(<uintptr_t>older + HANDLES_AHEAD * distance))


cdef inline void swap(PyObject **one, PyObject **other) noexcept:
    cdef PyObject *handle = one[0]
    one[0] = other[0]
    other[0] = handle


cdef int traverse_ready(ReadyQueue ready, visitproc visit, void *argument) noexcept:
    """Visit the handles, for the garbage collector."""
    cdef Py_ssize_t index
    if ready is None:
        return 0
    for index in range(ready.count):
        if traverse_queued(ready.place(index)[0], visit, argument):
            return 1
    return 0
