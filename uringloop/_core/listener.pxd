"""The kernel's side of a server: one listening socket."""

from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.ring cimport Operation


cdef class Listener(Flushable):
    cdef LoopCore loop
    cdef object sock            # the listening socket; its fd is ours until close() has ended
    cdef int fd
    cdef object factory         # makes the protocol of a connection
    cdef object server          # counts the connections
    cdef object context         # that the server was started in; the factory runs in it
    cdef Operation accept_op    # multishot
    cdef bint closing
    cdef object retry           # the timer of a pause for want of descriptors; else None

    cdef int submit_accept(self) except -1
    cdef int on_accept(self, int res, unsigned int flags) except -1
    cdef int accept_ended(self, int res) except -1
    cdef int accepted(self, int fd) except -1
    cdef int out_of_resources(self, int res) except -1
    cdef int report(self, object exc, str message) except -1
