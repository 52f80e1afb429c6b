"""Deadlines, nearest first."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._core.handles cimport TimerHandle


cdef extern from *:
    """
    /* No timer: a deadline that none can have. */
    #define URINGLOOP_NO_DEADLINE INT64_MIN
    """
    const int64_t NO_DEADLINE "URINGLOOP_NO_DEADLINE"


cdef struct Deadline:
    int64_t ns
    uint64_t sequence       # equal deadlines run in the order of their making


cdef class TimerHeap:
    cdef list items         # of TimerHandle, in the heap's order; the garbage collector sees them
    cdef Deadline *deadlines    # those of the items, by the same index; freed by the destructor
    cdef Py_ssize_t capacity    # how many deadlines there is room for
    cdef Py_ssize_t cancelled   # how many of them are cancelled; each handle counts itself
    cdef uint64_t sequence      # of the newest

    cdef int push(self, TimerHandle timer) except -1
    cdef TimerHandle pop(self)
    cdef int64_t next_deadline_ns(self) except? -1
    cdef int clear(self) except -1
    cdef Py_ssize_t length(self) noexcept
    cdef int _compact(self) except -1
    cdef int _grow(self) except -1
    cdef void _sift_up(self, Py_ssize_t index) noexcept
    cdef void _sift_down(self, Py_ssize_t index) noexcept
    cdef void _move(self, Py_ssize_t to, Py_ssize_t index) noexcept
