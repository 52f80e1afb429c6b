"""Deadlines, nearest first."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._core.handles cimport TimerHandle


cdef extern from *:
    """
    /* No timer: a deadline that none can have. */
    #define URINGLOOP_NO_DEADLINE INT64_MIN
    """
    const int64_t NO_DEADLINE "URINGLOOP_NO_DEADLINE"


cdef class TimerHeap:
    cdef list items         # a binary heap of TimerHandle; visible to the garbage collector
    cdef Py_ssize_t cancelled   # how many of them are cancelled; each handle counts itself
    cdef uint64_t sequence      # of the newest

    cdef int push(self, TimerHandle timer) except -1
    cdef TimerHandle pop(self)
    cdef int64_t next_deadline_ns(self) except? -1
    cdef int clear(self) except -1
    cdef Py_ssize_t length(self) noexcept
    cdef int _compact(self) except -1
