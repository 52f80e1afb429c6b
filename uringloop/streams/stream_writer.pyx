"""A compiled StreamWriter.

`StreamWriter` puts `WriterCore` before asyncio's. Both share their fields, which are C fields under
the names that asyncio's methods use. write() passes its bytes to the transport in C; drain()
returns one and the same object while it need not wait. When it must, asyncio's drain() waits.

A program may replace any field and any of the objects: what is not of this package is called as
asyncio calls it.
"""

from asyncio import streams
from collections.abc import Coroutine

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from uringloop._cpython.awaitables cimport PYGEN_RETURN, raise_thrown, set_send, set_step
from uringloop._cpython.pyapi cimport keep_for_ever
from uringloop._transport.transport cimport BROKEN, load_life
from uringloop._transport.write_transport cimport WriteTransport
from uringloop.streams.reader cimport ReaderCore
from uringloop.streams.stream_protocol cimport ProtocolCore


cdef object STOCK = streams.StreamWriter
cdef object STOCK_READER = streams.StreamReader
cdef object DRAIN_HELPER = streams.StreamReaderProtocol._drain_helper
cdef object EXCEPTION = ReaderCore.exception


@cython.final
cdef class Done:
    # An awaitable that does not suspend, and whose result is None; asyncio takes it for a
    # coroutine. Since it has no state, there is only one object.

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Makes the type an iterator; `set_step` replaces it by `done_step`.
        raise StopIteration

    def send(self, value):
        raise StopIteration

    def throw(self, exc, value=None, traceback=None):
        raise_thrown(exc, value, traceback)

    def close(self):
        """Do nothing: there is no code that could be interrupted."""

    @property
    def __name__(self):
        return "drain"

    @property
    def __qualname__(self):
        return "StreamWriter.drain"


cdef PyObject *done_step(PyObject *step) noexcept:
    # NULL without an exception is a StopIteration without a value.
    return NULL


cdef int send_to_done(PyObject *step, PyObject *value, PyObject **result) noexcept:
    Py_INCREF(None)
    result[0] = <PyObject*>None
    return PYGEN_RETURN


set_step(Done, done_step)
set_send(Done, send_to_done)
Coroutine.register(Done)
cdef Done DONE = Done()
keep_for_ever(DONE)


cdef class WriterCore:

    def __init__(self, transport, protocol, reader, loop):
        self._transport = transport
        self._protocol = protocol
        if reader is not None and not isinstance(reader, STOCK_READER):
            # As asyncio's assertion.
            raise AssertionError
        self._reader = reader
        self.loop = loop

    # ── the fields, under the names of asyncio's StreamWriter ────────────────────────────────

    @property
    @cython.critical_section
    def _loop(self):
        return self.loop

    @_loop.setter
    @cython.critical_section
    def _loop(self, loop):
        self.loop = loop

    @property
    @cython.critical_section
    def _transport(self):
        return self.transport

    @_transport.setter
    @cython.critical_section
    def _transport(self, transport):
        self.transport = transport
        self.stream = None
        # A pipe's write() does more than put().
        if isinstance(transport, WriteTransport) and hasattr(transport, "_start_tls_compatible"):
            self.stream = transport

    @property
    @cython.critical_section
    def _protocol(self):
        return self.protocol

    @_protocol.setter
    @cython.critical_section
    def _protocol(self, protocol):
        self.protocol = protocol
        self.flow = None
        # drain() calls a derived class's _drain_helper().
        if isinstance(protocol, ProtocolCore) and type(protocol)._drain_helper is DRAIN_HELPER:
            self.flow = protocol

    @property
    @cython.critical_section
    def _reader(self):
        return self.reader

    @_reader.setter
    @cython.critical_section
    def _reader(self, reader):
        self.reader = reader
        self.source = None
        if isinstance(reader, ReaderCore) and type(reader).exception is EXCEPTION:
            self.source = reader

    @property
    def _complete_fut(self):
        # asyncio makes one for each writer, and uses none.
        future = self.loop.create_future()
        future.set_result(None)
        return future

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    @property
    @cython.critical_section
    def transport(self):
        return self.transport

    def write(self, data):
        """Queue *data*, which is sent at the end of the turn with all that the turn has written."""
        if self.stream is not None:
            self.stream.put(data)
        else:
            self.transport.write(data)

    def drain(self):
        """Return an awaitable that waits while too much is queued, as in asyncio."""
        return DONE if self.need_not_wait() else STOCK.drain(self)

    cdef bint need_not_wait(self) except -1:
        """Return whether drain() has nothing to wait for, and no exception to raise."""
        if self.flow is None or self.flow.paused or self.flow.lost:
            return False
        if self.source is not None:
            if self.source.error is not None:
                return False
        elif self.reader is not None:
            return False
        if self.stream is not None:
            return load_life(&self.stream.life) < BROKEN
        return not self.transport.is_closing()

    def is_closing(self):
        return self.transport.is_closing()


class StreamWriter(WriterCore, STOCK):
    """asyncio's StreamWriter, compiled. drain() may return an awaitable that is not a coroutine."""

    __module__ = "uringloop.streams"
