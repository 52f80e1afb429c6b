"""A datagram endpoint: whole datagrams, each with its sender's address.

For the first datagrams, and the first after a pause, the transport waits by a poll, which takes
nothing, and receives one datagram at a time: recv(2) with MSG_TRUNC returns the size, and
recvfrom(2) receives. If the program then hands the socket to other code, that code finds the
remaining datagrams in it.

After these, a multishot receive is armed on IPv4 and IPv6. Each completion names a buffer of a pool
whose buffers hold a sender's address and the largest possible packet; the datagram is copied out
and the buffer given back before the protocol sees it. An empty datagram, an ICMP error and other
events end a multishot receive; the transport arms it again each time. Datagrams of other families
have no maximum size; for them the transport always polls.

An error of the network is cleared when the socket has returned it. An error that stays, because
another file has the descriptor's number now, is delivered once, and ends the input.

sendto() is a system call at once, so that datagrams leave in the order of the calls. A datagram
that the socket has no room for is queued, and sent when a poll reports room.
"""

import asyncio
import errno as error_numbers
import socket
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport Py_DECREF_owned, raise_pending
from uringloop._kernel.atomics cimport count_size, count_total, load_size, store_size
from uringloop._kernel.errors cimport EAGAIN, EBADF, ECANCELED, EINTR, ENOBUFS, errno, os_error
from uringloop._kernel.io_uring cimport IORING_CQE_F_BUFFER, io_uring_sqe
from uringloop._kernel.libc cimport (
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MSG_PEEK,
    MSG_TRUNC,
    POLLIN,
    POLLOUT,
    recv,
    send,
    sendto,
    sockaddr,
    sockaddr_in6,
)
from uringloop._kernel.sockets cimport (
    io_uring_prep_poll_add,
    uring_find_datagram,
    uring_merged_size,
    uring_prep_recvmsg_multishot,
)
from uringloop._ring.buffers cimport DATAGRAM_GROUP
from uringloop._ring.features cimport MULTISHOT_RECV
from uringloop._ring.ring cimport Operation, operation_init
from uringloop._transport.flow_control cimport FlowControl
from uringloop._transport.read_transport cimport ENDED, IDLE, MULTISHOT, POLL_ONCE, Receiving
from uringloop._transport.transport cimport (
    CLOSING,
    ENDING,
    load_life,
    pending_exception,
    socket_extra,
)
from uringloop._turn.turn cimport LoopCore

cdef bint EMPTY_DATAGRAMS_ARE_SENT      # filled by the import
from uringloop._cpython.stdlib import EMPTY_DATAGRAMS_ARE_SENT


cdef enum:
    # Datagrams received after one poll before other connections are served.
    RECEIVED_MAX = 16
    # The size that asyncio uses, for a socket that does not return the size of its datagram.
    RECEIVE_SIZE = 256 * 1024
    # udp(7); the socket module has no name for it.
    UDP_GRO = 104
# Seconds until the next attempt to send on a socket that a poll reports as writable although its
# receiver's queue is full: poll(2) checks the queue only for connected UNIX sockets.
cdef double SEND_DELAY = 0.001
# What asyncio counts for each queued datagram beside its bytes, where it sends empty ones.
cdef Py_ssize_t HEADER_SIZE = 8 if EMPTY_DATAGRAMS_ARE_SENT else 0

cdef object NAME_DATAGRAM_RECEIVED = "datagram_received"
cdef object NAME_ERROR_RECEIVED = "error_received"
cdef int ENOTCONN = error_numbers.ENOTCONN
# The families and types whose datagrams fit into the pool's buffers. SCTP's messages may be larger.
cdef frozenset RING_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))
cdef frozenset RING_TYPES = frozenset((socket.SOCK_DGRAM, socket.SOCK_RAW))
cdef str READ_FAILED = "Fatal read error on datagram transport"
cdef str WRITE_FAILED = "Fatal write error on datagram transport"


class DatagramClass(asyncio.Transport, asyncio.DatagramTransport):
    """The class that isinstance() sees: asyncio's datagram transports derive from both."""


cdef object DATAGRAM_CLASS = DatagramClass


