"""The kernel's side of a server: one listening socket."""

from uringloop._core.addresses cimport NearEnd
from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.ring cimport Operation
from uringloop._core.stream cimport StreamTransport
from uringloop._core.transport cimport Connections


cdef class Listener(Flushable):
    cdef LoopCore loop
    cdef object sock            # the listening socket; its fd is ours until close() has ended
    cdef int fd
    cdef object factory         # makes the protocol of a connection
    cdef Connections connections
    cdef NearEnd near           # of the connection accepted last; None for a UNIX socket
    cdef bint nodelay           # each connection is told TCP_NODELAY: it inherits none
    cdef object context         # that the server was started in; the factory runs in it
    cdef Operation accept_op    # multishot
    cdef bint closing
    cdef object retry           # the timer of a pause for want of descriptors; else None

    cdef int submit_accept(self) except -1
    cdef int on_accept(self, int res, unsigned int flags) except -1
    cdef int accept_ended(self, int res) except -1
    cdef int accepted(self, int fd) except -1
    cdef StreamTransport connection(self, int fd, object protocol)
    cdef NearEnd near_end(self, int fd)
    cdef int drop(self, int fd, StreamTransport transport) except -1
    cdef int out_of_resources(self, int res) except -1
    cdef int report(self, object exc, str message) except -1
