"""Handles that are ready to run, in the order of their scheduling."""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from uringloop._cpython.pyapi cimport PyList_GET_ITEM_borrowed, PyList_SET_ITEM_stolen
from uringloop._kernel.atomics cimport count_size
from uringloop._turn.handles cimport Handle


@cython.final
cdef class ReadyQueue:
    cdef list items             # circular; None in an empty slot
    cdef Py_ssize_t head
    cdef Py_ssize_t count

    cdef inline int push(self, Handle handle) except -1:
        cdef Py_ssize_t capacity = PyList_GET_SIZE(self.items)
        if self.count == capacity:
            self.grow()
            capacity = PyList_GET_SIZE(self.items)
        Py_INCREF(handle)
        PyList_SET_ITEM_stolen(
            self.items, (self.head + self.count) & (capacity - 1), <PyObject*>handle)
        Py_DECREF(None)
        count_size(&self.count, 1)
        return 0

    cdef inline Handle pop(self):
        """Remove and return the oldest handle; the queue must not be empty."""
        cdef Handle handle = <Handle>PyList_GET_ITEM_borrowed(self.items, self.head)
        Py_INCREF(None)
        PyList_SET_ITEM_stolen(self.items, self.head, <PyObject*>None)
        # Drop the list's reference; `handle` holds its own.
        Py_DECREF(handle)
        self.head = (self.head + 1) & (PyList_GET_SIZE(self.items) - 1)
        count_size(&self.count, -1)
        return handle

    cdef int grow(self) except -1
    cdef int clear(self) except -1
