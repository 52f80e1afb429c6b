"""TLS: asyncio's SSLProtocol on this loop's transports.

The state machine (handshake, shutdown, flow control, every error) is the standard library's, with
what happens for every message compiled (`data_path.pyx`). Every callback of the program's protocol
runs in the context of the connection, whoever writes, closes or resumes.

With a standard library of another shape than the known one its SSLProtocol runs alone.
"""

import asyncio
import ssl
from asyncio import sslproto

from cpython.bytes cimport PyBytes_GET_SIZE

from uringloop._cpython.stdlib cimport COMPILED_TLS, uses
from uringloop._tls.data_path cimport TLSCore

from uringloop._cpython.stdlib import find


cdef object WRAPPED = find(sslproto, "SSLProtocolState.WRAPPED")
cdef object FLUSHING = find(sslproto, "SSLProtocolState.FLUSHING")
cdef object SHUTDOWN = find(sslproto, "SSLProtocolState.SHUTDOWN")
cdef tuple NOTHING_MORE = (*(find(sslproto, "SSLAgainErrors") or ()), ssl.SSLZeroReturnError)
# Not there on a standard library of another shape, whose SSLProtocol runs alone.
cdef object STOCK_TRANSPORT = find(sslproto, "_SSLProtocolTransport") or asyncio.Transport


class TLSProtocol(TLSCore, sslproto.SSLProtocol):
    """SSLProtocol for this loop's transports, which feed it by `receive_records`."""

    # No more is read from OpenSSL at a time: a record. asyncio's 256 KiB are touched by each
    # connection, and none of them is needed here.
    max_size = 16 * 1024

    def _get_app_transport(self):
        if self._app_transport is None and not self._app_transport_created:
            self._app_transport = SSLTransport(self._loop, self)
            self._app_transport_created = True
        return sslproto.SSLProtocol._get_app_transport(self)

    def _control_app_writing(self):
        (<TLSCore>self).within(sslproto.SSLProtocol._control_app_writing)

    def _go_on(self):
        """Look at everything anew, in a callback of the loop's."""
        (<TLSCore>self).end_opening()
        (<TLSCore>self).within(go_on)

    def _resume_reading(self):
        if self._app_reading_paused:
            self._app_reading_paused = False
            self._loop.call_soon(self._go_on)

    def _start_shutdown(self):
        if self._app_reading_paused and self._eof_received and self._state is FLUSHING:
            # The end came while reading was paused. asyncio waits for reading to be resumed, and
            # who has closed does not do that. Not at once: this may be called in a flush.
            self._loop.call_soon(self._go_on)
        else:
            (<TLSCore>self).within(sslproto.SSLProtocol._start_shutdown)

    def _do_shutdown(self):
        # asyncio leaves the peer's bytes where they are, and OpenSSL fails when it finds them
        # behind the close_notify.
        try:
            if not self._eof_received:
                self._drop_unread()
        except ssl.SSLError as exc:
            self._on_shutdown_complete(exc)
        else:
            sslproto.SSLProtocol._do_shutdown(self)

    def _drop_unread(self):
        """Read what the program, which has closed, does not want any more."""
        try:
            while self._sslobj.read(self.max_size):
                pass
        except NOTHING_MORE:
            # For now, or for good.
            pass
        if self._ssl_reading_paused:
            # The peer's close_notify is awaited.
            self._ssl_reading_paused = False
            self._transport.resume_reading()

    def _do_read__buffered(self):
        # As the connection ends; asyncio loses bytes if the buffer is a bytearray.
        (<TLSCore>self).fill_app_buffer()

    def _do_flush(self):
        # asyncio fills the buffer of a BufferedProtocol once, and drops the rest.
        if self._eof_received and self._app_protocol_is_buffer:
            if not (<TLSCore>self).fill_until_paused():
                # Reading is resumed, and then this is called again.
                return
        sslproto.SSLProtocol._do_flush(self)


def go_on(protocol):
    """Do what asyncio does when reading is resumed."""
    if protocol._state is WRAPPED:
        protocol._do_read()
    elif protocol._state is FLUSHING:
        protocol._do_flush()
    elif protocol._state is SHUTDOWN:
        protocol._do_shutdown()


cdef object PROTOCOL = TLSProtocol


def new_protocol(*args, **options):
    """Make the protocol that does TLS, with the arguments of asyncio's SSLProtocol."""
    return (PROTOCOL if uses(COMPILED_TLS) else sslproto.SSLProtocol)(*args, **options)


cdef bint is_secure(object protocol) except -1:
    """Return whether *protocol* is one for `receive_records`."""
    return type(protocol) is PROTOCOL


cdef int receive_records(object protocol, const char *data, Py_ssize_t size) except -1:
    """Give *protocol* bytes of its connection."""
    return (<TLSCore>protocol).receive(data, size)


# ── what the program writes to ───────────────────────────────────────────────────────────────


cdef class TransportCore:
    """What SSLTransport adds to asyncio's."""

    def write(self, data):
        """As asyncio's; what is mutable may change as soon as this returns."""
        cdef object protocol = self._ssl_protocol
        cdef TLSCore core
        if type(data) is bytes and type(protocol) is PROTOCOL:
            core = <TLSCore>protocol
            if core.is_open and not core._write_backlog:
                if PyBytes_GET_SIZE(<bytes>data):
                    core.write(<bytes>data)
                return
        STOCK_TRANSPORT.write(self, data)

    def writelines(self, list_of_data):
        """As asyncio's; the pieces leave in as few records as they fill."""
        cdef list pieces = list(list_of_data)
        if all([type(piece) is bytes for piece in pieces]):
            self.write(b"".join(pieces))
        else:
            STOCK_TRANSPORT.writelines(self, pieces)


class SSLTransport(TransportCore, STOCK_TRANSPORT):
    """What the program writes to."""
