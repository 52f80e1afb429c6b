"""call_soon() and call_soon_threadsafe() by vectorcall."""

from cpython.object cimport PyObject

from uringloop._turn.turn cimport LoopCore


cdef object call_slowly(
    object method, object target, PyObject *const *call, Py_ssize_t size, PyObject *names)


cdef int schedule_with(
    LoopCore loop, object callback, object argument, object context) except -1


cdef bint is_context_only(PyObject *names) noexcept
