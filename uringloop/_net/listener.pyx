"""The kernel's side of a server: a listening socket, from which the loop accepts.

A Listener waits with a multishot poll, and accepts with accept4(2) when the loop has time to serve
the connection. A multishot accept would accept while the process computes, and would take
connections from other processes that share the socket: an armed accept stays at the head of the
socket's wait queue. A poll takes nothing. It holds the listening file open, so `close` reaps it
before it closes the socket, and the port can be bound again at once.

    ACCEPTING ──pause()──> PAUSED ──_retry_accept()──> ACCEPTING
    ACCEPTING, PAUSED ──hold()──> HELD ──release()──> ACCEPTING
    ACCEPTING, PAUSED ──stop()──> STOPPED      any ──close()──> CLOSED

The socket may also be `shared`: then SharedListeners wait for its connections, and its poll is in
flight only while this process sleeps in its ring.
"""

import errno as error_numbers
import os
import socket
from asyncio import constants, trsock

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from uringloop._kernel.addresses cimport LocalEnd
from uringloop._kernel.errors cimport (
    EAGAIN,
    EBADF,
    ECANCELED,
    ECONNABORTED,
    EINVAL,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    ENOTSOCK,
    EOPNOTSUPP,
    os_error,
)
from uringloop._kernel.io_uring cimport IORING_CQE_F_MORE
from uringloop._kernel.libc cimport (
    IPPROTO_TCP,
    TCP_NODELAY,
    getsockname,
    setsockopt,
    sockaddr,
    sockaddr_in6,
)
from uringloop._kernel.sockets cimport uring_may_accept
from uringloop._kernel.waits cimport uring_is_nonblocking
from uringloop._net.shared_listeners cimport ACCEPTS_MAX, ListeningSocket, SharedListeners
from uringloop._net.stream_transport cimport (
    StreamTransport,
    new_accepted,
    new_stream,
    wants_nodelay,
)
from uringloop._ring.ring cimport ENDS_WITH_RUN, Operation, Ring, operation_init
from uringloop._transport.transport cimport Connections, close_socket
from uringloop._turn.turn cimport LoopCore


# Errors of accept4(2) that usually concern the connection, which is dropped. A security policy may
# return any of them for every call: after ACCEPTS_MAX of them in a row the listener pauses.
cdef frozenset CONNECTION_ERRORS = frozenset(-getattr(error_numbers, name) for name in (
    "ECONNABORTED", "EINTR", "EPROTO", "EPERM", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
    "EHOSTUNREACH", "ENETUNREACH"))
# Errors that mean that the descriptor is not a listening socket, or has ceased to be one.
cdef frozenset LASTING_ERRORS = frozenset((-EBADF, -EINVAL, -ENOTSOCK, -EOPNOTSUPP))
cdef frozenset SHORTAGES = frozenset((-EMFILE, -ENFILE, -ENOBUFS, -ENOMEM))
# Addresses of a socket that accepts connections to every address of the machine.
cdef frozenset ANY_ADDRESS = frozenset(("0.0.0.0", "::"))
cdef enum:
    # linux/in.h and linux/in6.h: the socket module has no names for them.
    IP_TRANSPARENT = 19
    IPV6_TRANSPARENT = 75
# The families whose addresses are kept as the kernel's structures.
cdef frozenset NAMED_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))


