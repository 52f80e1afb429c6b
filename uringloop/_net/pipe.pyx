"""Pipes, FIFOs, terminals and the like: bytes in at one end, bytes out at another.

A one-shot poll on the ring says when to read or to write; the bytes themselves go by plain system
calls, non-blocking, as asyncio's do: a write leaves at once, so that whoever looks at the other
end in the same callback finds it. A cancelled poll loses no byte, so a poll survives the end of a
run and a change of thread, and pausing a reader needs no cancel.

The transport owns the file object that the program gave, in the place of a socket, and closes it
when the kernel holds no poll on it any more. Only the loop's thread may call anything here.
"""

import asyncio
import errno as errno_module
from asyncio import constants
from asyncio.log import logger

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport Py_DECREF_owned
from uringloop._kernel.errors cimport EAGAIN, ECANCELED, EINTR, errno, os_error
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport msghdr, POLLIN, POLLOUT, read, write, writev
from uringloop._kernel.sockets cimport io_uring_prep_poll_add
from uringloop._ring.ring cimport Operation, operation_init
from uringloop._transport.pausing cimport ReadTransport
from uringloop._transport.transport cimport CLOSING, ENDING, OPEN, Transport
from uringloop._transport.write_queue cimport as_bytes
from uringloop._transport.writer cimport WriteTransport
from uringloop._turn.turn cimport LoopCore


# asyncio's largest read of a pipe; a pipe of default size holds a quarter of that.
READ_MAX = 256 * 1024

cdef enum:
    SCRATCH_SIZE = 256 * 1024

# Where every read goes before its bytes are copied out, under the GIL: pages that no read has
# reached do not exist.
cdef char[SCRATCH_SIZE] scratch

cdef object NAME_DATA_RECEIVED = "data_received"
cdef int LOG_AFTER = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
cdef int EIO = errno_module.EIO


@cython.final
cdef class ReadPipeTransport(ReadTransport):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, read_pipe_on_read, <PyObject*>self)

    def _start(self, waiter):
        """Begin to read; runs in the turn in which connection_made was called.

        Who waits for the pipe goes first: nothing is read before it is theirs.
        """
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
            self.loop.schedule(self._start, (None,), None)
            return
        self.enter_open()
        self.want_recv()

    def __repr__(self):
        state = "closed" if self.sock is None else "closing" if self.life >= CLOSING else "open"
        reading = "polling" if self.recv_op.in_flight and not self.paused else "idle"
        return f"<{type(self).__name__} {state} fd={self.fd} {reading}>"

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    cdef int submit_recv(self, bint poll_first) except -1:
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, POLLIN)
        return self.arm(sqe)

    cdef int on_read(self, int res, unsigned int flags) except -1:
        self.disarmed()
        if self.life >= CLOSING:
            return self.release_when_done()
        if res < 0 and res != -ECANCELED:
            return self.fatal_error(os_error(res, ""), "Fatal read error on pipe transport")
        try:
            if res > 0 and not self.paused:
                self.read_some()
        finally:
            # A KeyboardInterrupt of the protocol leaves the run, and the next run reads on.
            self.want_recv()
        return 0

    cdef int read_some(self) except -1:
        cdef ssize_t size = read(self.fd, scratch, SCRATCH_SIZE)
        cdef int error = errno
        if size > 0:
            self.loop.counters.received_bytes += size
            return self.deliver(PyBytes_FromStringAndSize(scratch, size))
        if size == 0:
            return self.end_of_file()
        if error == EAGAIN or error == EINTR:
            return 0
        return self.fatal_error(os_error(-error, ""), "Fatal read error on pipe transport")

    cdef int deliver(self, bytes data) except -1:
        cdef PyObject *result = self.call(NAME_DATA_RECEIVED, <PyObject*>data)
        if result == NULL:
            # Not the end of the pipe: here asyncio's pipes differ from its sockets.
            return self.call_failed("protocol.data_received() call failed.", False)
        Py_DECREF_owned(result)
        return 0

    cdef int end_of_file(self) except -1:
        if self.loop.debug:
            logger.info("%r was closed by peer", self)
        self.enter_closing()
        self.loop.schedule(self.protocol.eof_received, (), self.context)
        return self.schedule_end(None)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    cdef int fatal_error(self, object exc, str message) except -1:
        # EIO is how a terminal says that its other side has gone.
        if not isinstance(exc, OSError) or exc.errno == EIO:
            return Transport.fatal_error(self, exc, message)
        self.report(message, exc)
        return self.force_close(exc)

    cdef bint busy(self) noexcept:
        return self.recv_op.in_flight

    cdef int stop_reading(self) except -1:
        # The poll stays while reading is paused: it takes no bytes.
        return 0

    cdef int stop_operations(self) except -1:
        return self.cancel_recv()

    # ── asyncio.ReadTransport ────────────────────────────────────────────────────────────────

    @property
    def __class__(self):
        return asyncio.ReadTransport

    @property
    def _pipe(self):
        return self.sock

    @_pipe.setter
    def _pipe(self, pipe):
        self.sock = pipe

    def close(self):
        if self.life < CLOSING:
            self.check_thread()
            self.force_close(None)


