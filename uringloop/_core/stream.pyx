"""A stream connection: bytes in by a multishot receive, bytes out by one send at a time.

Reading: one multishot receive stays armed; each completion names a buffer of the pool, which is
copied out and given back before the protocol sees the bytes. `pause_reading` only sets a flag:
what still arrives goes to a stash, and the first such arrival cancels the receive.

Writing: `write` queues, and the loop flushes each transport once at the end of the turn. Exactly
one send is in flight, for two would interleave; the kernel finishes it when the socket has room.
A transport that is the only one to write is sent by a plain system call: the completion of a
single send would cost a turn of its own.

The ring holds the transport while an operation is in flight; the socket is closed after that.
"""

import asyncio
import socket
from asyncio import constants
from asyncio.log import logger

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._core.buffers cimport STREAM_GROUP
from uringloop._core.errors cimport EAGAIN, ECANCELED, EINTR, ENOBUFS, errno, os_error
from uringloop._core.loop cimport QUEUED_BYTES_MAX, LoopCore
from uringloop._core.pyapi cimport PyContext_CopyCurrent
from uringloop._core.ring cimport Operation, operation_init
from uringloop._core.transport cimport Transport, socket_extra
from uringloop._core.writequeue cimport WriteQueue, as_bytes, not_contiguous
from uringloop._native.uring cimport (
    IORING_CQE_F_BUFFER,
    IORING_CQE_F_MORE,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    io_uring_sqe,
    send,
    sendmsg,
    uring_prep_recv_multishot,
    uring_prep_recv_select,
    uring_prep_send,
    uring_prep_sendmsg,
)


# asyncio's default: pause the protocol above 64 KiB, resume it at a quarter of that.
HIGH_WATER = 64 * 1024

# A lone write up to this size goes without the ring; a larger one is left to the kernel to finish.
SEND_ALONE_MAX = 64 * 1024
cdef Py_ssize_t ALONE_MAX = SEND_ALONE_MAX
cdef object NAME_DATA_RECEIVED = "data_received"
cdef object NAME_GET_BUFFER = "get_buffer"
cdef object NAME_BUFFER_UPDATED = "buffer_updated"
cdef object NAME_EOF_RECEIVED = "eof_received"
cdef object NAME_RESUME_WRITING = "resume_writing"
cdef object ANY_SIZE = -1
cdef frozenset NODELAY_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))
cdef frozenset NODELAY_PROTOCOLS = frozenset((0, socket.IPPROTO_TCP))
cdef object END = object()
cdef int LOG_AFTER = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES


