"""Declarations of clock.h: the loop's clock."""

from libc.stdint cimport int64_t


cdef extern from "_kernel/clock.h" nogil:
    int64_t uring_clock_ns()
