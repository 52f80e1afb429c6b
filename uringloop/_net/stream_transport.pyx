"""A stream connection: receiving. The base class WriteTransport sends; delivery.pyx delivers.

asyncio's programs see readiness: bytes stay in the socket until the loop has run what it had to
run, and until the protocol wants them. A completion comes later than readiness: by then the ring
has taken bytes that the protocol may not want yet. So a connection begins with polls, which take
nothing. Whenever nothing is in flight, `choose_mode` chooses one of three states (the machine is
drawn in read_transport.pyx):

    POLL         messages are large: `average` has exceeded LARGE_RECEIVE, and has not fallen below
                 SMALL_RECEIVE since
    MULTISHOT    POLLS_FIRST receives have followed polls since the connection began, a pause,
                 ENOBUFS, or large messages; never behind the peer's end
    POLL_ONCE    otherwise

POLL_ONCE arms a one-shot poll and, when the poll has reported, receives once by recv(2). This is
exactly what a loop on a selector does, so it is right in whichever order the kernel reports.
MULTISHOT keeps one receive armed; each completion names a buffer of the pool, whose bytes are
copied out before the protocol sees them. It saves a submission and a system call for each message.

POLL arms a multishot poll; for a plain protocol recv(2) then writes into the object that the
protocol gets. A batch of large receives would be out of the processor's cache before the first is
processed, and copying large messages costs more than the system call.

A protocol of a UNIX connection that has fds_received() gets descriptors, too: for it recvmsg(2)
receives after each poll.

A multishot receive may miss the peer's end. A one-shot poll for the end, `end_op`, therefore stays
in flight beside it; when that poll reports, POLL_ONCE takes what is left, and the end.

The ring holds a reference to the transport while an operation is in flight; the socket is closed
after the last operation has ended.
"""

import socket
from asyncio import constants, trsock

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport Py_DECREF_owned, cut_bytes, take_bytes
from uringloop._kernel.addresses cimport LocalEnd, python_address
from uringloop._kernel.atomics cimport count_total, store_int
from uringloop._kernel.errors cimport (
    EAGAIN,
    ECANCELED,
    ECONNRESET,
    EINTR,
    EMFILE,
    ENOBUFS,
    errno,
    os_error,
)
from uringloop._kernel.io_uring cimport (
    IORING_CQE_F_BUFFER,
    IORING_CQE_F_MORE,
    io_uring_sqe,
)
from uringloop._kernel.libc cimport (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    MSG_CMSG_CLOEXEC,
    MSG_CTRUNC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    POLLIN,
    POLLRDHUP,
    SHUT_WR,
    send,
    shutdown,
    sockaddr_in6,
)
from uringloop._kernel.sockets cimport (
    URING_CONTROL_ROOM,
    URING_SEND_ONCE,
    URING_SEND_WHOLE,
    io_uring_prep_poll_add,
    io_uring_prep_poll_multishot,
    io_uring_prep_send,
    io_uring_prep_sendmsg,
    uring_enable_inq,
    uring_peek,
    uring_prep_recv_multishot,
    uring_receive,
    uring_receive_counted,
    uring_send_message,
    uring_was_reset,
)
from uringloop._net.delivery cimport (
    borrow_buffer,
    deliver,
    deliver_or_copy,
    kind_of,
    report_filled,
)
from uringloop._net.sock_calls cimport family_of
from uringloop._ring.buffers cimport STREAM_GROUP
from uringloop._ring.features cimport MULTISHOT_RECV, UNIX_MULTISHOT
from uringloop._ring.ring cimport Operation, Ring, operation_init
from uringloop._tls.ssl_protocol cimport SSLProtocol
from uringloop._transport.read_transport cimport (
    BUFFERED,
    ENDED,
    IDLE,
    MULTISHOT,
    POLL,
    POLLS_FIRST,
    POLL_ONCE,
    STREAM_READER,
    TLS,
)
from uringloop._transport.transport cimport (
    BROKEN,
    CLOSING,
    OPEN,
    own,
    pending_exception,
    socket_extra,
)
from uringloop._transport.write_transport cimport WriteTransport
from uringloop._turn.turn cimport SCRATCH_SIZE, LoopCore

from uringloop._net.protocol_methods import has_method
from uringloop._net.socket_messages import received_fds


