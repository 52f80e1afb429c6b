"""A datagram endpoint."""

from cpython.object cimport PyObject

from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._ring.ring cimport Operation
from uringloop._transport.flow_control cimport FlowControl


cdef class DatagramTransport(FlowControl):
    # receiving
    cdef Operation errors_op    # a multishot poll of the error queue
    cdef bint takes_messages    # the protocol has message_received()
    cdef bint errors_read       # from the error queue, since recv_op was armed
    cdef bint errors_scheduled  # _receive_errors() is called in the next turn

    # sending
    cdef Operation room_op      # a poll: waits until the socket has room
    cdef bint connected         # the socket has a peer: send(2), not sendto(2)
    cdef bint cuts              # the kernel cuts messages into datagrams (UDP_SEGMENT)
    cdef int family             # of the socket
    cdef int type               # of the socket
    cdef object address         # the only one that sendto() accepts, from remote_addr; or None
    # A deque of what the socket did not take: data, address, ancillary data or None, the size of
    # the datagrams in it or 0, and what owns the descriptors that it passes on.
    cdef object queue
    cdef Py_ssize_t queue_size  # bytes in it, with what asyncio counts for headers

    cdef bint is_replaced(self) except -1
    cdef int deliver_buffer(self, int size, unsigned int flags) except -1
    cdef int deliver_merged(
        self, bytes data, Py_ssize_t size, list ancillary, int flags,
        object address) except -1
    cdef int stash_merged(
        self, bytes data, Py_ssize_t start, Py_ssize_t size, list ancillary, int flags,
        object address) except -1
    cdef int receive_some(self) except -1
    cdef bint is_merging(self) except -1
    cdef int watch_errors(self) except -1
    cdef int on_errors(self, int res, unsigned int flags) except -1
    cdef int receive_errors(self) except -1
    cdef int schedule_errors(self) except -1
    cdef int deliver(self, object data, list ancillary, int flags, object address) except -1
    cdef int deliver_error(self, object exc) except -1
    cdef int call_error_received(self, object exc) except -1
    cdef int check_sending(self) except -1
    cdef bint may_send(self, object addr) except -1
    cdef bint has_destination(self, object address) except -1
    cdef int send_or_queue(
        self, object data, object address, bytes ancillary, Py_ssize_t segment) except -1
    cdef int send_pieces(
        self, bytes data, object address, bytes ancillary, Py_ssize_t segment) except -1
    cdef bint send_one(self, object data, object address, bytes ancillary) except -1
    cdef bint send_memory(
        self, const char *start, Py_ssize_t size, const sockaddr_in6 *name,
        unsigned int name_size, bytes ancillary) except -1
    cdef bint send_parsed(self, object data, object address, bytes ancillary) except -1
    cdef int submit_room(self) except -1
    cdef int on_room(self, int res, unsigned int flags) except -1
    cdef bint send_queued(self) except -1
    cdef int drop_first(self) except -1
    cdef int queue_first(self, list items) except -1
    cdef int end_if_closing(self) except -1
