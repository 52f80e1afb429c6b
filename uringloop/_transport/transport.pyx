"""Transport, the base class of all transports: its life, calls of the protocol, errors, the end.

A transport ends in this order, whatever the reason: its operations are cancelled; connection_lost()
is called in a later turn; the socket is closed when no operation is in flight. Closing it earlier
would send no FIN and free no port: an operation in flight keeps the file open.

    OPENING ──enter_open()──> OPEN ──enter_closing()──> CLOSING ──schedule_end()──> ENDING
       │                       └─enter_broken()─> BROKEN ──^                          │
       └───────────────enter_closing()─────────────────────^      _call_connection_lost()
                                                                                      │
                 released <──release_when_done(): nothing is in flight──── LOST <─────┘

close() enters CLOSING, and ENDING when all queued data has been sent. abort(), a fatal error and
the EOF of a pipe go through CLOSING to ENDING at once. A send that fails ends the connection, too,
but while the transport is BROKEN, it delivers what the peer sent before. Only the methods in the
drawing set `life`.
A released transport has no descriptor (`fd` is -1). Whatever its state, a transport is also
released if its creation fails, and by its destructor.

A protocol's method may raise. `report` raises KeyboardInterrupt and SystemExit again, which leave
run_forever(), and reports every other exception. No data is lost: before the exception leaves the
transport, undelivered data is in the stash and the next receive is armed (read_transport.pyx).
"""

import warnings
from asyncio import transports, trsock
from asyncio.log import logger

cimport cython
from cpython.object cimport PyObject
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int64_t

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyContext_CopyCurrent,
    PyContext_Exit,
    PyContext_TryEnter,
    PyObject_CallMethodNoArgs,
    PyObject_CallMethodOneArg,
    PyObject_VectorcallMethod,
    enter,
    enter_nested,
    leave,
    leave_nested,
    raise_pending,
    set_pending,
    take_pending,
)
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.libc cimport close
from uringloop._kernel.waits cimport uring_lingers
from uringloop._transport.asyncio_reader cimport call_connection_lost
from uringloop._turn.handles cimport Handle, fill
from uringloop._turn.turn cimport LoopCore, TurnUser, is_elsewhere


# asyncio's sendfile() requires this subclass of asyncio.Transport.
cdef object STREAM_CLASS = transports._FlowControlMixin
# A C global, because the interpreter clears the names of modules when it exits.
cdef object warn = warnings.warn


cdef class Connections:
    """The open connections of a server."""

    def __cinit__(self, LoopCore loop not None, on_empty):
        self.loop = loop
        self.on_empty = on_empty
        self.limit = PY_SSIZE_T_MAX

    def limit_to(self, limit, on_limit):
        """Call *on_limit* when *limit* connections are served, and when it is one less again."""
        self.limit = PY_SSIZE_T_MAX if limit is None else limit
        self.on_limit = on_limit

    def has_room(self):
        return self.served < self.limit

    cdef int attach(self, Transport transport) except -1:
        """Count a connection that end_service() and detach() count down."""
        transport.server = self
        self.count += 1
        return 0

    cdef int begin_service(self) except -1:
        self.served += 1
        if self.served == self.limit:
            self.on_limit()
        return 0

    cdef int end_service(self) except -1:
        """connection_lost() of a connection is scheduled; another one may begin before its call."""
        self.served -= 1
        if self.served == self.limit - 1:
            self.on_limit()
        return 0

    cdef int detach(self) except -1:
        self.count -= 1
        if self.count == 0 and self.on_empty is not None:
            self.on_empty()
        return 0

    def end(self):
        """Forget the server: it is closed, and its waiters are resolved."""
        self.on_empty = None
        self.limit_to(None, None)

    def transports(self):
        """Return the transports. There is no registry: all transports of the loop are searched."""
        cdef list found = []
        cdef Transport transport
        cdef int fd
        self.loop.check_owner()
        for fd in range(self.loop.fd_table.size):
            if self.loop.fd_table.table[fd] != NULL:
                transport = <Transport>self.loop.fd_table.table[fd]
                if transport.server is self:
                    found.append(transport)
        return found


