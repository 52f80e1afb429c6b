"""TLS: asyncio's SSLProtocol, with what happens for every message compiled.

The state machine (handshake, shutdown, flow control, every error) is the standard library's. What
is replaced is the way of the bytes: from the receive buffer into OpenSSL without a buffer in
between, from OpenSSL into the object that the program gets, and from `write` into records. And
OpenSSL is not asked for what it cannot have: its refusal is an exception, dearer than a record.

Only as long as the standard library's methods use the names that they used when this was written;
that is looked at when this module is imported. Otherwise, and for whatever is unusual, its own
methods run.
"""

import ssl
from asyncio import sslproto

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

from uringloop._core.feeding cimport feed, is_fed


cdef extern from "Python.h":
    int PyBUF_READ
    int PyBUF_WRITE
    PyObject *bytes_of_size "PyBytes_FromStringAndSize" (
        const char *data, Py_ssize_t size) except NULL
    int resize_bytes "_PyBytes_Resize" (PyObject **data, Py_ssize_t size) except -1


# The names that each method uses, from 3.11 on.
SHAPE = {
    sslproto.SSLProtocol.buffer_updated: {
        "_incoming", "write", "_ssl_buffer_view", "_state", "SSLProtocolState", "DO_HANDSHAKE",
        "_do_handshake", "WRAPPED", "_do_read", "FLUSHING", "_do_flush", "SHUTDOWN",
        "_do_shutdown",
    },
    sslproto.SSLProtocol._do_read: {
        "_state", "SSLProtocolState", "WRAPPED", "FLUSHING", "_app_reading_paused",
        "_app_protocol_is_buffer", "_do_read__buffered", "_do_read__copied", "_write_backlog",
        "_do_write", "_process_outgoing", "_control_ssl_reading", "Exception", "_fatal_error",
    },
    sslproto.SSLProtocol._do_read__copied: {
        "_sslobj", "read", "max_size", "append", "SSLAgainErrors", "_app_protocol",
        "data_received", "join", "_call_eof_received", "_start_shutdown",
    },
    sslproto.SSLProtocol._process_outgoing: {
        "_ssl_writing_paused", "_outgoing", "read", "len", "_transport", "write",
        "_control_app_writing",
    },
    sslproto.SSLProtocol._get_write_buffer_size: {"_outgoing", "pending", "_write_buffer_size"},
    sslproto.SSLProtocol._get_read_buffer_size: {"_incoming", "pending"},
    sslproto.SSLProtocol._get_app_transport: {
        "_app_transport", "_app_transport_created", "RuntimeError", "_SSLProtocolTransport",
        "_loop",
    },
    sslproto._SSLProtocolTransport.write: {
        "isinstance", "bytes", "bytearray", "memoryview", "TypeError", "type", "__name__",
        "_ssl_protocol", "_write_appdata",
    },
    ssl.SSLObject.read: {"_sslobj", "read"},
    ssl.SSLObject.write: {"_sslobj", "write"},
}

cdef object OBJECT = ssl.SSLObject
cdef object WRAPPED = sslproto.SSLProtocolState.WRAPPED
cdef tuple AGAIN = sslproto.SSLAgainErrors
cdef bint known = all(
    set(function.__code__.co_names) == names for function, names in SHAPE.items())


def shape_is_known():
    """Return whether the standard library's methods are those that this module knows."""
    return known


class SSLTransport(sslproto._SSLProtocolTransport):
    """What the program writes to."""

    def write(self, data):
        """As asyncio's; what is mutable may change as soon as this returns."""
        protocol = self._ssl_protocol
        if type(data) is bytes and type(protocol) is TLSProtocol and is_open(protocol):
            if data:
                write_records(protocol, data)
        else:
            sslproto._SSLProtocolTransport.write(self, data)

    def writelines(self, list_of_data):
        """As asyncio's; the pieces leave in as few records as they fill."""
        pieces = list(list_of_data)
        if all([type(piece) is bytes for piece in pieces]):
            self.write(b"".join(pieces))
        else:
            sslproto._SSLProtocolTransport.writelines(self, pieces)


class TLSProtocol(sslproto.SSLProtocol):
    """SSLProtocol for this loop's transports, which feed it by `receive_records`."""

    # No more is read from OpenSSL at a time: a record. asyncio's 256 KiB are touched by each
    # connection, and none of them is needed here.
    max_size = 16 * 1024

    def _get_app_transport(self):
        if self._app_transport is None and not self._app_transport_created:
            self._app_transport = SSLTransport(self._loop, self)
            self._app_transport_created = True
        return sslproto.SSLProtocol._get_app_transport(self)

    def _do_read(self):
        if self._state is WRAPPED and type(self._sslobj) is OBJECT:
            read_records(self)
        else:
            sslproto.SSLProtocol._do_read(self)

    def _process_outgoing(self):
        send_records(self)


cdef object PROTOCOL = TLSProtocol


