"""A stream connection: bytes in by a multishot receive; bytes out are the writer's.

One receive stays armed; each completion names a buffer of the pool, which is copied out and given
back before the protocol sees the bytes. `pause_reading` only sets a flag: what still arrives goes
to a stash, and the first such arrival cancels the receive.

A connection whose messages are large is polled instead, and its bytes are received by a plain call
into the object that the protocol gets: a batch of large receives would leave the cache before any
of them is looked at, and the copy costs more than the call.

The ring holds the transport while an operation is in flight; the socket is closed after that.
"""

import asyncio
import socket
from asyncio import constants, trsock

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport (
    PyBytes_Resize,
    Py_DECREF_owned,
    enter,
    leave,
    take_bytes,
)
from uringloop._kernel.errors cimport EAGAIN, ECANCELED, ECONNRESET, EINTR, ENOBUFS, errno, os_error
from uringloop._kernel.io_uring cimport (
    io_uring_sqe,
    IORING_CQE_F_BUFFER,
    IORING_CQE_F_MORE,
    IORING_CQE_F_SOCK_NONEMPTY,
)
from uringloop._kernel.libc cimport (
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    POLLIN,
    POLLRDHUP,
    send,
    sendmsg,
    SHUT_WR,
    shutdown,
    sockaddr_in6,
)
from uringloop._kernel.sockets cimport (
    io_uring_prep_poll_multishot,
    uring_has_unread,
    uring_prep_recv_multishot,
    uring_prep_recv_select,
    uring_prep_send,
    uring_prep_sendmsg,
    uring_receive,
    uring_tell_left,
    uring_was_reset,
)
from uringloop._ring.buffers cimport STREAM_GROUP
from uringloop._ring.features cimport MULTISHOT_RECV, uses
from uringloop._ring.ring cimport Operation, Ring, operation_init
from uringloop._tls.ssl_protocol cimport is_secure, receive_records
from uringloop._transport.addresses cimport NearEnd, python_address
from uringloop._transport.freelist cimport bytes_for, bytes_of, offer
from uringloop._transport.pausing cimport ENDED, STARVED
from uringloop._transport.stream_reader cimport feed, is_fed
from uringloop._transport.transport cimport CLOSING, OPEN, own, socket_extra
from uringloop._transport.writer cimport WriteTransport
from uringloop._turn.turn cimport LoopCore

# Bytes of an average receive from which on a connection is polled, and below which no longer. Both
# ways take the same time at about 2.5 KB (50 clients).
LARGE_RECEIVE = 4096
SMALL_RECEIVE = 2048
# The newest receive counts for a sixteenth.
AVERAGE_SHIFT = 4
# Bytes that one call asks for at first, and at most: as asyncio.
ROOM_AT_START = 16 * 1024
ROOM_MAX = 256 * 1024
# Others have their turn after this many bytes.
READ_AT_ONCE_MAX = 256 * 1024

cdef int LARGE = LARGE_RECEIVE
cdef int SMALL = SMALL_RECEIVE
cdef int SHIFT = AVERAGE_SHIFT
cdef int ROOM_FIRST = ROOM_AT_START
cdef int ROOM_LAST = ROOM_MAX
cdef int AT_ONCE_MAX = READ_AT_ONCE_MAX

cdef object NAME_DATA_RECEIVED = "data_received"
cdef object NAME_GET_BUFFER = "get_buffer"
cdef object NAME_BUFFER_UPDATED = "buffer_updated"
cdef object NAME_EOF_RECEIVED = "eof_received"
cdef object ANY_SIZE = -1
cdef str DATA_RECEIVED_FAILED = "Fatal error: protocol.data_received() call failed."
cdef str BUFFER_UPDATED_FAILED = "Fatal error: protocol.buffer_updated() call failed."
cdef str GET_BUFFER_FAILED = "Fatal error: protocol.get_buffer() call failed."
cdef frozenset NODELAY_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))
cdef frozenset NODELAY_PROTOCOLS = frozenset((0, socket.IPPROTO_TCP))
cdef object END = object()


