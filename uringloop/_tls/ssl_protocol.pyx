"""TLS: asyncio's SSLProtocol on this loop's transports.

The state machine (handshake, shutdown, flow control, all errors) is the standard library's; what
happens for each message is compiled (`data_path.pyx`). Every callback of the program's protocol
runs in the connection's context, even if another task writes, closes or resumes.

If the standard library does not have the known shape (`_cpython/stdlib.pyx`), or URINGLOOP_DISABLE
names `compiled_tls`, asyncio's SSLProtocol runs alone.
"""

import asyncio
import ssl
from asyncio import sslproto

from cpython.bytes cimport PyBytes_GET_SIZE

from uringloop._cpython.stdlib cimport COMPILED_TLS, uses
from uringloop._tls.data_path cimport COMPILED, TLSCore
from uringloop._turn.turn cimport LoopCore

from uringloop._cpython.stdlib import find


cdef object WRAPPED = find(sslproto, "SSLProtocolState.WRAPPED")
cdef object FLUSHING = find(sslproto, "SSLProtocolState.FLUSHING")
cdef object SHUTDOWN = find(sslproto, "SSLProtocolState.SHUTDOWN")
cdef tuple NOTHING_MORE = (*(find(sslproto, "SSLAgainErrors") or ()), ssl.SSLZeroReturnError)
# asyncio.Transport stands in where the standard library has another shape; then nothing uses it.
cdef object STOCK_TRANSPORT = find(sslproto, "_SSLProtocolTransport") or asyncio.Transport


class TLSProtocol(TLSCore, sslproto.SSLProtocol):
    """SSLProtocol for this loop's transports, which pass received bytes to `receive_records`."""

    # The size of SSLProtocol's buffer and of a read from OpenSSL: one record.
    max_size = 16 * 1024

    def __init__(self, *args, **options):
        # SSLProtocol zeroes a buffer of this size for each connection. The compiled data path does
        # not need it, and get_buffer() enlarges it.
        self.max_size = 1
        sslproto.SSLProtocol.__init__(self, *args, **options)
        del self.max_size

    def _get_app_transport(self):
        if self._app_transport is None and not self._app_transport_created:
            self._app_transport = SSLTransport(self._loop, self)
            self._app_transport_created = True
        return sslproto.SSLProtocol._get_app_transport(self)

    def _start_handshake(self):
        sslproto.SSLProtocol._start_handshake(self)
        # asyncio notes the time in debug mode only, and fails at the end of the handshake if debug
        # mode began meanwhile.
        if self._handshake_start_time is None:
            self._handshake_start_time = self._loop.time()

    def _control_app_writing(self):
        (<TLSCore>self).call_in_context(sslproto.SSLProtocol._control_app_writing)

    def _go_on(self):
        """Continue as the current state demands, as a callback of the loop."""
        (<TLSCore>self).end_first_read()
        (<TLSCore>self).call_in_context(go_on)

    def _resume_reading(self):
        if self._app_reading_paused:
            self._app_reading_paused = False
            self._loop.call_soon(self._go_on)

    def _start_shutdown(self):
        if self._app_reading_paused and self._eof_received and self._state is FLUSHING:
            # EOF arrived while reading was paused. asyncio waits for resume_reading(), which a
            # program that has called close() does not call. Continue in a callback, because the
            # loop's flush may be the caller.
            self._loop.call_soon(self._go_on)
        else:
            (<TLSCore>self).call_in_context(sslproto.SSLProtocol._start_shutdown)

    def _do_shutdown(self):
        # asyncio leaves unread records in the BIO, and OpenSSL fails when it reads data after it
        # has sent close_notify.
        try:
            if not self._eof_received:
                self._drop_unread()
        except ssl.SSLError as exc:
            self._on_shutdown_complete(exc)
        else:
            sslproto.SSLProtocol._do_shutdown(self)

    def _drop_unread(self):
        """Read and drop plaintext that arrives after the program's close()."""
        try:
            while self._sslobj.read(self.max_size):
                pass
        except NOTHING_MORE:
            # No whole record is left, or the peer has sent close_notify.
            pass
        if self._ssl_reading_paused:
            # To receive the peer's close_notify.
            self._ssl_reading_paused = False
            self._transport.resume_reading()

    def _do_read__buffered(self):
        # Called at the end of the connection, where asyncio's method loses bytes if the buffer is a
        # bytearray.
        (<TLSCore>self).fill_app_buffer()

    def _do_flush(self):
        # asyncio fills the buffer of a BufferedProtocol once and drops the remaining plaintext.
        if self._eof_received and self._app_protocol_is_buffer:
            if not (<TLSCore>self).fill_until_paused():
                # resume_reading() calls this again.
                return
        sslproto.SSLProtocol._do_flush(self)


