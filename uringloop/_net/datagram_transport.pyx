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

A protocol with message_received() gets ancillary data, too. After a poll recvmsg(2) receives for
it, and a multishot poll watches the error queue.

An error of the network is cleared when the socket has returned it. An error that stays, because
another file has the descriptor's number now, is delivered once, and ends the input.

Each method that sends makes a system call at once, so that datagrams leave in the order of the
calls. A datagram that the socket has no room for is queued, and sent when a poll reports room.
"""

import asyncio
import errno as error_numbers
import socket
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memset

from uringloop._cpython.pyapi cimport Py_DECREF_owned, raise_pending
from uringloop._kernel.atomics cimport count_size, count_total, load_size, store_size
from uringloop._kernel.ancillary cimport (
    joined,
    merged_size,
    packed_ancillary,
    received_ancillary,
    segments_of,
)
from uringloop._kernel.errors cimport (
    EAGAIN,
    EBADF,
    ECANCELED,
    ECONNABORTED,
    EINTR,
    ENOBUFS,
    errno,
    os_error,
)
from uringloop._kernel.io_uring cimport IORING_CQE_F_BUFFER, IORING_CQE_F_MORE, io_uring_sqe
from uringloop._kernel.libc cimport (
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_ERRQUEUE,
    MSG_NOSIGNAL,
    MSG_PEEK,
    MSG_TRUNC,
    POLLIN,
    POLLOUT,
    UDP_GRO,
    iovec,
    msghdr,
    recv,
    send,
    sendmsg,
    sendto,
    sockaddr,
    sockaddr_in6,
)
from uringloop._kernel.sockets cimport (
    URING_CONTROL_ROOM,
    io_uring_prep_poll_add,
    io_uring_prep_poll_multishot,
    uring_datagram,
    uring_find_datagram,
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
    OPEN,
    load_life,
    pending_exception,
    socket_extra,
)
from uringloop._turn.turn cimport LoopCore

cdef bint EMPTY_DATAGRAMS_ARE_SENT      # filled by the import
from uringloop._cpython.stdlib import EMPTY_DATAGRAMS_ARE_SENT
from uringloop._net.protocol_methods import has_method
from uringloop._net.socket_messages import to_keep


cdef enum:
    # Datagrams received after one poll before other connections are served.
    RECEIVED_MAX = 16
    # The size that asyncio uses, for a socket that does not return the size of its datagram.
    RECEIVE_SIZE = 256 * 1024
    # No less than the packet that an error refers to, and below the size from which on glibc maps
    # memory: Python allocates all of it for each receive.
    ERROR_SIZE = 64 * 1024
    # The most that the kernel cuts in one call: 64 datagrams before 6.9, and a packet's bytes.
    SEGMENTS_MAX = 64
    SEGMENT_BYTES_MAX = 65507
# Seconds until the next attempt to send on a socket that a poll reports as writable although its
# receiver's queue is full: poll(2) checks the queue only for connected UNIX sockets.
cdef double SEND_DELAY = 0.001
# What asyncio counts for each queued datagram beside its bytes, where it sends empty ones.
cdef Py_ssize_t HEADER_SIZE = 8 if EMPTY_DATAGRAMS_ARE_SENT else 0

cdef object NAME_DATAGRAM_RECEIVED = "datagram_received"
cdef object NAME_MESSAGE_RECEIVED = "message_received"
cdef object NAME_ERROR_RECEIVED = "error_received"
cdef int EDESTADDRREQ = error_numbers.EDESTADDRREQ
cdef int ENOTCONN = error_numbers.ENOTCONN
# What the kernel returns if it cannot cut a message: the device does not compute checksums, or
# a datagram is longer than the path takes.
cdef frozenset UNCUT = frozenset(
    (error_numbers.EINVAL, error_numbers.EIO, error_numbers.EMSGSIZE, error_numbers.EOPNOTSUPP))
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
        operation_init(&self.errors_op, datagram_on_errors, <PyObject*>self)
        self.queue = deque()

    cdef int start_io(self) except -1:
        FlowControl.start_io(self)
        return self.watch_errors()

    cdef int use_protocol(self, object protocol) except -1:
        FlowControl.use_protocol(self, protocol)
        self.takes_messages = has_method(protocol, NAME_MESSAGE_RECEIVED, 4)
        if self.takes_messages and self.life == OPEN:
            self.watch_errors()
            # The poll has reported what came while another protocol was set.
            self.schedule_errors()
        return 0

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
        self.errors_read = False
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
        if (not self.receive_some() and not self.receive_errors() and not self.errors_read
                and self.life < CLOSING and self.receiving == IDLE):
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
        cdef uring_datagram found
        cdef list ancillary = None
        cdef Py_ssize_t merged = 0
        cdef bytes data
        cdef object address
        try:
            if self.life >= CLOSING or self.receiving == ENDED or not uring_find_datagram(
                    memory, size, &found):
                return 0
            data = PyBytes_FromStringAndSize(found.data, found.data_size)
            count_total(&self.loop.counters.received_bytes, found.data_size)
            address = (
                self.loop.senders.address_of(<const sockaddr_in6*>found.name, found.name_size)
                if found.name_size else None)
            if found.control_size:
                ancillary = received_ancillary(found.control, found.control_size)
                merged = merged_size(ancillary)
        finally:
            self.loop.datagram_pool.give_back(flags)
        if 0 < merged < PyBytes_GET_SIZE(data):
            return self.deliver_merged(data, merged, ancillary, found.flags, address)
        if address is None and not data:
            # It may be the EOF of a stream socket: a datagram has a sender's address.
            if self.is_replaced():
                self.end_input()
        if self.paused or self.stash:
            return self.stash_item((data, ancillary, found.flags, address))
        return self.deliver(data, ancillary, found.flags, address)

    def _receive(self, data, address, ancillary=None):
        """Receive a datagram that has not come through the socket."""
        if self.life >= CLOSING or self.receiving == ENDED:
            return
        count_total(&self.loop.counters.received_bytes, len(data))
        self.deliver_or_stash((data, ancillary, 0, address))

    cdef int deliver_merged(
            self, bytes data, Py_ssize_t size, list ancillary, int flags,
            object address) except -1:
        """Deliver one by one the datagrams of *size* that the kernel has merged (UDP_GRO)."""
        cdef Py_ssize_t total = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t start = 0
        cdef bytes piece
        if self.loop.nestable:
            # The protocol may run the loop, which then delivers the others.
            return self.stash_merged(data, 0, size, ancillary, flags, address)
        try:
            while start < total and not (self.paused or self.stash or self.life >= CLOSING):
                # The protocol may have forked: a child is given nothing.
                self.loop.ring.check_not_forked()
                piece = data[start:start + size]
                start += size
                self.deliver(
                    piece, ancillary[:] if self.takes_messages else ancillary, flags, address)
        finally:
            # The protocol has paused, or raised KeyboardInterrupt.
            self.stash_merged(data, start, size, ancillary, flags, address)
        return 0

    cdef int stash_merged(
            self, bytes data, Py_ssize_t start, Py_ssize_t size, list ancillary, int flags,
            object address) except -1:
        """Stash the merged datagrams of *size* from *start* on."""
        cdef Py_ssize_t total = PyBytes_GET_SIZE(data)
        while start < total and self.life < CLOSING:
            self.stash_item((data[start:start + size], ancillary[:], flags, address))
            start += size
        return 0

    cdef int receive_some(self) except -1:
        """Receive up to RECEIVED_MAX datagrams and errors, at first only one; return how many."""
        cdef Py_ssize_t size
        cdef list ancillary
        cdef int flags
        cdef int count = 0
        cdef int most = RECEIVED_MAX
        # A ring that cannot receive leaves it to this to take merged datagrams apart.
        cdef bint merging = not self.may_multishot and self.cuts and self.is_merging()
        if self.polls_left:
            self.polls_left -= 1
            most = 1
        while (count < most and self.life < CLOSING and not self.paused and not self.stash
                and self.receiving != ENDED):
            # The protocol may have forked.
            self.loop.ring.check_not_forked()
            # Get the size first: recvfrom() drops the bytes beyond the size that it is given.
            size = recv(self.fd, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)
            try:
                if size < 0:
                    raise os_error(-errno, "")
                # Other code may have made the socket a blocking one.
                if merging or self.takes_messages:
                    data, ancillary, flags, address = self.sock.recvmsg(
                        size or RECEIVE_SIZE, URING_CONTROL_ROOM, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)
                    # The kernel returns it among the flags.
                    flags &= ~MSG_CMSG_CLOEXEC
                else:
                    data, address = self.sock.recvfrom(size or RECEIVE_SIZE, MSG_DONTWAIT)
                    ancillary, flags = [], 0
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
                merged = merged_size(ancillary)
                if 0 < merged < len(data):
                    self.deliver_merged(data, merged, ancillary, flags, address)
                else:
                    self.deliver(data, ancillary, flags, address)
            count += 1
        return count

    # ── the error queue ──────────────────────────────────────────────────────────────────────

    cdef int watch_errors(self) except -1:
        """Wait for errors and time stamps, which the kernel queues beside the datagrams."""
        cdef io_uring_sqe *sqe
        # Sockets of other families return datagrams to a receive with MSG_ERRQUEUE.
        if (not self.takes_messages or self.errors_op.in_flight or self.life >= CLOSING
                or self.family not in RING_FAMILIES):
            return 0
        sqe = self.loop.ring.submission()
        # A poll always reports POLLERR.
        io_uring_prep_poll_multishot(sqe, self.fd, 0)
        return self.loop.ring.start(sqe, &self.errors_op)

    cdef int on_errors(self, int res, unsigned int flags) except -1:
        try:
            if res > 0:
                self.receive_errors()
        finally:
            if self.life >= ENDING:
                self.release_when_done()
            elif not flags & IORING_CQE_F_MORE and (
                    res > 0 or res == -ECANCELED or res == -ECONNABORTED):
                # A poll whose ring was replaced ends with ECONNABORTED.
                self.watch_errors()
        return 0

    cdef int receive_errors(self) except -1:
        """Deliver messages of the error queue, RECEIVED_MAX in a turn; return how many."""
        cdef int count = 0
        cdef bint is_empty = False
        if self.errors_scheduled:
            self.errors_read = True
            return 0
        try:
            while (count < RECEIVED_MAX and self.takes_messages and self.errors_op.in_flight
                    and not self.paused and self.life < CLOSING and self.receiving != ENDED):
                self.loop.ring.check_not_forked()
                try:
                    data, ancillary, flags, address = self.sock.recvmsg(
                        ERROR_SIZE, URING_CONTROL_ROOM, MSG_ERRQUEUE | MSG_DONTWAIT)
                except OSError:
                    # There is none. An error of the socket is delivered by a receive of datagrams.
                    is_empty = True
                    break
                self.errors_read = True
                count += 1
                self.deliver(data, ancillary, flags, address)
        finally:
            # The poll does not report the others, even if the protocol raises KeyboardInterrupt.
            if count and not is_empty:
                self.schedule_errors()
        return count

    cdef int schedule_errors(self) except -1:
        """Read the error queue in the next turn."""
        if not self.errors_scheduled:
            self.errors_scheduled = True
            self.loop.schedule(self._receive_errors, (), None)
        return 0

    def _receive_errors(self):
        self.errors_scheduled = False
        self.receive_errors()

    def resume_reading(self):
        FlowControl.resume_reading(self)
        if self.errors_op.in_flight:
            # The poll reports only what arrives.
            self.schedule_errors()

    # ── calling the protocol ─────────────────────────────────────────────────────────────────

    cdef int deliver_item(self, object item) except -1:
        if isinstance(item, tuple):
            return self.deliver(item[0], item[1], item[2], item[3])
        return self.deliver_error(item)

    cdef int deliver(self, object data, list ancillary, int flags, object address) except -1:
        cdef PyObject *arguments[5]
        cdef PyObject *result
        cdef object flags_object
        cdef object method = NAME_DATAGRAM_RECEIVED
        arguments[1] = <PyObject*>data
        if self.takes_messages:
            method = NAME_MESSAGE_RECEIVED
            if ancillary is None:
                ancillary = []
            flags_object = flags
            arguments[2] = <PyObject*>ancillary
            arguments[3] = <PyObject*>flags_object
            arguments[4] = <PyObject*>address
            result = self.call_many(method, arguments, 5)
        else:
            arguments[2] = <PyObject*>address
            result = self.call_many(method, arguments, 3)
        if result == NULL:
            # The transport stays open, as in asyncio.
            return self.report(f"protocol.{method}() failed", pending_exception())
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
        self.check_sending()
        check_bytes(data)
        if not EMPTY_DATAGRAMS_ARE_SENT and not data:
            return
        if isinstance(data, memoryview) and not data.c_contiguous:
            data = bytes(data)
        if self.may_send(addr):
            self.send_or_queue(data, addr, None, 0)

    def sendmsg(self, buffers, ancdata=(), addr=None):
        """Send *buffers* as one datagram with ancillary data, at once or when there is room.

        *buffers* and *ancdata* are those of `socket.sendmsg`. Descriptors in *ancdata* may be
        closed as soon as this returns.
        """
        cdef bytes data = joined(buffers)
        cdef bytes ancillary = packed_ancillary(ancdata)
        self.check_sending()
        if self.may_send(addr) and self.has_destination(addr):
            self.send_or_queue(data, addr, ancillary, 0)

    def send_segments(self, data, segment_size, addr=None, ancdata=()):
        """Send *data* as datagrams of *segment_size* bytes; the last one may be shorter.

        Each datagram carries *ancdata*. The kernel makes up to 64 datagrams from the data of one
        call; where it cannot, each datagram takes a call. Raises TypeError for arguments of wrong
        types, and ValueError if *segment_size* is less than 1.
        """
        cdef bytes ancillary = packed_ancillary(ancdata)
        cdef Py_ssize_t size = segment_size
        cdef Py_ssize_t batch
        cdef Py_ssize_t start
        self.check_sending()
        check_bytes(data)
        if size < 1:
            raise ValueError(f"segment_size must be at least 1: {segment_size!r}")
        if not (self.may_send(addr) and self.has_destination(addr)):
            return
        if type(data) is not bytes:
            data = bytes(data)
        batch = size * max(1, min(SEGMENTS_MAX, SEGMENT_BYTES_MAX // size)) if self.cuts else size
        for start in range(0, len(data), batch):
            if self.life >= ENDING:
                # error_received() has aborted.
                break
            # It may have forked, too: a child sends nothing again.
            self.loop.ring.check_not_forked()
            # A slice of all of it is the object itself; a part is copied in less time than sent.
            part = data[start:start + batch]
            if len(part) > size:
                self.send_or_queue(part, addr, segments_of(size) + (ancillary or b""), size)
            else:
                self.send_or_queue(part, addr, ancillary, 0)

    cdef int check_sending(self) except -1:
        self.loop.check_owner()
        self.loop.ring.check_not_forked()
        return 0

    cdef bint may_send(self, object addr) except -1:
        """Return whether the transport still sends. Raises ValueError for a second address."""
        if self.address is not None and addr is not None and addr != self.address:
            raise ValueError(f"Invalid address: must be None or {self.address}")
        if self.life >= ENDING and (self.address is not None or self.sock is None):
            self.warn_lost()
            return False
        return True

    cdef bint has_destination(self, object address) except -1:
        """Return whether the kernel knows where to send; if not, the protocol gets its error."""
        if address is not None or self.address is not None or self.connected:
            return True
        self.call_error_received(os_error(-EDESTADDRREQ, ""))
        return False

    cdef int send_or_queue(
            self, object data, object address, bytes ancillary, Py_ssize_t segment) except -1:
        """Send *data* at once, or queue a copy of it when the socket has no room.

        If *segment* is not zero, the kernel cuts the data, as the first item of *ancillary* says.
        """
        if self.address is not None:
            address = self.address
        if not self.queue:
            try:
                if self.send_one(data, address, ancillary):
                    return 0
            except OSError as exc:
                if is_reported(exc, segment):
                    # What the protocol raises leaves sendto(), as in asyncio.
                    self.call_error_received(exc)
                return self.send_pieces(data, address, ancillary, segment) if segment else 0
            except BaseException as exc:
                return self.fatal_error(exc, WRITE_FAILED)
            if self.life >= ENDING:
                # connection_lost() is scheduled: nothing is queued any more.
                return 0
            self.submit_room()
        data = bytes(data)
        owner = None
        if ancillary is not None:
            try:
                kept, owner = to_keep(unpacked(ancillary))
                ancillary = packed_ancillary(kept)
            except OSError as exc:
                # A descriptor is closed, or there are too many.
                return self.call_error_received(exc)
        self.queue.append((data, address, ancillary, segment, owner))
        count_size(&self.queue_size, len(data) + HEADER_SIZE)
        return self.pause_protocol()

    cdef int send_pieces(
            self, bytes data, object address, bytes ancillary, Py_ssize_t segment) except -1:
        """Send the datagrams that the kernel has not cut out of *data* one by one."""
        for item in pieces(data, address, ancillary, segment):
            if self.life >= ENDING:
                break
            self.loop.ring.check_not_forked()
            self.send_or_queue(item[0], address, item[2], 0)
        return 0

    cdef bint send_one(self, object data, object address, bytes ancillary) except -1:
        """Send a datagram; return False if the socket has no room. Raises OSError."""
        cdef Py_buffer view
        cdef const sockaddr_in6 *name = NULL
        cdef unsigned int name_size = 0
        if not self.connected:
            name = self.loop.senders.name_of(address, &name_size)
            # The cache is for all sockets of the loop: an address of another family is an error for
            # this one.
            if name == NULL or name.sin6_family != self.family:
                return self.send_parsed(data, address, ancillary)
        # A recent sender's address need not be parsed.
        if type(data) is bytes:
            return self.send_memory(
                PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), name, name_size, ancillary)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.send_memory(<const char*>view.buf, view.len, name, name_size, ancillary)
        finally:
            PyBuffer_Release(&view)

    cdef bint send_memory(
            self, const char *start, Py_ssize_t size, const sockaddr_in6 *name,
            unsigned int name_size, bytes ancillary) except -1:
        cdef Py_ssize_t res
        if ancillary is not None:
            res = send_message(self.fd, start, size, name, name_size, ancillary)
        elif self.connected:
            res = send(self.fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        else:
            res = sendto(
                self.fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL, <const sockaddr*>name,
                name_size)
        if res >= 0:
            count_total(&self.loop.counters.sent_bytes, res)
            return True
        if errno == EAGAIN or errno == EINTR:
            return False
        raise os_error(-errno, "")

    cdef bint send_parsed(self, object data, object address, bytes ancillary) except -1:
        try:
            # Other code may have made the socket a blocking one.
            if ancillary is None:
                self.sock.sendto(data, MSG_DONTWAIT | MSG_NOSIGNAL, address)
            else:
                self.sock.sendmsg(
                    [data], unpacked(ancillary), MSG_DONTWAIT | MSG_NOSIGNAL,
                    None if self.connected else address)
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
        while self.queue:
            self.loop.ring.check_not_forked()
            data, address, ancillary, segment, _ = self.queue[0]
            try:
                if not self.send_one(data, address, ancillary):
                    break
                self.drop_first()
            except OSError as exc:
                self.drop_first()
                if segment:
                    self.queue_first(pieces(data, address, ancillary, segment))
                if is_reported(exc, segment):
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

    cdef int queue_first(self, list items) except -1:
        for item in reversed(items):
            self.queue.appendleft(item)
            count_size(&self.queue_size, len(item[0]) + HEADER_SIZE)
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

    cdef bint has_operations(self) noexcept:
        return FlowControl.has_operations(self) or self.errors_op.in_flight

    cdef int complete_cancelled(self) except -1:
        FlowControl.complete_cancelled(self)
        self.loop.ring.complete_now(&self.errors_op)
        return self.loop.ring.complete_now(&self.room_op)

    cdef int stop_reading(self) except -1:
        if self.errors_op.in_flight:
            self.loop.ring.cancel(&self.errors_op)
        return FlowControl.stop_reading(self)

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


cdef int check_bytes(object data) except -1:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
    return 0


def checked_message(buffers, ancdata):
    """Return what `sendmsg` sends: bytes, and a list of ancillary data."""
    cdef bytes ancillary = packed_ancillary(ancdata)
    return joined(buffers), [] if ancillary is None else unpacked(ancillary)


cdef list unpacked(bytes ancillary):
    return received_ancillary(PyBytes_AS_STRING(ancillary), PyBytes_GET_SIZE(ancillary))


cdef bint is_reported(object exc, Py_ssize_t segment) except -1:
    """Return whether the protocol gets the error of a send.

    It does not if the kernel only cannot cut the data. Any other error may be about an earlier
    datagram: the data are then sent again, too.
    """
    return not segment or exc.errno not in UNCUT


cdef list pieces(object data, object address, bytes ancillary, Py_ssize_t size):
    """Return the items of the queue for the datagrams that the kernel does not cut out."""
    cdef Py_ssize_t start
    cdef bytes others = ancillary[len(segments_of(size)):] or None
    return [(bytes(data[start:start + size]), address, others, 0, None)
            for start in range(0, len(data), size)]


cdef Py_ssize_t send_message(
        int fd, const char *start, Py_ssize_t size, const sockaddr_in6 *name,
        unsigned int name_size, bytes ancillary) noexcept:
    """Send a datagram with packed ancillary data; return what sendmsg(2) returns."""
    cdef iovec part
    cdef msghdr message
    memset(&message, 0, sizeof(message))
    part.iov_base = <void*>start
    part.iov_len = size
    message.msg_name = <void*>name
    message.msg_namelen = name_size
    message.msg_iov = &part
    message.msg_iovlen = 1
    # The kernel only reads it.
    message.msg_control = PyBytes_AS_STRING(ancillary)
    message.msg_controllen = PyBytes_GET_SIZE(ancillary)
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)


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
    transport.cuts = (
        sock.family in RING_FAMILIES and sock.type == socket.SOCK_DGRAM
        and sock.proto in (0, socket.IPPROTO_UDP))
    transport.address = address
    transport.use_protocol(protocol)
    transport.begin(waiter)
    return transport


cdef int datagram_on_recv(Operation *op, int res, unsigned int flags) except -1:
    return (<DatagramTransport>op.owner).on_recv(res, flags)


cdef int datagram_on_errors(Operation *op, int res, unsigned int flags) except -1:
    return (<DatagramTransport>op.owner).on_errors(res, flags)


cdef int datagram_on_room(Operation *op, int res, unsigned int flags) except -1:
    return (<DatagramTransport>op.owner).on_room(res, flags)
