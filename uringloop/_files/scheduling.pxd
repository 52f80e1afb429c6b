"""Whose turn it is: the order of a file's calls, and the time of files in the loop's turn."""

from libc.stdint cimport int64_t


cdef class Turns:
    cdef readonly bint taken        # by a call that uses the file
    cdef object waiting             # a deque of Futures, of the calls that come after it
    cdef int64_t until              # under other loops: until when files go on without a turn

    cdef bint is_spent(self) except -1
