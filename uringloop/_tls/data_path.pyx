"""The data path of TLS: records to OpenSSL, plaintext to the protocol, writes to records.

`TLSCore` is the base class that `ssl_protocol.pyx` puts before asyncio's SSLProtocol.

The field `path` says which of the two delivers and writes:

    STANDARD ──the handshake is complete──> FIRST_READ ──schedule_first_read()──> FIRST_SCHEDULED
       │ ^                                      │                                      │
       │ └────────────────── end_first_read() ──┴──────────────────────────────────────┘
       └──choose_path(): WRAPPED, and the objects are the ssl module's──> COMPILED

end_first_read() calls choose_path(). The shutdown leads from any path to STANDARD.

Both classes share their fields, which are C fields under the names that SSLProtocol's methods use.
This works only while those methods use the names that they used when this was written, which
`_cpython/stdlib.pyx` checks. SSLProtocol's own methods do the handshake and the shutdown, and all
of a connection whose objects are not exactly of the `ssl` module's classes.

Nothing here touches a socket. Only the loop's thread may call it; other threads may read the fields
whose properties have critical sections.
"""

import ssl
import sys
from asyncio import sslproto

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyContext_CopyCurrent, enter, leave
from uringloop._kernel.atomics cimport load_int, store_int
from uringloop._tls.records cimport Records, Scratch, Window, give_scratch, take_scratch
from uringloop._transport.asyncio_reader cimport append_to_reader, appends_to_reader
from uringloop._transport.compiled_protocol cimport CompiledProtocol, is_compiled
from uringloop._transport.transport cimport Transport
from uringloop._transport.write_transport cimport WriteSource, WriteTransport
from uringloop._turn.turn cimport LoopCore

cdef bint ALERTS_ARE_SENT       # filled by the import
from uringloop._cpython.stdlib import ALERTS_ARE_SENT, find


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

cdef object WRAPPED = find(sslproto, "SSLProtocolState.WRAPPED")
cdef object FLUSHING = find(sslproto, "SSLProtocolState.FLUSHING")
cdef str FAILED = "Fatal error on SSL protocol"
cdef tuple ADDRESSES = ("peername", "sockname")


