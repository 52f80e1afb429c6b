"""Delivery: how received bytes reach a protocol, by its kind.

`deliver_or_copy` delivers from the receive buffer where no bytes object is needed: for TLS, for
buffered protocols and for streams. `deliver` passes a bytes object. Both stash the bytes
that a protocol has not taken because it paused or raised KeyboardInterrupt.
"""

import asyncio

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport Py_DECREF_owned, enter, leave
from uringloop._tls.ssl_protocol cimport SSLProtocol
from uringloop._transport.asyncio_reader cimport append_to_reader, appends_to_reader
from uringloop._transport.compiled_protocol cimport CompiledProtocol, is_compiled
from uringloop._transport.read_transport cimport (
    BUFFERED,
    COMPILED,
    PLAIN,
    STREAM_READER,
    TLS,
    ReadTransport,
)
from uringloop._transport.transport cimport CLOSING, own, pending_exception


cdef object NAME_DATA_RECEIVED = "data_received"
cdef object NAME_GET_BUFFER = "get_buffer"
cdef object NAME_BUFFER_UPDATED = "buffer_updated"
cdef object ANY_SIZE = -1
cdef str DATA_RECEIVED_FAILED = "Fatal error: protocol.data_received() call failed."
cdef str BUFFER_UPDATED_FAILED = "Fatal error: protocol.buffer_updated() call failed."
cdef str GET_BUFFER_FAILED = "Fatal error: protocol.get_buffer() call failed."


cdef ProtocolKind kind_of(object protocol) except *:
    if type(protocol) is SSLProtocol:
        return TLS
    if is_compiled(protocol):
        return COMPILED
    if appends_to_reader(protocol):
        return STREAM_READER
    if isinstance(protocol, asyncio.BufferedProtocol):
        return BUFFERED
    # uvloop, too, accepts other classes that have get_buffer() and no data_received().
    if not hasattr(protocol, "data_received") and hasattr(protocol, "get_buffer"):
        return BUFFERED
    return PLAIN


cdef bytes deliver_or_copy(ReadTransport transport, const char *memory, int size):
    """Deliver *size* bytes from *memory*, or return them as an object for `deliver`.

    If the loop is nestable, a nested run may need *memory* before the protocol returns: then a
    protocol with get_buffer() gets an object, too.
    """
    if transport.kind >= BUFFERED and not transport.loop.nestable:
        deliver_memory(transport, memory, size)
        return None
    if PLAIN < transport.kind < BUFFERED and feed_reader(transport, memory, size):
        return None
    return transport.loop.freelist.copy(memory, size)


