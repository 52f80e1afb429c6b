"""The order of a file's calls, and the time of files in the loop's turn."""

from libc.stdint cimport int64_t


cdef class CallLock:
    cdef readonly bint locked       # a call holds the lock
    cdef object waiting             # a deque of the futures of later calls, or None
    cdef int64_t until              # under other loops: when calls must wait for the next turn

    cdef bint is_spent(self) except -1
