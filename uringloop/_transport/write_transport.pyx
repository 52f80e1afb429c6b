"""The writing half of a connection: a queue of bytes, and one send at a time.

`write` queues bytes, and the loop flushes each transport once, at the end of the turn. At most one
send is in flight, because the bytes of two could interleave. The first send of a queue is quiet: it
writes what the socket has room for, and posts a completion only if bytes are left. The next send
carries these and is not quiet; the kernel finishes it when the socket has room again. A send whose
end the program awaits is not quiet either, since only a completion ends the loop's sleep.

If only one transport has written in a turn, its data is sent by a plain system call, which costs
less than a submission. Subclasses define the methods that write to the descriptor:
`submit_send`, `send_directly` and `end_output`.

The end of the output:

    WRITABLE ──write_eof()──> EOF_WRITTEN ──the queue is empty: send_eof()──> EOF_SENT

A send that fails ends the connection, and no other send follows it. If the peer may have sent bytes
that are still unread, the transport delivers them before it ends (BROKEN, see transport.pyx).
"""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject

cdef bint WRITELINES_JOINS, WRITELINES_SKIPS_FALSE      # filled by the import
from uringloop._cpython.stdlib import WRITELINES_JOINS, WRITELINES_SKIPS_FALSE
from uringloop._kernel.atomics cimport count_total, load_size
from uringloop._kernel.errors cimport EAGAIN, ECANCELED, EINTR, errno, os_error
from uringloop._kernel.libc cimport POLLOUT
from uringloop._ring.ring cimport CONFIRMED, ENDS_WITH_RUN, Operation, operation_init
from uringloop._transport.flow_control cimport FlowControl
from uringloop._transport.poll_once cimport PollOnce, poll_once
from uringloop._transport.transport cimport BROKEN, CLOSING, ENDING, OPEN, load_life
from uringloop._transport.write_queue cimport WriteQueue, as_bytes
from uringloop._turn.turn cimport QUEUED_BYTES_MAX, is_elsewhere


cdef enum:
    # From this size on write() itself sends the queue: at the end of the turn the bytes would have
    # left the processor's cache, and the system call costs little compared with copying them.
    SEND_AT_ONCE_MIN = 8 * 1024
    # A single transport's bytes up to this size are sent without the ring; more is submitted, so
    # that the kernel finishes a partial send.
    SEND_ALONE_MAX = 64 * 1024
    # How many turns to wait, after a failed send, for completions of the receive: these may follow
    # the send's own completion, or come in the next batch.
    LAST_TURNS = 2


cdef list as_list(object list_of_data):
    """Return the argument of writelines() as a list. Raises asyncio's TypeError."""
    if not WRITELINES_JOINS and not list_of_data:
        return []
    try:
        iterator = iter(list_of_data)
    except TypeError:
        if WRITELINES_JOINS:
            raise TypeError("can only join an iterable") from None
        raise
    return list(iterator)


cdef list odd_pieces(list pieces):
    """Convert to bytes the *pieces* that write() would refuse. Raises asyncio's TypeError."""
    if WRITELINES_JOINS:
        return [b"".join(pieces)]
    return [bytes(memoryview(data)) for data in pieces if data or not WRITELINES_SKIPS_FALSE]


cdef class WriteSource:
    """Makes bytes when the transport is about to send: TLS encrypts a turn's writes together."""

    cdef bytes take_records(self):
        """Return all bytes that are to be sent next; None if there are none."""
        raise NotImplementedError