cdef int deliver(ReadTransport transport, bytes data) except -1:
    """Pass *data* to the protocol."""
    cdef PyObject *result
    if transport.kind >= BUFFERED:
        return deliver_memory(transport, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    if transport.kind == COMPILED and feed_object(transport, data):
        return 0
    result = transport.call(NAME_DATA_RECEIVED, <PyObject*>data)
    if result == NULL:
        return transport.fatal_error(pending_exception(), DATA_RECEIVED_FAILED)
    Py_DECREF_owned(result)
    return 0


cdef inline int deliver_memory(
        ReadTransport transport, const char *data, Py_ssize_t size) except -1:
    """Pass *data* to a protocol that has buffers of its own."""
    if transport.kind == TLS and not transport.loop.in_debug_mode():
        return deliver_records(transport, data, size)
    return deliver_buffered(transport, data, size)


cdef bint feed_reader(ReadTransport transport, const char *memory, int size) except -1:
    """Do what a stream's data_received() does; return False if it must be called."""
    if transport.loop.in_debug_mode():
        # Debug mode measures and reports slow calls.
        return False
    try:
        if transport.kind == COMPILED:
            return (<CompiledProtocol>transport.protocol).receive(memory, size)
        return append_to_reader(transport.protocol, memory, size)
    except BaseException as exc:
        transport.fatal_error(exc, DATA_RECEIVED_FAILED)
        return True


cdef bint feed_object(ReadTransport transport, bytes data) except -1:
    """Like `feed_reader`, for an object and a CompiledProtocol."""
    if transport.loop.in_debug_mode():
        return False
    try:
        return (<CompiledProtocol>transport.protocol).receive_object(data)
    except BaseException as exc:
        transport.fatal_error(exc, DATA_RECEIVED_FAILED)
        return True


cdef int deliver_records(ReadTransport transport, const char *data, Py_ssize_t size) except -1:
    """Pass TLS records to the SSLProtocol, without get_buffer() and buffer_updated()."""
    # A reference: the program, which this calls, may drop all others.
    cdef SSLProtocol protocol = <SSLProtocol>transport.protocol
    cdef PyObject *entered = NULL
    try:
        entered = enter(transport.context)
        protocol.receive(data, size)
    except BaseException as exc:
        transport.fatal_error(exc, BUFFER_UPDATED_FAILED)
    finally:
        if entered != NULL:
            leave(transport.context, entered)
    return 0


cdef int deliver_buffered(ReadTransport transport, const char *data, Py_ssize_t size) except -1:
    """Copy *data* into the protocol's buffers until it pauses, closes or is replaced."""
    cdef Py_ssize_t taken = 0
    try:
        while (taken < size and transport.kind >= BUFFERED and not transport.paused
                and transport.life < CLOSING):
            fill_protocol_buffer(transport, data, size, &taken)
    finally:
        if taken < size and transport.life < CLOSING:
            transport.stash_first(PyBytes_FromStringAndSize(data + taken, size - taken))
    return 0


cdef int fill_protocol_buffer(
        ReadTransport transport, const char *data, Py_ssize_t size, Py_ssize_t *taken) except -1:
    """Copy the bytes behind *taken* into one buffer of the protocol, and advance *taken*."""
    cdef object protocol = transport.protocol
    cdef Py_buffer view
    cdef Py_ssize_t count
    if not borrow_buffer(transport, &view):
        return 0
    if transport.protocol is not protocol or transport.life >= CLOSING:
        # get_buffer() has closed the transport, or put another protocol in the place of its own.
        PyBuffer_Release(&view)
        return 0
    count = min(view.len, size - taken[0])
    memcpy(view.buf, data + taken[0], count)
    taken[0] += count
    if transport.loop.nestable and taken[0] < size:
        taken[0] += transport.stash_rest(data + taken[0], size - taken[0])
    # Released, so that the protocol may resize it in buffer_updated().
    PyBuffer_Release(&view)
    return report_filled(transport, count)


cdef bint borrow_buffer(ReadTransport transport, Py_buffer *view) except -1:
    """Get a buffer from the protocol, which the caller releases.

    An exception of the protocol, other than KeyboardInterrupt and SystemExit, closes the transport:
    then the result is False.
    """
    cdef object buffer
    cdef PyObject *result = transport.call(NAME_GET_BUFFER, <PyObject*>ANY_SIZE)
    if result == NULL:
        transport.fatal_error(pending_exception(), GET_BUFFER_FAILED)
        return False
    buffer = own(result)
    try:
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
    except BaseException as exc:
        transport.fatal_error(exc, GET_BUFFER_FAILED)
        return False
    try:
        PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    except BaseException as exc:
        exc = transport.refusal(buffer) or exc
        transport.fatal_error(exc, "Fatal read error on socket transport")
        return False
    return True


cdef int report_filled(ReadTransport transport, Py_ssize_t count) except -1:
    """Tell the protocol that its buffer has *count* bytes; an exception closes the transport."""
    cdef object filled = count
    cdef PyObject *result = transport.call(NAME_BUFFER_UPDATED, <PyObject*>filled)
    if result == NULL:
        return transport.fatal_error(pending_exception(), BUFFER_UPDATED_FAILED)
    Py_DECREF_owned(result)
    return 0
