"""Timers, nearest deadline first."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from uringloop._cpython.pyapi cimport visitproc
from uringloop._turn.handles cimport TimerHandle
from uringloop._turn.spare_handles cimport SpareHandles


cdef extern from *:
    """
    /* The deadline of no timer; no timer can have it. */
    #define URINGLOOP_NO_DEADLINE INT64_MIN
    """
    const int64_t NO_DEADLINE "URINGLOOP_NO_DEADLINE"


cdef struct Entry:
    int64_t ns              # the deadline
    PyObject *timer         # a TimerHandle; the entry owns a reference


@cython.final
cdef class TimerHeap:
    cdef char *storage          # of the entries; freed by the destructor
    cdef Entry *entries         # in the heap's order; four children share a cache line
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef PyObject **due         # removed from the heap and not yet run, nearest first; owned
    cdef Py_ssize_t due_begin
    cdef Py_ssize_t due_end
    cdef Py_ssize_t due_capacity
    cdef Py_ssize_t cancelled   # cancelled timers in `entries` and `due`; each counts itself
    cdef uint64_t sequence      # of the newest timer
    cdef SpareHandles spare

    cdef bint is_sparse(self) noexcept
    cdef int push(self, TimerHandle timer) except -1
    cdef int64_t next_deadline_ns(self) except? -1
    cdef int expire(self, int64_t now_ns) except -1
    cdef PyObject *next_due(self) except? NULL
    cdef int clear(self) except -1
    cdef PyObject *_pop(self) noexcept
    cdef PyObject *compact(self) except? NULL
    cdef int _resize(self, Py_ssize_t capacity) except -1
    cdef int _grow_due(self) except -1
    cdef void _forget_due(self) noexcept
    cdef void _empty_due(self) noexcept
    cdef void _sift_up(self, Py_ssize_t index) noexcept
    cdef void _sift_down(self, Py_ssize_t index) noexcept


cdef int traverse_timers(TimerHeap heap, visitproc visit, void *argument) noexcept
