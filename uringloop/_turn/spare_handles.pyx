"""Spare handles, kept for reuse. Each loop has lists of them, which only its thread uses.

Most handles are known to the loop only, because programs and futures drop what call_soon() returns.
When such a handle has run, it is given here with its last reference, so no program sees it change,
and the next call takes it.
"""

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    PyObject_GC_IsTracked,
    PyObject_GC_Track,
    PyObject_IS_GC,
    Py_DECREF_owned,
    is_only_reference,
)
from uringloop._turn.handles cimport Handle, TimerHandle


@cython.final
cdef class SpareHandles:

    def __dealloc__(self):
        self.clear()

    cdef int give_chain(self, PyObject *newest) except -1:
        """Do what `give` does with each handle of a chain."""
        cdef PyObject *handle
        while newest != NULL:
            handle = newest
            newest = (<Handle>handle).older
            self.give(handle)
        return 0

    cdef void clear(self) noexcept:
        while self.count:
            self.count -= 1
            Py_DECREF_owned(self.items[self.count])


cdef SpareHandles new_spare_handles():
    return made(<PyObject*>Handle, HANDLES_MAX)


cdef SpareHandles new_spare_timers():
    return made(<PyObject*>TimerHandle, TIMERS_MAX)


cdef SpareHandles made(PyObject *handle_class, int room):
    cdef SpareHandles spare = SpareHandles.__new__(SpareHandles)
    spare.handle_class = handle_class
    spare.room = room
    return spare


cdef int drop(PyObject *handle) except -1:
    """Drop a reference; if others remain, make the garbage collector track the handle."""
    if (not is_only_reference(handle) and PyObject_IS_GC(handle)
            and not PyObject_GC_IsTracked(handle)):
        PyObject_GC_Track(<object>handle)
    Py_DECREF_owned(handle)
    return 0


cdef int drop_chain(PyObject *newest) except -1:
    """Drop the reference to each handle of a chain."""
    cdef PyObject *handle
    while newest != NULL:
        handle = newest
        newest = (<Handle>handle).older
        drop(handle)
    return 0
