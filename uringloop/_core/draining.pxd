"""How a run, a ring and a loop's use of the kernel's ring end."""

from uringloop._core.ring cimport Ring


cdef int settle(Ring ring) except -1


cdef int fall_over(Ring ring) except -1


cdef int drain(Ring ring) except -1