@cython.final
cdef class StreamTransport(WriteTransport):
    # What asyncio's start_tls() and sendfile() look for.
    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, stream_on_recv, <PyObject*>self)
        if not uses(MULTISHOT_RECV):
            self.set_ring_mode(SINGLE)

    def _start(self, waiter):
        """Begin to read; runs in the turn in which connection_made was called.

        Somebody who waits for the connection goes first: nothing is received before it is theirs.
        """
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
            self.loop.schedule(self._start, (None,), None)
            return
        self.enter_open()
        try:
            self.want_recv()
        except OSError as exc:  # There is no memory for the buffers.
            self.fatal_error(exc, "Fatal read error on socket transport")

    def __repr__(self):
        state = "closed" if self.fd < 0 else "closing" if self.life >= CLOSING else "open"
        reading = "polling" if self.recv_op.in_flight else "idle"
        writing = "polling" if self.send_op.in_flight else "idle"
        return (
            f"<{type(self).__name__} {state} fd={self.fd} read={reading} "
            f"write=<{writing}, bufsize={self.queue.size}>>"
        )

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    cdef int want_recv(self) except -1:
        if self.life != OPEN or self.paused or self.receiving >= STARVED:
            return 0
        if not self.recv_op.in_flight:
            return self.submit_recv(self.emptied)
        if self.readable and not self.read_scheduled:
            self.read_scheduled = True
            self.loop.schedule(self._read_on, (), None)
        return 0

    cdef int set_ring_mode(self, ReceiveMode mode) except -1:
        self.ring_mode = mode
        if self.mode != POLL:
            self.mode = mode
        return 0

    cdef int submit_recv(self, bint poll_first) except -1:
        if not self.loop.pool.prepare():
            return self.recv_ended(-ENOBUFS)
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        self.armed_mode = self.mode
        self.loop.counters.rearms += self.was_armed
        self.was_armed = True
        if self.mode == POLL:
            # It tells of what is there already.
            self.readable = False
            io_uring_prep_poll_multishot(sqe, self.fd, POLLIN | POLLRDHUP)
        elif self.mode == SINGLE:
            uring_prep_recv_select(sqe, self.fd, STREAM_GROUP, poll_first)
        else:
            uring_prep_recv_multishot(sqe, self.fd, STREAM_GROUP, poll_first)
        return self.arm(sqe)

    cdef int on_recv(self, int res, unsigned int flags) except -1:
        if not flags & IORING_CQE_F_MORE:
            self.disarmed()
        if self.armed_mode == POLL:
            return self.on_poll(res, flags)
        if flags & IORING_CQE_F_MORE and res > 0:
            return self.receive(res, flags)
        self.emptied = res > 0 and not flags & IORING_CQE_F_SOCK_NONEMPTY
        try:
            if res > 0:
                self.receive(res, flags)
            elif flags & IORING_CQE_F_BUFFER:
                self.loop.pool.give_back(flags)
        finally:
            # A KeyboardInterrupt of the protocol leaves the run, and the next run reads on.
            if not flags & IORING_CQE_F_MORE:
                self.recv_ended(res)
        return 0

    cdef int recv_ended(self, int res) except -1:
        """The receive has ended; if the protocol still wants bytes it is armed again."""
        if self.life >= CLOSING:
            return self.release_when_done()
        if res == -ENOBUFS:
            return self.starve(self.loop.pool)
        if res == 0:
            return self.end_reading(END)
        if res < 0 and res != -ECANCELED and res != -EINTR and res != -EAGAIN:
            return self.end_reading(os_error(res, ""))
        return self.want_recv()

    cdef int receive(self, int size, unsigned int flags) except -1:
        """Hand the bytes of a receive buffer to the protocol, or keep them for later."""
        cdef char *memory = self.loop.pool.take(flags, size)
        cdef bint stashing = self.paused or self.stash
        cdef bytes data
        self.loop.counters.received_bytes += size
        self.average += (size - self.average) >> SHIFT
        if self.average > LARGE and self.mode != POLL:
            self.start_polling()
        try:
            if self.life >= CLOSING:
                return 0
            data = (
                PyBytes_FromStringAndSize(memory, size) if stashing else self.absorb(memory, size))
        except MemoryError as exc:
            return self.fatal_error(exc, "Fatal read error on socket transport")
        finally:
            self.loop.pool.give_back(flags)
        if data is None:
            return 0
        if stashing:
            return self.keep(data)
        self.deliver(data)
        offer(data)
        return 0

    cdef bytes absorb(self, const char *memory, int size):
        """Deliver bytes that need no object, or return one: a nested run needs the memory."""
        if self.kind >= BUFFERED and not self.loop.nestable:
            if self.kind == TLS and not self.loop.debug:
                self.deliver_records(memory, size)
            else:
                self.deliver_buffered(memory, size)
            return None
        if self.kind == STREAM_READER and self.feed_reader(memory, size):
            return None
        return bytes_of(memory, size)

    cdef bint feed_reader(self, const char *memory, int size) except -1:
        """Do what asyncio's StreamReaderProtocol does with *size* bytes; False if it must."""
        if self.loop.debug:
            # A slow one is to be reported.
            return False
        try:
            return feed(self.protocol, memory, size)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, DATA_RECEIVED_FAILED)
            return True

    cdef int deliver(self, bytes data) except -1:
        cdef PyObject *result
        if self.kind >= BUFFERED:
            if self.kind == TLS and not self.loop.debug:
                return self.deliver_records(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            return self.deliver_buffered(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        result = self.call(NAME_DATA_RECEIVED, <PyObject*>data)
        if result == NULL:
            return self.call_failed(DATA_RECEIVED_FAILED, True)
        Py_DECREF_owned(result)
        return 0

    cdef int deliver_records(self, const char *data, Py_ssize_t size) except -1:
        """Give TLS its bytes, without the buffer in between."""
        cdef PyObject *entered = NULL
        try:
            entered = enter(self.context)
            receive_records(self.protocol, data, size)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, BUFFER_UPDATED_FAILED)
        finally:
            if entered != NULL:
                leave(self.context, entered)
        return 0

    cdef int deliver_buffered(self, const char *data, Py_ssize_t size) except -1:
        """Copy into the protocol's buffers until all is there, it pauses, or it is another."""
        cdef Py_ssize_t taken = 0
        try:
            while (taken < size and self.kind >= BUFFERED and not self.paused
                    and self.life < CLOSING):
                self.fill_protocol_buffer(data, size, &taken)
        finally:
            # A KeyboardInterrupt of the protocol leaves the run, and the next run goes on here.
            if taken < size and self.life < CLOSING:
                self.keep_first(PyBytes_FromStringAndSize(data + taken, size - taken))
        return 0

    cdef int fill_protocol_buffer(
            self, const char *data, Py_ssize_t size, Py_ssize_t *taken) except -1:
        """Have the protocol take more of *data*; when that fails the end has begun."""
        cdef Py_buffer view
        cdef Py_ssize_t count
        cdef object buffer, filled
        cdef PyObject *result = self.call(NAME_GET_BUFFER, <PyObject*>ANY_SIZE)
        if result == NULL:
            return self.call_failed(GET_BUFFER_FAILED, True)
        buffer = own(result)
        try:
            if not len(buffer):
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            return self.fatal_error(exc, GET_BUFFER_FAILED)
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except BaseException as exc:
            exc = self.refusal(buffer) or exc
            return self.fatal_error(exc, "Fatal read error on socket transport")
        count = min(view.len, size - taken[0])
        memcpy(view.buf, data + taken[0], count)
        taken[0] += count
        if self.loop.nestable and taken[0] < size:
            taken[0] += self.keep_rest(data + taken[0], size - taken[0])
        PyBuffer_Release(&view)
        del buffer  # Released, so that the protocol may resize it now.
        filled = count
        result = self.call(NAME_BUFFER_UPDATED, <PyObject*>filled)
        if result == NULL:
            return self.call_failed(BUFFER_UPDATED_FAILED, True)
        Py_DECREF_owned(result)
        return 0

    # ── large messages ───────────────────────────────────────────────────────────────────────

    cdef int start_polling(self) except -1:
        """From now on wait with a poll; the receive that is armed ends first."""
        self.mode = POLL
        self.tells_left = uring_tell_left(self.fd)
        if not self.room:
            self.room = ROOM_FIRST
        return self.stop_reading()

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        """The socket is readable or at its end, or the poll has ended."""
        try:
            if res > 0:
                if res & ~POLLIN:
                    self.hung_up = True
                self.read_directly()
        finally:
            if not flags & IORING_CQE_F_MORE:
                self.recv_ended(res if res < 0 else -ECANCELED)
            elif self.readable:
                self.want_recv()
        return 0

    def _read_on(self):
        self.read_scheduled = False
        if self.armed_mode == POLL and self.readable:
            try:
                self.read_directly()
            finally:
                if self.readable:
                    self.want_recv()

    cdef int read_directly(self) except -1:
        """Receive until the socket is empty, the protocol pauses or others must have their turn.

        The poll tells of every arrival once: what is left is remembered in `readable`.
        """
        cdef int size, left
        cdef int total = 0
        self.readable = True
        while (total < AT_ONCE_MAX
                and not (self.paused or self.stash or self.life >= CLOSING)
                and self.receiving != ENDED):
            try:
                size = self.read_some(&left)
            except MemoryError as exc:
                return self.end_reading(exc)
            if size == 0 or (size < 0 and size != -EINTR):
                self.readable = False
                if size == -EAGAIN:
                    break
                return self.end_reading(END if size == 0 else os_error(size, ""))
            if size > 0:
                total += size
                self.loop.counters.received_bytes += size
                self.average += (size - self.average) >> SHIFT
                if left == 0 and not self.hung_up and not self.loop.nestable:
                    self.readable = False
                    break
        if self.average < SMALL and self.mode == POLL:
            # A receive, once armed, finds what is in the socket.
            self.mode = self.ring_mode
            self.stop_reading()
        return 0

    cdef int read_some(self, int *left) except? -1:
        """Receive once and deliver it; return the bytes, 0 at the end, or -errno."""
        cdef char *memory
        cdef int size
        cdef bytes data
        if self.kind == PLAIN:
            return self.read_bytes(left)
        memory = self.loop.pool.spare()
        size = uring_receive(self.fd, memory, self.loop.pool.size, self.tells_left, left)
        if size > 0:
            data = self.absorb(memory, size)
            if data is not None:
                self.deliver(data)
        return size

    cdef int read_bytes(self, int *left) except? -1:
        """Receive into the object that the protocol gets."""
        cdef PyObject *data = bytes_for(self.room)
        cdef int size
        cdef bytes owned
        size = uring_receive(
            self.fd, PyBytes_AS_STRING(<bytes>data), self.room, self.tells_left, left)
        if size <= 0:
            Py_DECREF_owned(data)
            return size
        if size < self.room:
            PyBytes_Resize(&data, size)
        if left[0] > 0 or (left[0] < 0 and size == self.room):
            # The next message is taken to be as long as this one.
            self.room = min(max(2 * self.room, size + left[0]), ROOM_LAST)
        else:
            self.room = max(size, self.room - ((self.room - size + 31) >> 5))
        owned = take_bytes(data)
        self.deliver(owned)
        offer(owned)
        return size

    # ── the end of reading ───────────────────────────────────────────────────────────────────

    cdef int end_reading(self, object item) except -1:
        """Take note of the peer's FIN (END) or of an error, in order with the bytes before it."""
        self.end_input()
        if (item is END and (self.queue.count or self.send_op.in_flight or self.broken is not None)
                and uring_was_reset(self.fd)):
            item = os_error(-ECONNRESET, "")
        return self.take_item(item)

    cdef int deliver_end(self, object item) except -1:
        cdef PyObject *result
        if item is END and self.broken is not None:
            item = self.broken
        if item is not END:
            return self.fatal_error(item, "Fatal read error on socket transport")
        result = self.call(NAME_EOF_RECEIVED, NULL)
        if result == NULL:
            return self.call_failed("Fatal error: protocol.eof_received() call failed.", True)
        if not own(result):
            self.begin_close()
        return 0

    cdef bint is_receiving(self) noexcept:
        if self.life != OPEN:
            return False
        if self.paused:
            # A receive that is armed takes the peer's reset, and tells it in the next turn.
            return self.recv_op.in_flight
        return self.receiving != ENDED or bool(self.stash)

    cdef bint receive_rest(self) except -1:
        if self.paused:
            return False
        if self.stash:
            return True
        if not uring_has_unread(self.fd):
            return False
        if self.armed_mode == POLL:
            self.read_directly()
        return True

    # ── pausing ──────────────────────────────────────────────────────────────────────────────

    cdef int keep(self, object item) except -1:
        if self.paused:
            # Pausing under load costs a cancel each time: from now on one receive at a time.
            self.set_ring_mode(SINGLE)
        return WriteTransport.keep(self, item)

    cdef int deliver_item(self, object item) except -1:
        if isinstance(item, bytes):
            return self.deliver(item)
        return self.deliver_last(item)

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Queue *data*; it is sent at the end of the turn, or at once above the high water.

        Anything mutable is copied: the caller may change it as soon as this returns.
        """
        self.put(data)

    cdef int submit_send(self) except -1:
        # First what can fail: a submission that is taken must be started.
        cdef Ring ring = self.loop.ring
        cdef io_uring_sqe *sqe
        cdef bint quiet
        self.queue.prepare()
        sqe = ring.submission()
        # A quiet send's end is not noticed before the next enter returns.
        quiet = ring.quiet_sends and not self.full and not self.is_awaited()
        if self.queue.single:
            uring_prep_send(sqe, self.fd, self.queue.data, self.queue.data_size, quiet)
        else:
            uring_prep_sendmsg(sqe, self.fd, &self.queue.gathered.message, quiet)
        if quiet:
            return ring.start_quiet(sqe, &self.send_op)
        return ring.start(sqe, &self.send_op)

    cdef Py_ssize_t send_directly(self) noexcept:
        if self.queue.single:
            return send(
                self.fd, self.queue.data, self.queue.data_size, MSG_DONTWAIT | MSG_NOSIGNAL)
        return sendmsg(self.fd, &self.queue.gathered.message, MSG_DONTWAIT | MSG_NOSIGNAL)

    cdef int end_output(self) except -1:
        if shutdown(self.fd, SHUT_WR) < 0:
            raise os_error(-errno, "")
        return 0

    cdef int take_ends(self) except -1:
        self.loop.ring.take(&self.recv_op)
        self.loop.ring.take(&self.send_op)
        return 0

    cdef bint busy(self) noexcept:
        return self.recv_op.in_flight or self.send_op.in_flight

    # ── what few programs ask for ────────────────────────────────────────────────────────────

    def get_extra_info(self, name, default=None):
        # What asyncio's streams and most servers ask for needs no socket, and no dict.
        if self.extra is None:
            if name == "peername":
                return python_address(&self.peer)
            if name == "sockname":
                return self.near.sockname()
            if name != "socket":
                return default
        return self.need_extra().get(name, default)

    cdef object need_socket(self):
        if self.sock is None and self.fd >= 0:
            self.sock = socket.socket(
                self.near.family, self.near.type, self.near.proto, self.fd)
            self.sock.setblocking(False)
        return self.sock

    cdef dict make_extra(self):
        cdef object sock = self.need_socket()
        if sock is None:
            # Asked after the end: a socket that is as closed as ours.
            sock = socket.socket(self.near.family, self.near.type, self.near.proto)
            sock.close()
        return {
            "socket": trsock.TransportSocket(sock),
            "sockname": self.near.sockname(),
            "peername": python_address(&self.peer),
        }

    def set_protocol(self, protocol):
        self.protocol = protocol
        self.kind = kind_of(protocol)


cdef ProtocolKind kind_of(object protocol) except *:
    if is_secure(protocol):
        return TLS
    if is_fed(protocol):
        return STREAM_READER
    if isinstance(protocol, asyncio.BufferedProtocol):
        return BUFFERED
    # By its methods, too, where asyncio could do nothing with it, as uvloop does.
    if not hasattr(protocol, "data_received") and hasattr(protocol, "get_buffer"):
        return BUFFERED
    return PLAIN


cdef StreamTransport new_stream(object loop, object sock, object protocol, object peername):
    """Make a transport of a connected, non-blocking socket, which it owns from here on."""
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    transport.adopt(loop, sock, socket_extra(sock, peername))
    transport.set_protocol(protocol)
    if sock.family == socket.AF_UNIX and transport.loop.ring.u.soft == NULL:
        transport.set_ring_mode(SINGLE)  # A multishot may lose the peer's end.
    if wants_nodelay(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return transport


cdef bint wants_nodelay(object sock) except -1:
    """Return whether asyncio would set TCP_NODELAY on a connection of this kind."""
    return sock.family in NODELAY_FAMILIES and sock.proto in NODELAY_PROTOCOLS


cdef StreamTransport new_accepted(
        LoopCore loop, int fd, NearEnd near, const sockaddr_in6 *peer, unsigned int peer_size,
        object protocol):
    """Make a transport of an accepted IPv4 or IPv6 connection; it owns *fd* when this returns.

    Its Python socket is made when somebody asks for it.
    """
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    transport.near = near
    # What accept4(2) has told: a connection that is reset has no peer any more.
    memcpy(&transport.peer, peer, min(peer_size, sizeof(sockaddr_in6)))
    transport.set_protocol(protocol)
    transport.adopt_descriptor(loop, fd)
    return transport


def make_stream(LoopCore loop not None, sock, protocol, waiter=None, peername=None):
    """Make the transport of a connected socket and schedule connection_made."""
    cdef StreamTransport transport = new_stream(loop, sock, protocol, peername)
    transport.begin(waiter)
    return transport


cdef int stream_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<StreamTransport>op.owner).on_recv(res, flags)