cdef class Transport(TurnUser):

    def __cinit__(self, *args, **kwargs):
        self.fd = -1

    def __init__(self, *args, **kwargs):
        # The loop creates transports by __new__.
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    # ── the beginning ────────────────────────────────────────────────────────────────────────

    cdef int adopt(self, LoopCore loop, object sock, dict extra) except -1:
        """Take over *sock*, non-blocking, in the caller's context."""
        self.adopt_descriptor(loop, sock.fileno())
        self.sock = sock
        self.extra = extra
        return 0

    cdef int adopt_descriptor(self, LoopCore loop, int fd) except -1:
        loop.check_owner()
        self.loop = loop
        self.context = PyContext_CopyCurrent()
        loop.fd_table.add(fd, <PyObject*>self)
        # From now on the transport owns the descriptor.
        self.fd = fd
        return 0

    cdef int begin(self, object waiter) except -1:
        """Schedule connection_made(), then `_start`, which runs even if the former raises."""
        self.loop.schedule(self.protocol.connection_made, (self,), self.context)
        self.loop.schedule(self._start, (waiter,), None)
        return 0

    def _start(self, waiter):
        """Open the transport; runs in the turn in which connection_made() was called.

        The task that awaits the connection is resumed in the next turn. The first received data is
        delivered behind that turn's callbacks: after the task, and before what the task schedules.
        """
        self.enter_open()
        self.start_io()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    cdef int start_io(self) except -1:
        """Put the first operation in flight, unless the transport was closed meanwhile."""
        raise NotImplementedError

    cdef int enter_open(self) except -1:
        """connection_made() has been called; it may have closed the transport."""
        assert self.life != OPEN
        if self.life == OPENING:
            store_life(&self.life, OPEN)
        return 0

    cdef int enter_broken(self) except -1:
        """A send has failed, and a receive may still bring data."""
        assert self.life == OPEN
        store_life(&self.life, BROKEN)
        return 0

    cdef int enter_closing(self) except -1:
        """Deliver nothing more. After close() queued data is still sent."""
        assert self.life < CLOSING
        store_life(&self.life, CLOSING)
        return 0

    # ── calling the protocol ─────────────────────────────────────────────────────────────────

    cdef PyObject *call(self, object method, PyObject *argument) noexcept:
        """Call the protocol's *method* in the transport's context; *argument* may be NULL.

        Returns a new reference, or NULL with an exception set, which `pending_exception` takes.
        """
        cdef PyObject *result
        # Each call looks the method up, as asyncio does: programs replace protocols and methods.
        cdef object protocol = self.protocol
        cdef object context = self.context
        cdef int64_t began = uring_clock_ns() if self.loop.in_debug_mode() else 0
        cdef PyObject *arguments[2]
        if PyContext_TryEnter(context) < 0:
            arguments[0] = <PyObject*>protocol
            arguments[1] = argument
            result = self.call_nested(method, arguments, 1 if argument == NULL else 2)
        else:
            if argument == NULL:
                result = PyObject_CallMethodNoArgs(protocol, method)
            else:
                result = PyObject_CallMethodOneArg(protocol, method, <object>argument)
            PyContext_Exit(context)
        if began:
            self.warn_slow(began, method)
        return result

    cdef PyObject *call_many(
            self, object method, PyObject **arguments, size_t count) noexcept:
        """Like `call`; the first of the *count* arguments becomes the protocol."""
        cdef PyObject *result
        cdef object protocol = self.protocol
        cdef object context = self.context
        cdef int64_t began = uring_clock_ns() if self.loop.in_debug_mode() else 0
        arguments[0] = <PyObject*>protocol
        if PyContext_TryEnter(context) < 0:
            result = self.call_nested(method, arguments, count)
        else:
            result = PyObject_VectorcallMethod(method, arguments, count, NULL)
            PyContext_Exit(context)
        if began:
            self.warn_slow(began, method)
        return result

    cdef PyObject *call_nested(
            self, object method, PyObject *const *arguments, size_t count) noexcept:
        """Call *method* while another call of this protocol is on the stack.

        write() within a callback may call pause_writing(), and the loop may run within a callback.
        """
        cdef PyObject *result
        cdef PyObject *entered = enter_nested(self.context)
        if entered == NULL:
            return NULL
        result = PyObject_VectorcallMethod(method, arguments, count, NULL)
        leave_nested(entered)
        return result

    cdef int warn_slow(self, int64_t began, object method) noexcept:
        """Debug mode: report a slow call. A pending exception stays pending."""
        cdef PyObject *pending = take_pending()
        try:
            self.loop.report_slow(began, f"{method}() of {self!r}")
        except BaseException as exc:
            logger.error("%r", exc)
        set_pending(pending)
        return 0

    # ── errors ───────────────────────────────────────────────────────────────────────────────

    cdef int report(self, str message, object exc) except -1:
        """Report *exc*; KeyboardInterrupt and SystemExit are raised again and leave the run."""
        if isinstance(exc, (KeyboardInterrupt, SystemExit)):
            raise exc
        self.loop.call_exception_handler(
            {
                "message": message,
                "exception": exc,
                "transport": self,
                "protocol": self.protocol,
            }
        )
        return 0

    cdef int fatal_error(self, object exc, str message) except -1:
        """End the connection because of *exc*. OSErrors are not reported, as in asyncio."""
        if isinstance(exc, OSError):
            if self.loop.in_debug_mode():
                logger.debug("%r: %s", self, message, exc_info=exc)
        else:
            self.report(message, exc)
        return self.force_close(exc)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    cdef int force_close(self, object exc) except -1:
        if self.life >= ENDING:
            return 0
        if self.life < CLOSING:
            self.enter_closing()
        self.stop_operations()
        return self.schedule_end(exc)

    cdef int schedule_end(self, object exc) except -1:
        assert self.life == CLOSING
        store_life(&self.life, ENDING)
        self.loop.check_closed()
        # The handle gets no context: the method enters the transport's itself, even if the loop
        # runs within it.
        self.loop.schedule(self._call_connection_lost, (exc,), None)
        if self.server is not None:
            self.server.end_service()
        return 0

    def _call_connection_lost(self, exc):
        cdef PyObject *entered = enter(self.context)
        try:
            call_connection_lost(self.protocol, exc)
        finally:
            leave(self.context, entered)
            assert self.life == ENDING
            store_life(&self.life, LOST)
            if self.has_operations():
                # The ring holds the completions of what was cancelled in the turn before.
                self.complete_cancelled()
            self.release_when_done()

    cdef int release_when_done(self) except -1:
        """Close the socket if connection_lost() has run and no operation is in flight."""
        if self.life == LOST and not self.has_operations():
            self.release()
        return 0

    cdef int release(self) except -1:
        cdef object sock = self.sock
        cdef Connections server = self.server
        cdef int fd = self.fd
        if fd < 0:
            return 0
        self.loop.fd_table.forget(fd)
        with cython.critical_section(self):
            self.fd = -1
            self.sock = None
            self.protocol = None
        self.server = None
        try:
            if sock is None:
                close_socket(fd)
            else:
                sock.close()
        except OSError as exc:
            # The program has closed the descriptor. The message names the callback in which asyncio
            # would close it.
            self.report(f"Exception in callback {type(self).__name__}._call_connection_lost()", exc)
        finally:
            if server is not None:
                if self.life < ENDING:
                    server.end_service()
                server.detach()
        return 0

    cdef int complete_cancelled(self) except -1:
        """Complete the cancelled operations whose completions are in the ring."""
        return 0

    cdef bint has_operations(self) noexcept:
        """Return whether an operation is in flight."""
        return False

    cdef int stop_operations(self) except -1:
        """Cancel operations in flight, and drop queued data."""
        return 0

    def __del__(self):
        cdef object protocol = self.protocol
        if self.fd >= 0 and FREE_THREADED and is_elsewhere(self.loop):
            # The garbage collector may run in any thread.
            self.loop.put(fill(Handle.__new__(Handle), self.loop, self.__del__, (), None))
        elif self.fd >= 0:
            self.loop.fd_table.forget(self.fd)
            try:
                warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            finally:
                self.release()
                # A finalizer that runs after this one, such as a StreamWriter's, may call close().
                self.protocol = protocol

    # ── repr() and get_extra_info() ──────────────────────────────────────────────────────────

    def __repr__(self):
        state = "closed" if self.fd < 0 else "closing" if self.life >= BROKEN else "open"
        return f"<{type(self).__name__} {state} fd={self.fd} {self.describe_io()}>"

    cdef str describe_io(self):
        """Return what is in flight, for repr(), in asyncio's words."""
        raise NotImplementedError

    cdef object need_socket(self):
        """Return the socket, or a pipe's file; None once closed."""
        with cython.critical_section(self):
            return self.sock

    cdef dict need_extra(self):
        with cython.critical_section(self):
            if self.extra is None:
                self.extra = self.make_extra()
            return self.extra

    cdef dict make_extra(self):
        raise NotImplementedError

    # ── asyncio.BaseTransport ────────────────────────────────────────────────────────────────

    @property
    def __class__(self):
        # isinstance(transport, asyncio.Transport) is true, although the memory layout differs.
        return STREAM_CLASS

    # Any thread may call the getters below. Only the loop's thread changes the fields that they
    # read, and it does so in a critical section; it reads them without one.

    # Private names of asyncio's transports, which programs read.

    @property
    def _loop(self):
        return self.loop

    @property
    def _closing(self):
        return load_life(&self.life) >= BROKEN

    @property
    @cython.critical_section
    def _protocol(self):
        return self.protocol

    @property
    def _sock(self):
        return self.need_socket()

    @property
    def _extra(self):
        return self.need_extra()

    def get_extra_info(self, name, default=None):
        return self.need_extra().get(name, default)

    def is_closing(self):
        return load_life(&self.life) >= BROKEN

    @cython.critical_section
    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        self.loop.check_owner()
        self.use_protocol(protocol)

    cdef int use_protocol(self, object protocol) except -1:
        with cython.critical_section(self):
            self.protocol = protocol
        return 0

    def abort(self):
        self.loop.check_owner()
        self.force_close(None)

    def _force_close(self, exc):
        """End the connection: SSLProtocol calls this, asyncio's too."""
        self.loop.check_owner()
        self.force_close(exc)


cdef int close_socket(int fd) noexcept:
    """Close a descriptor; let other threads run if SO_LINGER may make this take time."""
    if uring_lingers(fd):
        with nogil:
            return close(fd)
    return close(fd)


cdef object pending_exception():
    """Take the pending exception that a `call` has raised, and return it."""
    try:
        raise_pending()
    except BaseException as exc:
        return exc


cdef str polling_or_idle(bint in_flight):
    """Return asyncio's word for a direction of a transport, for repr()."""
    return "polling" if in_flight else "idle"


cdef dict socket_extra(object sock, object peername):
    """Return get_extra_info()'s names and values for a socket, as asyncio's transports do."""
    try:
        sockname = sock.getsockname()
    except OSError:
        sockname = None
    if peername is None:
        try:
            peername = sock.getpeername()
        except OSError:
            peername = None
    return {"socket": trsock.TransportSocket(sock), "sockname": sockname, "peername": peername}
