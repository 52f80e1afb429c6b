"""The start and end of a run, the switch to the software ring, and the end of a ring."""

from uringloop._ring.ring cimport Ring


cdef bint take_over(Ring ring) except -1


cdef int end_run_operations(Ring ring) except -1


cdef int fall_back(Ring ring) except -1


cdef int drain(Ring ring) except -1
