"""Delivery: how received bytes reach a protocol, by its kind."""

from uringloop._transport.read_transport cimport ProtocolKind, ReadTransport


cdef ProtocolKind kind_of(object protocol) except *


cdef bytes deliver_or_copy(ReadTransport transport, const char *memory, int size)


cdef int deliver(ReadTransport transport, bytes data) except -1


cdef bint borrow_buffer(ReadTransport transport, Py_buffer *view) except -1


cdef int report_filled(ReadTransport transport, Py_ssize_t count) except -1