cdef class StreamTransport(Transport):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, stream_on_recv, <PyObject*>self)
        operation_init(&self.send_op, stream_on_send, <PyObject*>self)
        # Only the kernel knows how much of an unfinished send has gone.
        self.send_op.ends_with_run = True
        self.queue = WriteQueue()
        self.high_water = HIGH_WATER
        self.low_water = HIGH_WATER // 4

    def _start(self, waiter):
        """Begin to read; runs in the turn in which connection_made was called."""
        self.started = True
        self.want_recv()
        if waiter is not None and not waiter.cancelled():
            waiter.set_result(None)

    def __repr__(self):
        state = "closed" if self.sock is None else "closing" if self.closing else "open"
        reading = "polling" if self.recv_op.in_flight else "idle"
        writing = "polling" if self.send_op.in_flight else "idle"
        return (
            f"<{type(self).__name__} {state} fd={self.fd} read={reading} "
            f"write=<{writing}, bufsize={self.queue.size}>>"
        )

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    cdef int want_recv(self) except -1:
        """Arm a receive if the protocol wants bytes and none is armed."""
        if (self.started and not self.paused and not self.closing and not self.read_ended
                and not self.recv_op.in_flight and not self.starving):
            self.submit_recv(False)
        return 0

    cdef int submit_recv(self, bint poll_first) except -1:
        cdef io_uring_sqe *sqe
        self.loop.pool.prepare()
        sqe = self.loop.ring.submission()
        if self.single_shot:
            uring_prep_recv_select(sqe, self.fd, STREAM_GROUP, poll_first)
        else:
            uring_prep_recv_multishot(sqe, self.fd, STREAM_GROUP, poll_first)
        self.cancelling = False
        return self.loop.ring.start(sqe, &self.recv_op)

    cdef int on_recv(self, int res, unsigned int flags) except -1:
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
        self.cancelling = False
        if self.closing:
            if self.ended and not self.busy():
                self.release()
            return 0
        if res == -ENOBUFS:
            # No buffer was free: the bytes stay in the socket until some are back.
            self.starving = True
            return self.loop.starve(self)
        if res == 0:
            return self.end_reading(END)
        if res < 0 and res != -ECANCELED and res != -EINTR and res != -EAGAIN:
            return self.end_reading(os_error(res, ""))
        return self.want_recv()

    cdef int rearm(self) except -1:
        # The data is there: without asking for a poll first the kernel would look for a buffer
        # before it looks at the socket, and fail for want of one even when the socket is idle.
        self.starving = False
        if (not self.paused and not self.closing and not self.read_ended
                and not self.recv_op.in_flight):
            self.submit_recv(True)
        return 0

    cdef int receive(self, int size, unsigned int flags) except -1:
        """Hand the bytes of a receive buffer to the protocol, or keep them for later."""
        cdef char *memory = self.loop.pool.take(flags, size)
        cdef bytes data
        if self.closing:
            self.loop.pool.give_back(flags)
            return 0
        if self.buffered and not self.paused and not self.stash:
            try:
                self.deliver_buffered(memory, size)
            finally:
                self.loop.pool.give_back(flags)
            return 0
        try:
            data = PyBytes_FromStringAndSize(memory, size)
        finally:
            self.loop.pool.give_back(flags)
        if self.paused or self.stash:
            return self.keep(data)
        return self.deliver(data)

    cdef int deliver(self, bytes data) except -1:
        if self.buffered:
            return self.deliver_buffered(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        try:
            self.call(NAME_DATA_RECEIVED, data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.data_received() call failed.")
        return 0

    cdef int deliver_buffered(self, const char *data, Py_ssize_t size) except -1:
        """Copy into the protocol's buffers until all is there, it pauses, or it is another."""
        cdef Py_ssize_t count
        while size > 0 and not self.closing:
            if self.paused or not self.buffered:
                self.keep_first(PyBytes_FromStringAndSize(data, size))
                return 0
            count = self.fill_protocol_buffer(data, size)
            if count == 0:
                return 0
            data += count
            size -= count
        return 0

    cdef Py_ssize_t fill_protocol_buffer(self, const char *data, Py_ssize_t size) except -1:
        """Return how many bytes the protocol took; 0 when that failed and the end has begun."""
        cdef Py_buffer view
        cdef Py_ssize_t count
        try:
            buffer = self.call(NAME_GET_BUFFER, ANY_SIZE)
            if not len(buffer):
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.get_buffer() call failed.")
            return 0
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except BaseException as exc:
            self.fatal_error(exc, "Fatal read error on socket transport")
            return 0
        count = min(view.len, size)
        memcpy(view.buf, data, count)
        PyBuffer_Release(&view)
        # Released, so that the protocol may resize it now.
        del buffer
        try:
            self.call(NAME_BUFFER_UPDATED, count)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.buffer_updated() call failed.")
            return 0
        return count

    # ── the end of reading ───────────────────────────────────────────────────────────────────

    cdef int end_reading(self, object item) except -1:
        """Take note of the peer's FIN (END) or of an error, in order with the bytes before it."""
        self.read_ended = True
        if self.paused or self.stash:
            return self.keep(item)
        return self.deliver_end(item)

    cdef int deliver_end(self, object item) except -1:
        if item is not END:
            return self.fatal_error(item, "Fatal read error on socket transport")
        try:
            keep_open = self.call(NAME_EOF_RECEIVED, None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.eof_received() call failed.")
            return 0
        if not keep_open:
            self.begin_close(self.context)
        return 0

    # ── pausing ──────────────────────────────────────────────────────────────────────────────

    cdef int keep(self, object item) except -1:
        """Stash what came while reading is paused, and stop the flow."""
        if self.stash is None:
            self.stash = []
        self.stash.append(item)
        if self.paused:
            # Pausing under load costs a cancel each time: from now on one receive at a time.
            self.single_shot = True
            self.stop_reading()
        return 0

    cdef int keep_first(self, bytes data) except -1:
        """Stash what is left of the item that is being delivered: it goes before the others."""
        if self.stash is None:
            self.stash = []
        self.stash.insert(0, data)
        if not self.paused:
            self.schedule_stash()
        return 0

    cdef int schedule_stash(self) except -1:
        if not self.stash_scheduled:
            self.stash_scheduled = True
            # In a context of its own: each delivery enters the transport's.
            self.loop.schedule(self._deliver_stash, (), None)
        return 0

    def _deliver_stash(self):
        self.stash_scheduled = False
        try:
            while self.stash and not self.paused and not self.closing:
                item = self.stash.pop(0)
                if isinstance(item, bytes):
                    self.deliver(item)
                else:
                    self.deliver_end(item)
        finally:
            if self.stash and not self.paused and not self.closing:
                self.schedule_stash()
            self.want_recv()

    def pause_reading(self):
        if not self.closing:
            self.paused = True

    def resume_reading(self):
        if self.closing or not self.paused:
            return
        self.paused = False
        if self.stash:
            self.schedule_stash()
        else:
            self.want_recv()

    def is_reading(self):
        return not self.closing and not self.paused

    cdef int stop_reading(self) except -1:
        if self.recv_op.in_flight and not self.cancelling:
            self.cancelling = True
            self.loop.ring.cancel(&self.recv_op)
        return 0

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Queue *data*; it is sent at the end of the turn, or at once above the high water.

        Anything mutable is copied: the caller may change it as soon as this returns.
        """
        cdef bytes owned = data if type(data) is bytes else as_bytes(data)
        self.check_eof()
        if owned is None:
            self.fatal_error(not_contiguous(), "Fatal write error on socket transport")
            return
        if PyBytes_GET_SIZE(owned) == 0:
            return
        if self.lost:
            self.warn_lost()
            return
        self.queue_write(owned)

    def writelines(self, list_of_data):
        """Queue several buffers; they leave in one call to the kernel."""
        cdef list items = [as_bytes(data) for data in list_of_data]
        cdef bytes owned
        self.check_eof()
        if self.lost:
            self.warn_lost()
            return
        for owned in items:
            if owned is None:
                self.fatal_error(not_contiguous(), "Fatal write error on socket transport")
                return
            if PyBytes_GET_SIZE(owned):
                self.queue.push(owned)
                self.loop.queued_bytes += PyBytes_GET_SIZE(owned)
        self.queued()

    cdef int check_eof(self) except -1:
        if self.eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        return 0

    cdef int warn_lost(self) except -1:
        if self.lost >= LOG_AFTER:
            logger.warning("socket.send() raised exception.")
        self.lost += 1
        return 0

    cdef int queue_write(self, bytes data) except -1:
        self.queue.push(data)
        self.loop.queued_bytes += PyBytes_GET_SIZE(data)
        return self.queued()

    cdef int queued(self) except -1:
        """The queue has grown: send at once what is too much to keep, the rest later."""
        if self.queue.size > self.high_water:
            # asyncio pauses the protocol only for what the socket did not take.
            self.send_now()
            self.pause_protocol()
        if self.queue.count and not self.send_op.in_flight:
            self.loop.add_flush(self)
            if self.loop.queued_bytes > QUEUED_BYTES_MAX:
                self.loop.flush_early()
        return 0

    cdef int flush(self) except -1:
        if self.queue.count and not self.send_op.in_flight:
            self.submit_send()
        return 0

    cdef int flush_alone(self) except -1:
        if not self.queue.count or self.send_op.in_flight:
            # Sent already: by write_eof, close or a look at the size of the queue.
            return 0
        if self.queue.size <= ALONE_MAX:
            self.send_now()
        if self.queue.count:
            return self.submit_send()
        return 0 if self.lost else self.sent(0)

    cdef int submit_send(self) except -1:
        # First what can fail: a submission that is taken must be started.
        cdef Py_ssize_t count = self.queue.prepare()
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        if count == 1:
            uring_prep_send(sqe, self.fd, self.queue.data, self.queue.data_size)
        else:
            uring_prep_sendmsg(sqe, self.fd, &self.queue.message)
        return self.loop.ring.start(sqe, &self.send_op)

    cdef int on_send(self, int res, unsigned int flags) except -1:
        if self.lost:
            # Aborted meanwhile: the bytes were waiting for the kernel to let go of them.
            self.queue.clear()
            if self.ended and not self.busy():
                self.release()
            return 0
        if res >= 0:
            return self.sent(res)
        if res == -EAGAIN or res == -EINTR or res == -ECANCELED:
            return self.loop.add_flush(self)
        self.queue.clear()
        return self.fatal_error(os_error(res, ""), "Fatal write error on socket transport")

    cdef int sent(self, Py_ssize_t size) except -1:
        self.queue.consume(size)
        if self.writing_paused and self.queue.size <= self.low_water:
            self.resume_protocol()
        self.full = False
        if self.queue.count:
            return self.loop.add_flush(self)
        if self.closing:
            if not self.lost:
                self.schedule_end(None, self.context)
        elif self.eof_written:
            try:
                self.shutdown_write()
            except OSError as exc:
                # The peer has reset the connection: that must not leave the run.
                return self.fatal_error(exc, "Fatal write error on socket transport")
        return 0

    cdef int send_now(self) except -1:
        """Try to send without the ring, for bytes that must not wait for the end of the turn."""
        cdef Py_ssize_t res
        cdef int error
        while self.queue.count and not self.send_op.in_flight and not self.full:
            if self.queue.prepare() == 1:
                res = send(
                    self.fd, self.queue.data, self.queue.data_size, MSG_DONTWAIT | MSG_NOSIGNAL)
            else:
                res = sendmsg(self.fd, &self.queue.message, MSG_DONTWAIT | MSG_NOSIGNAL)
            error = errno
            if res >= 0:
                self.queue.consume(res)
            elif error == EAGAIN:
                self.full = True
            elif error != EINTR:
                self.queue.clear()
                self.fatal_error(
                    os_error(-error, ""), "Fatal write error on socket transport")
        return 0

    cdef int shutdown_write(self) except -1:
        self.sock.shutdown(socket.SHUT_WR)
        return 0

    def write_eof(self):
        if self.closing or self.eof_written:
            return
        self.send_now()
        self.eof_written = True
        if not self.queue.count and not self.closing:
            self.shutdown_write()

    def can_write_eof(self):
        return True

    # ── flow control ─────────────────────────────────────────────────────────────────────────

    cdef int pause_protocol(self) except -1:
        if self.writing_paused or self.queue.size <= self.high_water:
            return 0
        self.writing_paused = True
        try:
            self.protocol.pause_writing()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.report("protocol.pause_writing() failed", exc)
        return 0

    cdef int resume_protocol(self) except -1:
        self.writing_paused = False
        try:
            self.call(NAME_RESUME_WRITING, None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.report("protocol.resume_writing() failed", exc)
        return 0

    def get_write_buffer_size(self):
        """Return the bytes that the socket has not taken; those of this turn are tried first."""
        self.send_now()
        # What an aborted send still holds is not the protocol's any more.
        return 0 if self.lost else self.queue.size

    def get_write_buffer_limits(self):
        return (self.low_water, self.high_water)

    def set_write_buffer_limits(self, high=None, low=None):
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self.high_water = high
        self.low_water = low
        self.pause_protocol()

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self):
        self.begin_close(None)

    cdef int begin_close(self, object context) except -1:
        """Stop reading; the end comes when everything written has been sent."""
        if self.closing:
            return 0
        self.send_now()
        if self.closing:
            return 0
        self.closing = True
        self.stop_reading()
        if not self.queue.count:
            self.schedule_end(None, context)
        return 0

    cdef bint busy(self) noexcept:
        return self.recv_op.in_flight or self.send_op.in_flight

    cdef int stop_operations(self) except -1:
        self.stop_reading()
        if self.send_op.in_flight:
            self.loop.ring.cancel(&self.send_op)
        else:
            self.queue.clear()
        return 0

    def set_protocol(self, protocol):
        self.protocol = protocol
        self.buffered = isinstance(protocol, asyncio.BufferedProtocol)


cdef StreamTransport new_stream(
        object loop, object sock, object protocol, object server, object peername):
    """Make a transport of a connected, non-blocking socket, which it owns from here on."""
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    transport.loop = loop
    transport.context = PyContext_CopyCurrent()
    transport.sock = sock
    transport.fd = sock.fileno()
    transport.extra = socket_extra(sock, peername)
    transport.set_protocol(protocol)
    # Kernels before spring 2026 lose the EOF of a UNIX peer that writes and shuts down at once,
    # with a multishot receive only; there it is not faster either.
    transport.single_shot = sock.family == socket.AF_UNIX
    if sock.family in NODELAY_FAMILIES and sock.proto in NODELAY_PROTOCOLS:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport.loop.register_transport(transport.fd, <PyObject*>transport)
    transport.server = server
    if server is not None:
        server._attach(transport)
    return transport


def make_stream(LoopCore loop not None, sock, protocol, waiter=None, server=None, peername=None):
    """Make the transport of a connected socket and schedule connection_made."""
    return begin(new_stream(loop, sock, protocol, server, peername), waiter)


cdef StreamTransport begin(StreamTransport transport, object waiter):
    transport.loop.schedule(
        transport.protocol.connection_made, (transport,), transport.context)
    # Reading begins when connection_made has run, whatever became of it.
    transport.loop.schedule(transport._start, (waiter,), None)
    return transport


cdef int stream_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<StreamTransport>op.owner).on_recv(res, flags)


cdef int stream_on_send(Operation *op, int res, unsigned int flags) except -1:
    return (<StreamTransport>op.owner).on_send(res, flags)
