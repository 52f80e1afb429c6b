"""A TCP or UNIX stream connection."""

cimport cython
from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._ring.ring cimport Operation
from uringloop._transport.addresses cimport NearEnd
from uringloop._transport.writer cimport WriteTransport
from uringloop._turn.turn cimport LoopCore


@cython.final
cdef class StreamTransport(WriteTransport):
    # reading
    cdef Operation recv_op          # owns nothing: the kernel writes to the pool's buffers
    cdef bint buffered              # the protocol is a BufferedProtocol
    cdef bint secure                # it is TLS, see data_path.pyx
    cdef bint fed                   # it is asyncio's StreamReaderProtocol, see stream_reader.pyx
    cdef bint cancelling            # a cancel of recv_op is on its way
    cdef bint emptied               # the newest receive left nothing in the socket
    cdef bint single_shot           # receives are armed one by one
    cdef bint starving              # waits for receive buffers
    cdef bint read_ended            # the peer's FIN was seen, or reading failed
    cdef int average                # bytes of a receive, lately
    cdef bint polled                # they are many: poll, and receive by a call
    cdef bint armed                 # a receive was, before the one in flight
    cdef bint polling               # what is in flight is such a poll
    cdef bint tells_left            # the socket tells what it still has
    cdef bint readable              # it has told of bytes that are still in the socket
    cdef bint hung_up               # and of an end or an error behind them
    cdef bint read_scheduled        # a callback will fetch them
    cdef int room                   # bytes that the next call asks for

    # of an accepted IPv4 or IPv6 connection, for make_extra
    cdef NearEnd near               # None for every other
    cdef sockaddr_in6 peer          # or a sockaddr_in, or zeroes

    cdef int submit_recv(self, bint poll_first) except -1
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
