"""asyncio's streams: received bytes into a StreamReader's buffer, and the end of a connection.

`append_to_reader` does what StreamReaderProtocol.data_received() and StreamReader.feed_data() do,
without Python code, for exactly these classes of the standard library, while they have the known
shape (`_cpython/stdlib.pyx`) and URINGLOOP_DISABLE does not name `stream_reader`. In every other
case the caller calls data_received(). Only the loop's thread may call these functions.

A StreamReaderProtocol stores the error of a lost connection in a future that the program may never
await; the protocol's `__del__` retrieves the exception, so that the future does not report it. The
traceback of an error that a handler has caught makes protocol, future and error one reference
cycle, and the garbage collector finalizes a cycle in no particular order. A full collection
examines the youngest generation before the middle one (CPython 3.11 to 3.13): if a collection has
run between the creation of the protocol and that of its future, the future is finalized first and
reports the error, on asyncio too. `call_connection_lost` therefore retrieves the exception as soon
as the protocol has it.
"""

import asyncio
from asyncio import streams

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.string cimport memcpy

from uringloop._cpython.stdlib cimport STREAM_READER, Original, uses


cdef object PROTOCOL = streams.StreamReaderProtocol
cdef object READER = streams.StreamReader
cdef Original DATA_RECEIVED = Original(streams.StreamReaderProtocol, "data_received")
cdef Original FEED_DATA = Original(streams.StreamReader, "feed_data")
cdef object FUTURE = asyncio.Future


cdef bint appends_to_reader(object protocol) except -1:
    """Return whether `append_to_reader` may be called for *protocol*."""
    # A program may have replaced the methods since the import.
    return (uses(STREAM_READER) and type(protocol) is PROTOCOL
            and DATA_RECEIVED.is_in_place() and FEED_DATA.is_in_place())


cdef bint append_to_reader(object protocol, const char *data, Py_ssize_t size) except -1:
    """Append *data* to the reader's buffer and wake its waiter; False if nothing was done."""
    cdef object reference = protocol._stream_reader_wr
    cdef object reader, waiter, buffer
    cdef Py_ssize_t old
    if reference is None:
        return False
    reader = reference()
    if type(reader) is not READER or reader._eof:
        return False
    buffer = reader._buffer
    if type(buffer) is not bytearray:
        return False
    waiter = reader._waiter
    if waiter is not None and type(waiter) is not FUTURE:
        return False
    old = PyByteArray_GET_SIZE(buffer)
    PyByteArray_Resize(buffer, old + size)
    memcpy(PyByteArray_AS_STRING(buffer) + old, data, size)
    if waiter is not None:
        reader._waiter = None
        if not waiter.cancelled():
            waiter.set_result(None)
    if old + size > 2 * <Py_ssize_t>reader._limit:
        pause(reader)
    return True


cdef int pause(object reader) except -1:
    """Pause the transport of a reader whose buffer is over twice its limit."""
    if reader._transport is None or reader._paused:
        return 0
    try:
        reader._transport.pause_reading()
    except NotImplementedError:
        reader._transport = None
    else:
        reader._paused = True
    return 0


cpdef object call_connection_lost(object protocol, object exc):
    """Call connection_lost() of *protocol*, and retrieve *exc* from a stream's future."""
    protocol.connection_lost(exc)
    if exc is not None:
        retrieve_closed(protocol)


def retrieve_closed(protocol):
    """Retrieve the exception of a stream's future, as StreamReaderProtocol.__del__() does."""
    cdef object closed = None
    if isinstance(protocol, PROTOCOL):
        closed = getattr(protocol, "_closed", None)
    if asyncio.isfuture(closed) and closed.done() and not closed.cancelled():
        closed.exception()
