"""The compiled half of the protocol between a transport and a StreamReader.

`StreamReaderProtocol` in `connections.py` puts `ProtocolCore` before asyncio's class. Those fields
of asyncio's class that are needed for each message are C fields here, under the same names. The
transports call `receive`, which appends to the reader's buffer without a call of data_received(),
for this class and for derived ones that do not replace data_received().

As in asyncio the protocol has a weak reference to the reader: what arrives for a reader that the
program has dropped is dropped, too.
"""

from uringloop._cpython.pyapi cimport weakly_referenced
from uringloop._streams.reader cimport ReaderCore, feeds_itself, is_stock_reader


cdef class ProtocolCore:

    @property
    def _stream_reader_wr(self):
        return self.reader_ref

    @_stream_reader_wr.setter
    def _stream_reader_wr(self, reference):
        self.reader_ref = reference

    @property
    def _paused(self):
        return self.paused

    @_paused.setter
    def _paused(self, bint paused):
        self.paused = paused

    @property
    def _connection_lost(self):
        return self.lost

    @_connection_lost.setter
    def _connection_lost(self, bint lost):
        self.lost = lost

    def data_received(self, data):
        reader = self._stream_reader
        if reader is not None:
            reader.feed_data(data)


cdef object DATA_RECEIVED = ProtocolCore.data_received


cdef bint is_stream_protocol(object protocol) except -1:
    """Return whether `receive` may be called in place of data_received()."""
    return (isinstance(protocol, ProtocolCore)
            and type(protocol).data_received is DATA_RECEIVED and feeds_itself())


cdef ReaderCore reader_of(object protocol):
    """Return the reader of a ProtocolCore, if no method of it is replaced; else None."""
    cdef object reference = (<ProtocolCore>protocol).reader_ref
    cdef object reader
    if reference is None:
        return None
    reader = weakly_referenced(reference)
    return <ReaderCore>reader if is_stock_reader(reader) else None


cdef bint receive(object protocol, const char *memory, Py_ssize_t size) except -1:
    """Append received bytes to the reader; return False if data_received() must be called."""
    cdef ReaderCore reader = reader_of(protocol)
    return reader is not None and reader.receive(memory, size)


cdef bint receive_object(object protocol, bytes data) except -1:
    """Like `receive`, for an object, of which no copy is made if nothing is unread."""
    cdef ReaderCore reader = reader_of(protocol)
    return reader is not None and reader.receive_object(data)
