"""Waits for the readiness of a descriptor that belongs to the user."""

from uringloop._ring.ring cimport Operation
from uringloop._turn.turn cimport LoopCore


cdef class PollOnce:
    # One call's waits for a descriptor's readiness, one after another.
    cdef LoopCore loop
    cdef int fd                 # the user's
    cdef object sock            # the socket of `fd`, kept open until the call has ended; or None
    cdef unsigned int mask
    cdef object future          # resolved with None when the descriptor is ready
    cdef Operation poll_op
    cdef bint finished
    cdef int epoll_fd           # ours, polled in place of `fd` after a half-close; or -1

    cdef int arm(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1
    cdef int wait_by_epoll(self) except -1
    cdef void close_epoll(self) noexcept
    cdef int wait_again(self) except -1
    cdef int keep_open(self, object sock) except -1
    cdef int release_socket(self) except -1
    cdef int finish(self) except -1


cdef PollOnce poll_once(LoopCore loop, int fd, unsigned int mask)
