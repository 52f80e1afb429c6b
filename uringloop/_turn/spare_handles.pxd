"""Handles that are used again."""

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport Py_DECREF_owned, is_only_reference, type_of
from uringloop._turn.handles cimport Handle, TimerHandle, is_unshared


cdef extern from *:
    # The result takes over the reference without counting, because Cython owns what C returns.
    Handle owned_handle "(void *)" (PyObject *reference)
    TimerHandle owned_timer "(void *)" (PyObject *reference)


cdef enum:
    # A turn of a busy loop runs some hundred callbacks, in the order in which they were made.
    # Timers run in any order: many spare ones, scattered in memory, would keep that memory from
    # being given back.
    HANDLES_MAX = 1024
    TIMERS_MAX = 256


@cython.final
cdef class SpareHandles:
    cdef PyObject *handle_class     # of all; never freed
    cdef int room
    cdef int count
    cdef PyObject *items[HANDLES_MAX]   # owned

    cdef inline PyObject *take(self) noexcept:
        """Return a handle without a callback, which the caller then owns; NULL if there is none."""
        cdef PyObject *spare
        while self.count:
            self.count -= 1
            spare = self.items[self.count]
            # A debugger may have found the handle; without a GIL, a former thread may have made it.
            if is_only_reference(spare):
                (<Handle>spare).is_cancelled = False
                return spare
            Py_DECREF_owned(spare)
        return NULL

    cdef inline int give(self, PyObject *handle) except -1:
        """Take over a reference to a handle that has run or was cancelled, and keep or drop it."""
        if (self.count < self.room and type_of(handle) == self.handle_class
                and is_unshared(handle)):
            forget(<Handle>handle)
            if self.handle_class == <PyObject*>TimerHandle:
                (<TimerHandle>handle).given = None
            # Destructors of what forget() has dropped may have filled the list.
            if self.count < self.room:
                self.items[self.count] = handle
                self.count += 1
                return 0
        return drop(handle)

    cdef int give_chain(self, PyObject *newest) except -1
    cdef void clear(self) noexcept


cdef inline int forget(Handle handle) except -1:
    """Give *handle* the values of a new one."""
    handle.callback = None
    handle.args = None
    handle.single = False
    handle.context = None
    handle.loop = None
    handle.older = NULL
    if handle.source_traceback is not None:
        handle.source_traceback = None
    if handle.cancelled_repr is not None:
        handle.cancelled_repr = None
    return 0


cdef SpareHandles new_spare_handles()
cdef SpareHandles new_spare_timers()


# Drops a reference. If others remain, makes the garbage collector track the handle.
cdef int drop(PyObject *handle) except -1


cdef int drop_chain(PyObject *newest) except -1
