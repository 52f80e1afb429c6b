"""How a ring ends."""

from uringloop._core.ring cimport Ring


cdef int drain(Ring ring) except -1
