"""The kernel's side of a server: one listening socket, accepting until it is closed.

One multishot accept stays armed. It holds the listening file open: closing the socket before the
accept has ended would leave the port bound and clients connecting to nobody, so `close` ends it
first, out of turn, and an immediate bind of the same port works.
"""

import socket
from asyncio import constants, trsock

from cpython.object cimport PyObject

from uringloop._core.addresses cimport NearEnd
from uringloop._core.errors cimport (
    ECANCELED,
    ECONNABORTED,
    EINTR,
    EINVAL,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    os_error,
)
from uringloop._core.features cimport MULTISHOT_ACCEPT, uses
from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.pyapi cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from uringloop._core.ring cimport Operation, operation_init
from uringloop._core.stream cimport StreamTransport, new_accepted, new_stream, wants_nodelay
from uringloop._core.transport cimport Connections
from uringloop._native.requests cimport uring_prep_accept
from uringloop._native.uring cimport (
    IORING_CQE_F_MORE,
    IPPROTO_TCP,
    TCP_NODELAY,
    close,
    getsockname,
    io_uring_sqe,
    setsockopt,
    sockaddr,
    sockaddr_in6,
)


# Their names are kept as the kernel has them.
cdef frozenset NAMED_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))


cdef class Listener(Flushable):

    def __cinit__(
            self, LoopCore loop not None, sock, factory, Connections connections not None):
        self.loop = loop
        self.sock = sock
        self.fd = sock.fileno()
        self.factory = factory
        self.connections = connections
        self.nodelay = wants_nodelay(sock)
        if self.nodelay and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            # Connections inherit it, which saves a system call for each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.nodelay = False
        if sock.family in NAMED_FAMILIES:
            self.near = NearEnd(sock.family, sock.type, sock.proto)
        self.context = PyContext_CopyCurrent()
        operation_init(&self.accept_op, listener_on_accept, <PyObject*>self)
        self.accept_op.ends_with_run = True

    def start(self):
        """Begin to accept."""
        if not self.accept_op.in_flight and not self.closing:
            self.submit_accept()

    def close(self):
        """Stop accepting now, and close the socket."""
        if self.closing:
            return
        self.closing = True
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        self.loop.ring.reap(&self.accept_op)
        if not self.accept_op.in_flight:
            self.sock.close()

    cdef int submit_accept(self) except -1:
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        uring_prep_accept(sqe, self.fd, uses(MULTISHOT_ACCEPT))
        return self.loop.ring.start(sqe, &self.accept_op)

    cdef int on_accept(self, int res, unsigned int flags) except -1:
        try:
            if res >= 0:
                self.accepted(res)
        finally:
            # A KeyboardInterrupt of the factory leaves the run, and the next run accepts on.
            if not flags & IORING_CQE_F_MORE:
                self.accept_ended(res)
        return 0

    cdef int accept_ended(self, int res) except -1:
        if self.closing:
            self.sock.close()
            return 0
        if res == -EMFILE or res == -ENFILE or res == -ENOBUFS or res == -ENOMEM:
            return self.out_of_resources(res)
        if res < 0 and res != -ECANCELED and res != -ECONNABORTED and res != -EINTR:
            self.report(os_error(res, "accept"), "socket.accept() failed")
            if res == -EINVAL:
                # Not a listening socket any more: somebody has shut it down.
                return 0
        # At the end of this turn, or in the first of the next run.
        return self.loop.add_flush(self)

    cdef int flush(self) except -1:
        self.start()
        return 0

    cdef int accepted(self, int fd) except -1:
        cdef StreamTransport transport = None
        if self.closing:
            close(fd)
            return 0
        PyContext_Enter(self.context)
        try:
            transport = self.connection(fd, self.factory())
            self.connections.attach(transport)
            transport.begin(None)
        except (KeyboardInterrupt, SystemExit):
            self.drop(fd, transport)
            raise
        except BaseException as exc:
            self.drop(fd, transport)
            if self.loop.debug:
                self.loop.call_exception_handler(
                    {
                        "message": "Error on transport creation for incoming connection",
                        "exception": exc,
                    }
                )
        finally:
            PyContext_Exit(self.context)
        return 0

    cdef StreamTransport connection(self, int fd, object protocol):
        """Make the transport of an accepted connection, which owns *fd* from then on."""
        cdef int on = 1
        cdef object sock
        if self.nodelay:
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        if self.near is not None:
            return new_accepted(self.loop, fd, self.near_end(fd), protocol)
        sock = socket.socket(self.sock.family, self.sock.type, self.sock.proto, fd)
        try:
            return new_stream(self.loop, sock, protocol, None)
        except BaseException:
            # Whoever asked for the transport closes the descriptor.
            sock.detach()
            raise

    cdef NearEnd near_end(self, int fd):
        """Return what the connection shares with the one before it, if their names are equal."""
        cdef sockaddr_in6 name
        cdef unsigned int size = sizeof(name)
        if getsockname(fd, <sockaddr*>&name, &size) < 0:
            size = 0
        if not self.near.is_named(&name, size):
            self.near = self.near.renamed(&name, size)
        return self.near

    cdef int drop(self, int fd, StreamTransport transport) except -1:
        """Close a connection that has got no protocol."""
        if transport is None:
            close(fd)
            return 0
        return transport.release()

    cdef int out_of_resources(self, int res) except -1:
        """Wait before the next try: EMFILE comes even when nobody connects."""
        self.report(os_error(res, ""), "socket.accept() out of system resource")
        self.retry = self.loop.call_later(constants.ACCEPT_RETRY_DELAY, self._retry_accept)
        return 0

    def _retry_accept(self):
        self.retry = None
        self.start()

    cdef int report(self, object exc, str message) except -1:
        self.loop.call_exception_handler(
            {
                "message": message,
                "exception": exc,
                "socket": trsock.TransportSocket(self.sock),
            }
        )
        return 0


cdef int listener_on_accept(Operation *op, int res, unsigned int flags) except -1:
    return (<Listener>op.owner).on_accept(res, flags)
