"""A run of a loop within a callback of the same loop."""

from cpython.object cimport PyObject

from uringloop._turn.turn cimport LoopCore


cdef extern from "Python.h":
    # The context that was entered last, or NULL; PyContext_Exit() accepts only this one.
    ctypedef struct PyThreadState:
        PyObject *context
    PyThreadState *PyThreadState_Get()


cdef int leave_contexts(list left) except -1
cdef int enter_contexts(list left) except -1
cdef int arm_receives(LoopCore loop) except -1
