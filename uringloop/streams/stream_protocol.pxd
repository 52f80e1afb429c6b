"""The protocol between a transport and a compiled StreamReader."""

from uringloop._transport.compiled_protocol cimport CompiledProtocol
from uringloop.streams.reader cimport ReaderCore


cdef class ProtocolCore(CompiledProtocol):
    cdef object reader_ref      # a weak reference to the StreamReader; None before and at the end
    cdef bint paused            # pause_writing() was called, and resume_writing() not yet
    cdef bint lost              # connection_lost() was called

    cdef ReaderCore stock_reader(self)
