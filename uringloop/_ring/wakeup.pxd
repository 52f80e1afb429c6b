"""The wake-up that ends a loop's sleep from outside."""

from uringloop._ring.ring cimport Operation, Ring


cdef class WakeUp:
    cdef Ring ring
    cdef int fd                 # polled for reading, owned by the loop; never read here
    cdef Operation poll_op      # multishot
    cdef object on_wake         # called for every wake-up, or None; must not reference the loop

    cdef int arm(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1
