"""call_soon() and its relatives; what other modules need of them."""

from cpython.object cimport PyObject

from uringloop._turn.turn cimport LoopCore


cdef int schedule_with(
    LoopCore loop, object callback, object argument, object context) except -1


cdef bint is_context_only(PyObject *names) noexcept
