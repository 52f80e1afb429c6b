"""The kernel's side of a server: a listening socket, from which the loop accepts."""

from uringloop._kernel.addresses cimport LocalEnd
from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._net.shared_listeners cimport ListeningSocket, SharedListeners
from uringloop._net.stream_transport cimport StreamTransport
from uringloop._transport.transport cimport Connections


# The drawing is in listener.pyx.
cdef enum ListenerState:
    ACCEPTING
    PAUSED          # accept4(2) keeps failing, for want of descriptors, say; `retry` ends the pause
    HELD            # by the server, which is at its limit or paused
    STOPPED         # accept4(2) or the poll has failed for good; the socket is not closed
    CLOSED          # by close(); the socket is closed when the poll has ended


cdef class Listener(ListeningSocket):
    cdef object sock            # the listening socket; its fd is ours until close() has ended
    cdef object factory         # returns the protocol of a connection
    cdef Connections connections
    cdef LocalEnd newest_end    # of the newest connection; None for a UNIX socket
    cdef bint has_one_address   # all connections have the local address of `newest_end`
    cdef bint nodelay           # TCP_NODELAY is set for each connection: not all have inherited it
    cdef object context         # in which the server was started; the factory runs in it
    cdef ListenerState state
    cdef object retry           # the timer of PAUSED; else None
    cdef int failures           # of accept4(2) in a row
    cdef list given             # connections that give() has added: sockets, and what refuses them

    cdef bint share(self) except -1
    cdef SharedListeners shared_listeners(self)
    cdef int on_poll(self, int res, unsigned int flags) except -1
    cdef bint is_alone(self) except -1
    cdef int poll_ended(self, int res) except -1
    cdef int accept(self, sockaddr_in6 *peer, unsigned int *size) noexcept
    cdef bint accepts(self) noexcept
    cdef bint accept_failed(self, int res) except -1
    cdef int stop(self, int res) except -1
    cdef int stop_waiting(self) except -1
    cdef int begin_connection(
        self, int fd, const sockaddr_in6 *peer, unsigned int size, object sock) except -1
    cdef StreamTransport new_transport(
        self, int fd, const sockaddr_in6 *peer, unsigned int size, object protocol)
    cdef LocalEnd local_end(self, int fd)
    cdef int pause(self, int res) except -1
    cdef int cancel_retry(self) except -1
    cdef int report(self, object exc, str message) except -1
