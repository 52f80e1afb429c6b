"""Pipes, FIFOs and terminals: a transport that reads, and one that writes.

A one-shot poll reports when there is something to read, or room to write, and system calls that do
not wait move the bytes. As in asyncio, a program therefore finds at the other end what it wrote in
the same callback. Since a cancelled poll loses no byte, a poll survives the end of a run and a
change of thread, and pause_reading() cancels nothing.

Other processes often share the file, and may clear its O_NONBLOCK. The system calls are therefore
made by waits.h.

A writing transport watches the other end with a second poll, and closes when the reader does:

    UNWATCHED ──submit_watch()──> WATCHED ──the poll ends, or stop_watching()──> UNWATCHED
    UNWATCHABLE, from start to end

A transport owns the program's file object, and closes it when no operation is in flight. Only the
loop's thread may call anything here.
"""

import asyncio
import errno as error_numbers
from asyncio.log import logger

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport Py_DECREF_owned
from uringloop._kernel.atomics cimport count_total
from uringloop._kernel.errors cimport EAGAIN, ECANCELED, EINTR, errno, os_error
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport POLLIN, POLLOUT, iovec
from uringloop._kernel.sockets cimport io_uring_prep_poll_add
from uringloop._kernel.waits cimport (
    uring_lacks_nowait,
    uring_read_if_ready,
    uring_read_now,
    uring_write_if_ready,
    uring_write_now,
)
from uringloop._ring.ring cimport Operation, operation_init
from uringloop._transport.read_transport cimport POLL_ONCE, ReadTransport
from uringloop._transport.transport cimport (
    CLOSING,
    ENDING,
    Transport,
    load_life,
    pending_exception,
    polling_or_idle,
)
from uringloop._transport.write_queue cimport as_bytes
from uringloop._transport.write_transport cimport WriteTransport
from uringloop._turn.turn cimport SCRATCH_SIZE, LoopCore


cdef object NAME_DATA_RECEIVED = "data_received"
cdef str READ_FAILED = "Fatal read error on pipe transport"
cdef int EIO = error_numbers.EIO


@cython.final
cdef class ReadPipeTransport(ReadTransport):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, read_pipe_on_recv, <PyObject*>self)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    cdef int submit_recv(self) except -1:
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, POLLIN)
        return self.arm(sqe, POLL_ONCE)

    cdef int on_received(self, int res, unsigned int flags) except -1:
        return self.on_readable() if res > 0 else 0

    cdef int on_recv_end(self, int res) except -1:
        if res < 0 and res != -ECANCELED:
            return self.fatal_error(os_error(res, ""), READ_FAILED)
        return self.want_recv()

    cdef int recv_ready(self) except -1:
        cdef char *scratch = self.loop.scratch_memory()
        cdef int fd = self.fd
        cdef ssize_t size = uring_read_now(fd, scratch, SCRATCH_SIZE)
        cdef int error = errno
        if size < 0 and uring_lacks_nowait(error):
            with nogil:
                size = uring_read_if_ready(fd, scratch, SCRATCH_SIZE)
                error = errno
        if size > 0:
            count_total(&self.loop.counters.received_bytes, size)
            return self.deliver(PyBytes_FromStringAndSize(scratch, size))
        if size == 0:
            return self.end_of_file()
        if error == EAGAIN or error == EINTR:
            return 0
        return self.fatal_error(os_error(-error, ""), READ_FAILED)

    cdef int deliver(self, bytes data) except -1:
        cdef PyObject *result = self.call(NAME_DATA_RECEIVED, <PyObject*>data)
        if result == NULL:
            # The transport stays open: asyncio's pipes differ from its sockets here.
            return self.report("protocol.data_received() call failed.", pending_exception())
        Py_DECREF_owned(result)
        return 0

    cdef int end_of_file(self) except -1:
        if self.loop.in_debug_mode():
            logger.info("%r was closed by peer", self)
        self.enter_closing()
        self.loop.schedule(self.protocol.eof_received, (), self.context)
        return self.schedule_end(None)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    cdef int fatal_error(self, object exc, str message) except -1:
        # read(2) of a terminal returns EIO when its other side has been closed, so EIO is not
        # reported.
        if not isinstance(exc, OSError) or exc.errno == EIO:
            return Transport.fatal_error(self, exc, message)
        self.report(message, exc)
        return self.force_close(exc)

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
        if load_life(&self.life) < CLOSING:
            self.loop.check_owner()
            self.force_close(None)


