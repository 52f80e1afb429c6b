"""A datagram endpoint."""

from cpython.object cimport PyObject

from uringloop._ring.ring cimport Operation
from uringloop._transport.flow_control cimport FlowControl


cdef class DatagramTransport(FlowControl):
    # sending
    cdef Operation room_op      # a poll: waits until the socket has room
    cdef bint connected         # the socket has a peer: send(2), not sendto(2)
    cdef int family             # of the socket
    cdef int type               # of the socket
    cdef object address         # the only one that sendto() accepts, from remote_addr; or None
    cdef object queue           # deque of (bytes, address) that the socket did not take
    cdef Py_ssize_t queue_size  # bytes in it, with what asyncio counts for headers

    cdef bint is_replaced(self) except -1
    cdef int deliver_buffer(self, int size, unsigned int flags) except -1
    cdef int deliver_merged(self, bytes data, Py_ssize_t size, object address) except -1
    cdef int stash_merged(
        self, bytes data, Py_ssize_t start, Py_ssize_t size, object address) except -1
    cdef int recvfrom_some(self) except -1
    cdef bint is_merging(self) except -1
    cdef int deliver(self, object data, object address) except -1
    cdef int deliver_error(self, object exc) except -1
    cdef int call_error_received(self, object exc) except -1
    cdef bint send_one(self, object data, object address) except -1
    cdef bint send_memory(
        self, object data, const char *start, Py_ssize_t size, object address) except -1
    cdef bint send_parsed(self, object data, object address) except -1
    cdef int submit_room(self) except -1
    cdef int on_room(self, int res, unsigned int flags) except -1
    cdef bint send_queued(self) except -1
    cdef int drop_first(self) except -1
    cdef int end_if_closing(self) except -1
