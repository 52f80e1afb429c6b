"""The compiled half of the protocol between a transport and a StreamReader.

`StreamReaderProtocol` in `connections.py` puts `ProtocolCore` before asyncio's class. Those fields
of asyncio's class that are needed for each message are C fields here, under the same names.
Transports append to the reader's buffer by `receive`, without a call of data_received(), unless a
derived class replaces data_received().

As in asyncio the protocol has a weak reference to the reader: what arrives for a reader that the
program has dropped is dropped, too.
"""

from uringloop._cpython.pyapi cimport weakly_referenced
from uringloop._transport.compiled_protocol cimport CompiledProtocol
from uringloop.streams.reader cimport ReaderCore, feeds_itself, is_stock_reader


cdef class ProtocolCore(CompiledProtocol):

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

    cdef bint replaces_data_received(self) except -1:
        return type(self).data_received is DATA_RECEIVED and feeds_itself()

    cdef bint receive(self, const char *memory, Py_ssize_t size) except -1:
        cdef ReaderCore reader = self.stock_reader()
        return reader is not None and reader.receive(memory, size)

    cdef bint receive_object(self, bytes data) except -1:
        """Pass *data* to the reader, which makes no copy of it if nothing is unread."""
        cdef ReaderCore reader = self.stock_reader()
        return reader is not None and reader.receive_object(data)

    cdef ReaderCore stock_reader(self):
        """Return the reader if no method of it is replaced; else None."""
        cdef object reader
        if self.reader_ref is None:
            return None
        reader = weakly_referenced(self.reader_ref)
        return <ReaderCore>reader if is_stock_reader(reader) else None


cdef object DATA_RECEIVED = ProtocolCore.data_received
