"""A compiled StreamWriter."""

from uringloop._transport.write_transport cimport WriteTransport
from uringloop.streams.reader cimport ReaderCore
from uringloop.streams.stream_protocol cimport ProtocolCore


cdef class WriterCore:
    cdef object loop
    cdef object transport
    cdef WriteTransport stream      # the same, if it is one of ours without TLS; else None
    cdef object protocol
    cdef ProtocolCore flow          # the same, if it is a compiled one; else None
    cdef object reader              # may be None
    cdef ReaderCore source          # the same, if it is a compiled one; else None

    cdef bint need_not_wait(self) except -1
