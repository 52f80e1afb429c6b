"""A run of a loop within a callback of the same loop."""

from cpython.object cimport PyObject

from uringloop._turn.turn cimport LoopCore


cdef extern from "Python.h":
    # The context that is entered last; NULL for none. PyContext_Exit wants it by its name.
    ctypedef struct PyThreadState:
        PyObject *context
    PyThreadState *PyThreadState_Get()


cdef int leave_contexts(list left) except -1
cdef int enter_contexts(list left) except -1
cdef int resume_transports(LoopCore loop) except -1