cdef class DatagramTransport(FlowControl):

    def __cinit__(self, *args, **kwargs):
        operation_init(&self.recv_op, datagram_on_recv, <PyObject*>self)
        operation_init(&self.room_op, datagram_on_room, <PyObject*>self)
        self.queue = deque()

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    cdef int submit_recv(self) except -1:
        cdef io_uring_sqe *sqe
        cdef Receiving mode = POLL_ONCE
        if self.may_multishot and self.polls_left == 0:
            try:
                if not self.loop.datagram_pool.prepare():
                    return self.starve()
                mode = MULTISHOT
            except OSError:
                # The system has no memory for the buffers.
                self.may_multishot = False
        sqe = self.loop.ring.submission()
        if mode == MULTISHOT:
            uring_prep_recvmsg_multishot(sqe, self.fd, DATAGRAM_GROUP)
        else:
            io_uring_prep_poll_add(sqe, self.fd, POLLIN)
        return self.arm(sqe, mode)

    cdef bint is_merging(self) except -1:
        """Return whether the program has asked the kernel to merge the datagrams of a sender."""
        try:
            return self.sock.getsockopt(socket.IPPROTO_UDP, UDP_GRO) != 0
        except OSError:
            return False

    cdef int on_received(self, int res, unsigned int flags) except -1:
        # Only a receive by the ring names a buffer.
        if not flags & IORING_CQE_F_BUFFER:
            return self.on_readable() if res > 0 else 0
        if res > 0:
            # The result counts the header and the address: it is positive for an empty datagram.
            return self.deliver_buffer(res, flags)
        self.loop.datagram_pool.refuse(flags)
        return 0

    cdef int recv_ready(self) except -1:
        if self.may_multishot and self.is_merging():
            # Only a receive into the pool's buffers says where the merged datagrams begin.
            self.polls_left = 0
            return 0
        if not self.recvfrom_some() and self.life < CLOSING and self.receiving == IDLE:
            # The poll has reported a socket that is not ready: it may be half closed.
            return self.delay_recv()
        return 0

    cdef int on_recv_end(self, int res) except -1:
        if res == -ENOBUFS:
            return self.starve()
        if res == -EBADF:
            # The program has closed the descriptor: each further receive would fail, too.
            return self.fatal_error(os_error(res, ""), READ_FAILED)
        try:
            if res < 0 and res != -ECANCELED and res != -EINTR and res != -EAGAIN:
                if res == -ENOTCONN or self.is_replaced():
                    self.end_input()
                self.deliver_or_stash(os_error(res, ""))
        finally:
            self.want_recv()
        return 0

    cdef bint is_replaced(self) except -1:
        """Return whether another file has the descriptor by now, so each receive fails at once."""
        try:
            return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != self.type
        except OSError:
            return True

    cdef int deliver_buffer(self, int size, unsigned int flags) except -1:
        """Copy a datagram out of its buffer, give the buffer back, and deliver or stash it."""
        cdef const char *memory = self.loop.datagram_pool.take(flags, size)
        cdef const char *name = NULL
        cdef const char *start = NULL
        cdef unsigned int name_size = 0
        cdef size_t data_size = 0
        cdef size_t merged_size = 0
        cdef bytes data
        cdef object address
        try:
            if self.life >= CLOSING or self.receiving == ENDED or not uring_find_datagram(
                    memory, size, &name, &name_size, &start, &data_size):
                return 0
            merged_size = uring_merged_size(memory)
            data = PyBytes_FromStringAndSize(start, data_size)
            count_total(&self.loop.counters.received_bytes, data_size)
            address = (
                self.loop.senders.address_of(<const sockaddr_in6*>name, name_size)
                if name_size else None)
        finally:
            self.loop.datagram_pool.give_back(flags)
        if 0 < merged_size < data_size:
            return self.deliver_merged(data, merged_size, address)
        if address is None and not data_size:
            # It may be the EOF of a stream socket: a datagram has a sender's address.
            if self.is_replaced():
                self.end_input()
        if self.paused or self.stash:
            return self.stash_item((data, address))
        return self.deliver(data, address)

    def _receive(self, data, address):
        """Receive a datagram that has not come through the socket."""
        if self.life >= CLOSING or self.receiving == ENDED:
            return
        count_total(&self.loop.counters.received_bytes, len(data))
        if self.paused or self.stash:
            self.stash_item((data, address))
        else:
            self.deliver(data, address)

    cdef int deliver_merged(self, bytes data, Py_ssize_t size, object address) except -1:
        """Deliver one by one the datagrams of one sender that the kernel has merged (UDP_GRO)."""
        cdef Py_ssize_t total = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t start = 0
        cdef bytes piece
        if self.loop.nestable:
            # The protocol may run the loop, which then delivers the others.
            return self.stash_merged(data, 0, size, address)
        try:
            while start < total and not (self.paused or self.stash or self.life >= CLOSING):
                piece = data[start:start + size]
                start += size
                self.deliver(piece, address)
        finally:
            # The protocol has paused, or raised KeyboardInterrupt.
            self.stash_merged(data, start, size, address)
        return 0

    cdef int stash_merged(
            self, bytes data, Py_ssize_t start, Py_ssize_t size, object address) except -1:
        """Stash the merged datagrams from *start* on."""
        cdef Py_ssize_t total = PyBytes_GET_SIZE(data)
        while start < total and self.life < CLOSING:
            self.stash_item((data[start:start + size], address))
            start += size
        if self.stash and not self.paused and self.life < CLOSING:
            self.loop.add_delivery(self)
        return 0

    cdef int recvfrom_some(self) except -1:
        """Receive up to RECEIVED_MAX datagrams and errors, at first only one; return how many."""
        cdef Py_ssize_t size
        cdef int count = 0
        cdef int most = RECEIVED_MAX
        if self.polls_left:
            self.polls_left -= 1
            most = 1
        while (count < most and self.life < CLOSING and not self.paused
                and self.receiving != ENDED):
            # The protocol may have forked.
            self.loop.ring.check_not_forked()
            # Get the size first: recvfrom() drops the bytes beyond the size that it is given.
            size = recv(self.fd, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)
            try:
                if size < 0:
                    raise os_error(-errno, "")
                data, address = self.sock.recvfrom(size or RECEIVE_SIZE)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                if exc.errno == ENOTCONN or self.is_replaced():
                    self.end_input()
                self.deliver_error(exc)
            except BaseException as exc:
                self.fatal_error(exc, READ_FAILED)
            else:
                if not data and self.is_replaced():
                    # The EOF of a stream socket.
                    self.end_input()
                count_total(&self.loop.counters.received_bytes, len(data))
                self.deliver(data, address)
            count += 1
        return count

    cdef int deliver_item(self, object item) except -1:
        if isinstance(item, tuple):
            return self.deliver(item[0], item[1])
        return self.deliver_error(item)

    cdef int deliver(self, object data, object address) except -1:
        cdef PyObject *result = self.call_two(
            NAME_DATAGRAM_RECEIVED, <PyObject*>data, <PyObject*>address)
        if result == NULL:
            # The transport stays open, as in asyncio.
            return self.report("protocol.datagram_received() failed", pending_exception())
        Py_DECREF_owned(result)
        return 0

    cdef int deliver_error(self, object exc) except -1:
        try:
            return self.call_error_received(exc)
        except BaseException as failure:
            return self.report("protocol.error_received() failed", failure)

    cdef int call_error_received(self, object exc) except -1:
        cdef PyObject *result = self.call(NAME_ERROR_RECEIVED, <PyObject*>exc)
        if result == NULL:
            raise_pending()
        Py_DECREF_owned(result)
        return 0

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def sendto(self, data, addr=None):
        """Send *data* at once, or queue a copy of it when the socket has no room."""
        self.loop.check_owner()
        self.loop.ring.check_not_forked()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if not EMPTY_DATAGRAMS_ARE_SENT and not data:
            return
        if isinstance(data, memoryview) and not data.c_contiguous:
            data = bytes(data)
        if self.address is not None:
            if addr is not None and addr != self.address:
                raise ValueError(f"Invalid address: must be None or {self.address}")
            addr = self.address
        if self.life >= ENDING and (self.address is not None or self.sock is None):
            self.warn_lost()
            return
        # Zero means an empty queue: where empty datagrams are queued, their headers are counted.
        if not self.queue_size:
            try:
                if self.send_one(data, addr):
                    return
            except OSError as exc:
                # What the protocol raises leaves sendto(), as in asyncio.
                self.call_error_received(exc)
                return
            except BaseException as exc:
                self.fatal_error(exc, WRITE_FAILED)
                return
            if self.life >= ENDING:
                # connection_lost() is scheduled: nothing is queued any more.
                return
            self.submit_room()
        data = bytes(data)
        self.queue.append((data, addr))
        count_size(&self.queue_size, len(data) + HEADER_SIZE)
        self.pause_protocol()

    cdef bint send_one(self, object data, object address) except -1:
        """Send a datagram; return False if the socket has no room. Raises OSError."""
        cdef Py_buffer view
        if type(data) is bytes:
            return self.send_memory(
                data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), address)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.send_memory(data, <const char*>view.buf, view.len, address)
        finally:
            PyBuffer_Release(&view)

    cdef bint send_memory(
            self, object data, const char *start, Py_ssize_t size, object address) except -1:
        cdef const sockaddr_in6 *name = NULL
        cdef unsigned int name_size = 0
        cdef Py_ssize_t res
        if self.connected:
            res = send(self.fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        else:
            name = self.loop.senders.name_of(address, &name_size)
            # The cache is for all sockets of the loop: an address of another family is an error for
            # this one.
            if name == NULL or name.sin6_family != self.family:
                return self.send_parsed(data, address)
            # This is a recent sender's address, which need not be parsed.
            res = sendto(
                self.fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL, <const sockaddr*>name,
                name_size)
        if res >= 0:
            count_total(&self.loop.counters.sent_bytes, res)
            return True
        if errno == EAGAIN or errno == EINTR:
            return False
        raise os_error(-errno, "")

    cdef bint send_parsed(self, object data, object address) except -1:
        try:
            self.sock.sendto(data, address)
        except (BlockingIOError, InterruptedError):
            return False
        count_total(&self.loop.counters.sent_bytes, len(data))
        return True

    cdef int submit_room(self) except -1:
        """Wait until the socket has room for the queue."""
        cdef io_uring_sqe *sqe
        # The transport may have ended while it was sending the queue.
        if self.room_op.in_flight or self.life >= ENDING:
            return 0
        sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, POLLOUT)
        return self.loop.ring.start(sqe, &self.room_op)

    cdef int on_room(self, int res, unsigned int flags) except -1:
        cdef bint progress = True
        if self.life >= ENDING:
            return self.release_when_done()
        try:
            if res != -ECANCELED:
                progress = self.send_queued()
        finally:
            if not self.queue and not self.writing_paused:
                self.end_if_closing()
            elif progress:
                # The queue is empty here if error_received() has raised KeyboardInterrupt. Then the
                # next on_room() calls resume_writing().
                self.submit_room()
            else:
                self.loop.call_later(SEND_DELAY, self._send_again)
        return 0

    def _send_again(self):
        if self.queue:
            self.submit_room()

    cdef bint send_queued(self) except -1:
        """Send until the queue is empty or the socket full; return whether anything was sent."""
        cdef bint progress = False
        cdef object data, address
        while self.queue:
            self.loop.ring.check_not_forked()
            data, address = self.queue[0]
            try:
                if not self.send_one(data, address):
                    break
                self.drop_first()
            except OSError as exc:
                self.drop_first()
                self.deliver_error(exc)
            except BaseException as exc:
                self.fatal_error(exc, WRITE_FAILED)
            progress = True
        # After a fatal error or abort() writing stays paused, as in asyncio.
        if self.writing_paused and self.queue_size <= self.low_water and self.life < ENDING:
            self.resume_protocol()
        return progress

    cdef int drop_first(self) except -1:
        cdef bytes data = self.queue.popleft()[0]
        count_size(&self.queue_size, -PyBytes_GET_SIZE(data) - HEADER_SIZE)
        return 0

    cdef int end_if_closing(self) except -1:
        """End the transport if it is closing: the queue has been sent."""
        if self.life == CLOSING:
            self.schedule_end(None)
        return 0

    cdef Py_ssize_t unsent(self) noexcept:
        return self.queue_size

    def get_write_buffer_size(self):
        return load_size(&self.queue_size)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self):
        """Stop receiving; connection_lost() is scheduled when the queue has been sent."""
        if load_life(&self.life) >= CLOSING:
            return
        self.loop.check_owner()
        self.enter_closing()
        self.stop_reading()
        if not self.queue:
            self.schedule_end(None)

    cdef bint is_sending(self) noexcept:
        return self.room_op.in_flight

    cdef int complete_cancelled(self) except -1:
        FlowControl.complete_cancelled(self)
        return self.loop.ring.complete_now(&self.room_op)

    cdef int stop_operations(self) except -1:
        # No operation refers to the queue: a send is a system call that has returned.
        self.queue.clear()
        store_size(&self.queue_size, 0)
        self.stop_reading()
        if self.room_op.in_flight:
            self.loop.ring.cancel(&self.room_op)
        return 0

    # ── asyncio.BaseTransport ────────────────────────────────────────────────────────────────

    @property
    def __class__(self):
        # isinstance(transport, asyncio.DatagramTransport) holds.
        return DATAGRAM_CLASS

    # asyncio.Transport has these, too; a datagram transport does not support them.

    def write(self, data):
        raise NotImplementedError

    def writelines(self, list_of_data):
        raise NotImplementedError

    def write_eof(self):
        raise NotImplementedError

    def can_write_eof(self):
        raise NotImplementedError


def make_datagram(
        LoopCore loop not None, sock, protocol, address, waiter, kind=DatagramTransport):
    """Return a transport of class *kind* for a non-blocking socket, which it owns from now on.

    *address* is the one that every datagram is sent to, or None. *waiter* is resolved after
    connection_made().
    """
    cdef DatagramTransport transport = kind.__new__(kind)
    transport.may_multishot = (
        sock.family in RING_FAMILIES and sock.type in RING_TYPES
        and loop.ring.uses(MULTISHOT_RECV))
    transport.adopt(loop, sock, socket_extra(sock, None))
    # An unnamed UNIX socket is a peer, too: its address is an empty string.
    transport.connected = transport.extra["peername"] is not None
    transport.family = sock.family
    transport.type = sock.type
    transport.address = address
    transport.protocol = protocol
    transport.begin(waiter)
    return transport


cdef int datagram_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<DatagramTransport>op.owner).on_recv(res, flags)


cdef int datagram_on_room(Operation *op, int res, unsigned int flags) except -1:
    return (<DatagramTransport>op.owner).on_room(res, flags)
