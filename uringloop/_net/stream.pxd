"""A TCP or UNIX stream connection."""

cimport cython
from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._ring.ring cimport Operation
from uringloop._turn.addresses cimport LocalEnd
from uringloop._transport.writer cimport WriteTransport
from uringloop._turn.turn cimport LoopCore


# How bytes are received.
cdef enum ReceiveMode:
    MULTISHOT       # into buffers of the pool, until it is cancelled
    SINGLE          # into a buffer of the pool, one receive at a time
    POLL            # messages are large: poll, then recv(2) into the protocol's object


# Whether a poll watches for the peer's end; the drawing is in stream.pyx.
cdef enum EndWatch:
    NOT_WATCHED     # the receive reports the end, or has
    WANTED          # end_op is armed when the transport opens
    WATCHING        # end_op is in flight


@cython.final
cdef class StreamTransport(WriteTransport):
    # reading
    cdef ReceiveMode mode           # of the next receive
    cdef ReceiveMode armed_mode     # of the newest receive that was armed
    cdef ReceiveMode ring_mode      # the mode while messages are not large: MULTISHOT or SINGLE
    cdef bint was_armed             # a receive has been armed, so the next one is a re-arm
    cdef bint emptied               # the newest receive left nothing in the socket
    cdef int average                # bytes of a receive, a moving average

    # the end of a UNIX peer
    cdef Operation *end_op          # a one-shot poll, or NULL; freed with the transport
    cdef EndWatch end_watch

    # reading in the mode POLL
    cdef bint reports_inq           # recv(2) returns how many bytes are left in the socket
    cdef bint readable              # the poll has reported bytes that are still in the socket
    cdef bint hung_up               # the poll has reported EOF or an error behind these bytes
    cdef bint read_scheduled        # _read_on is in the ready queue
    cdef int room                   # bytes that the next recv(2) asks for

    # of an accepted IPv4 or IPv6 connection, for make_extra
    cdef LocalEnd local_end         # None for every other connection
    cdef sockaddr_in6 peer          # or a sockaddr_in, or zeroes

    cdef int set_ring_mode(self, ReceiveMode mode) except -1
    cdef int receive_unix(self) except -1
    cdef int watch_end(self) except -1
    cdef int on_end(self, int res) except -1
    cdef int receive_singly(self) except -1
    cdef int unwatch_end(self) except -1
    cdef int on_recv(self, int res, unsigned int flags) except -1
    cdef int receive(self, int size, unsigned int flags) except -1
    cdef int start_polling(self) except -1
    cdef int on_poll(self, int res) except -1
    cdef int read_ready(self) except -1
    cdef int read_directly(self) except -1
    cdef int read_some(self, int *left) except? -1
    cdef int read_bytes(self, int *left) except? -1
    cdef int read_into_buffer(self, int *left) except? -1
    cdef int end_reading(self, object item) except -1


cdef StreamTransport new_stream(object loop, object sock, object protocol, object peername)


cdef StreamTransport new_accepted(
    LoopCore loop, int fd, LocalEnd local_end, const sockaddr_in6 *peer, unsigned int peer_size,
    object protocol)


cdef bint wants_nodelay(object sock) except -1
