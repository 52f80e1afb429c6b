"""TLS: the protocol of a transport, with a transport of its own for the program.

    UNCONNECTED ──begin_handshake()──> HANDSHAKE ──complete_handshake()──> TELLING
    TELLING ──_begin_first_read(): connection_made() has returned──> FIRST_READ
    FIRST_READ ──_go_on(): what came with the handshake is delivered──> OPEN
    TELLING, FIRST_READ, OPEN ──begin_shutdown(): close(), or the peer's close_notify──> FLUSHING
    OPEN ──end_received(): the peer's end of the stream, without close_notify──> FLUSHING
    FLUSHING ──flush(): the program has got all that it can get──> SHUTDOWN
    SHUTDOWN ──do_shutdown(): close_notify, EOF or an alert came──> the transport below is closed
    any state ──fail_handshake(), abort(), connection_lost()──> ENDED
    any state but HANDSHAKE ──fail()──> ENDED

In HANDSHAKE, fail() leaves the state to connection_lost(). Beside the state, `told` says what the
program's protocol knows of:

    NOTHING ──connection_made()──> CONNECTED ──eof_received()──> AT_EOF
    CONNECTED, AT_EOF ──connection_lost() is scheduled──> LOST

The behaviour is that of asyncio's SSLProtocol: exceptions, the order of callbacks, log messages,
flow control and defaults. It differs where asyncio loses bytes, waits for ever, or calls the
program in a context that is not the connection's (docs/decisions/0007-tls.md).

The first bytes that come with the handshake are delivered by a callback that follows those of the
handshake's waiter: a program that awaits start_tls() has its transport before its protocol gets
bytes.

Writes of up to HELD_MAX bytes wait for the end of the turn and share a record. Larger ones are
encrypted at once, to memory from which they are sent. While the transport below is full, writes
wait as they are: nothing is copied, and no memory is needed for their records.

Only the loop's thread may call, except the methods of the program's transport that
docs/reference/threads.md allows to any thread.
"""

import asyncio
import collections
import itertools
import ssl
import sys
import warnings
from asyncio import constants, transports
from asyncio.log import logger

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyContext_CopyCurrent, enter, leave
from uringloop._kernel.atomics cimport load_int, store_int
from uringloop._tls.records cimport Records, Scratch, give_scratch
from uringloop._transport.asyncio_reader cimport append_to_reader, appends_to_reader
from uringloop._transport.compiled_protocol cimport CompiledProtocol, is_compiled
from uringloop._transport.transport cimport Transport
from uringloop._transport.write_transport cimport WriteTransport
from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport LoopCore, is_elsewhere

from uringloop._transport.asyncio_reader import retrieve_closed


cdef enum:
    # The most plaintext that a record holds; OpenSSL encrypts one record at a time.
    RECORD_MAX = 16 * 1024
    # Writes up to this size wait for the end of the turn and share a record: a record costs as much
    # as encrypting 4 KiB.
    HELD_MAX = 4 * 1024
    # From this size on the transport sends at once, so the records can be sent from a Scratch.
    SCRATCH_MIN = 8 * 1024
    # The most plaintext that is encrypted to a Scratch before it is sent: what asyncio reads at
    # once.
    SCRATCH_MAX = 256 * 1024

cdef str FAILED = "Fatal error on SSL protocol"
cdef str BUFFER_UPDATED_FAILED = "Fatal error: protocol.buffer_updated() call failed."
cdef tuple ADDRESSES = ("peername", "sockname")
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)
cdef tuple NOTHING_MORE = (*AGAIN, ssl.SSLZeroReturnError)
# What isinstance() finds of an SSLTransport: asyncio's sendfile() requires this base class, and
# programs look for "ssl" in the name.
cdef object TRANSPORT_CLASS = type("SSLTransport", (transports._FlowControlMixin,), {})
cdef int LOG_AFTER = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
# A C global, because the interpreter clears the names of modules when it exits.
cdef object warn = warnings.warn


cdef inline unsigned int bit(TLSState state) noexcept:
    return 1u << <unsigned int>state


# The states from which each state may be entered.
cdef unsigned int[8] FROM
FROM[<int>UNCONNECTED] = 0
FROM[<int>HANDSHAKE] = bit(UNCONNECTED)
FROM[<int>TELLING] = bit(HANDSHAKE)
FROM[<int>FIRST_READ] = bit(TELLING)
FROM[<int>OPEN] = bit(FIRST_READ)
FROM[<int>FLUSHING] = bit(TELLING) | bit(FIRST_READ) | bit(OPEN)
FROM[<int>SHUTDOWN] = bit(FLUSHING)
FROM[<int>ENDED] = ~0u


