"""How a run begins and ends, and how a ring and a loop's use of the kernel's end."""

from uringloop._ring.ring cimport Ring


cdef bint take_over(Ring ring) except -1


cdef int settle(Ring ring) except -1


cdef int fall_over(Ring ring) except -1


cdef int drain(Ring ring) except -1
