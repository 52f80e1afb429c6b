"""Handles that are used again."""

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport Py_DECREF_owned, is_only_reference
from uringloop._turn.handles cimport Handle


cdef enum:
    # A turn of a busy loop runs some hundred callbacks, in the order in which they were made.
    # Timers run in any order: many spare ones, here and there in memory, would keep it from being
    # given back.
    HANDLES_MAX = 1024
    TIMERS_MAX = 256


@cython.final
cdef class SpareHandles:
    cdef PyObject *handle_class     # of all; never freed
    cdef int room
    cdef int count
    cdef PyObject *items[HANDLES_MAX]   # owned

    cdef inline Handle take(self):
        """Return a handle without a callback that nobody else refers to; None if there is none."""
        cdef PyObject *spare
        while self.count:
            self.count -= 1
            spare = self.items[self.count]
            handle = <Handle>spare
            Py_DECREF_owned(spare)
            # A debugger may have found it, and without a GIL it may be of a former thread.
            if is_only_reference(spare):
                handle.is_cancelled = False
                return handle
        return None

    cdef int give(self, PyObject *handle) except -1
    cdef int give_chain(self, PyObject *newest) except -1
    cdef void clear(self) noexcept


cdef SpareHandles new_spare_handles()
cdef SpareHandles new_spare_timers()


cdef int drop_chain(PyObject *newest) except -1