cdef class SSLProtocol:
    """The protocol that does TLS for *app_protocol*; the arguments are those of asyncio's class.

    Raises ValueError and TypeError for invalid arguments, and what SSLContext.wrap_bio() raises.
    """

    def __init__(
            self, LoopCore loop not None, app_protocol, sslcontext, waiter, server_side=False,
            server_hostname=None, call_connection_made=True, ssl_handshake_timeout=None,
            ssl_shutdown_timeout=None):
        self.handshake_timeout = checked_timeout(
            "ssl_handshake_timeout", ssl_handshake_timeout, constants.SSL_HANDSHAKE_TIMEOUT)
        self.shutdown_timeout = checked_timeout(
            "ssl_shutdown_timeout", ssl_shutdown_timeout, constants.SSL_SHUTDOWN_TIMEOUT)
        if not sslcontext:
            sslcontext = default_context(server_side, server_hostname)
        if server_side or not server_hostname:
            server_hostname = None
        self.loop = loop
        self.waiter = waiter
        self.extra = {"sslcontext": sslcontext}
        self.told = NOTHING if call_connection_made else CONNECTED
        self.backlog = collections.deque()
        self.more_held = []
        self.use_protocol(app_protocol)
        self.set_read_limits(None, None)
        self.set_write_limits(None, None)
        self.records = Records(sslcontext, server_side, server_hostname)
        self.app_transport = SSLTransport.__new__(SSLTransport)
        self.app_transport.protocol = self

    @property
    def __class__(self):
        # isinstance(protocol, asyncio.BufferedProtocol) is true.
        return asyncio.BufferedProtocol

    cdef int enter_state(self, TLSState state) except -1:
        assert FROM[<int>state] & bit(self.state)
        self.state = state
        return 0

    cdef int use_protocol(self, object protocol) except -1:
        with cython.critical_section(self):
            self.app_protocol = protocol
        # StreamTransport, too, accepts other classes that have get_buffer() and no data_received().
        self.app_is_buffered = (
            type(protocol) is not SSLProtocol and hasattr(protocol, "get_buffer")
            and (isinstance(protocol, asyncio.BufferedProtocol)
                 or not hasattr(protocol, "data_received")))
        return 0

    cdef int use_transport(self, object transport) except -1:
        with cython.critical_section(self):
            self.transport = transport
        self.writer = None
        if transport is None:
            return 0
        self.context = context_of(transport)
        if isinstance(transport, WriteTransport) and hasattr(transport, "_start_tls_compatible"):
            self.writer = transport
        return 0

    # ── a protocol's methods ─────────────────────────────────────────────────────────────────

    def connection_made(self, transport):
        if self.state != UNCONNECTED:
            # The connection has ended before the callback that start_tls() has scheduled.
            return
        self.use_transport(transport)
        self.begin_handshake()

    def connection_lost(self, exc):
        self.drop_writes()
        self.records.take_out()
        self.writes_lost += 1
        # Without a GIL, a peer that closes at once can end the connection before
        # create_connection() returns: its transport still has the addresses.
        for name in ADDRESSES:
            address = None if self.transport is None else self.transport.get_extra_info(name)
            if address is not None:
                self.extra[name] = address
        if self.app_transport is not None:
            store_int(&self.app_transport.closed, True)
        if self.state != HANDSHAKE and (self.told == CONNECTED or self.told == AT_EOF):
            self.told = LOST
            self.loop.call_soon(self.app_protocol.connection_lost, exc)
            if exc is not None:
                self.loop.call_soon(retrieve_closed, self.app_protocol)
        self.enter_state(ENDED)
        self.use_transport(None)
        self.use_protocol(None)
        with cython.critical_section(self):
            self.app_transport = None
        self.stop_timer()
        self.wake_waiter(exc)
        if self.records.resumes:
            self.records.sslobj.end_session()

    def get_buffer(self, sizehint):
        if self.buffer is None:
            self.buffer = bytearray(RECORD_MAX)
        # Assigning to a slice of the bytearray could change its size.
        return memoryview(self.buffer)

    def buffer_updated(self, Py_ssize_t nbytes):
        if self.buffer is None or not 0 <= nbytes <= len(self.buffer):
            raise ValueError(f"the buffer of get_buffer() does not have {nbytes} bytes")
        self.receive(PyByteArray_AS_STRING(self.buffer), nbytes)

    def eof_received(self):
        if self.loop.in_debug_mode():
            logger.debug("%r received EOF", self)
        self.at_eof = True
        if self.state == TELLING or self.state == FIRST_READ:
            # The callback that delivers the first bytes passes it on.
            return True
        return self.end_received()

    def pause_writing(self):
        self.writing_paused = True

    def resume_writing(self):
        self.writing_paused = False
        self.send_pending()

    # ── for the package, and private names of asyncio's class ────────────────────────────────

    def replace(self, transport):
        """Take the place of the program's protocol, for start_tls()."""
        transport.set_protocol(self)
        # If bytes in the clear wait to be sent, the program's protocol has been paused.
        # resume_writing() comes to this one.
        self.context = context_of(transport)
        self.writing_paused = bool(getattr(transport, "_protocol_paused", False))
        store_int(&self.app_writing_paused, self.writing_paused)

    def take_ahead(self, bytes data not None):
        """Take bytes of the connection that were received before it was this protocol's."""
        self.records.take_in_all(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    @property
    def _loop(self):
        return self.loop

    @property
    @cython.critical_section
    def _app_transport(self):
        return self.app_transport

    @property
    @cython.critical_section
    def _app_protocol(self):
        return self.app_protocol

    @property
    @cython.critical_section
    def _transport(self):
        return self.transport

    @property
    def _extra(self):
        return self.extra

    @property
    def _sslcontext(self):
        return self.extra["sslcontext"]

    @property
    def _sslobj(self):
        return self.records.sslobj

    # ── the handshake ────────────────────────────────────────────────────────────────────────

    cdef int begin_handshake(self) except -1:
        self.handshake_began = self.loop.time()
        self.enter_state(HANDSHAKE)
        self.timer = self.loop.call_later(self.handshake_timeout, self._check_handshake_timeout)
        try:
            if self.loop.in_debug_mode():
                logger.debug("%r starts SSL handshake", self)
            if self.records.resumes:
                self.records.sslobj.port = port_of(self.transport)
            return self.do_handshake()
        except (KeyboardInterrupt, SystemExit):
            # The next run sends the first message.
            self.go_on_soon()
            raise

    def _check_handshake_timeout(self):
        if self.state == HANDSHAKE:
            self.fail(ConnectionAbortedError(
                f"SSL handshake is taking longer than {self.handshake_timeout} seconds: "
                "aborting the connection"))

    cdef int do_handshake(self) except -1:
        """Continue the handshake with what has been received."""
        try:
            self.records.sslobj.do_handshake()
        except AGAIN:
            return self.send_records()
        except Exception as exc:
            return self.fail_handshake(exc)
        # A callback of the context may have ended the connection.
        return self.complete_handshake() if self.state == HANDSHAKE else 0

    cdef int complete_handshake(self) except -1:
        cdef object sslobj = self.records.sslobj
        cdef Handle going_on = None
        try:
            peercert = sslobj.getpeercert()
        except Exception as exc:
            return self.fail_handshake(exc)
        self.stop_timer()
        if self.loop.in_debug_mode():
            elapsed = self.loop.time() - self.handshake_began
            logger.debug("%r: SSL handshake took %.1f ms", self, elapsed * 1e3)
        self.extra.update(
            peercert=peercert, cipher=sslobj.cipher(), compression=sslobj.compression(),
            ssl_object=sslobj)
        self.records.learn_overhead()
        self.awaits_session = self.records.resumes and sslobj.asks_left > 0
        self.enter_state(TELLING)
        if self.loop.nestable:
            # A run within connection_made() goes on.
            going_on = self.loop.schedule(self._begin_first_read, (), self.context)
        try:
            self.tell_connected()
        except (KeyboardInterrupt, SystemExit):
            # The next run goes on.
            self._begin_first_read()
            raise
        except BaseException:
            # The waiter gets the exception, from connection_lost().
            if going_on is not None:
                going_on.cancel()
            raise
        self._begin_first_read()
        return 0

    cdef int tell_connected(self) except -1:
        if self.told == NOTHING:
            self.told = CONNECTED
            self.app_protocol.connection_made(self.app_transport)
        return 0

    def _begin_first_read(self):
        """End the wait for the handshake, and deliver what came with it in a later callback."""
        self.wake_waiter(None)
        if self.state == TELLING:
            self.enter_state(FIRST_READ)
            self.go_on_soon()
            self.send_pending()

    cdef int fail_handshake(self, object exc) except -1:
        """End the connection; the peer learns the reason by an alert."""
        cdef bint is_refusal = isinstance(exc, ssl.CertificateError)
        self.stop_timer()
        self.enter_state(ENDED)
        try:
            self.pass_records()
        finally:
            self.fail(
                exc, "SSL handshake failed on verifying the certificate" if is_refusal
                else "SSL handshake failed")
            self.wake_waiter(exc)
        return 0

    cdef int wake_waiter(self, object exc) except -1:
        cdef object waiter = self.waiter
        self.waiter = None
        if waiter is None or waiter.cancelled():
            return 0
        if exc is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(exc)
        return 0

    cdef int stop_timer(self) except -1:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        return 0

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    cdef bint is_closed(self) noexcept:
        """Return whether nothing is delivered any more: close() was called, or the peer's
        close_notify came while the connection was open.
        """
        return self.app_transport is None or self.app_transport.closed

    cdef int begin_shutdown(self) except -1:
        """Send what is written, exchange close_notify, and close the transport below."""
        if self.state == FLUSHING:
            # The program has called close(), and need not call resume_reading().
            return self.go_on_soon()
        if self.state == HANDSHAKE:
            return self.abort(None)
        if self.state < TELLING or self.state > OPEN:
            return 0
        store_int(&self.app_transport.closed, True)
        self.start_shutdown_timer()
        self.begin_flush()
        return self.flush()

    cdef int start_shutdown_timer(self) except -1:
        if self.timer is None:
            self.timer = self.loop.call_later(self.shutdown_timeout, self._check_shutdown_timeout)
        return 0

    def _check_shutdown_timeout(self):
        if self.state == FLUSHING or self.state == SHUTDOWN:
            self.transport._force_close(TimeoutError("SSL shutdown timed out"))

    cdef int begin_flush(self) except -1:
        """Write what waits, here and in TLS within TLS: nothing may follow close_notify."""
        self.enter_state(FLUSHING)
        self.keep_held()
        self.take_over_inner()
        # TLS within TLS may have failed, which ends this connection; the program is told to pause.
        return self.write_backlog() if self.state == FLUSHING else 0

    cdef int take_over_inner(self) except -1:
        """Move to the backlog what TLS within TLS has not sent."""
        cdef object inner = self.app_protocol
        cdef bytes data
        if type(inner) is SSLProtocol:
            data = (<SSLProtocol>inner).last_records()
            if data:
                self.add_backlog(data)
        return 0

    cdef bytes last_records(self):
        """Return the records of all that waits: the connection below is about to end."""
        if TELLING <= self.state <= FLUSHING:
            self.take_over_inner()
            try:
                while self.backlog and self.encrypt_first(None):
                    pass
            except Exception as exc:
                self.fail_writing(exc)
        return self.records.take_out()

    cdef int flush(self) except -1:
        """Deliver what came before the end, then begin to shut down."""
        cdef Py_ssize_t left
        if self.at_eof and self.app_reading_paused and not self.is_closed():
            # resume_reading() leads here again.
            return 0
        if self.loop.nestable:
            # A run within data_received() goes on.
            self.go_on_soon()
        self.read()
        while self.state == FLUSHING and self.has_unread_end():
            left = self.records.left()
            if type(self.transport) is SSLTransport and not self.app_reading_paused:
                # TLS within TLS: what is below does not wait for another turn.
                self.read()
            if self.records.left() == left:
                # resume_reading(), or the callback that fills the next buffer, leads here again.
                return 0
        # The protocol may have ended the connection.
        if self.state != FLUSHING:
            return 0
        self.enter_state(SHUTDOWN)
        return self.do_shutdown()

    cdef bint has_unread_end(self) except -1:
        """Return whether bytes before the end of the stream are still to be delivered."""
        return self.at_eof and not self.is_closed() and self.records.has_more()

    cdef int do_shutdown(self) except -1:
        """Send close_notify; close the transport below when the peer has answered."""
        try:
            if not self.at_eof and not self.drop_unread():
                self.records.sslobj.unwrap()
        except AGAIN:
            return self.send_records()
        except Exception as exc:
            try:
                self.pass_records()
            finally:
                self.stop_timer()
                self.fail(exc)
            return 0
        self.send_records()
        # The timer runs on: a peer that does not read can keep the transport below from its end.
        self.start_shutdown_timer()
        try:
            self.tell_eof()
        finally:
            if self.transport is not None:
                self.loop.call_soon(self.transport.close)
        return 0

    cdef bint drop_unread(self) except -1:
        """Read and drop what the peer has sent: OpenSSL reads no data behind its close_notify.

        Return whether a fatal alert has come: as after EOF, no close_notify follows.
        """
        try:
            self.records.raise_failure()
            while self.records.sslobj.read(RECORD_MAX):
                pass
        except NOTHING_MORE:
            # No whole record is left, or the peer has sent close_notify.
            pass
        except ssl.SSLError as exc:
            if "_ALERT_" not in (getattr(exc, "reason", None) or ""):
                raise
            self.at_eof = True
        if self.reading_paused:
            # To receive the peer's close_notify.
            self.reading_paused = False
            self.transport.resume_reading()
        return self.at_eof

    cdef int tell_eof(self) except -1:
        if self.told != CONNECTED:
            return 0
        self.told = AT_EOF
        try:
            if self.call_app("eof_received") and type(self.app_protocol) is not SSLProtocol:
                logger.warning("returning true from eof_received() has no effect when using ssl")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fail(exc, "Error calling eof_received()")
        return 0

    cdef bint end_received(self) except -1:
        """Process the end of the transport below; return whether that must stay open."""
        if self.state == HANDSHAKE:
            self.fail_handshake(ConnectionResetError())
        elif self.state == OPEN:
            self.begin_flush()
            self.flush()
        elif self.state == SHUTDOWN:
            self.do_shutdown()
        # While FLUSHING, `flush` goes on by itself.
        return self.state == FLUSHING

    def _end_received(self):
        cdef object transport = self.transport
        try:
            if transport is not None and not self.end_received():
                transport.close()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fail_callback(exc)

    cdef int abort(self, object exc) except -1:
        """End the connection at once; what this turn has written is still sent."""
        cdef object transport = self.transport
        self.enter_state(ENDED)
        try:
            self.release()
        finally:
            if transport is not None:
                transport._force_close(exc)
        return 0

    cdef int fail(self, object exc, str message="Fatal error on transport") except -1:
        """End the connection because of an error, and report it as asyncio does."""
        if self.state != HANDSHAKE:
            # In HANDSHAKE the state stays, so that connection_lost() does not reach the program's
            # protocol, as in asyncio.
            self.enter_state(ENDED)
        if self.transport is not None:
            self.transport._force_close(exc)
        if isinstance(exc, OSError):
            if self.loop.in_debug_mode():
                logger.debug("%r: %s", self, message, exc_info=exc)
        elif not isinstance(exc, asyncio.CancelledError):
            self.report(message, exc, self.transport)
        if self.records.resumes and isinstance(exc, ssl.SSLError):
            self.records.sslobj.check_failure(exc)
        return 0

    cdef int report(self, str message, object exc, object transport) except -1:
        self.loop.call_exception_handler({
            "message": message, "exception": exc, "transport": transport, "protocol": self})
        return 0

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    cdef int receive(self, const char *data, Py_ssize_t size) except -1:
        """Process *size* received bytes."""
        try:
            if self.state == OPEN:
                self.receive_open(data, size)
            elif self.state != ENDED:
                self.records.take_in_all(data, size)
                self.go_on_received()
        except (KeyboardInterrupt, SystemExit):
            # The next run delivers what is left.
            self.go_on_soon()
            raise
        return 0

    cdef int go_on_received(self) except -1:
        if self.state == HANDSHAKE:
            self.do_handshake()
        elif self.state == FLUSHING:
            self.flush()
        elif self.state == SHUTDOWN:
            self.do_shutdown()
        return 0

    cdef int receive_open(self, const char *data, Py_ssize_t size) except -1:
        if self.records.is_at_end():
            # A run within eof_received(): nothing counts behind close_notify, or an error.
            return 0
        try:
            if self.keeps_records():
                self.records.take_in_all(data, size)
                self.read_pending()
            else:
                self.deliver(self.records.decrypt(data, size))
                self.send_pending()
                self.control_reading()
        except Exception as exc:
            self.fail_reading(exc)
        if self.awaits_session:
            self.awaits_session = self.records.sslobj.keep_session()
        return 0

    cdef bint keeps_records(self) noexcept:
        """Return whether records are not decrypted where they were received, but kept first."""
        return self.state != OPEN or self.app_reading_paused or self.app_is_buffered

    cdef int go_on_soon(self) except -1:
        """Continue in a callback as the state demands then."""
        self.loop.check_closed()
        self.loop.schedule(self._go_on, (), self.context)
        return 0

    def _go_on(self):
        try:
            if self.state == FIRST_READ:
                self.read_first()
            elif self.state == OPEN:
                self.read()
            else:
                self.go_on_received()
        except (KeyboardInterrupt, SystemExit):
            self.go_on_soon()
            raise
        except BaseException as exc:
            self.fail_callback(exc)

    cdef int fail_callback(self, object exc) except -1:
        """End the connection as the transport below does if buffer_updated() raises."""
        self.report(BUFFER_UPDATED_FAILED, exc, self.transport)
        return self.abort(exc)

    cdef int read_first(self) except -1:
        """Deliver what came with the handshake."""
        self.enter_state(OPEN)
        try:
            self.read()
        finally:
            if self.at_eof:
                # What the bytes have scheduled runs before the end is passed on.
                self.loop.schedule(self._end_received, (), self.context)
        return 0

    cdef int read(self) except -1:
        """Deliver what is received and not delivered yet; once closed, only send what waits."""
        if self.state != OPEN and self.state != FLUSHING:
            return 0
        try:
            if self.state == FLUSHING and self.is_closed():
                self.send_pending()
            else:
                self.read_pending()
        except (KeyboardInterrupt, SystemExit):
            # The next run delivers what is left.
            self.go_on_soon()
            raise
        except Exception as exc:
            self.fail_reading(exc)
        return 0

    cdef int resume_reading(self) except -1:
        if self.app_reading_paused:
            store_int(&self.app_reading_paused, False)
            if self.state != TELLING and self.state != FIRST_READ:
                # Else the callback that follows the handshake's waiter delivers.
                self.go_on_soon()
        return 0

    cdef int fail_reading(self, object exc) except -1:
        """End the connection because a record, or the protocol, has failed."""
        if isinstance(exc, ssl.SSLError):
            # The peer learns the reason by an alert, the last record that OpenSSL writes.
            # Nobody may take the dropped writes for sent ones: no resume_writing().
            self.drop_writes()
            try:
                self.pass_records()
            finally:
                self.fail(exc, FAILED)
            return 0
        return self.fail(exc, FAILED)

    cdef int read_pending(self) except -1:
        if not self.app_reading_paused:
            if self.app_is_buffered:
                self.fill_app_buffer()
            else:
                self.deliver(self.records.decrypt_pending())
        self.send_pending()
        return self.control_reading()

    cdef int deliver(self, bytes data) except -1:
        """Pass plaintext to the protocol; *data* is None if no record was complete."""
        if data is not None and not self.deliver_to_known(data):
            self.app_protocol.data_received(data)
        return self.end_delivery()

    cdef int end_delivery(self) except -1:
        """Process the peer's close_notify, or an error, behind the plaintext."""
        if self.state != ENDED:
            self.records.raise_failure()
        return self.close_received() if self.records.peer_closed else 0

    cdef bint deliver_to_known(self, bytes data) except -1:
        """Pass *data* to a protocol of the package or a StreamReader; False for all others."""
        cdef object app_protocol = self.app_protocol
        if is_compiled(app_protocol):
            return (<CompiledProtocol>app_protocol).receive_object(data)
        if type(app_protocol) is SSLProtocol:
            (<SSLProtocol>app_protocol).receive(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            return True
        return appends_to_reader(app_protocol) and append_to_reader(
            app_protocol, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int fill_app_buffer(self) except -1:
        """Decrypt into the buffer of a BufferedProtocol, once in a turn like asyncio."""
        cdef Records records = self.records
        cdef Py_buffer view
        cdef Py_ssize_t filled
        cdef object app_protocol = self.app_protocol
        cdef object buffer
        if not records.has_more():
            records.may_have_more = records.framer.blind
            return self.end_delivery() if self.state == OPEN else records.raise_failure()
        buffer = app_protocol.get_buffer(records.left())
        if self.app_protocol is not app_protocol:
            # Another protocol gets the bytes.
            return self.go_on_soon()
        if self.is_closed() or self.state != OPEN and self.state != FLUSHING:
            return 0
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except (BufferError, TypeError):
            # read() of the `ssl` module raises its own error for such a buffer.
            records.sslobj.read(len(buffer), buffer)
            raise
        try:
            filled = records.fill(<char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        # The buffer is released: buffer_updated() may resize it.
        del buffer
        if records.may_have_more:
            self.go_on_soon()
        if filled:
            app_protocol.buffer_updated(filled)
        return self.end_delivery()

    cdef int close_received(self) except -1:
        """Process the peer's close_notify."""
        self.tell_eof()
        return self.begin_shutdown()

    cdef int control_reading(self) except -1:
        """Pause or resume the transport, depending on the number of unread bytes."""
        cdef Py_ssize_t size = self.records.unread() if self.records.may_have_more else 0
        if self.transport is None:
            return 0
        if not self.reading_paused:
            if size >= self.reading_stops:
                self.reading_paused = True
                self.transport.pause_reading()
        elif size <= self.read_low_water:
            self.reading_paused = False
            self.transport.resume_reading()
        return 0

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    cdef int write(self, bytes data) except -1:
        """Send *data*, or hold it until the end of the turn or of the handshake.

        Before the handshake and after the end it is lost.
        """
        if not PyBytes_GET_SIZE(data):
            return 0
        if self.held_size and self.held_size + PyBytes_GET_SIZE(data) > RECORD_MAX:
            # To send may run other callbacks, which write: *data* comes before that.
            self.keep_held()
        if self.state == HANDSHAKE:
            return self.add_backlog(data)
        if self.state < TELLING or self.state > OPEN:
            return self.count_lost_write()
        return self.write_now(data) if self.backlog_size else self.write_open(data)

    cdef int count_lost_write(self) except -1:
        """Count a lost write; log a warning if there were several before, as asyncio does."""
        if self.writes_lost >= LOG_AFTER:
            logger.warning("SSL connection is closed")
        self.writes_lost += 1
        return 0

    cdef int write_open(self, bytes data) except -1:
        if (PyBytes_GET_SIZE(data) <= HELD_MAX and self.writer is not None
                and not self.writing_paused and not self.app_writing_paused
                and self.writing_stops > 0):
            # Until the flush at the end of the turn.
            self.add_held(data)
            return self.writer.set_source(self, PyBytes_GET_SIZE(data))
        if self.held_size:
            self.add_held(data)
            data = self.take_held()
        return self.write_now(data)

    cdef int add_held(self, bytes data) except -1:
        if self.first_held is None:
            self.first_held = data
        else:
            self.more_held.append(data)
        self.held_size += PyBytes_GET_SIZE(data)
        return 0

    cdef bytes take_held(self):
        """Remove and return the held writes as one object; None if there are none."""
        cdef bytes data = self.first_held
        if self.more_held:
            data = b"".join([data, *self.more_held])
            self.more_held.clear()
        self.first_held = None
        self.held_size = 0
        return data

    cdef int drop_writes(self) except -1:
        """Forget what the program has written and OpenSSL has not encrypted."""
        self.take_held()
        self.backlog.clear()
        self.backlog_size = self.backlog_done = 0
        return 0

    cdef int keep_held(self) except -1:
        """Move the held writes to the backlog, before what follows."""
        if self.held_size:
            self.add_backlog(self.take_held())
        return 0

    cdef int release(self) except -1:
        """Write the held writes at once, not at the end of the turn."""
        if self.held_size:
            self.keep_held()
            self.write_backlog()
        return 0

    cdef bytes take_records(self):
        """Return the records of the held writes for the transport's flush; None without any."""
        cdef bytes data = self.take_held()
        cdef bytes records
        cdef Py_ssize_t done
        if data is None:
            return None
        try:
            records = self.records.encrypt_out(self.loop, data, &done)
        except BaseException as exc:
            self.fail_writing(exc)
            return None
        if done < PyBytes_GET_SIZE(data):
            # OpenSSL wants to read first.
            self.add_backlog(data[done:])
        return records or None

    cdef int write_now(self, bytes data) except -1:
        """Encrypt *data* and send the records, or keep it while the transport is full."""
        self.add_backlog(data)
        return self.write_backlog()

    cdef int add_backlog(self, bytes data) except -1:
        """Keep *data* until the handshake is over, the transport has room, or a read is over."""
        self.backlog.append(data)
        self.backlog_size += PyBytes_GET_SIZE(data)
        return 0

    cdef int write_backlog(self) except -1:
        """Encrypt and send what waits, until the transport is full or OpenSSL wants to read.

        While FLUSHING it is encrypted even if the transport is full: close_notify follows.
        """
        try:
            while (self.backlog and (not self.writing_paused or self.state == FLUSHING)
                    and self.write_some()):
                if self.writer is not None and self.writer.loses_writes():
                    # connection_lost() follows.
                    return self.drop_writes()
            self.pass_records()
            return self.control_writing()
        except (KeyboardInterrupt, SystemExit):
            # The next run sends what is left.
            self.go_on_soon()
            raise
        except Exception as exc:
            return self.fail_writing(exc)

    cdef bint write_some(self) except -1:
        """Encrypt some of what waits and send it; return whether OpenSSL has taken any.

        To send may run other callbacks of the program, which write, so the sent bytes no longer
        count then.
        """
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t size = 0
        cdef list pieces = []
        cdef Scratch scratch = None
        if (self.writer is not None and not self.writing_paused
                and self.first_waiting() >= SCRATCH_MIN):
            scratch = self.records.take_scratch(self.loop)
        if scratch is not None:
            try:
                count = self.encrypt_first(scratch)
                self.send_lent(scratch)
            finally:
                give_scratch(self.loop, scratch)
            return count > 0
        # Record by record, so that each passes through the same memory of the BIO.
        while self.backlog and size < SCRATCH_MAX:
            count = self.encrypt_first(None)
            if count == 0:
                break
            size += count
            if not self.writing_paused:
                pieces.append(self.records.take_out())
        self.pass_on(pieces)
        return size > 0

    cdef Py_ssize_t first_waiting(self) except -1:
        """Return the size of the first object of the backlog that is not encrypted yet.

        Small ones are joined, so that they share a record.
        """
        cdef object backlog = self.backlog
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t count = 0
        cdef bytes piece, joined
        if not self.backlog_done:
            for piece in backlog:
                if size + PyBytes_GET_SIZE(piece) > RECORD_MAX:
                    break
                size += PyBytes_GET_SIZE(piece)
                count += 1
            if count > 1:
                joined = b"".join(itertools.islice(backlog, count))
                for _ in range(count):
                    backlog.popleft()
                backlog.appendleft(joined)
        return PyBytes_GET_SIZE(<bytes>backlog[0]) - self.backlog_done

    cdef Py_ssize_t encrypt_first(self, Scratch scratch) except -1:
        """Encrypt the first bytes that wait, to *scratch* or to the BIO; return how many."""
        cdef Py_ssize_t left = self.first_waiting()
        cdef bytes data = self.backlog[0]
        cdef const char *start = PyBytes_AS_STRING(data) + self.backlog_done
        cdef Py_ssize_t count = 0
        try:
            if scratch is None:
                count = self.records.encrypt_from(start, min(left, RECORD_MAX))
            else:
                self.records.window.show(start, min(left, SCRATCH_MAX))
                count = self.records.encrypt_to(scratch, self.records.window)
        except Exception:
            raise
        except BaseException as exc:
            self.fail_writing(exc)
        self.backlog_size -= count
        self.backlog_done += count
        if count == left:
            self.backlog.popleft()
            self.backlog_done = 0
        return count

    cdef int fail_writing(self, object exc) except -1:
        """End the connection: OpenSSL has failed, or was interrupted after it took the bytes."""
        self.drop_writes()
        if isinstance(exc, Exception):
            return self.fail(exc, FAILED)
        self.records.take_out()
        self.fail(ConnectionAbortedError("a write of TLS was interrupted"), FAILED)
        raise exc

    cdef int send_lent(self, Scratch scratch) except -1:
        """Send the records in *scratch*; copy to the transport what the socket refuses."""
        cdef Py_ssize_t size = scratch.memory.length
        cdef Py_ssize_t taken
        if size:
            taken = self.writer.send_memory(scratch.memory.data, size)
            if taken < size:
                self.writer.put(scratch.rest(taken))
        return 0

    cdef int pass_on(self, list pieces) except -1:
        """Pass records to the transport, all in one call."""
        if not pieces:
            return 0
        if self.writer is not None:
            self.writer.put_all(pieces)
        elif self.transport is not None:
            self.transport.write(b"".join(pieces))
        return 0

    cdef int send_pending(self) except -1:
        """Send writes that waited for a read or for room, and records that a read has produced."""
        if self.backlog_size and TELLING <= self.state <= FLUSHING:
            return self.write_backlog()
        return self.send_records()

    cdef int send_records(self) except -1:
        """Pass on the records that OpenSSL has produced, and control the program's writing."""
        try:
            self.pass_records()
            return self.control_writing()
        except (KeyboardInterrupt, SystemExit):
            # The next run goes on.
            self.go_on_soon()
            raise

    cdef int pass_records(self) except -1:
        """Pass the records that OpenSSL has produced to the transport, unless it is full."""
        if not self.writing_paused and self.transport is not None and self.records.unsent():
            self.pass_on([self.records.take_out()])
        return 0

    # ── flow control of the program's writes ─────────────────────────────────────────────────

    cdef int control_writing(self) except -1:
        """Call pause_writing() or resume_writing(), depending on the number of unsent bytes."""
        cdef Py_ssize_t size = self.backlog_size
        if self.writing_paused:
            size += self.records.unsent()
        if size >= self.writing_stops or self.app_writing_paused:
            self.tell_writing()
        return 0

    cdef int tell_writing(self) except -1:
        cdef Py_ssize_t size = self.unsent()
        if self.app_protocol is None or self.state == ENDED:
            return 0
        if size >= self.writing_stops and not self.app_writing_paused:
            store_int(&self.app_writing_paused, True)
            self.call_flow_control("pause_writing")
        elif (size <= self.write_low_water and self.app_writing_paused
                and not (self.writing_paused and self.state >= FLUSHING)):
            # When a connection is closed, all its records are passed on as soon as there is room
            # for any: then it counts whether they are sent.
            store_int(&self.app_writing_paused, False)
            self.call_flow_control("resume_writing")
        return 0

    cdef int call_flow_control(self, str name) except -1:
        try:
            self.call_app(name)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.report(f"protocol.{name}() failed", exc, self.app_transport)
        return 0

    cdef object call_app(self, str name):
        """Call a method of the program's protocol in the connection's context."""
        cdef object method = getattr(self.app_protocol, name)
        cdef PyObject *entered = enter(self.context)
        try:
            return method()
        finally:
            leave(self.context, entered)

    cdef Py_ssize_t unsent(self) except -1:
        """Return how many bytes wait to be encrypted or sent."""
        return self.records.unsent() + self.backlog_size

    cdef int set_write_limits(self, object high, object low) except -1:
        high, low = limits(high, low, constants.FLOW_CONTROL_HIGH_WATER_SSL_WRITE)
        with cython.critical_section(self):
            self.write_high_water = high
            self.write_low_water = low
        self.writing_stops = min(high, sys.maxsize)
        return 0

    cdef int set_read_limits(self, object high, object low) except -1:
        high, low = limits(high, low, constants.FLOW_CONTROL_HIGH_WATER_SSL_READ)
        with cython.critical_section(self):
            self.read_high_water = high
            self.read_low_water = low
        self.reading_stops = min(high, sys.maxsize)
        return 0


def checked_timeout(name, seconds, default):
    """Return the timeout of an argument; None stands for the default."""
    if seconds is None:
        return default
    if seconds <= 0:
        raise ValueError(f"{name} should be a positive number, got {seconds}")
    return seconds


def default_context(server_side, server_hostname):
    """Return the context of a client that passes `ssl=True`."""
    if server_side:
        raise ValueError("Server side SSL needs a valid SSLContext")
    context = ssl.create_default_context()
    if not server_hostname:
        context.check_hostname = False
    return context


def limits(high, low, kib):
    """Return both water marks of flow control; those that are None get asyncio's defaults."""
    if high is None:
        high = kib * 1024 if low is None else 4 * low
    if low is None:
        low = high // 4
    if not high >= low >= 0:
        raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
    return high, low


cdef object port_of(object transport):
    """Return the port of the peer, or the path of a UNIX socket."""
    cdef object peername = transport.get_extra_info("peername")
    return peername[1] if isinstance(peername, tuple) else peername


cdef object context_of(object transport):
    """Return the context in which the callbacks of *transport*'s protocol run."""
    if isinstance(transport, Transport):
        return (<Transport>transport).context
    if type(transport) is SSLTransport:
        return (<SSLTransport>transport).protocol.context
    return PyContext_CopyCurrent()


# ── the program's transport ──────────────────────────────────────────────────────────────────


cdef bytes bytes_of(object data):
    """Return *data*, or a copy of mutable data, which may be wider than bytes or have gaps."""
    if type(data) is bytes:
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data: expecting a bytes-like instance, got {type(data).__name__}")
    return bytes(data)


cdef class SSLTransport:
    """The transport that the program gets.

    Methods that change the connection or ask OpenSSL check the thread; any thread may call the
    others.
    """

    def __init__(self, *args, **kwargs):
        # SSLProtocol creates transports with __new__ only.
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.FALLBACK

    @property
    def __class__(self):
        # isinstance(transport, asyncio.Transport) is true, although the memory layout differs.
        return TRANSPORT_CLASS

    def __repr__(self):
        state = "closing" if self.is_closing() else "open"
        return f"<{type(self).__name__} {state} over {self.protocol._transport!r}>"

    def __del__(self):
        if self.protocol is not None and not self.closed:
            warn(f"unclosed transport {self!r}", ResourceWarning, source=self)

    # Private names of asyncio's transports, which programs read.

    @property
    def _ssl_protocol(self):
        return self.protocol

    @property
    def _loop(self):
        return self.protocol.loop

    @property
    def _closed(self):
        return load_int(&self.closed) != 0

    @property
    def _protocol_paused(self):
        return load_int(&self.protocol.app_writing_paused) != 0

    def get_extra_info(self, name, default=None):
        cdef object transport
        if name in self.protocol.extra:
            return self.protocol.extra[name]
        transport = self.protocol._transport
        return default if transport is None else transport.get_extra_info(name, default)

    def get_protocol(self):
        return self.protocol._app_protocol

    def set_protocol(self, protocol):
        self.protocol.loop.check_owner()
        self.protocol.use_protocol(protocol)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def is_closing(self):
        cdef object transport = self.protocol._transport
        return load_int(&self.closed) != 0 or (transport is not None and transport.is_closing())

    def close(self):
        self.protocol.loop.check_owner()
        if not self.closed:
            store_int(&self.closed, True)
            self.protocol.begin_shutdown()

    def abort(self):
        self._force_close(None)

    def _force_close(self, exc):
        self.protocol.loop.check_owner()
        store_int(&self.closed, True)
        self.protocol.abort(exc)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def is_reading(self):
        return not load_int(&self.protocol.app_reading_paused)

    def pause_reading(self):
        self.protocol.loop.check_owner()
        store_int(&self.protocol.app_reading_paused, True)

    def resume_reading(self):
        self.protocol.loop.check_owner()
        self.protocol.resume_reading()

    def get_read_buffer_limits(self):
        with cython.critical_section(self.protocol):
            return self.protocol.read_low_water, self.protocol.read_high_water

    def set_read_buffer_limits(self, high=None, low=None):
        self.protocol.loop.check_owner()
        self.protocol.set_read_limits(high, low)
        self.protocol.control_reading()

    def get_read_buffer_size(self):
        self.protocol.loop.check_owner()
        return self.protocol.records.unread()

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Write *data*; a mutable buffer may be changed as soon as this returns."""
        self.protocol.loop.check_owner()
        self.protocol.write(bytes_of(data))

    def writelines(self, list_of_data):
        """Write the pieces, joined into as few records as possible."""
        self.protocol.loop.check_owner()
        self.protocol.write(b"".join([
            data if type(data) is bytes else bytes(memoryview(data)) for data in list_of_data]))

    def get_write_buffer_limits(self):
        with cython.critical_section(self.protocol):
            return self.protocol.write_low_water, self.protocol.write_high_water

    def set_write_buffer_limits(self, high=None, low=None):
        self.protocol.loop.check_owner()
        self.protocol.set_write_limits(high, low)
        self.protocol.tell_writing()

    def get_write_buffer_size(self):
        """Return how many bytes wait to be sent; held writes are encrypted first.

        Called in a thread other than the loop's, it encrypts nothing.
        """
        self.protocol.loop.check_owner()
        if is_elsewhere(self.protocol.loop):
            return self.protocol.backlog_size + self.protocol.held_size
        self.protocol.release()
        return self.protocol.unsent()

    def can_write_eof(self):
        return False

    def write_eof(self):
        raise NotImplementedError
