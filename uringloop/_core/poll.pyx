"""One wait for the readiness of a descriptor that belongs to the user, for the socket calls.

A one-shot poll, checked against the level when it is submitted. Nothing here reads, writes or
closes the descriptor, and a cancelled poll cannot lose a byte.
"""

from asyncio import Future

cimport cython
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident

from uringloop._core.errors cimport ECANCELED, os_error
from uringloop._core.loop cimport LoopCore
from uringloop._core.ring cimport Operation, operation_init
from uringloop._native.epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
)
from uringloop._native.requests cimport io_uring_prep_poll_add
from uringloop._native.uring cimport (
    POLLERR,
    POLLHUP,
    POLLIN,
    POLLNVAL,
    close,
    io_uring_sqe,
    poll,
    pollfd,
)


# Without a descriptor for epoll a half-closed socket is looked at again after this many seconds.
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
        if self.finished or self.future.done():
            return 0
        if res == -ECANCELED:
            return self.arm()
        if res > 0 and self.epoll_fd < 0 and not is_ready(self.fd, self.mask, res):
            return self.look_past_end()
        if res < 0:
            self.future.set_exception(os_error(res, "poll"))
        else:
            self.future.set_result(None)
        return 0

    cdef int look_past_end(self) except -1:
        """Wait by epoll: a peer's half-close (POLLRDHUP) ends any poll of the ring's, unasked."""
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

    cdef int finish(self) except -1:
        """The wait is over, or given up: then the user's next close is to have its effect."""
        self.finished = True
        self.close_epoll()
        if self.poll_op.in_flight:
            if self.loop.thread_id == PyThread_get_thread_ident():
                return self.loop.ring.reap(&self.poll_op)
            return self.loop.ring.cancel(&self.poll_op)
        return 0


cdef PollOnce poll_once(LoopCore loop, int fd, unsigned int mask):
    """Begin a wait until *fd* is ready; its future tells when."""
    cdef PollOnce waiter = PollOnce.__new__(PollOnce)
    waiter.loop = loop
    waiter.fd = fd
    waiter.mask = mask
    waiter.epoll_fd = -1
    waiter.future = Future(loop=loop)
    operation_init(&waiter.poll_op, poll_once_on_poll, <PyObject*>waiter)
    waiter.arm()
    return waiter


cdef bint is_ready(int fd, unsigned int mask, int res) noexcept:
    """Tell readiness from a half-close that nobody asked about."""
    cdef pollfd question
    if res & (mask | POLLERR | POLLHUP | POLLNVAL):
        return True
    question.fd = fd
    question.events = mask
    question.revents = 0
    return poll(&question, 1, 0) != 0


cdef int poll_once_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<PollOnce>op.owner).on_poll(res, flags)
