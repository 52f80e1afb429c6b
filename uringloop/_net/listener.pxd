"""The kernel's side of a server: its listening sockets."""

from libc.stdint cimport int64_t

from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._net.stream cimport StreamTransport
from uringloop._ring.ring cimport Operation
from uringloop._transport.addresses cimport NearEnd
from uringloop._transport.transport cimport Connections
from uringloop._turn.turn cimport Flushable, LoopCore


cdef class Listener(Flushable):
    cdef LoopCore loop
    cdef object sock            # the listening socket; its fd is ours until close() has ended
    cdef int fd
    cdef object inode           # of the socket, whichever descriptor it has
    cdef object factory         # makes the protocol of a connection
    cdef Connections connections
    cdef NearEnd near           # of the connection accepted last; None for a UNIX socket
    cdef bint one_name          # all connections have the name that `near` has
    cdef bint nodelay           # each connection is told TCP_NODELAY: it may have inherited none
    cdef object context         # that the server was started in; the factory runs in it
    cdef Operation poll_op      # multishot
    cdef bint closing
    cdef unsigned int forks     # of this process, when the socket was made: it was ours alone
    cdef int64_t asked_ns       # when it was asked last whether others accept from the socket
    cdef bint shared            # with other processes: SharedListeners wait for it, and no poll
    cdef bint stopped           # the socket takes no connections any more, whoever has done that
    cdef object retry           # the timer of a pause for want of descriptors; else None

    cdef int submit_poll(self) except -1
    cdef bint share(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1
    cdef bint may_be_shared(self) except -1
    cdef bint is_alone(self) except -1
    cdef int poll_ended(self, int res) except -1
    cdef int accept_waiting(self, int most) except -1
    cdef bint accepts(self) noexcept
    cdef bint accept_failed(self, int res) except -1
    cdef int stop(self, int res) except -1
    cdef int leave(self) except -1
    cdef int accepted(self, int fd, const sockaddr_in6 *peer, unsigned int size) except -1
    cdef StreamTransport connection(
        self, int fd, const sockaddr_in6 *peer, unsigned int size, object protocol)
    cdef NearEnd near_end(self, int fd)
    cdef int drop(self, int fd, StreamTransport transport) except -1
    cdef int out_of_resources(self, int res) except -1
    cdef int report(self, object exc, str message) except -1


cdef class SharedListeners(Flushable):
    cdef LoopCore loop
    cdef dict listeners         # Listener by descriptor
    cdef int full               # looks in a row that found as many connections as they may take
    cdef bint company           # others accept from one of the sockets, too: seen at `asked_ns`
    cdef int64_t asked_ns
    cdef int64_t yielded_ns     # when it gave the processor up for others the last time
    cdef int64_t looked_ns      # when the newest look without a knock was
    cdef int64_t searched_ns    # when the newest search for connections of others was

    cdef int add(self, Listener listener) except -2
    cdef int open_doors(self) except -2
    cdef int remove(self, Listener listener) except -1
    cdef int close_if_empty(self) except -1
    cdef int search(self) except -1
    cdef int accept_knocked(self) except -1
    cdef bint has_company(self) except -1
    cdef int go_away(self) except -1
    cdef int come_back(self) except -1
    cdef int dissolve(self) except -1
