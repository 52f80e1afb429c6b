"""Scheduled callbacks."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.pyapi cimport PyMutex, has_weak_references, is_only_reference, visitproc


# What a call of a callback has done.
cdef enum Outcome:
    RETURNED
    RAISED          # in its context, which is still entered
    NOT_ENTERED     # its context could not be entered


cdef class Handle:
    cdef object callback          # None once cancelled or forgotten
    cdef object args              # a tuple of arguments, or the only one; None like the callback
    # With two bytes and an int a ThreadSafeHandle has 128 bytes, a size that mimalloc does not pad.
    cdef unsigned char single     # `args` is the only argument: most calls have none or one
    cdef unsigned char is_running  # in run_unshared(), which needs the callback and the arguments
    cdef int is_cancelled         # by any thread
    # The contextvars.Context it runs in; None for one without variables that is made when needed.
    cdef object context
    # The loop that made it; None once forgotten, and in a build without a GIL, outside debug mode,
    # in a handle of call_soon_threadsafe.
    cdef object loop
    # The handle before this one in a chain, of an inbox or of dropped timers; owned by the chain.
    cdef PyObject *older
    cdef object source_traceback  # where it was made, in debug mode; else None
    cdef str cancelled_repr       # its repr while it had a callback, in debug mode; else None
    cdef object __weakref__

    cdef int run(self, object loop) except -1
    cdef object own_context(self)
    cdef int drop(self) except -1
    cdef int drop_locked(self) except -1
    cdef int drop_callback(self) except -1
    cdef tuple all_args(self)
    cdef object stock_handle(self)
    cdef str describe(self)
    cdef int _failed(
        self, object loop, object callback, object args, Outcome outcome) except -1


cdef class ThreadSafeHandle(Handle):
    cdef PyMutex mutex              # held while the callback runs: cancel() waits for its end
    cdef unsigned long holder       # the thread that holds the mutex, which may lock it again; or 0
    cdef int forget(self) except -1
    cdef bint lock(self) noexcept
    cdef void unlock(self) noexcept


cdef class TimerHandle(Handle):
    cdef double deadline            # seconds on the loop's clock
    cdef object given               # the deadline as the caller gave it, if not a float; else None
    cdef uint64_t sequence          # set by the heap; equal deadlines run in this order
    cdef Py_ssize_t *cancelled_count  # the heap's count of cancelled timers; NULL outside a heap
    cdef int64_t deadline_ns(self) noexcept
    cdef int cancel_locked(self) except -1


cdef inline bint is_unshared(PyObject *handle) noexcept:
    """Return whether nobody but the caller can reach *handle*, a Handle."""
    return is_only_reference(handle) and not has_weak_references(handle)


# Runs a handle that is unshared.
cdef int run_unshared(Handle handle, object loop) except -1


# Fills a handle without a callback, a new one or a spare one, and returns it; the functions of
# call_soon.pyx fill theirs themselves.
cdef Handle fill(Handle handle, object loop, object callback, tuple args, object context)


# Handles for call_soon_threadsafe, which have their own class since Python 3.14.
cdef Handle new_handle_for_threads()


# Visits a handle in a queue, or what it refers to; called for the queue's owner.
cdef int traverse_queued(PyObject *handle, visitproc visit, void *argument) noexcept


# tp_traverse of a timer in a heap, which is untracked; called for the heap's owner.
cdef int traverse_waiting(PyObject *timer, visitproc visit, void *argument) noexcept


cdef int64_t nanoseconds(double seconds) noexcept


cdef str format_handle(Handle handle)
