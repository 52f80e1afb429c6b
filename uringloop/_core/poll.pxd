"""Readiness of descriptors that belong to the user."""

from uringloop._core.handles cimport Handle
from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.ring cimport Operation


cdef class PollWatcher(Flushable):
    # One direction of one descriptor of add_reader or add_writer.
    cdef LoopCore loop
    cdef int fd                 # the user's
    cdef readonly object file   # what add_reader was given: the number, or what has one
    cdef unsigned int mask      # POLLIN or POLLOUT
    cdef Handle handle          # what to run; replaced at will
    cdef Operation poll_op      # one-shot: level-triggered by arming it again
    cdef bint removed

    cdef int arm(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1


cdef class PollOnce:
    # One wait for readiness, for a socket operation.
    cdef LoopCore loop
    cdef int fd                 # the user's
    cdef unsigned int mask
    cdef object future          # resolved with None when the descriptor is ready
    cdef Operation poll_op
    cdef bint finished

    cdef int arm(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1
    cdef int finish(self) except -1


cdef PollOnce poll_once(LoopCore loop, int fd, unsigned int mask)
