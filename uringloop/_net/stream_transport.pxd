"""A TCP or UNIX stream connection."""

cimport cython
from uringloop._kernel.addresses cimport LocalEnd
from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._ring.ring cimport Operation
from uringloop._transport.read_transport cimport IDLE, Receiving
from uringloop._transport.write_transport cimport WriteTransport
from uringloop._turn.turn cimport LoopCore


@cython.final
cdef class StreamTransport(WriteTransport):
    # These, and the polls that are left, decide what choose_mode() returns. They change with the
    # messages, in any state of `receiving`.
    cdef int average                # bytes of a receive, a moving average
    cdef bint messages_large        # `average` has exceeded LARGE_RECEIVE, and not come down since

    cdef Operation *end_op          # a one-shot poll for the peer's end, beside MULTISHOT; or NULL

    # receiving large messages
    cdef bint reports_inq           # recv(2) tells how many bytes are left; not after the end
    cdef int room                   # bytes that the next recv(2) asks for

    # receiving descriptors
    cdef bint is_unix
    cdef bint takes_fds             # the protocol has fds_received(): nothing but polls

    # of an accepted IPv4 or IPv6 connection, for make_extra
    cdef LocalEnd local_end         # None for every other connection
    cdef sockaddr_in6 peer          # or a sockaddr_in, or zeroes

    cdef bint prepare_multishot(self) except -1
    cdef int watch_end(self) except -1
    cdef int on_end(self, int res) except -1
    cdef int deliver_buffer(self, int size, unsigned int flags) except -1
    cdef Receiving choose_mode(self) except IDLE
    cdef int count_received(self, int size) except -1
    cdef int count_polled(self, int size) except -1
    cdef int enter_large(self) except -1
    cdef int leave_large(self) except -1
    cdef int recv_once(self) except -1
    cdef int recv_with_fds(self) except? -1
    cdef int deliver_with_fds(self, bytes data, list fds) except -1
    cdef int see_fds(self) except -1
    cdef int recv_by_copy(self) except? -1
    cdef char *loop_memory(self) except NULL
    cdef int loop_room(self) noexcept
    cdef int deliver_scratch(self, const char *memory, int size) except -1
    cdef int on_poll(self, int res) except -1
    cdef int recv_available(self) except -1
    cdef int end_reading_by(self, int size) except -1
    cdef int recv_some(self, char *memory, Py_ssize_t size, int *left) noexcept
    cdef int recv_and_deliver(self, int *left) except? -1
    cdef int recv_bytes(self, int *left) except? -1
    cdef int recv_into_buffer(self, int *left) except? -1
    cdef int end_reading(self, object item) except -1
    cdef bytes take_unread(self)


cdef StreamTransport new_stream(object loop, object sock, object protocol, object peername)


cdef StreamTransport new_accepted(
    LoopCore loop, int fd, LocalEnd local_end, const sockaddr_in6 *peer, unsigned int peer_size,
    object protocol)


cdef bint wants_nodelay(object sock) except -1
