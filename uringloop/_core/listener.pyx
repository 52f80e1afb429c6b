"""The kernel's side of a server: one listening socket, accepting until it is closed.

One multishot accept stays armed. It holds the listening file open: closing the socket before the
accept has ended would leave the port bound and clients connecting to nobody, so `close` ends it
first, out of turn, and an immediate bind of the same port works.
"""

import socket
from asyncio import constants, trsock

from cpython.object cimport PyObject

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
from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.pyapi cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from uringloop._core.ring cimport Operation, operation_init
from uringloop._core.stream cimport new_stream
from uringloop._native.uring cimport (
    IORING_CQE_F_MORE,
    close,
    io_uring_sqe,
    uring_prep_accept_multishot,
)


cdef class Listener(Flushable):

    def __cinit__(self, LoopCore loop not None, sock, factory, server):
        self.loop = loop
        self.sock = sock
        self.fd = sock.fileno()
        self.factory = factory
        self.server = server
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
        uring_prep_accept_multishot(sqe, self.fd)
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
        cdef object sock
        cdef object protocol
        if self.closing:
            close(fd)
            return 0
        try:
            sock = socket.socket(self.sock.family, self.sock.type, self.sock.proto, fd)
        except BaseException:
            close(fd)
            raise
        PyContext_Enter(self.context)
        try:
            protocol = self.factory()
            new_stream(self.loop, sock, protocol, self.server, None).begin(None)
        except (KeyboardInterrupt, SystemExit):
            sock.close()
            raise
        except BaseException as exc:
            sock.close()
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