def new_protocol(*args, **options):
    """Make the protocol that does TLS, with the arguments of asyncio's SSLProtocol."""
    return (PROTOCOL if known else sslproto.SSLProtocol)(*args, **options)


cdef bint is_secure(object protocol) except -1:
    """Return whether *protocol* is one for `receive_records`."""
    return type(protocol) is PROTOCOL


cdef bint is_open(object protocol) except -1:
    """Return whether a write may go straight to OpenSSL: nothing is before it."""
    return (protocol._state is WRAPPED and not protocol._write_backlog
            and type(protocol._sslobj) is OBJECT)


# ── in ───────────────────────────────────────────────────────────────────────────────────────


cdef int receive_records(object protocol, const char *data, Py_ssize_t size) except -1:
    """Do what get_buffer and buffer_updated do with *size* bytes of the connection."""
    protocol._incoming.write(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ))
    if protocol._state is WRAPPED:
        protocol._do_read()
    else:
        # Of nothing: the bytes are there.
        protocol.buffer_updated(0)
    return 0


cdef int read_records(object protocol) except -1:
    """Do what SSLProtocol._do_read does while the connection is open."""
    cdef Py_ssize_t size
    try:
        if not protocol._app_reading_paused:
            if protocol._app_protocol_is_buffer:
                protocol._do_read__buffered()
            else:
                deliver_records(protocol)
            if protocol._write_backlog:
                protocol._do_write()
            else:
                send_records(protocol)
        size = protocol._incoming.pending
        if size >= <Py_ssize_t>protocol._incoming_high_water or protocol._ssl_reading_paused:
            protocol._control_ssl_reading()
    except Exception as exc:
        protocol._fatal_error(exc, "Fatal error on SSL protocol")
    return 0


cdef int deliver_records(object protocol) except -1:
    """Decrypt what has come and hand it over in one piece."""
    cdef list pieces = []
    cdef bint goes_on = decrypt(protocol, pieces)
    cdef bytes data
    if pieces:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        app_protocol = protocol._app_protocol
        if not (is_fed(app_protocol) and feed(
                app_protocol, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))):
            app_protocol.data_received(data)
    if not goes_on:
        # The peer has said that no more comes.
        protocol._call_eof_received()
        protocol._start_shutdown()
    return 0


cdef bint decrypt(object protocol, list pieces) except -1:
    """Append what can be decrypted to *pieces*; False if the peer has closed."""
    cdef object incoming = protocol._incoming
    cdef object engine = protocol._sslobj._sslobj
    cdef Decrypted result = GOES_ON
    cdef Py_ssize_t room
    while result == GOES_ON:
        # No plaintext is longer than its record, but OpenSSL may hold the front of one.
        room = incoming.pending + engine.pending()
        if room == 0:
            break
        result = decrypt_piece(incoming, engine, room, pieces)
    return result != CLOSED


cdef Decrypted decrypt_piece(
        object incoming, object engine, Py_ssize_t room, list pieces) except FAILED:
    """Decrypt up to *room* bytes into one object."""
    cdef PyObject *piece = bytes_of_size(NULL, room)
    cdef char *start = PyBytes_AS_STRING(<bytes>piece)
    cdef Py_ssize_t filled = 0
    cdef Decrypted result = GOES_ON
    try:
        while filled < room and (incoming.pending or engine.pending() or not filled):
            count = engine.read(
                room - filled, PyMemoryView_FromMemory(start + filled, room - filled, PyBUF_WRITE))
            if not count:
                result = CLOSED
                break
            filled += <Py_ssize_t>count
    except AGAIN:
        result = NOTHING_MORE
    finally:
        if filled:
            # Nobody else has seen it yet.
            resize_bytes(&piece, filled)
            pieces.append(<object>piece)
        Py_DECREF(<object>piece)
    return result


# ── out ──────────────────────────────────────────────────────────────────────────────────────


cdef int write_records(object protocol, bytes data) except -1:
    """Do what SSLProtocol._write_appdata does while the connection is open and nothing waits."""
    cdef object engine = protocol._sslobj._sslobj
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t done = 0
    try:
        try:
            done = engine.write(data)
            while done < size:
                # A record at a time; the rest is not copied.
                done += <Py_ssize_t>engine.write(PyMemoryView_FromMemory(
                    PyBytes_AS_STRING(data) + done, size - done, PyBUF_READ))
        except AGAIN:
            protocol._write_backlog.append(data[done:])
            protocol._write_buffer_size += size - done
        send_records(protocol)
    except Exception as exc:
        protocol._fatal_error(exc, "Fatal error on SSL protocol")
    return 0


cdef int send_records(object protocol) except -1:
    """Do what SSLProtocol._process_outgoing does."""
    cdef object outgoing = protocol._outgoing
    cdef Py_ssize_t size
    if not protocol._ssl_writing_paused and outgoing.pending:
        protocol._transport.write(outgoing.read())
    size = outgoing.pending + protocol._write_buffer_size
    if size >= <Py_ssize_t>protocol._outgoing_high_water or protocol._app_writing_paused:
        protocol._control_app_writing()
    return 0