@cython.final
cdef class WritePipeTransport(WriteTransport):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.watch_op, write_pipe_on_watch, <PyObject*>self)
        self.end_input()
        # Nothing but a poll: it need not end with the run.
        self.send_op.policy = 0

    def _start(self, waiter):
        """Begin to watch the reader; runs in the turn in which connection_made was called."""
        self.enter_open()
        if self.watchable and self.life == OPEN:
            self.submit_watch()
        if waiter is not None and not waiter.cancelled():
            waiter.set_result(None)

    def __repr__(self):
        state = "closed" if self.sock is None else "closing" if self.life >= CLOSING else "open"
        writing = "polling" if self.send_op.in_flight else "idle"
        return (
            f"<{type(self).__name__} {state} fd={self.fd} {writing} bufsize={self.queue.size}>"
        )

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Write *data* at once, as far as there is room; the rest when there is.

        Anything mutable is copied: the caller may change it as soon as this returns.
        """
        if self.life >= CLOSING:
            if len(as_bytes(data) or b""):
                self.warn_lost()
            return
        self.put(data)

    def writelines(self, list_of_data):
        """Write several buffers; they leave in one call to the kernel."""
        if self.life >= CLOSING:
            self.write(b"".join(list_of_data))
            return
        WriteTransport.writelines(self, list_of_data)

    cdef int queued(self, Py_ssize_t size) except -1:
        self.send_now()
        if self.life >= ENDING or not self.queue.count:
            return 0
        # Before the protocol is told: it may leave the run.
        self.submit_send()
        return self.pause_protocol()

    cdef int flush(self) except -1:
        if self.send_op.in_flight or self.life >= ENDING:
            return 0
        self.send_now()
        if self.life >= ENDING:
            return 0
        if self.queue.count:
            return self.submit_send()
        return self.sent(0)

    cdef int submit_send(self) except -1:
        """Wait until there is room."""
        cdef io_uring_sqe *sqe
        if self.send_op.in_flight:
            return 0
        sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, POLLOUT)
        return self.loop.ring.start(sqe, &self.send_op)

    cdef int on_send(self, int res, unsigned int flags) except -1:
        if self.life >= ENDING:
            self.queue.clear()
            return self.release_when_done()
        if res == -ECANCELED:
            return self.submit_send()
        if res < 0:
            return self.send_failed(os_error(res, ""))
        self.full = False
        return self.flush()

    cdef Py_ssize_t send_directly(self) noexcept:
        cdef msghdr *message
        if self.queue.single:
            return write(self.fd, self.queue.data, self.queue.data_size)
        message = &self.queue.gathered.message
        return writev(self.fd, message.msg_iov, <int>message.msg_iovlen)

    cdef int send_failed(self, object exc) except -1:
        self.writes_lost += 1
        return WriteTransport.send_failed(self, exc)

    cdef int write_failed(self, object exc) except -1:
        return self.fatal_error(exc, "Fatal write error on pipe transport")

    cdef int warn_lost(self) except -1:
        if self.writes_lost >= LOG_AFTER:
            logger.warning("pipe closed by peer or os.write(pipe, data) raised exception.")
        self.writes_lost += 1
        return 0

    # ── the reader's end ─────────────────────────────────────────────────────────────────────

    cdef int submit_watch(self) except -1:
        # The kernel ends every poll on an error, a hang-up and a half-close, asked for or not.
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, self.watch_mask)
        return self.loop.ring.start(sqe, &self.watch_op)

    cdef int on_watch(self, int res, unsigned int flags) except -1:
        if self.life >= ENDING or self.cancelling:
            return self.release_when_done()
        if res == -ECANCELED:
            return self.submit_watch()
        if res < 0:
            return self.send_failed(os_error(res, ""))
        if self.loop.debug:
            logger.info("%r was closed by peer", self)
        return self.force_close(BrokenPipeError() if self.queue.count else None)

    cdef int stop_watching(self) except -1:
        if self.watch_op.in_flight and not self.cancelling:
            self.cancelling = True
            self.loop.ring.cancel(&self.watch_op)
        return 0

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def write_eof(self):
        # A pipe has no other way to say so.
        self.begin_close()

    cdef int stop_reading(self) except -1:
        # As long as something is queued it matters whether the reader is there.
        return 0 if self.queue.count else self.stop_watching()

    cdef int finish_writing(self) except -1:
        self.stop_watching()
        return WriteTransport.finish_writing(self)

    cdef int stop_operations(self) except -1:
        self.stop_watching()
        return WriteTransport.stop_operations(self)

    cdef bint busy(self) noexcept:
        return self.send_op.in_flight or self.watch_op.in_flight

    # ── asyncio.WriteTransport ───────────────────────────────────────────────────────────────

    # asyncio's is a reading transport by its class, and has these to refuse them.

    def pause_reading(self):
        raise NotImplementedError

    def resume_reading(self):
        raise NotImplementedError

    def is_reading(self):
        raise NotImplementedError

    @property
    def __class__(self):
        return asyncio.WriteTransport

    @property
    def _pipe(self):
        return self.sock

    @_pipe.setter
    def _pipe(self, pipe):
        self.sock = pipe


def make_read_pipe(LoopCore loop not None, pipe, protocol, waiter=None):
    """Make the transport that reads from *pipe*, a non-blocking file object, and owns it."""
    cdef ReadPipeTransport transport = ReadPipeTransport.__new__(ReadPipeTransport)
    transport.adopt(loop, pipe, {"pipe": pipe})
    transport.protocol = protocol
    transport.begin(waiter)
    return transport


def make_write_pipe(LoopCore loop not None, pipe, protocol, waiter, *, watchable, is_socket):
    """Make the transport that writes to *pipe*, a non-blocking file object, and owns it.

    If it is *watchable* the transport ends when the reader does. On a socket anything that comes
    in is taken for that, as in asyncio.
    """
    cdef WritePipeTransport transport = WritePipeTransport.__new__(WritePipeTransport)
    transport.watchable = watchable
    transport.watch_mask = POLLIN if is_socket else 0
    transport.adopt(loop, pipe, {"pipe": pipe})
    transport.protocol = protocol
    transport.begin(waiter)
    return transport


cdef int read_pipe_on_read(Operation *op, int res, unsigned int flags) except -1:
    return (<ReadPipeTransport>op.owner).on_read(res, flags)


cdef int write_pipe_on_watch(Operation *op, int res, unsigned int flags) except -1:
    return (<WritePipeTransport>op.owner).on_watch(res, flags)
