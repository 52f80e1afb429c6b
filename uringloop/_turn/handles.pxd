"""Callbacks that wait for their turn."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.pyapi cimport visitproc


cdef class Handle:
    cdef object callback          # None once cancelled
    cdef object args              # of the call, a tuple, or its only argument; None once cancelled
    cdef bint single              # `args` is the only argument: most calls have none or one
    cdef object context           # the contextvars.Context it runs in
    cdef object loop              # the loop that made it, for reports
    cdef bint is_cancelled
    cdef object source_traceback  # where it was made, in debug mode; else None
    cdef str cancelled_repr       # what it was, in debug mode; else None
    cdef object __weakref__

    cdef int run(self) except -1
    cdef int drop(self) except -1
    cdef tuple all_args(self)
    cdef object twin(self)
    cdef str describe(self)
    cdef int _failed(self, object callback, object args, bint entered) except -1


cdef class ThreadSafeHandle(Handle):
    cdef object lock                # held while the callback is called: whoever cancels it waits


cdef class TimerHandle(Handle):
    cdef double deadline            # seconds on the loop's clock
    cdef object given               # the deadline as the caller gave it, if that is no float
    cdef uint64_t sequence          # grows with each timer that its heap is given
    cdef Py_ssize_t *tally          # the heap's count of cancelled timers; NULL outside a heap
    cdef int64_t deadline_ns(self) noexcept


cdef Handle new_handle(object loop, object callback, tuple args, object context)
cdef Handle new_handle_for_threads(
    object loop, object callback, tuple args, object context)
cdef Handle new_handle_of(
    object loop, PyObject *const *call, Py_ssize_t size, PyObject *context)
cdef TimerHandle new_timer(
    object loop, object when, object callback, tuple args, object context)


# What the garbage collector is to know of a timer that waits; for who owns it.
cdef int traverse_waiting(PyObject *timer, visitproc visit, void *argument) noexcept


cdef int64_t nanoseconds(double seconds) noexcept


cdef str format_handle(Handle handle)