cdef class Listener(ListeningSocket):

    def __cinit__(
            self, LoopCore loop not None, sock, factory, Connections connections not None,
            bint shared=False):
        self.loop = loop
        self.sock = sock
        self.fd = sock.fileno()
        self.inode = os.fstat(self.fd).st_ino
        self.factory = factory
        self.connections = connections
        self.shared = shared
        self.given = []
        self.forks = loop.ring.forks()
        self.nodelay = wants_nodelay(sock)
        if self.nodelay:
            # Connections established from now on inherit it, which saves a system call each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.nodelay = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.family in NAMED_FAMILIES:
            self.newest_end = LocalEnd(sock.family, sock.type, sock.proto)
            if is_bound_to_one_address(sock):
                self.newest_end = self.local_end(self.fd)
                self.has_one_address = True
        self.context = PyContext_CopyCurrent()
        operation_init(&self.poll_op, listener_on_poll, <PyObject*>self)
        # A poll on a ring whose thread has left it would keep the listening file open.
        self.poll_op.policy = ENDS_WITH_RUN

    def start(self):
        """Begin to accept."""
        self.loop.check_owner()
        if not self.accepts() or self.poll_op.in_flight:
            return
        # The ring polls if the kernel does not let the loop sleep at epoll.
        if not self.shared or not self.share() or not self.loop.sleeper.is_exclusive():
            self.submit_poll()

    def close(self):
        """Stop accepting now, and close the socket."""
        self.loop.check_owner()
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.cancel_retry()
        if self.shared:
            self.shared_listeners().remove(self)
        self.loop.ring.reap(&self.poll_op)
        if not self.poll_op.in_flight:
            self.sock.close()
        for _, refuse in self.given:
            refuse()
        self.given.clear()

    def hold(self):
        """Let connections wait in the backlog until release(); other processes may accept them."""
        if self.state == ACCEPTING or self.state == PAUSED:
            self.cancel_retry()
            self.state = HELD
            self.stop_waiting()

    def release(self):
        """Accept again, at the end of this turn."""
        if self.state == HELD:
            self.state = ACCEPTING
            self.loop.add_flush(self)

    def accept_rest(self, most):
        """Accept up to *most* of the connections that wait, unless others can; close() follows."""
        # From now on other processes do not count on this one.
        self.hold()
        if self.state == HELD and not self.others_accept():
            self.state = ACCEPTING
            self.shared = False
            self.accept_waiting(most)

    # ── accepting ────────────────────────────────────────────────────────────────────────────

    cdef bint share(self) except -1:
        """Let SharedListeners wait for connections from now on; return False if they cannot."""
        self.shared = self.shared_listeners().add(self) >= 0
        return self.shared

    cdef SharedListeners shared_listeners(self):
        if self.loop.sleeper.listeners is None:
            self.loop.sleeper.set_listeners(SharedListeners(self.loop))
        return <SharedListeners>self.loop.sleeper.listeners

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        cdef bint alone = not self.shared or self.is_alone()
        if not alone:
            # This poll wakes all processes for each connection, epoll only one.
            self.shared_listeners().wait_at_epoll()
        elif not self.shared and self.state == ACCEPTING and self.is_shared_by_now():
            # Another process has begun to accept.
            alone = not self.share()
            if not alone:
                self.loop.ring.cancel(&self.poll_op)
        try:
            # The poll has also woken the other processes, which may accept meanwhile.
            if res > 0 and (alone or uring_may_accept(self.fd)):
                self.accept_waiting(ACCEPTS_MAX if alone else 1)
        finally:
            # Even if the factory raises KeyboardInterrupt, so that the next run accepts.
            if not flags & IORING_CQE_F_MORE:
                self.poll_ended(res)
        return 0

    cdef bint is_alone(self) except -1:
        """Return whether this process sleeps in its ring, as no other accepts from the socket."""
        return (not self.loop.sleeper.is_exclusive()
                and not self.shared_listeners().others_accept())

    cdef int poll_ended(self, int res) except -1:
        if self.state == CLOSED:
            self.sock.close()
            return 0
        if self.shared and self.accepts():
            self.shared_listeners().wait_at_epoll()
        # ECONNABORTED: the ring was replaced, and the poll's result is unknown.
        if res < 0 and res != -ECANCELED and res != -ECONNABORTED:
            return self.stop(res)
        # flush() begins again, at the end of this turn or of the first turn of the next run.
        return self.loop.add_flush(self)

    cdef int flush(self) except -1:
        if not self.shared:
            # First, because a server at its limit needs no poll after that.
            try:
                self.accept_waiting(ACCEPTS_MAX)
            finally:
                self.start()
            return 0
        self.start()
        if self.is_alone():
            self.accept_waiting(ACCEPTS_MAX)
        elif not self.loop.sleeper.is_exclusive():
            # The poll does not report again what waited when it completed.
            self.accept_waiting(1)
        return 0

    cdef int accept_waiting(self, int most) except -1:
        """Accept up to *most* of the waiting connections, and return their number."""
        cdef sockaddr_in6 peer
        cdef unsigned int size
        cdef bint more = True
        cdef int res
        cdef int before = most
        try:
            while self.given and self.accepts():
                self.accept_given()
            while more and most > 0 and self.accepts():
                # The factory of a protocol may have forked.
                self.loop.ring.check_not_forked()
                size = sizeof(peer)
                res = self.accept(&peer, &size)
                if res >= 0:
                    most -= 1
                    self.failures = 0
                    if self.loop.nestable:
                        # A run nested in the factory accepts what else waits: the poll does not
                        # report it again, and may have ended.
                        self.loop.add_flush(self)
                    self.begin_connection(res, &peer, size, None)
                    if most == before - 1 and most > 0:
                        # Usually one connection waits: a poll saves an accept4(2) that fails.
                        more = uring_may_accept(self.fd)
                else:
                    more = self.accept_failed(res)
        finally:
            if self.accepts() and self.shared and self.loop.sleeper.is_exclusive():
                if most < before:
                    self.shared_listeners().requeue(self)
                res = self.shared_listeners().keep_spare()
                if res < 0:
                    # Stop before a connection wakes this process, which could not accept it.
                    self.pause(res)
            elif self.accepts() and more:
                # The poll does not report these connections again.
                self.loop.add_flush(self)
        return before - most

    cdef int accept(self, sockaddr_in6 *peer, unsigned int *size) noexcept:
        """Accept without waiting; return a descriptor or -errno.

        Other code may have made the socket a blocking one. Then accept4(2) is called without the
        GIL, because another process may take the connection first, and the call would wait.
        """
        cdef int res
        cdef int fd = self.fd
        cdef Ring ring = self.loop.ring
        if uring_is_nonblocking(fd):
            return ring.accept(fd, peer, size)
        if not uring_may_accept(fd):
            return -EAGAIN
        with nogil:
            res = ring.accept(fd, peer, size)
        return res

    cdef bint accepts(self) noexcept:
        return self.state == ACCEPTING

    cdef bint accept_failed(self, int res) except -1:
        """Deal with an error of accept4(2); return whether to try again at once."""
        if res == -EAGAIN:
            # The backlog is empty: later connections have inherited TCP_NODELAY.
            self.nodelay = False
            self.failures = 0
            return False
        self.failures += 1
        if res in CONNECTION_ERRORS and self.failures < ACCEPTS_MAX:
            return True
        if ((res == -EMFILE or res == -ENFILE) and self.shared and self.loop.sleeper.is_exclusive()
                and self.shared_listeners().use_spare()):
            return True
        if res in LASTING_ERRORS:
            self.stop(res)
        else:
            self.pause(res)
        return False

    cdef int stop(self, int res) except -1:
        """Report a lasting error of accept4(2) or of the poll, and accept no more."""
        self.cancel_retry()
        if self.state != CLOSED:
            self.state = STOPPED
        self.stop_waiting()
        # Last, because the exception handler may raise SystemExit.
        return self.report(os_error(res, "accept"), "socket.accept() failed")

    cdef int stop_waiting(self) except -1:
        """Stop waiting for connections."""
        if self.shared:
            self.shared_listeners().remove(self)
        if self.poll_op.in_flight:
            self.loop.ring.cancel(&self.poll_op)
        return 0

    def is_paused(self):
        """Return whether the listener waits for descriptors or memory."""
        return self.state == PAUSED

    def give(self, sock, refuse):
        """Add a connection to the backlog that is not in the kernel's.

        A transport owns *sock* when it is accepted; if it is not, *refuse* is called.
        """
        if self.state == CLOSED or self.state == STOPPED:
            refuse()
        else:
            self.given.append((sock, refuse))

    def accept_given(self):
        """Serve the connection that was given first, if there is one and the listener accepts."""
        if self.given and self.accepts():
            self.begin_connection(-1, NULL, 0, self.given.pop(0)[0])

    cdef int begin_connection(
            self, int fd, const sockaddr_in6 *peer, unsigned int size, object sock) except -1:
        """Create the transport of a new connection; from then on the transport owns *fd*.

        If the Python socket *sock* is not None, the transport owns it, and *fd* is not used.
        """
        cdef StreamTransport transport = None
        PyContext_Enter(self.context)
        try:
            # Before the factory, which may run the loop.
            self.connections.begin_service()
            if sock is None:
                transport = self.new_transport(fd, peer, size, self.factory())
            else:
                transport = new_stream(self.loop, sock, self.factory(), None)
            self.connections.attach(transport)
            transport.begin(None)
        except BaseException as exc:
            if transport is not None:
                transport.release()
            else:
                self.connections.end_service()
                if sock is None:
                    close_socket(fd)
                else:
                    sock.close()
            if isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise
            if self.loop.in_debug_mode():
                self.loop.call_exception_handler(
                    {
                        "message": "Error on transport creation for incoming connection",
                        "exception": exc,
                    }
                )
        finally:
            PyContext_Exit(self.context)
        return 0

    cdef StreamTransport new_transport(
            self, int fd, const sockaddr_in6 *peer, unsigned int size, object protocol):
        cdef int on = 1
        cdef object sock
        if self.nodelay:
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        if self.newest_end is not None:
            return new_accepted(self.loop, fd, self.local_end(fd), peer, size, protocol)
        sock = socket.socket(self.sock.family, self.sock.type, self.sock.proto, fd)
        try:
            return new_stream(self.loop, sock, protocol, None)
        except BaseException:
            # The caller closes the descriptor.
            sock.detach()
            raise

    cdef LocalEnd local_end(self, int fd):
        """Return the local end of connection *fd*: `newest_end` if its address is the same."""
        cdef sockaddr_in6 name
        cdef unsigned int size = sizeof(name)
        if self.has_one_address:
            return self.newest_end
        if getsockname(fd, <sockaddr*>&name, &size) < 0:
            size = 0
        if not self.newest_end.is_named(&name, size):
            self.newest_end = self.newest_end.with_name(&name, size)
        return self.newest_end

    cdef int pause(self, int res) except -1:
        """Stop accepting for ACCEPT_RETRY_DELAY seconds; connections wait in the backlog."""
        if self.shared:
            self.stop_waiting()
        self.failures = 0
        self.state = PAUSED
        self.retry = self.loop.call_later(constants.ACCEPT_RETRY_DELAY, self._retry_accept)
        # Last, because the exception handler may raise SystemExit, or close or pause the server.
        if res in SHORTAGES:
            return self.report(os_error(res, ""), "socket.accept() out of system resource")
        return self.report(os_error(res, "accept"), "socket.accept() failed")

    cdef int cancel_retry(self) except -1:
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        return 0

    def _retry_accept(self):
        cdef int res = self.shared_listeners().keep_spare() if self.shared else 0
        self.retry = None
        assert self.state == PAUSED
        self.state = ACCEPTING
        if res < 0:
            self.pause(res)
        else:
            self.start()
            self.accept_waiting(ACCEPTS_MAX)

    cdef int report(self, object exc, str message) except -1:
        self.loop.call_exception_handler(
            {
                "message": message,
                "exception": exc,
                "socket": trsock.TransportSocket(self.sock),
            }
        )
        return 0


cdef bint is_bound_to_one_address(object sock) except -1:
    """Return whether all connections of a listening socket have its own address."""
    if sock.getsockname()[0] in ANY_ADDRESS:
        return False
    # A transparent proxy accepts connections to other machines' addresses.
    try:
        if sock.family == socket.AF_INET:
            return not sock.getsockopt(socket.SOL_IP, IP_TRANSPARENT)
        return not sock.getsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT)
    except OSError as exc:
        # A kernel that is emulated, as by qemu-user, may not have the option: no socket has it set.
        if exc.errno != error_numbers.ENOPROTOOPT:
            raise
        return True


cdef int listener_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<Listener>op.owner).on_poll(res, flags)