cdef class TLSCore(WriteSource):
    """The compiled half of TLSProtocol, with the fields that it shares with SSLProtocol."""

    def __cinit__(self, loop, *args, **options):
        self.records = Records()
        self.more_held = []
        if isinstance(loop, LoopCore):
            self.core_loop = loop

    # ── the path of the data ─────────────────────────────────────────────────────────────────

    cdef int enter_state(self, object state) except -1:
        """SSLProtocol has entered *state*, an SSLProtocolState."""
        if self.path == COMPILED and state is not WRAPPED:
            # Held writes are sent before close_notify.
            self.release()
        self.state = state
        self.path = FIRST_READ if state is WRAPPED else STANDARD
        return 0

    cdef int schedule_first_read(self) except -1:
        """Deliver the first bytes in a later callback, after those of the handshake's waiter."""
        assert self.awaits_first_read()
        self.send_records()
        if self.path == FIRST_READ:
            self.path = FIRST_SCHEDULED
            self._loop.call_soon(self._go_on)
        return 0

    cdef int end_first_read(self) except -1:
        """A callback continues the connection: from now on bytes are delivered as they come."""
        if self.awaits_first_read():
            self.path = STANDARD
            self.choose_path()
        return 0

    cdef int choose_path(self) except -1:
        """Choose SSLProtocol's methods or the compiled ones, unless the first read is due."""
        self.records.examine(self.sslobj)
        if not self.awaits_first_read():
            self.path = STANDARD
            if self.state is WRAPPED and self.records.is_stock_ssl:
                self.path = COMPILED
                self.records.learn_overhead()
        return 0

    @cython.final
    cdef bint awaits_first_read(self) noexcept:
        return self.path == FIRST_READ or self.path == FIRST_SCHEDULED

    # ── fields with derived fields ───────────────────────────────────────────────────────────

    @property
    def _incoming(self):
        return self.records.incoming

    @_incoming.setter
    def _incoming(self, bio):
        self.records.set_incoming(bio)
        self.choose_path()

    @property
    def _outgoing(self):
        return self.records.outgoing

    @_outgoing.setter
    def _outgoing(self, bio):
        self.records.set_outgoing(bio)
        self.choose_path()

    @property
    def _sslobj(self):
        return self.sslobj

    @_sslobj.setter
    def _sslobj(self, sslobj):
        self.sslobj = sslobj
        self.choose_path()

    @property
    def _state(self):
        return self.state

    @_state.setter
    def _state(self, state):
        self.enter_state(state)

    @property
    @cython.critical_section
    def _app_protocol(self):
        return self.app_protocol

    @_app_protocol.setter
    def _app_protocol(self, app_protocol):
        with cython.critical_section(self):
            self.app_protocol = app_protocol

    @property
    @cython.critical_section
    def _transport(self):
        return self.transport

    @_transport.setter
    def _transport(self, transport):
        with cython.critical_section(self):
            self.transport = transport
        if transport is not None:
            self.context = context_of(transport)
        self.writer = None
        if isinstance(transport, WriteTransport) and hasattr(transport, "_start_tls_compatible"):
            self.writer = transport

    @property
    def _app_reading_paused(self):
        return load_int(&self.app_reading_paused) != 0

    @_app_reading_paused.setter
    def _app_reading_paused(self, bint paused):
        store_int(&self.app_reading_paused, paused)

    @property
    @cython.critical_section
    def _incoming_high_water(self):
        return self.incoming_high_water

    @_incoming_high_water.setter
    def _incoming_high_water(self, size):
        with cython.critical_section(self):
            self.incoming_high_water = size
        self.reading_stops = min(size, sys.maxsize)

    @property
    @cython.critical_section
    def _outgoing_high_water(self):
        return self.outgoing_high_water

    @_outgoing_high_water.setter
    def _outgoing_high_water(self, size):
        with cython.critical_section(self):
            self.outgoing_high_water = size
        self.writing_stops = min(size, sys.maxsize)

    # ── overrides of SSLProtocol's methods ───────────────────────────────────────────────────

    def buffer_updated(self, nbytes):
        self.receive(PyByteArray_AS_STRING(self._ssl_buffer), nbytes)

    def _do_read(self):
        try:
            if self.path == COMPILED:
                self.read_pending()
            elif self.awaits_first_read():
                self.schedule_first_read()
            elif self.state is FLUSHING and self.is_closed_by_program():
                self._do_write()
            else:
                sslproto.SSLProtocol._do_read(self)
        except (KeyboardInterrupt, SystemExit):
            self.reschedule_delivery()
            raise
        except Exception as exc:
            self.fail_reading(exc)

    def eof_received(self):
        if self.awaits_first_read():
            # The EOF comes after the callback that delivers the first bytes.
            self._loop.call_soon(self._end_received)
            return True
        return sslproto.SSLProtocol.eof_received(self)

    def _end_received(self):
        if self.transport is None:
            return
        if not self.call_in_context(sslproto.SSLProtocol.eof_received):
            self.transport.close()

    def connection_lost(self, exc):
        self.take_held()
        # Keep the addresses, which asyncio's connection_lost() forgets. Without a GIL, a peer that
        # closes at once can end the connection before create_connection() returns.
        if self.writer is not None:
            for name in ADDRESSES:
                self._extra[name] = self.writer.get_extra_info(name)
        sslproto.SSLProtocol.connection_lost(self, exc)

    def _set_app_protocol(self, app_protocol):
        sslproto.SSLProtocol._set_app_protocol(self, app_protocol)
        if not hasattr(app_protocol, "data_received") and hasattr(app_protocol, "get_buffer"):
            # A BufferedProtocol by its methods only: asyncio could not deliver to it.
            # StreamTransport accepts it as well.
            self._app_protocol_get_buffer = app_protocol.get_buffer
            self._app_protocol_buffer_updated = app_protocol.buffer_updated
            self._app_protocol_is_buffer = True

    def _write_appdata(self, list_of_data):
        cdef bytes held = self.take_held()
        if held is not None:
            # Write all in one call: after a first one, pause_writing() may raise KeyboardInterrupt.
            list_of_data = [held, *list_of_data]
        sslproto.SSLProtocol._write_appdata(self, list_of_data)

    def _process_outgoing(self):
        self.send_records()

    def _get_write_buffer_size(self):
        self.release()
        return self.records.unsent() + self._write_buffer_size

    def _get_read_buffer_size(self):
        return self.records.unread()

    def take_ahead(self, bytes data not None):
        """Take bytes of the connection that were received before it was this protocol's."""
        self.records.take_in_all(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int fail_reading(self, object exc) except -1:
        if ALERTS_ARE_SENT and isinstance(exc, ssl.SSLError):
            self._process_outgoing()
        self._fatal_error(exc, FAILED)
        return 0

    # ── calls of the program ─────────────────────────────────────────────────────────────────

    cdef object call_in_context(self, method):
        """Call a method of SSLProtocol in the connection's context, like its callbacks."""
        cdef PyObject *entered
        if self.context is None:
            return method(self)
        entered = enter(self.context)
        try:
            return method(self)
        finally:
            leave(self.context, entered)

    cdef bint is_closed_by_program(self) except -1:
        return self._app_transport is None or self._app_transport._closed

    cdef int reschedule_delivery(self) except -1:
        """Schedule what is left after a protocol's method raised KeyboardInterrupt."""
        if self.state is WRAPPED:
            # The method may be connection_made(): resolve the waiter of the handshake.
            self._loop.call_soon(self._wakeup_waiter)
        if not self.app_reading_paused:
            # SSLProtocol delivers whatever is left when reading is resumed.
            store_int(&self.app_reading_paused, True)
            self._resume_reading()
        return 0

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    cdef int receive(self, const char *data, Py_ssize_t size) except -1:
        """Process *size* received bytes, in place of get_buffer() and buffer_updated()."""
        if self.path == COMPILED:
            try:
                self.receive_open(data, size)
            except (KeyboardInterrupt, SystemExit):
                self.reschedule_delivery()
                raise
            except Exception as exc:
                self.fail_reading(exc)
        else:
            self.receive_unopened(data, size)
        return 0

    cdef int receive_unopened(self, const char *data, Py_ssize_t size) except -1:
        self.records.take_in_all(data, size)
        try:
            # Pass no bytes, because OpenSSL has them already.
            sslproto.SSLProtocol.buffer_updated(self, 0)
        except (KeyboardInterrupt, SystemExit):
            self.reschedule_delivery()
            raise
        return 0

    cdef int receive_open(self, const char *data, Py_ssize_t size) except -1:
        if self.app_reading_paused or self._app_protocol_is_buffer:
            self.records.take_in_all(data, size)
            return self.read_pending()
        self.deliver(self.records.decrypt(data, size))
        self.send_pending()
        return self.control_reading()

    cdef int read_pending(self) except -1:
        """Deliver the pending plaintext, in place of SSLProtocol._do_read()."""
        if not self.app_reading_paused:
            if self._app_protocol_is_buffer:
                self.fill_app_buffer()
            else:
                self.deliver(self.records.decrypt_pending())
            self.send_pending()
        return self.control_reading()

    cdef int deliver(self, bytes data) except -1:
        """Pass plaintext to the protocol; *data* is None if no record was complete."""
        cdef object app_protocol = self.app_protocol
        if data is not None and not receive_by_reader(app_protocol, data):
            app_protocol.data_received(data)
        if self.records.peer_closed:
            self.close_received()
        return 0

    cdef int fill_app_buffer(self) except -1:
        """Decrypt into the buffer of a BufferedProtocol, once in a turn like asyncio."""
        cdef Records records = self.records
        cdef Py_buffer view
        cdef Py_ssize_t filled
        cdef object buffer
        if not records.has_more():
            records.may_have_more = records.framer.broken
            if records.peer_closed and self.path == COMPILED:
                self.close_received()
            return 0
        buffer = self._app_protocol_get_buffer(records.unread())
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except (BufferError, TypeError):
            # read() of the `ssl` module raises its own error for such a buffer.
            records.engine.read(len(buffer), buffer)
            raise
        try:
            filled = records.fill(<char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        # The buffer is released: buffer_updated() may resize it.
        del buffer
        if records.may_have_more:
            self._loop.call_soon(self._go_on)
        if filled:
            self._app_protocol_buffer_updated(filled)
        if records.peer_closed:
            self.close_received()
        return 0

    cdef bint fill_until_paused(self) except -1:
        """Deliver all plaintext to a BufferedProtocol; False if it paused and did not close."""
        cdef Records records = self.records
        cdef Py_ssize_t before = -1
        while records.has_more() and records.left() != before:
            if self.app_reading_paused:
                return self._app_transport._closed
            before = records.left()
            self._do_read()
        return True

    cdef int close_received(self) except -1:
        """Process the peer's close_notify."""
        self._call_eof_received()
        self._start_shutdown()
        return 0

    cdef int send_pending(self) except -1:
        """Send writes that waited for a read, and records that a read has produced."""
        if self._write_backlog:
            self._do_write()
        else:
            self.send_records()
        return 0

    cdef int control_reading(self) except -1:
        """Pause or resume the transport, depending on the number of unread bytes."""
        cdef Py_ssize_t size = self.records.unread() if self.records.may_have_more else 0
        if size >= self.reading_stops or self._ssl_reading_paused:
            self._control_ssl_reading()
        return 0

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    cdef int write(self, bytes data) except -1:
        """Hold or send *data*, in place of SSLProtocol._write_appdata()."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.held_size and self.held_size + size > RECORD_MAX:
            self.release_before(data)
        if (size <= HELD_MAX and self.writer is not None and not self._ssl_writing_paused
                and not self._app_writing_paused and self.writing_stops > 0):
            return self.hold(data)
        if self.held_size:
            self.add_held(data)
            data = self.take_held()
        return self.write_now(data)

    cdef int hold(self, bytes data) except -1:
        """Hold a write until the flush at the end of the turn."""
        self.add_held(data)
        return self.writer.set_source(self, PyBytes_GET_SIZE(data))

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

    cdef int release(self) except -1:
        """Write the held writes at once, not at the end of the turn."""
        cdef bytes data = self.take_held()
        if data is not None:
            self.write_now(data)
        return 0

    cdef int release_before(self, bytes data) except -1:
        """Write the held writes; if that raises KeyboardInterrupt, write *data*, too."""
        try:
            self.release()
        except (KeyboardInterrupt, SystemExit):
            self._write_appdata((data,))
            raise
        return 0

    cdef bytes take_records(self):
        """Return the records of the held writes for the transport's flush; None without any."""
        cdef bytes data = self.take_held()
        cdef bytes records = None
        cdef Py_ssize_t done
        if data is None or self.path != COMPILED:
            return None
        try:
            if self._ssl_writing_paused or self.writer is None:
                done = self.records.encrypt(data)
            else:
                records = self.records.encrypt_out(self.writer.loop, data, &done)
                if done == PyBytes_GET_SIZE(data):
                    return records
                self.writer.put(records)
            self.write_rest(data, done)
        except Exception as exc:
            self._fatal_error(exc, FAILED)
        return None

    cdef int write_now(self, bytes data) except -1:
        """Encrypt *data* and pass the records to the transport."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t done = 0
        try:
            if size < SCRATCH_MIN:
                done = self.records.encrypt(data)
            if done < size:
                self.write_rest(data, done)
            else:
                self.send_records()
        except Exception as exc:
            self._fatal_error(exc, FAILED)
        return 0

    cdef int write_rest(self, bytes data, Py_ssize_t done) except -1:
        """Encrypt *data* from the offset *done* on, and send the records."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef list pieces = []
        cdef Scratch scratch = None
        cdef LoopCore loop = None
        if (self.writer is not None and self.path == COMPILED and not self._ssl_writing_paused
                and not self.records.unsent()):
            loop = self.writer.loop
            scratch = take_scratch(loop)
        if scratch is None:
            done = self.encrypt_each(data, done, pieces)
        else:
            try:
                done = self.encrypt_lent(scratch, data, done, pieces)
            finally:
                give_scratch(loop, scratch)
        if done < size:
            self._write_backlog.append(data[done:])
            self._write_buffer_size += size - done
        if pieces:
            # Pass all pieces in one call: the transport pauses this protocol when the socket is
            # full.
            if self.writer is not None:
                self.writer.put_all(pieces)
            else:
                self.transport.write(b"".join(pieces))
        return self.control_writing()

    cdef Py_ssize_t encrypt_each(self, bytes data, Py_ssize_t done, list pieces) except -1:
        """Encrypt record by record, so that each passes through the same memory of the BIO."""
        cdef Records records = self.records
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t count = 1
        while done < size and count:
            count = records.encrypt_from(
                PyBytes_AS_STRING(data) + done, min(size - done, RECORD_MAX))
            done += count
            if count and not self._ssl_writing_paused:
                pieces.append(records.take_out())
        return done

    cdef Py_ssize_t encrypt_lent(
            self, Scratch scratch, bytes data, Py_ssize_t done, list pieces) except -1:
        """Encrypt to *scratch* and send from there; append to *pieces* what the socket refuses."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t taken
        cdef Py_ssize_t count = 1
        cdef Window window = self.records.window
        while done < size and count:
            window.show(PyBytes_AS_STRING(data) + done, min(size - done, SCRATCH_MAX))
            count = self.records.encrypt_to(scratch, window)
            done += count
            taken = 0
            if not pieces:
                taken = self.writer.send_memory(scratch.memory.data, scratch.memory.length)
            if taken < <Py_ssize_t>scratch.memory.length:
                pieces.append(scratch.rest(taken))
        return done

    cdef int send_records(self) except -1:
        """Send pending records, in place of SSLProtocol._process_outgoing()."""
        if not self._ssl_writing_paused and self.records.unsent():
            if self.writer is not None:
                self.writer.put(self.records.take_out())
            else:
                self.transport.write(self.records.take_out())
        return self.control_writing()

    cdef int control_writing(self) except -1:
        """Call pause_writing() or resume_writing(), depending on the number of unsent bytes."""
        cdef Py_ssize_t size = self._write_buffer_size
        if self._ssl_writing_paused:
            size += self.records.unsent()
        if size >= self.writing_stops or self._app_writing_paused:
            self._control_app_writing()
        return 0


cdef bint receive_by_reader(object app_protocol, bytes data) except -1:
    """Append *data* to the buffer of a stream; False if data_received() must be called."""
    if is_compiled(app_protocol):
        return (<CompiledProtocol>app_protocol).receive_object(data)
    return appends_to_reader(app_protocol) and append_to_reader(
        app_protocol, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef object context_of(object transport):
    """Return the context in which the callbacks of *transport*'s protocol run."""
    if isinstance(transport, Transport):
        return (<Transport>transport).context
    protocol = getattr(transport, "_ssl_protocol", None)
    if isinstance(protocol, TLSCore) and (<TLSCore>protocol).context is not None:
        return (<TLSCore>protocol).context
    return PyContext_CopyCurrent()
