"""Scheduled callbacks."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.pyapi cimport PyMutex, visitproc


cdef class Handle:
    cdef object callback          # None once cancelled or forgotten
    cdef object args              # a tuple of arguments, or the only one; None like the callback
    cdef bint single              # `args` is the only argument: most calls have none or one
    cdef int is_cancelled         # by any thread
    # The contextvars.Context it runs in; None for one without variables that is made when needed.
    cdef object context
    cdef object loop              # the loop that made it, for reports; None once forgotten
    cdef PyObject *older          # in an inbox: the handle that was put before; owned by the inbox
    cdef object source_traceback  # where it was made, in debug mode; else None
    cdef str cancelled_repr       # its repr while it had a callback, in debug mode; else None
    cdef object __weakref__

    cdef int run(self) except -1
    cdef object own_context(self)
    cdef int drop(self) except -1
    cdef int drop_locked(self) except -1
    cdef tuple all_args(self)
    cdef object stock_handle(self)
    cdef str describe(self)
    cdef int _failed(self, object callback, object args, bint entered) except -1


cdef class ThreadSafeHandle(Handle):
    cdef PyMutex mutex              # held while the callback runs: cancel() waits for its end
    cdef unsigned long holder       # the thread that holds the mutex, which may lock it again; or 0
    cdef int forget(self) except -1
    cdef bint lock(self) noexcept
    cdef void unlock(self, bint locked) noexcept


cdef class TimerHandle(Handle):
    cdef double deadline            # seconds on the loop's clock
    cdef object given               # the deadline as the caller gave it, if not a float; else None
    cdef uint64_t sequence          # set by the heap; equal deadlines run in this order
    cdef Py_ssize_t *cancelled_count  # the heap's count of cancelled timers; NULL outside a heap
    cdef int64_t deadline_ns(self) noexcept
    cdef int cancel_locked(self) except -1


cdef Handle new_handle(object loop, object callback, tuple args, object context)
cdef Handle new_handle_for_threads(
    object loop, object callback, tuple args, object context)
cdef Handle new_handle_of(
    object loop, PyObject *const *call, Py_ssize_t size, PyObject *context, bint for_threads)
cdef TimerHandle new_timer(
    object loop, object when, object callback, tuple args, object context)


# Visits a handle in a queue, or what it refers to; called for the queue's owner.
cdef int traverse_queued(PyObject *handle, visitproc visit, void *argument) noexcept


# tp_traverse of a timer in a heap, which is untracked; called for the heap's owner.
cdef int traverse_waiting(PyObject *timer, visitproc visit, void *argument) noexcept


cdef int64_t nanoseconds(double seconds) noexcept


cdef str format_handle(Handle handle)