cdef enum:
    # A connection enters POLL when the average size of its receives exceeds the first number, and
    # leaves it below the second. With 50 clients, POLL and MULTISHOT are equally fast at about
    # 2.5 KB.
    LARGE_RECEIVE = 4096
    SMALL_RECEIVE = 2048
    # The newest receive has a weight of one sixteenth.
    AVERAGE_SHIFT = 4
    # Bytes that one recv(2) asks for at first, and at most: the maximum is asyncio's.
    ROOM_AT_START = 16 * 1024
    ROOM_MAX = 256 * 1024
    # Below the size from which on glibc maps memory: Python allocates all of it for each receive.
    RECEIVED_WITH_FDS_MAX = 64 * 1024
    # Bytes received in a row before other connections are served.
    READ_AT_ONCE_MAX = 256 * 1024
    # Records that TLS keeps go to a BIO, whose memory grows by a third more and does not shrink.
    KEPT_AT_ONCE_MAX = 64 * 1024

cdef object NAME_EOF_RECEIVED = "eof_received"
cdef object NAME_FDS_RECEIVED = "fds_received"
cdef str READ_FAILED = "Fatal read error on socket transport"
cdef frozenset NODELAY_PROTOCOLS = frozenset((0, socket.IPPROTO_TCP))
cdef object EOF = object()