@cython.final
cdef class WritePipeTransport(WriteTransport):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.watch_op, write_pipe_on_watch, <PyObject*>self)
        self.end_input()
        # asyncio counts failed writes of a pipe only, not its end.
        self.writes_lost = 0
        # A poll loses nothing: it need not end with the run.
        self.send_op.policy = 0

    cdef int start_io(self) except -1:
        # Also while closing: if the reader closes, no queued byte can be sent any more.
        if self.watching == UNWATCHED and self.life < ENDING:
            self.submit_watch()
        return 0

    cdef str describe_io(self):
        return f"{polling_or_idle(self.send_op.in_flight)} bufsize={self.queue.size}"

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def write(self, data):
        """Write at once what the pipe has room for, and the rest of *data* when it has room again.

        Mutable data is copied: the caller may change it as soon as write() has returned.
        """
        self.loop.check_owner()
        if self.life >= CLOSING:
            if len(as_bytes(data)):
                self.warn_lost()
            return
        self.put(data)

    def writelines(self, list_of_data):
        """Write several buffers; they leave in one call to the kernel."""
        self.loop.check_owner()
        if self.life >= CLOSING:
            self.write(b"".join(list_of_data))
            return
        WriteTransport.writelines(self, list_of_data)

    cdef int queue_grew(self, Py_ssize_t size) except -1:
        self.send_now()
        if self.life >= ENDING or not self.queue.count:
            return 0
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
        return self.queue_sent(0)

    cdef int submit_send(self) except -1:
        """Wait until the pipe has room."""
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
        self.socket_full = False
        return self.flush()

    cdef Py_ssize_t send_directly(self) noexcept:
        cdef int fd = self.fd
        cdef iovec one
        cdef iovec *parts = &one
        cdef int count = 1
        cdef Py_ssize_t size
        one.iov_base = <void*>self.queue.data
        one.iov_len = self.queue.data_size
        if not self.queue.single:
            parts = self.queue.gathered.message.msg_iov
            count = <int>self.queue.gathered.message.msg_iovlen
        size = uring_write_now(fd, parts, count)
        if size < 0 and uring_lacks_nowait(errno):
            with nogil:
                size = uring_write_if_ready(fd, parts, count)
        return size

    cdef int send_failed(self, object exc) except -1:
        self.writes_lost += 1
        return WriteTransport.send_failed(self, exc)

    cdef int write_failed(self, object exc) except -1:
        return self.fatal_error(exc, "Fatal write error on pipe transport")

    cdef str lost_write_warning(self):
        return "pipe closed by peer or os.write(pipe, data) raised exception."

    # ── watching the reader ──────────────────────────────────────────────────────────────────

    cdef int submit_watch(self) except -1:
        # Every poll reports POLLERR and POLLHUP, whatever its mask.
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        assert self.watching == UNWATCHED
        self.watching = WATCHED
        io_uring_prep_poll_add(sqe, self.fd, self.watch_mask)
        return self.loop.ring.start(sqe, &self.watch_op)

    cdef int on_watch(self, int res, unsigned int flags) except -1:
        if self.watching == WATCHED:
            self.watching = UNWATCHED
        if self.life >= ENDING:
            return self.release_when_done()
        if res == -ECANCELED:
            return self.submit_watch()
        if res < 0:
            return self.send_failed(os_error(res, ""))
        if self.loop.in_debug_mode():
            logger.info("%r was closed by peer", self)
        return self.force_close(BrokenPipeError() if self.queue.count else None)

    cdef int stop_watching(self) except -1:
        """Cancel the poll; it is never armed again."""
        if self.watching == WATCHED:
            self.watching = UNWATCHED
            self.loop.ring.cancel(&self.watch_op)
        return 0

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def write_eof(self):
        # The reader sees EOF when the pipe is closed.
        self.loop.check_owner()
        self.begin_close()

    cdef int stop_reading(self) except -1:
        # While bytes are queued, the transport must still notice that the reader closes.
        return 0 if self.queue.count else self.stop_watching()

    cdef int finish_writing(self) except -1:
        self.stop_watching()
        return WriteTransport.finish_writing(self)

    cdef int stop_operations(self) except -1:
        self.stop_watching()
        return WriteTransport.stop_operations(self)

    cdef bint has_operations(self) noexcept:
        return self.send_op.in_flight or self.watch_op.in_flight

    cdef int complete_cancelled(self) except -1:
        WriteTransport.complete_cancelled(self)
        return self.loop.ring.complete_now(&self.watch_op)

    # ── asyncio.WriteTransport ───────────────────────────────────────────────────────────────

    # asyncio's class of writing pipes has these, too, and does not support them.

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


def make_read_pipe(LoopCore loop not None, pipe, protocol, waiter):
    """Return the transport that reads from *pipe*, a non-blocking file object, and owns it."""
    cdef ReadPipeTransport transport = ReadPipeTransport.__new__(ReadPipeTransport)
    transport.adopt(loop, pipe, {"pipe": pipe})
    transport.protocol = protocol
    transport.begin(waiter)
    return transport


def make_write_pipe(LoopCore loop not None, pipe, protocol, waiter, *, watchable, is_socket):
    """Return the transport that writes to *pipe*, a non-blocking file object, and owns it.

    If *pipe* is *watchable*, the transport closes when the reader does. On a socket it closes, as
    in asyncio, when anything can be read.
    """
    cdef WritePipeTransport transport = WritePipeTransport.__new__(WritePipeTransport)
    transport.watching = UNWATCHED if watchable else UNWATCHABLE
    transport.watch_mask = POLLIN if is_socket else 0
    transport.adopt(loop, pipe, {"pipe": pipe})
    transport.protocol = protocol
    transport.begin(waiter)
    return transport


cdef int read_pipe_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<ReadPipeTransport>op.owner).on_recv(res, flags)


cdef int write_pipe_on_watch(Operation *op, int res, unsigned int flags) except -1:
    return (<WritePipeTransport>op.owner).on_watch(res, flags)
