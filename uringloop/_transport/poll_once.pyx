"""How the sock_* methods, and sendfile(), wait until a descriptor is ready.

A wait is a one-shot poll, which completes at once if the descriptor is ready when the poll is
submitted. Nothing here reads, writes or closes the descriptor, and a cancelled poll cannot lose a
byte.

A socket that the program closes while a call waits for it stays open until the call has ended, as
on uvloop: the call counts as a file in `socket._io_refs`, which defers close().
"""

import socket

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.stdlib cimport add_io_refs, is_closed
from uringloop._kernel.epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
)
from uringloop._kernel.errors cimport ECANCELED, os_error
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport POLLERR, POLLHUP, POLLIN, POLLNVAL, close, poll, pollfd
from uringloop._kernel.sockets cimport io_uring_prep_poll_add
from uringloop._ring.ring cimport HOLDS_DESCRIPTOR, Operation, is_used_elsewhere, operation_init
from uringloop._turn.turn cimport LoopCore, runs_here


cdef object SOCKET = socket.socket
# Seconds until a half-closed socket is polled again if no epoll instance can be made.
HALF_CLOSED_RETRY = 0.01


@cython.freelist(64)
cdef class PollOnce:

    cdef int arm(self) except -1:
        cdef io_uring_sqe *sqe
        if self.finished or self.poll_op.in_flight:
            return 0
        sqe = self.loop.ring.submission()
        if self.epoll_fd >= 0:
            io_uring_prep_poll_add(sqe, self.epoll_fd, POLLIN)
        else:
            io_uring_prep_poll_add(sqe, self.fd, self.mask)
        return self.loop.ring.start(sqe, &self.poll_op)

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        if self.loop.closed:
            return self.release_socket()
        if self.finished or self.future.done():
            return 0
        if res == -ECANCELED:
            return self.arm()
        if res > 0 and self.epoll_fd < 0 and not is_ready(self.fd, self.mask, res):
            return self.wait_by_epoll()
        if res < 0:
            self.future.set_exception(os_error(res, "poll"))
        else:
            self.future.set_result(None)
        return 0

    cdef int wait_by_epoll(self) except -1:
        """Wait through epoll: a peer's half-close (POLLRDHUP) completes every poll of the ring."""
        cdef epoll_event event
        event.events = self.mask
        event.data.u64 = 0
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0 or epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, self.fd, &event) < 0:
            self.close_epoll()
            self.loop.call_later(HALF_CLOSED_RETRY, self._arm_again)
            return 0
        return self.arm()

    def _arm_again(self):
        self.arm()

    cdef void close_epoll(self) noexcept:
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
            self.epoll_fd = -1

    cdef int wait_again(self) except -1:
        """Begin the next wait, for a call that needs several."""
        self.future = self.loop.new_future()
        return self.arm()

    cdef int keep_open(self, object sock) except -1:
        """Defer the close of *sock* until `release_socket`."""
        # Do not use isinstance(): the __class__ of a mock may be socket.
        if type(sock) is SOCKET or issubclass(type(sock), SOCKET):
            add_io_refs(sock, 1)
            self.sock = sock
            # If the loop is closed meanwhile, the poll still completes: on_poll() ends the delay.
            self.poll_op.policy |= HOLDS_DESCRIPTOR
        return 0

    cdef int release_socket(self) except -1:
        cdef object sock = self.sock
        if sock is not None:
            self.sock = None
            add_io_refs(sock, -1)
            if is_closed(sock):
                sock.close()
        return 0

    cdef int finish(self) except -1:
        """End the call, even a cancelled one: the user's next close() then takes effect at once."""
        if is_used_elsewhere(self.loop.ring):
            # The garbage collector, which may run in any thread, destroys the call.
            self.loop.call_soon_threadsafe(self._finish)
            return 0
        self.finished = True
        self.close_epoll()
        self.release_socket()
        if self.poll_op.in_flight:
            if runs_here(self.loop):
                return self.loop.ring.reap(&self.poll_op)
            return self.loop.ring.cancel(&self.poll_op)
        return 0

    def _finish(self):
        self.finish()


cdef PollOnce poll_once(LoopCore loop, int fd, unsigned int mask):
    """Start a wait for *fd*; its future is resolved when *fd* is ready."""
    cdef PollOnce waiter = PollOnce.__new__(PollOnce)
    waiter.loop = loop
    waiter.fd = fd
    waiter.mask = mask
    waiter.epoll_fd = -1
    waiter.future = loop.new_future()
    operation_init(&waiter.poll_op, poll_once_on_poll, <PyObject*>waiter)
    waiter.arm()
    return waiter


cdef bint is_ready(int fd, unsigned int mask, int res) noexcept:
    """Return whether *fd* is ready; *res* may be a half-close that *mask* does not contain."""
    cdef pollfd question
    if res & (mask | POLLERR | POLLHUP | POLLNVAL):
        return True
    question.fd = fd
    question.events = mask
    question.revents = 0
    return poll(&question, 1, 0) != 0


cdef int poll_once_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<PollOnce>op.owner).on_poll(res, flags)