cdef class WriteTransport(FlowControl):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.send_op, writer_on_send, <PyObject*>self)
        # The end of a run cancels the send, whose completion says how many bytes were written.
        self.send_op.policy = ENDS_WITH_RUN
        self.queue = WriteQueue()

    # ── what the protocol calls ──────────────────────────────────────────────────────────────

    cdef int put(self, object data) except -1:
        """Queue *data*. Subclasses define `write`, because an inherited one is slower to call."""
        cdef bytes owned
        self.loop.check_owner()
        owned = data if type(data) is bytes else as_bytes(data)
        self.check_writable("write")
        if PyBytes_GET_SIZE(owned) == 0:
            return 0
        if self.loses_writes():
            return self.warn_lost()
        self.queue.push(owned)
        return self.queue_grew(PyBytes_GET_SIZE(owned))

    def writelines(self, list_of_data):
        """Queue several buffers; they leave in one call to the kernel."""
        cdef list pieces
        cdef list items
        self.loop.check_owner()
        if not WRITELINES_JOINS:
            self.check_writable("writelines")
        pieces = list_of_data if type(list_of_data) is list else as_list(list_of_data)
        try:
            items = [as_bytes(data) for data in pieces]
        except TypeError:
            items = odd_pieces(pieces)
        self.put_all(items)

    cdef int put_all(self, list items) except -1:
        """Queue the *items* of writelines(), bytes objects."""
        cdef bytes owned
        cdef Py_ssize_t size = 0
        self.check_writable("write")
        if self.loses_writes():
            # Empty data is not a lost write.
            return self.warn_lost() if items.count(b"") < len(items) else 0
        for owned in items:
            if PyBytes_GET_SIZE(owned):
                self.queue.push(owned)
                size += PyBytes_GET_SIZE(owned)
        return self.queue_grew(size)

    def write_eof(self):
        self.loop.check_owner()
        if self.life >= CLOSING or self.output != WRITABLE:
            return
        self.send_now()
        self.output = EOF_WRITTEN
        if not self.queue.count and self.life < BROKEN:
            self.send_eof()

    cdef int send_eof(self) except -1:
        """Everything is sent: shut the output down. Raises OSError."""
        assert self.output == EOF_WRITTEN and not self.queue.count
        self.loop.ring.check_not_forked()
        self.output = EOF_SENT
        return self.end_output()

    def can_write_eof(self):
        return True

    def close(self):
        if load_life(&self.life) < CLOSING:
            self.loop.check_owner()
            self.begin_close()

    cdef int check_writable(self, str method) except -1:
        """Raise RuntimeError after write_eof(), and while sendfile() sends."""
        if self.output != WRITABLE:
            raise RuntimeError(f"Cannot call {method}() after write_eof()")
        if self.sendfile_waiter is not None:
            raise RuntimeError(f"unable to {method}; sendfile is in progress")
        return 0

    @cython.final
    cdef bint loses_writes(self) noexcept:
        """Return whether writes are lost: a send has failed, or the end is scheduled."""
        return self.life == BROKEN or self.life >= ENDING

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    cdef int queue_grew(self, Py_ssize_t size) except -1:
        """The queue has grown by *size*: send at once if it is large, else at the turn's end."""
        if self.queue.size >= SEND_AT_ONCE_MIN or self.queue.size > self.high_water:
            self.send_now()
            size = min(size, self.queue.size)
            if self.queue.size > self.high_water:
                # asyncio pauses the protocol only for bytes that the socket had no room for.
                self.pause_sending()
        # A quiet send that is prepared has its bytes already, and its completion wakes nobody.
        if self.queue.count and (self.send_op.quiet or not self.send_op.in_flight):
            self.loop.add_flush(self)
            self.loop.queued_bytes += size
            if self.loop.queued_bytes > QUEUED_BYTES_MAX:
                self.loop.flush_early()
        return 0

    cdef int pause_sending(self) except -1:
        """Call pause_writing(), and have the queue sent even if that raises."""
        if not self.send_op.in_flight:
            self.loop.add_flush(self)
        return self.pause_protocol()

    cdef int set_source(self, WriteSource source, Py_ssize_t size) except -1:
        """Take the bytes of *source* before the next send; it has grown by *size* bytes."""
        self.source = source
        self.loop.queued_bytes += size
        self.loop.add_flush(self)
        if self.loop.queued_bytes > QUEUED_BYTES_MAX:
            self.loop.flush_early()
        return 0

    cdef int pull_source(self) except -1:
        """Queue the bytes of `source`, unless they would not be sent."""
        cdef WriteSource source = self.source
        cdef bytes data
        self.source = None
        if self.loses_writes():
            return 0
        data = source.take_records()
        if data is not None and not self.loses_writes():
            self.queue.push(data)
            if self.queue.size > self.high_water and (self.send_op.in_flight or self.socket_full):
                self.pause_sending()
        return 0

    cdef int flush(self) except -1:
        if self.source is not None:
            # An error of the source ends the connection.
            self.pull_source()
        if self.loses_writes():
            # The last operation may have been a quiet send, confirmed after connection_lost().
            return self.release_when_done()
        if self.send_op.in_flight:
            return 0
        if self.queue.count:
            return self.submit_send()
        return self.queue_sent(0)

    cdef int flush_alone(self) except -1:
        if self.source is not None:
            self.pull_source()
        if self.queue.size <= SEND_ALONE_MAX:
            self.send_now()
        return self.flush()

    cdef int submit_send(self) except -1:
        """Start `send_op` with the bytes that the queue has prepared."""
        raise NotImplementedError

    cdef Py_ssize_t send_directly(self) noexcept:
        """Write the bytes that the queue has prepared without waiting; -1 and errno on failure."""
        return -1

    cdef int on_send(self, int res, unsigned int flags) except -1:
        if flags == CONFIRMED:
            # A quiet send has written everything. The ring calls on_send() within the enter, where
            # no protocol may be called.
            self.consume(self.queue.data_size)
            if self.life >= ENDING:
                # The transport was aborted. flush() releases it, which may call other code.
                self.queue.clear()
            if self.queue.count or self.is_awaited():
                return self.loop.add_flush(self)
            return 0
        if self.life >= ENDING:
            # The transport was aborted; the queue kept the bytes until the kernel released them.
            self.queue.clear()
            return self.release_when_done()
        assert self.life != BROKEN
        if res >= 0:
            self.socket_full = <size_t>res < self.queue.data_size
            return self.queue_sent(res)
        if res == -EAGAIN or res == -EINTR or res == -ECANCELED:
            self.socket_full = True
            return self.loop.add_flush(self)
        return self.send_failed(os_error(res, ""))

    cdef void consume(self, Py_ssize_t size) noexcept:
        self.queue.consume(size, self.loop.freelist)
        count_total(&self.loop.counters.sent_bytes, size)

    cdef int queue_sent(self, Py_ssize_t size) except -1:
        self.consume(size)
        if self.writing_paused and self.queue.size <= self.low_water:
            if self.queue.count or self.must_finish():
                self.loop.add_flush(self)
            self.resume_protocol()
        if self.queue.count:
            return self.loop.add_flush(self)
        if self.must_finish():
            return self.finish_writing()
        return 0

    cdef bint is_awaited(self) noexcept:
        """Return whether something waits for the queue to be sent."""
        return self.writing_paused or self.must_finish()

    @cython.final
    cdef bint must_finish(self) noexcept:
        """Return whether close(), write_eof() or sendfile() waits for the queue to be sent."""
        return (self.life >= CLOSING or self.output != WRITABLE
                or self.sendfile_waiter is not None)

    cdef int finish_writing(self) except -1:
        """Everything is sent: resolve sendfile()'s waiter, close, or send the EOF."""
        if self.sendfile_waiter is not None and not self.sendfile_waiter.done():
            if self.life >= CLOSING:
                self.sendfile_waiter.set_exception(closed_by_peer())
            else:
                self.sendfile_waiter.set_result(None)
        if self.life >= CLOSING:
            if self.life < ENDING:
                self.schedule_end(None)
        elif self.output == EOF_WRITTEN:
            try:
                self.send_eof()
            except OSError as exc:
                # The peer has reset the connection: an error of the connection, not of the run.
                return self.send_failed(exc)
        return 0

    cdef int send_now(self) except -1:
        """Send by system calls what the socket has room for, without waiting for the turn's end."""
        cdef Py_ssize_t res
        cdef int error
        if self.source is not None:
            self.pull_source()
        if self.send_op.quiet:
            # A send is prepared but not submitted: the kernel must get its bytes first.
            self.loop.ring.submit_only()
        while self.queue.count and not self.send_op.in_flight and not self.socket_full:
            self.loop.ring.check_not_forked()
            self.queue.prepare()
            res = self.send_directly()
            error = errno
            if res > 0:
                self.consume(res)
            elif res == 0 or error == EAGAIN or error == EINTR:
                # Do not repeat the call at once: it may go on failing.
                self.socket_full = True
            else:
                self.send_failed(os_error(-error, ""))
        return 0

    cdef Py_ssize_t send_memory(self, const char *data, Py_ssize_t size) except -1:
        """Send *data* at once, behind all queued bytes; return how many bytes the socket took.

        The caller keeps the rest and writes it.
        """
        cdef Py_ssize_t res
        self.send_now()
        if (self.queue.count or self.send_op.in_flight or self.socket_full or self.loses_writes()
                or self.output != WRITABLE or self.sendfile_waiter is not None):
            return 0
        self.loop.ring.check_not_forked()
        self.queue.show(data, size)
        res = self.send_directly()
        if res >= 0:
            count_total(&self.loop.counters.sent_bytes, res)
            return res
        if errno == EAGAIN:
            self.socket_full = True
        elif errno != EINTR:
            self.send_failed(os_error(-errno, ""))
            # The connection is at its end: the caller need not write the rest.
            return size
        return 0

    cdef int end_output(self) except -1:
        """Shut the output down. Raises OSError."""
        raise NotImplementedError

    # ── a send that fails ────────────────────────────────────────────────────────────────────

    cdef int send_failed(self, object exc) except -1:
        """End the connection, after the bytes that the peer sent before it broke are delivered."""
        self.queue.clear()
        if self.life != OPEN or not self.is_receiving():
            return self.write_failed(self.kept_error(exc))
        self.enter_broken()
        self.send_error = exc
        self.loop.schedule(self._end_broken, (LAST_TURNS,), None)
        return 0

    def _end_broken(self, turns):
        """End the connection when nothing has been received for *turns* turns."""
        if self.life != BROKEN:
            return
        try:
            if self.is_receiving() and self.recv_rest():
                turns = LAST_TURNS
        except BaseException:
            # A protocol's method has raised KeyboardInterrupt: continue in the next run.
            self.loop.schedule(self._end_broken, (LAST_TURNS,), None)
            raise
        if self.life != BROKEN:
            return
        if turns > 0 and self.is_receiving():
            self.loop.schedule(self._end_broken, (turns - 1,), None)
        else:
            self.write_failed(self.kept_error(self.send_error))

    cdef object kept_error(self, object exc):
        """Return the receive's error if the stash has one, else *exc*, which is often EPIPE."""
        cdef object last
        if self.stash:
            last = self.stash[len(self.stash) - 1]
            if isinstance(last, OSError):
                return last
        return exc

    cdef bint is_receiving(self) noexcept:
        """Return whether a receive may still bring bytes or an error."""
        return False

    cdef bint recv_rest(self) except -1:
        """Receive what the socket holds, unless an armed receive does; return False if empty."""
        return False

    cdef int write_failed(self, object exc) except -1:
        return self.fatal_error(exc, "Fatal write error on socket transport")

    # ── sendfile ─────────────────────────────────────────────────────────────────────────────

    def _wait_empty(self):
        """Refuse writes; return a future that is resolved when the queue has been sent."""
        if self.sendfile_waiter is not None:
            raise RuntimeError("Empty waiter is already set")
        self.sendfile_waiter = self.loop.create_future()
        self.send_now()
        if not self.queue.count and self.life < BROKEN:
            self.sendfile_waiter.set_result(None)
        return self.sendfile_waiter

    async def _wait_room(self):
        """Wait, after `_wait_empty`, until the socket has room or the connection ends."""
        cdef PollOnce waiter
        if self.life >= BROKEN:
            raise closed_by_peer()
        waiter = poll_once(self.loop, self.fd, POLLOUT)
        # If the connection is lost, `_call_connection_lost` ends this wait by an exception.
        self.sendfile_waiter = waiter.future
        try:
            await waiter.future
        finally:
            waiter.finish()

    def _end_wait_empty(self):
        """Take writes again."""
        self.sendfile_waiter = None

    def _call_connection_lost(self, exc):
        try:
            FlowControl._call_connection_lost(self, exc)
        finally:
            if self.sendfile_waiter is not None and not self.sendfile_waiter.done():
                self.sendfile_waiter.set_exception(closed_by_peer())

    cdef Py_ssize_t unsent(self) noexcept:
        return self.queue.size

    def get_write_buffer_size(self):
        """Send what the socket has room for, and return the number of bytes that are left.

        Called in a thread other than the loop's, it sends nothing.
        """
        if is_elsewhere(self.loop):
            return load_size(&self.queue.size)
        self.send_now()
        # An aborted send may still hold bytes; they are not the protocol's any more.
        return 0 if self.life >= ENDING else self.queue.size

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    cdef int begin_close(self) except -1:
        """Stop reading; connection_lost() is scheduled when the queue has been sent."""
        if self.life >= CLOSING:
            return 0
        self.send_now()
        if self.life >= CLOSING:
            return 0
        self.enter_closing()
        self.stop_reading()
        if not self.queue.count:
            if self.writing_paused and self.send_error is None:
                # The flush calls resume_writing(), which may write the last bytes.
                self.loop.add_flush(self)
            else:
                self.schedule_end(
                    None if self.send_error is None else self.kept_error(self.send_error))
        return 0

    cdef bint is_sending(self) noexcept:
        return self.send_op.in_flight

    cdef int force_close(self, object exc) except -1:
        if self.source is not None:
            # asyncio has sent these bytes by now. An error of the source ends the connection.
            self.pull_source()
        return FlowControl.force_close(self, exc)

    cdef int complete_cancelled(self) except -1:
        FlowControl.complete_cancelled(self)
        return self.loop.ring.complete_now(&self.send_op)

    cdef int stop_operations(self) except -1:
        self.stop_reading()
        if self.send_op.quiet:
            self.loop.ring.submit()
        if self.send_op.in_flight:
            self.loop.ring.cancel(&self.send_op)
        else:
            self.send_last()
            self.queue.clear()
        return 0

    cdef int send_last(self) except -1:
        """Send this turn's writes before an abort: asyncio's write() would have sent them."""
        cdef Py_ssize_t res = 1
        while self.queue.count and not self.socket_full and res > 0:
            self.loop.ring.check_not_forked()
            self.queue.prepare()
            res = self.send_directly()
            if res > 0:
                self.consume(res)
        return 0


cdef object closed_by_peer():
    # asyncio's message, whichever side has closed.
    return ConnectionError("Connection is closed by peer")


cdef int writer_on_send(Operation *op, int res, unsigned int flags) except -1:
    return (<WriteTransport>op.owner).on_send(res, flags)