def go_on(protocol):
    """Continue as the current state demands, as SSLProtocol does when reading is resumed."""
    if protocol._state is WRAPPED:
        protocol._do_read()
    elif protocol._state is FLUSHING:
        protocol._do_flush()
    elif protocol._state is SHUTDOWN:
        protocol._do_shutdown()


cdef object PROTOCOL = TLSProtocol


def new_protocol(*args, **options):
    """Return a new protocol for TLS; the arguments are those of asyncio's SSLProtocol."""
    return (PROTOCOL if uses(COMPILED_TLS) else sslproto.SSLProtocol)(*args, **options)


cdef bint is_secure(object protocol) except -1:
    """Return whether *protocol* is a TLSProtocol, for `receive_records`."""
    return type(protocol) is PROTOCOL


cdef int receive_records(object protocol, const char *data, Py_ssize_t size) except -1:
    """Pass received bytes to *protocol*, a TLSProtocol."""
    return (<TLSCore>protocol).receive(data, size)


# ── the program's transport ──────────────────────────────────────────────────────────────────


cdef int check_owner(object transport) except -1:
    """Raise RuntimeError in a wrong thread, as the transports below TLS do."""
    cdef object loop = transport._loop
    if isinstance(loop, LoopCore):
        (<LoopCore>loop).check_owner()
    return 0


cdef object owned(object data):
    """Return a copy of mutable *data*, which may be wider than bytes or have gaps."""
    if type(data) is not bytes and isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    return data


cdef class TransportCore:
    """The compiled half of SSLTransport."""

    def write(self, data):
        """Write *data*; a mutable buffer may be changed as soon as this returns."""
        cdef object protocol = self._ssl_protocol
        cdef TLSCore core
        if type(protocol) is not PROTOCOL or (<TLSCore>protocol).core_loop is None:
            check_owner(self)
        else:
            (<TLSCore>protocol).core_loop.check_owner()
        data = owned(data)
        if type(data) is bytes and type(protocol) is PROTOCOL:
            core = <TLSCore>protocol
            if core.path == COMPILED and not core._write_backlog:
                if PyBytes_GET_SIZE(<bytes>data):
                    core.write(<bytes>data)
                return
        STOCK_TRANSPORT.write(self, data)

    def writelines(self, list_of_data):
        """Write the pieces, joined to as few records as they fill."""
        cdef list pieces
        check_owner(self)
        pieces = [owned(piece) for piece in list_of_data]
        if all([type(piece) is bytes for piece in pieces]):
            self.write(b"".join(pieces))
        else:
            STOCK_TRANSPORT.writelines(self, pieces)


class SSLTransport(TransportCore, STOCK_TRANSPORT):
    """The transport that the program gets: asyncio's, with a compiled write().

    Its methods that change the connection, or read OpenSSL's state, check the thread.
    """

    def set_protocol(self, protocol):
        check_owner(self)
        STOCK_TRANSPORT.set_protocol(self, protocol)

    def close(self):
        check_owner(self)
        STOCK_TRANSPORT.close(self)

    def abort(self):
        check_owner(self)
        STOCK_TRANSPORT.abort(self)

    def _force_close(self, exc):
        check_owner(self)
        STOCK_TRANSPORT._force_close(self, exc)

    def pause_reading(self):
        check_owner(self)
        STOCK_TRANSPORT.pause_reading(self)

    def resume_reading(self):
        check_owner(self)
        STOCK_TRANSPORT.resume_reading(self)

    def set_write_buffer_limits(self, high=None, low=None):
        check_owner(self)
        STOCK_TRANSPORT.set_write_buffer_limits(self, high, low)

    def set_read_buffer_limits(self, high=None, low=None):
        check_owner(self)
        STOCK_TRANSPORT.set_read_buffer_limits(self, high, low)

    def get_write_buffer_size(self):
        # Only the loop's thread may call: this first encrypts the writes that are held.
        check_owner(self)
        return STOCK_TRANSPORT.get_write_buffer_size(self)

    def get_read_buffer_size(self):
        # Only the loop's thread may call: this asks OpenSSL.
        check_owner(self)
        return STOCK_TRANSPORT.get_read_buffer_size(self)
