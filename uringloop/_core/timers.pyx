"""Deadlines, nearest first: a binary heap with lazy cancellation.

A cancelled timer stays until it comes to the top or until more than half of a large heap is
cancelled, as asyncio does it: cancelling costs nothing, which is what timeouts need. The kernel
gets no timer per deadline, the wait carries the nearest one.
"""

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from uringloop._core.handles cimport TimerHandle
from uringloop._core.pyapi cimport PyList_GET_ITEM_borrowed, PyList_SET_ITEM_stolen


# asyncio's own numbers: compact a heap of more than 100 timers when half of them are cancelled.
COMPACT_ABOVE = 100


cdef inline bint before(PyObject *left, PyObject *right) noexcept:
    if (<TimerHandle>left).deadline_ns != (<TimerHandle>right).deadline_ns:
        return (<TimerHandle>left).deadline_ns < (<TimerHandle>right).deadline_ns
    return (<TimerHandle>left).sequence < (<TimerHandle>right).sequence


# The items move inside the list without touching their reference counts.
cdef void sift_up(list items, Py_ssize_t index) noexcept:
    cdef PyObject *moving = PyList_GET_ITEM_borrowed(items, index)
    cdef PyObject *parent
    cdef Py_ssize_t above
    while index > 0:
        above = (index - 1) >> 1
        parent = PyList_GET_ITEM_borrowed(items, above)
        if not before(moving, parent):
            break
        PyList_SET_ITEM_stolen(items, index, parent)
        index = above
    PyList_SET_ITEM_stolen(items, index, moving)


cdef void sift_down(list items, Py_ssize_t index) noexcept:
    cdef Py_ssize_t count = PyList_GET_SIZE(items)
    cdef PyObject *moving = PyList_GET_ITEM_borrowed(items, index)
    cdef PyObject *child
    cdef Py_ssize_t below = 2 * index + 1
    while below < count:
        child = PyList_GET_ITEM_borrowed(items, below)
        if below + 1 < count and before(PyList_GET_ITEM_borrowed(items, below + 1), child):
            below += 1
            child = PyList_GET_ITEM_borrowed(items, below)
        if not before(child, moving):
            break
        PyList_SET_ITEM_stolen(items, index, child)
        index = below
        below = 2 * index + 1
    PyList_SET_ITEM_stolen(items, index, moving)


cdef class TimerHeap:

    def __cinit__(self):
        self.items = []

    cdef int push(self, TimerHandle timer) except -1:
        if self.cancelled > COMPACT_ABOVE and 2 * self.cancelled > PyList_GET_SIZE(self.items):
            self._compact()
        self.sequence += 1
        timer.sequence = self.sequence
        timer.tally = &self.cancelled
        self.items.append(timer)
        sift_up(self.items, PyList_GET_SIZE(self.items) - 1)
        return 0

    cdef TimerHandle pop(self):
        """Remove and return the nearest timer; the heap must not be empty."""
        cdef TimerHandle nearest, last
        last = <TimerHandle>self.items.pop()
        if PyList_GET_SIZE(self.items) == 0:
            nearest = last
        else:
            nearest = <TimerHandle>self.items[0]
            self.items[0] = last
            sift_down(self.items, 0)
        nearest.tally = NULL
        if nearest.is_cancelled:
            self.cancelled -= 1
        return nearest

    cdef int64_t next_deadline_ns(self) except? -1:
        """Return the nearest deadline or NO_DEADLINE, dropping cancelled timers on top."""
        cdef TimerHandle nearest
        while PyList_GET_SIZE(self.items):
            nearest = <TimerHandle>PyList_GET_ITEM_borrowed(self.items, 0)
            if not nearest.is_cancelled:
                return nearest.deadline_ns
            self.pop()
        return NO_DEADLINE

    cdef Py_ssize_t length(self) noexcept:
        return PyList_GET_SIZE(self.items)

    cdef int _compact(self) except -1:
        cdef Py_ssize_t index
        cdef TimerHandle timer
        cdef list kept = []
        for timer in self.items:
            if timer.is_cancelled:
                timer.tally = NULL
            else:
                kept.append(timer)
        self.items = kept
        self.cancelled = 0
        index = (PyList_GET_SIZE(kept) >> 1) - 1
        while index >= 0:
            sift_down(kept, index)
            index -= 1
        return 0

    cdef int clear(self) except -1:
        cdef TimerHandle timer
        for timer in self.items:
            timer.tally = NULL
        self.items = []
        self.cancelled = 0
        return 0