@cython.final
cdef class StreamTransport(WriteTransport):
    """The transport of a TCP or UNIX stream connection without TLS."""

    # asyncio's start_tls() and sendfile() test these.
    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, stream_on_recv, <PyObject*>self)

    def __dealloc__(self):
        PyMem_Free(self.end_op)

    cdef int adopt_descriptor(self, LoopCore loop, int fd) except -1:
        self.may_multishot = loop.ring.uses(MULTISHOT_RECV)
        return WriteTransport.adopt_descriptor(self, loop, fd)

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    cdef int submit_recv(self) except -1:
        cdef io_uring_sqe *sqe
        cdef Receiving mode = self.choose_mode()
        sqe = self.loop.ring.submission()
        if mode == MULTISHOT:
            uring_prep_recv_multishot(sqe, self.fd, STREAM_GROUP)
        elif mode == POLL:
            io_uring_prep_poll_multishot(sqe, self.fd, POLLIN | POLLRDHUP)
        else:
            io_uring_prep_poll_add(sqe, self.fd, POLLIN)
        return self.arm(sqe, mode)

    cdef Receiving choose_mode(self) except IDLE:
        """Return the state in which the next bytes are received."""
        if self.messages_large:
            return POLL
        # A receive into the pool's buffers has no room for descriptors.
        if self.may_multishot and self.polls_left == 0 and not self.takes_fds:
            if self.prepare_multishot():
                return MULTISHOT
            self.polls_left = POLLS_FIRST
        return POLL_ONCE

    cdef int on_recv(self, int res, unsigned int flags) except -1:
        if flags & IORING_CQE_F_MORE and res > 0:
            # The usual cases.
            if flags & IORING_CQE_F_BUFFER:
                return self.deliver_buffer(res, flags)
            return self.on_poll(res)
        return WriteTransport.on_recv(self, res, flags)

    cdef int on_received(self, int res, unsigned int flags) except -1:
        # Only a receive by the ring names a buffer.
        if not flags & IORING_CQE_F_BUFFER:
            return self.on_poll(res) if res > 0 else 0
        if res > 0:
            return self.deliver_buffer(res, flags)
        self.loop.pool.refuse(flags)
        return 0

    cdef int on_recv_end(self, int res) except -1:
        if res == -ENOBUFS:
            # The pool has no buffer: receive by polls, which need none.
            count_total(&self.loop.counters.starved, 1)
            self.loop.pool.grow()
            self.return_to_polls()
            return self.want_recv()
        if res == 0:
            return self.end_reading(EOF)
        if res < 0 and res != -ECANCELED and res != -EINTR and res != -EAGAIN:
            return self.end_reading(os_error(res, ""))
        return self.want_recv()

    cdef int deliver_buffer(self, int size, unsigned int flags) except -1:
        """Copy the bytes of a receive buffer out, and deliver or stash them."""
        cdef char *memory = self.loop.pool.take(flags, size)
        # After a pause the receive may bring bytes in the turn of resume_reading(): they wait for
        # the next turn.
        cdef bint stashing = self.paused or self.stash or (
            self.polls_left != 0 and self.served_this_turn())
        cdef bytes data
        self.served_turn = self.loop.counters.turns
        try:
            self.count_received(size)
            if self.life >= CLOSING:
                return 0
            data = (
                PyBytes_FromStringAndSize(memory, size) if stashing
                else deliver_or_copy(self, memory, size))
        except MemoryError as exc:
            return self.fatal_error(exc, READ_FAILED)
        finally:
            self.loop.pool.give_back(flags)
        if data is None:
            return 0
        if stashing:
            return self.stash_item(data)
        deliver(self, data)
        self.loop.freelist.offer(data)
        return 0

    cdef int count_received(self, int size) except -1:
        """Count the *size* bytes of a receive, and notice that messages have become large."""
        count_total(&self.loop.counters.received_bytes, size)
        self.average += (size - self.average) >> AVERAGE_SHIFT
        if self.average > LARGE_RECEIVE and not self.messages_large and not self.takes_fds:
            return self.enter_large()
        return 0

    cdef bint prepare_multishot(self) except -1:
        """Prepare the pool, and watch for the end; return False if polls must go on."""
        try:
            if not self.loop.pool.prepare():
                return False
        except OSError:
            # The system has no memory for the buffers.
            return False
        if not self.loop.ring.misses_ends():
            return True
        if self.end_op != NULL and self.end_op.in_flight:
            return True
        if self.end_op == NULL:
            self.end_op = <Operation*>PyMem_Malloc(sizeof(Operation))
            if self.end_op == NULL:
                return False
            operation_init(self.end_op, stream_on_end, <PyObject*>self)
        # If the poll is submitted before the receive, the kernel wakes the receive first, which
        # then reports most ends itself.
        self.watch_end()
        return True

    cdef int watch_end(self) except -1:
        """Poll for the peer's end, beside a multishot receive that may miss it."""
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        # Every poll reports errors and hang-ups, too.
        io_uring_prep_poll_add(sqe, self.fd, POLLRDHUP)
        return self.loop.ring.start(sqe, self.end_op)

    cdef int on_end(self, int res) except -1:
        """The peer has ended its stream or the connection, or the poll has been cancelled."""
        if self.life >= CLOSING:
            return self.release_when_done()
        if res != -ECANCELED:
            # From now on poll only: another multishot receive could miss the end.
            self.may_multishot = False
            return self.return_to_polls()
        if self.is_multishot() and self.loop.ring.misses_ends():
            # The poll was cancelled because the loop has changed its ring, or its thread.
            return self.watch_end()
        return 0

    # ── one receive after one poll ───────────────────────────────────────────────────────────

    cdef int recv_ready(self) except -1:
        if self.is_multishot():
            # A nested run has armed a receive by the ring. What that has taken comes before what
            # the socket still has.
            return 0
        return self.recv_available() if self.messages_large else self.recv_once()

    cdef int recv_once(self) except -1:
        """Receive once, as a loop on a selector does after an event."""
        cdef int size
        cdef int left = 0
        self.loop.ring.check_not_forked()
        try:
            if self.takes_fds:
                size = self.recv_with_fds()
            elif self.kind == BUFFERED:
                size = self.recv_into_buffer(&left)
                if size > 0:
                    self.count_polled(size)
            else:
                size = self.recv_by_copy()
        except MemoryError as exc:
            return self.end_reading(exc)
        if size > 0:
            self.served_turn = self.loop.counters.turns
        elif size != -EAGAIN and size != -EINTR:
            return self.end_reading_by(size)
        return 0

    cdef int recv_with_fds(self) except? -1:
        """Receive bytes, and descriptors that come with the first of them; the protocol owns both.
        """
        cdef list fds
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(
                RECEIVED_WITH_FDS_MAX, URING_CONTROL_ROOM, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)
        except OSError as exc:
            return -exc.errno
        fds = received_fds(ancillary)
        self.count_received(len(data))
        if fds:
            self.deliver_with_fds(data, fds)
        elif data:
            deliver(self, data)
        if flags & MSG_CTRUNC:
            self.report("descriptors were lost", os_error(-EMFILE, ""))
        return len(data)

    cdef int deliver_with_fds(self, bytes data, list fds) except -1:
        cdef PyObject *result
        # A run nested in the call, or one after a KeyboardInterrupt, delivers the bytes first.
        self.stash_first(data)
        result = self.call(NAME_FDS_RECEIVED, <PyObject*>fds)
        if result == NULL:
            return self.fatal_error(
                pending_exception(), "Fatal error: protocol.fds_received() call failed.")
        Py_DECREF_owned(result)
        # The protocol may have forked: a child is given nothing.
        self.loop.ring.check_not_forked()
        if self.stash and self.stash[0] is data and not self.paused and self.life < CLOSING:
            deliver(self, self.stash.pop(0))
        return 0

    cdef int recv_by_copy(self) except? -1:
        """Receive into the loop's memory, and deliver a copy of what has come."""
        cdef char *memory = self.loop_memory()
        cdef int size = uring_receive(self.fd, memory, self.loop_room())
        if size > 0:
            self.count_polled(size)
            self.deliver_scratch(memory, size)
        return size

    cdef char *loop_memory(self) except NULL:
        """Return the memory of the loop for this receiver."""
        return self.loop.tls_memory() if self.kind == TLS else self.loop.scratch_memory()

    cdef int loop_room(self) noexcept:
        """Return how many bytes this receiver takes from the loop's memory at once."""
        if self.kind == TLS and (<SSLProtocol>self.protocol).keeps_records():
            return KEPT_AT_ONCE_MAX
        return SCRATCH_SIZE

    cdef int deliver_scratch(self, const char *memory, int size) except -1:
        """Deliver bytes from the loop's memory, or a copy of them."""
        cdef bytes data = deliver_or_copy(self, memory, size)
        if data is not None:
            deliver(self, data)
            self.loop.freelist.offer(data)
        return 0

    cdef int count_polled(self, int size) except -1:
        """Count the *size* bytes of a receive after a poll."""
        self.count_received(size)
        if self.polls_left > 0 and not self.messages_large:
            self.polls_left -= 1
        return 0

    # ── large messages ───────────────────────────────────────────────────────────────────────

    cdef int enter_large(self) except -1:
        """Receive large messages from now on; a receive by the ring is cancelled first."""
        assert not self.messages_large
        self.messages_large = True
        self.reports_inq = uring_enable_inq(self.fd)
        if not self.room:
            self.room = ROOM_AT_START
        return self.return_to_polls()

    cdef int leave_large(self) except -1:
        """Receive small messages from now on; the next poll reports what the socket has left."""
        assert self.messages_large
        self.messages_large = False
        self.readable = False
        return self.cancel_recv()

    cdef int on_poll(self, int res) except -1:
        """A poll has reported that the socket is readable, or at its end."""
        if not self.messages_large:
            return self.on_readable()
        if res & ~POLLIN:
            # TCP_INQ counts no reset: the socket is read until EAGAIN from now on.
            self.reports_inq = False
        self.readable = True
        try:
            return 0 if self.served_this_turn() else self.recv_available()
        finally:
            # What is left in the socket is received in the next turn.
            self.want_recv()

    cdef int recv_available(self) except -1:
        """Receive until the socket is empty, the protocol pauses, or READ_AT_ONCE_MAX bytes are
        received.

        The poll reports each arrival once; `readable` says that bytes are left. A receive by the
        ring may be in flight if the protocol has run the loop, or if a send has failed in the turn
        in which messages became large: then nothing is received here, because the ring has taken
        the earlier bytes.
        """
        cdef int size
        cdef int left = 0
        cdef int total = 0
        self.readable = True
        while total < READ_AT_ONCE_MAX and self.may_receive() and not self.takes_fds:
            # The protocol may have forked.
            self.loop.ring.check_not_forked()
            try:
                size = self.recv_and_deliver(&left)
            except MemoryError as exc:
                return self.end_reading(exc)
            if size == 0 or (size < 0 and size != -EINTR):
                self.readable = False
                if size == -EAGAIN:
                    break
                return self.end_reading_by(size)
            if size == -EINTR:
                # Count the attempt: a filter may return EINTR for every call.
                total += ROOM_AT_START
            if size > 0:
                self.served_turn = self.loop.counters.turns
                total += size
                self.count_received(size)
                if left == 0 and not self.loop.nestable:
                    self.readable = False
                    break
        if self.average < SMALL_RECEIVE and self.messages_large:
            self.leave_large()
        return 0

    cdef int end_reading_by(self, int size) except -1:
        """A receive has returned *size*: 0 at the peer's end, or an error."""
        size = self.loop.ring.ended_by(self.fd, size)
        return self.end_reading(EOF if size == 0 else os_error(size, ""))

    cdef int recv_some(self, char *memory, Py_ssize_t size, int *left) noexcept:
        """Receive without waiting; *left* becomes what the socket still has, or -1 if unknown."""
        cdef int count
        if self.reports_inq:
            return uring_receive_counted(self.fd, memory, size, left)
        count = uring_receive(self.fd, memory, size)
        if count >= 0:
            left[0] = -1
        return count

    cdef int recv_and_deliver(self, int *left) except? -1:
        """Call recv(2) and deliver; return the number of bytes, 0 for EOF, or -errno."""
        cdef char *memory
        cdef int size
        if self.kind == BUFFERED:
            return self.recv_into_buffer(left)
        if self.kind != STREAM_READER and self.kind != TLS:
            return self.recv_bytes(left)
        memory = self.loop_memory()
        size = self.recv_some(memory, self.loop_room(), left)
        if size > 0:
            self.deliver_scratch(memory, size)
        return size

    cdef int recv_bytes(self, int *left) except? -1:
        """Receive into the object that the protocol gets."""
        cdef PyObject *data = self.loop.freelist.make(self.room)
        cdef int size
        cdef bytes owned
        size = self.recv_some(PyBytes_AS_STRING(<bytes>data), self.room, left)
        if size <= 0:
            Py_DECREF_owned(data)
            return size
        if size < self.room:
            cut_bytes(&data, size)
        if left[0] > 0 or (left[0] < 0 and size == self.room):
            # The next message is expected to be as long as this one.
            self.room = min(max(2 * self.room, size + left[0]), ROOM_MAX)
        else:
            self.room = max(size, self.room - ((self.room - size + 31) >> 5))
        owned = take_bytes(data)
        deliver(self, owned)
        self.loop.freelist.offer(owned)
        return size

    cdef int recv_into_buffer(self, int *left) except? -1:
        """Receive into the protocol's own buffer; *left* is what the receive before has left."""
        cdef Py_buffer view
        cdef int size
        cdef object protocol = self.protocol
        if left[0] <= 0:
            # Look first: an event may be older than the newest receive, and get_buffer() must not
            # be called in vain, because a protocol may have a buffer for just one message.
            size = uring_peek(self.fd)
            if size <= 0:
                return size
        if not borrow_buffer(self, &view):
            return -EINTR
        if (not self.may_receive() or self.protocol is not protocol
                or self.loop.ring.is_inherited()):
            # get_buffer(), or a run nested in it, has changed this. The caller looks at what is
            # left. In a child the run ends.
            size = -EINTR
        else:
            size = self.recv_some(<char*>view.buf, min(view.len, READ_AT_ONCE_MAX), left)
        # Released, so that the protocol may resize it in buffer_updated().
        PyBuffer_Release(&view)
        if size > 0:
            report_filled(self, size)
        return size

    # ── the end of reading ───────────────────────────────────────────────────────────────────

    cdef int stop_reading(self) except -1:
        if self.end_op != NULL and self.end_op.in_flight:
            self.loop.ring.cancel(self.end_op)
        return WriteTransport.stop_reading(self)

    cdef bint has_operations(self) noexcept:
        return WriteTransport.has_operations(self) or (
            self.end_op != NULL and self.end_op.in_flight)

    cdef int end_reading(self, object item) except -1:
        """Deliver the peer's FIN (EOF) or an error, behind the bytes that came before."""
        self.end_input()
        if (item is EOF and (self.queue.count or self.send_op.in_flight or self.life == BROKEN)
                and uring_was_reset(self.fd)):
            item = os_error(-ECONNRESET, "")
        if self.served_this_turn():
            # Bytes were delivered in this turn: what the protocol has scheduled runs first.
            return self.stash_item(item)
        return self.deliver_or_stash(item)

    cdef int deliver_end(self, object item) except -1:
        cdef PyObject *result
        if item is EOF and self.life == BROKEN:
            item = self.send_error
        if item is not EOF:
            return self.fatal_error(item, READ_FAILED)
        result = self.call(NAME_EOF_RECEIVED, NULL)
        if result == NULL:
            return self.fatal_error(
                pending_exception(), "Fatal error: protocol.eof_received() call failed.")
        if not own(result):
            self.begin_close()
        return 0

    cdef object kept_error(self, object exc):
        exc = WriteTransport.kept_error(self, exc)
        # The first call after a reset gets ECONNRESET, which may have been a receive whose result
        # is no longer wanted.
        if isinstance(exc, BrokenPipeError) and uring_was_reset(self.fd):
            return os_error(-ECONNRESET, "")
        return exc

    cdef bint is_receiving(self) noexcept:
        if self.paused:
            # A receive by the ring completes with the peer's reset in the next turn.
            return self.is_multishot()
        return self.receiving != ENDED or bool(self.stash)

    cdef bint recv_rest(self) except -1:
        if self.paused:
            return False
        if self.stash:
            return True
        if uring_peek(self.fd) <= 0:
            return False
        if self.messages_large:
            self.recv_available()
        return True

    cdef int deliver_item(self, object item) except -1:
        """Deliver also what has come behind *item*: a selector would report all of it together."""
        cdef Py_ssize_t total = 0
        while isinstance(item, bytes):
            self.served_turn = self.loop.counters.turns
            total += len(item)
            deliver(self, item)
            # The protocol may have forked.
            self.loop.ring.check_not_forked()
            if self.paused or self.life >= CLOSING or total >= READ_AT_ONCE_MAX:
                return 0
            if not self.stash:
                return self.recv_ready() if self.receiving == IDLE else 0
            if not isinstance(self.stash[0], bytes):
                # The next item is the end. What the bytes have caused runs before it is delivered.
                return 0
            item = self.stash.pop(0)
        return self.deliver_last(item)

    # ── handing over ─────────────────────────────────────────────────────────────────────────

    def detach(self):
        """Return a socket of the connection, and the bytes that the protocol has not received yet.

        The socket is a non-blocking duplicate; the caller owns it, and the connection goes on
        there. For this transport the connection has ended: connection_lost(None) is called in the
        next turn. Raises RuntimeError if the transport is closing or has bytes that are not sent
        yet, OSError if no descriptor is free, and the connection's own error if it has broken.
        """
        self.loop.check_owner()
        if self.life >= BROKEN:
            raise RuntimeError("the transport is closing")
        if self.sendfile_waiter is not None:
            raise RuntimeError("unable to detach; sendfile is in progress")
        self.send_now()
        if self.queue.count or self.send_op.in_flight:
            raise RuntimeError("written data is not sent yet")
        if self.life >= BROKEN:
            # The send above has failed, and ended the connection.
            raise self.send_error or RuntimeError("the transport is closing")
        # This comes first: it fails if no descriptor is free, and then nothing has changed.
        sock = self.need_socket().dup()
        try:
            data = self.take_unread()
        except BaseException:
            sock.close()
            raise
        self.force_close(None)
        return sock, data

    cdef bytes take_unread(self):
        """Stop receiving for good, and return the bytes that the protocol has not got yet.

        If the connection has broken, end it and raise its error.
        """
        cdef object last = None
        store_int(&self.paused, True)
        self.return_to_polls()
        # What the receive has taken by now goes to the stash.
        self.loop.ring.reap(&self.recv_op)
        if self.stash:
            last = self.stash[len(self.stash) - 1]
        if isinstance(last, BaseException):
            self.fatal_error(last, READ_FAILED)
            raise last
        # Drop an EOF: the duplicate socket reports it again.
        return b"".join([item for item in self.stash or () if item is not EOF])

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Queue *data*, which is sent at the end of the turn, or at once if it is large.

        Mutable data is copied: the caller may change it as soon as write() has returned.
        """
        self.put(data)

    cdef int submit_send(self) except -1:
        # Whatever can raise comes before `ring.submission()`: an entry that is taken must be
        # started.
        cdef Ring ring = self.loop.ring
        cdef io_uring_sqe *sqe
        cdef int send_flags
        cdef bint quiet
        self.queue.prepare()
        sqe = ring.submission()
        # A send whose end is awaited is not quiet: the end of a quiet one is known only after the
        # next enter.
        quiet = ring.quiet_sends and not self.socket_full and not self.is_awaited()
        send_flags = URING_SEND_ONCE if quiet else URING_SEND_WHOLE
        if self.queue.single:
            io_uring_prep_send(sqe, self.fd, self.queue.data, self.queue.data_size, send_flags)
        else:
            io_uring_prep_sendmsg(sqe, self.fd, &self.queue.gathered.message, send_flags)
        if quiet:
            return ring.start_quiet(sqe, &self.send_op)
        return ring.start(sqe, &self.send_op)

    cdef Py_ssize_t send_directly(self) noexcept:
        if self.queue.single:
            return send(
                self.fd, self.queue.data, self.queue.data_size, MSG_DONTWAIT | MSG_NOSIGNAL)
        return uring_send_message(
            self.fd, &self.queue.gathered.message, MSG_DONTWAIT | MSG_NOSIGNAL)

    cdef int end_output(self) except -1:
        if shutdown(self.fd, SHUT_WR) < 0:
            raise os_error(-errno, "")
        return 0

    cdef int complete_cancelled(self) except -1:
        WriteTransport.complete_cancelled(self)
        return 0 if self.end_op == NULL else self.loop.ring.complete_now(self.end_op)

    # ── get_extra_info() and the protocol ────────────────────────────────────────────────────

    @cython.critical_section
    def get_extra_info(self, name, default=None):
        # The names that asyncio's streams and most servers get need no socket and no dict.
        if self.extra is None:
            if name == "peername":
                return python_address(&self.peer)
            if name == "sockname":
                return self.local_end.sockname()
            if name != "socket":
                return default
        return self.need_extra().get(name, default)

    cdef object need_socket(self):
        with cython.critical_section(self):
            if self.sock is None and self.fd >= 0:
                self.sock = socket.socket(
                    self.local_end.family, self.local_end.type, self.local_end.proto, self.fd)
                self.sock.setblocking(False)
            return self.sock

    cdef dict make_extra(self):
        cdef object sock = self.need_socket()
        if sock is None:
            # The transport has closed its descriptor: return a closed socket.
            sock = socket.socket(self.local_end.family, self.local_end.type, self.local_end.proto)
            sock.close()
        return {
            "socket": trsock.TransportSocket(sock),
            "sockname": self.local_end.sockname(),
            "peername": python_address(&self.peer),
        }

    cdef int use_protocol(self, object protocol) except -1:
        WriteTransport.use_protocol(self, protocol)
        self.kind = kind_of(protocol)
        return self.see_fds() if self.is_unix else 0

    cdef int see_fds(self) except -1:
        """Notice whether the protocol of a UNIX connection takes descriptors."""
        self.takes_fds = has_method(self.protocol, NAME_FDS_RECEIVED, 1)
        if self.takes_fds and self.life == OPEN:
            self.return_to_polls()
            if self.messages_large:
                self.leave_large()
        return 0


cdef StreamTransport new_stream(object loop, object sock, object protocol, object peername):
    """Return a transport of a connected, non-blocking socket; it owns *sock* when this returns."""
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    cdef dict extra = socket_extra(sock, peername)
    transport.is_unix = family_of(sock) == AF_UNIX
    transport.use_protocol(protocol)
    if wants_nodelay(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What raises from here on would close the socket, which the caller closes, too.
    transport.adopt(loop, sock, extra)
    if transport.is_unix and not transport.loop.ring.uses(UNIX_MULTISHOT):
        transport.may_multishot = False
    return transport


cdef bint wants_nodelay(object sock) except -1:
    """Return whether asyncio would set TCP_NODELAY on a connection of this kind."""
    cdef int family = family_of(sock)
    return (family == AF_INET or family == AF_INET6) and sock.proto in NODELAY_PROTOCOLS


cdef StreamTransport new_accepted(
        LoopCore loop, int fd, LocalEnd local_end, const sockaddr_in6 *peer, unsigned int peer_size,
        object protocol):
    """Return a transport of an accepted IPv4 or IPv6 connection; it owns *fd* when this returns.

    Its Python socket is created when get_extra_info() or a private name needs it.
    """
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    transport.local_end = local_end
    # Keep the address that accept4(2) returned: getpeername(2) fails on a connection that is reset.
    memcpy(&transport.peer, peer, min(peer_size, sizeof(sockaddr_in6)))
    transport.use_protocol(protocol)
    transport.adopt_descriptor(loop, fd)
    return transport


def make_stream(LoopCore loop not None, sock, protocol, waiter=None, peername=None):
    """Return the transport of a connected socket, with connection_made() scheduled."""
    cdef StreamTransport transport = new_stream(loop, sock, protocol, peername)
    transport.begin(waiter)
    return transport


cdef int stream_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<StreamTransport>op.owner).on_recv(res, flags)


cdef int stream_on_end(Operation *op, int res, unsigned int flags) except -1:
    return (<StreamTransport>op.owner).on_end(res)
