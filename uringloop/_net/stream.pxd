"""A TCP or UNIX stream connection."""

cimport cython
from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._ring.ring cimport Operation
from uringloop._transport.addresses cimport NearEnd
from uringloop._transport.writer cimport WriteTransport
from uringloop._turn.turn cimport LoopCore


# How a protocol takes bytes. The kinds from BUFFERED on have get_buffer().
cdef enum ProtocolKind:
    PLAIN           # data_received()
    STREAM_READER   # asyncio's StreamReaderProtocol: into its buffer, see stream_reader.pyx
    BUFFERED        # get_buffer() and buffer_updated()
    TLS             # records, without the buffer in between: see data_path.pyx


# How bytes are received.
cdef enum ReceiveMode:
    MULTISHOT       # into buffers of the pool, until it is cancelled
    SINGLE          # the same, one at a time
    POLL            # messages are large: poll, and receive by a call


@cython.final
cdef class StreamTransport(WriteTransport):
    # reading
    cdef ProtocolKind kind          # set with the protocol
    cdef ReceiveMode mode           # of the next receive
    cdef ReceiveMode armed_mode     # of the newest one that was armed
    cdef ReceiveMode ring_mode      # MULTISHOT or SINGLE: of messages that are not large
    cdef bint was_armed             # a receive has been before
    cdef bint emptied               # the newest receive left nothing in the socket
    cdef int average                # bytes of a receive, lately
    cdef bint tells_left            # the socket tells what it still has
    cdef bint readable              # it has told of bytes that are still in the socket
    cdef bint hung_up               # and of an end or an error behind them
    cdef bint read_scheduled        # a callback will fetch them
    cdef int room                   # bytes that the next call asks for

    # of an accepted IPv4 or IPv6 connection, for make_extra
    cdef NearEnd near               # None for every other
    cdef sockaddr_in6 peer          # or a sockaddr_in, or zeroes

    cdef int set_ring_mode(self, ReceiveMode mode) except -1
    cdef int on_recv(self, int res, unsigned int flags) except -1
    cdef int recv_ended(self, int res) except -1
    cdef int receive(self, int size, unsigned int flags) except -1
    cdef bytes absorb(self, const char *memory, int size)
    cdef int start_polling(self) except -1
    cdef int on_poll(self, int res, unsigned int flags) except -1
    cdef int read_directly(self) except -1
    cdef int read_some(self, int *left) except? -1
    cdef int read_bytes(self, int *left) except? -1
    cdef bint feed_reader(self, const char *memory, int size) except -1
    cdef int deliver(self, bytes data) except -1
    cdef int deliver_records(self, const char *data, Py_ssize_t size) except -1
    cdef int deliver_buffered(self, const char *data, Py_ssize_t size) except -1
    cdef int fill_protocol_buffer(
        self, const char *data, Py_ssize_t size, Py_ssize_t *taken) except -1
    cdef int end_reading(self, object item) except -1


cdef StreamTransport new_stream(object loop, object sock, object protocol, object peername)


cdef StreamTransport new_accepted(
    LoopCore loop, int fd, NearEnd near, const sockaddr_in6 *peer, unsigned int peer_size,
    object protocol)


cdef bint wants_nodelay(object sock) except -1
