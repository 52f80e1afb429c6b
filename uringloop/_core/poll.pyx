"""Readiness of descriptors that belong to the user: add_reader, add_writer, and the socket calls.

Always a one-shot poll, checked against the level when it is submitted and armed again after the
callback ran: exactly level-triggered, as asyncio promises. A multishot poll would be edge-
triggered after its first completion. Nothing here reads, writes or closes the descriptor, and a
cancelled poll cannot lose a byte.
"""

from asyncio import Future

cimport cython
from cpython.object cimport PyObject

from uringloop._core.errors cimport ECANCELED, os_error
from uringloop._core.loop cimport Flushable, LoopCore
from uringloop._core.ring cimport Operation, operation_init
from uringloop._native.requests cimport io_uring_prep_poll_add
from uringloop._native.uring cimport (
    POLLERR,
    POLLHUP,
    POLLIN,
    POLLNVAL,
    POLLOUT,
    io_uring_sqe,
    poll,
    pollfd,
)


# The kernel ends every poll on the peer's half-close (POLLRDHUP), asked for or not: a writer is
# looked at again after this many seconds instead of at once.
HALF_CLOSED_RETRY = 0.01

READ = POLLIN
WRITE = POLLOUT


cdef class PollWatcher(Flushable):

    def __cinit__(self, LoopCore loop not None, int fd, unsigned int mask, file=None):
        self.loop = loop
        self.fd = fd
        self.file = file
        self.mask = mask
        operation_init(&self.poll_op, poll_watcher_on_poll, <PyObject*>self)

    def watch(self, callback, args):
        """Run *callback* with *args* whenever the descriptor is ready; replaces an earlier one."""
        if self.handle is not None:
            self.handle.cancel()
        self.handle = self.loop._make_handle(callback, args)
        if self.poll_op.in_flight:
            # The number may belong to another file by now: end the poll, which arms it anew.
            self.loop.ring.cancel(&self.poll_op)
        else:
            self.loop.add_rearm(self)
        return self.handle

    def remove(self):
        """Stop watching."""
        self.removed = True
        self.handle.cancel()
        if self.poll_op.in_flight:
            self.loop.ring.cancel(&self.poll_op)

    cdef int flush(self) except -1:
        return self.arm()

    cdef int arm(self) except -1:
        cdef io_uring_sqe *sqe
        if self.removed or self.poll_op.in_flight:
            return 0
        sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, self.mask)
        return self.loop.ring.start(sqe, &self.poll_op)

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        if self.removed:
            return 0
        if res < 0 and res != -ECANCELED:
            self.removed = True
            self.loop._watcher_failed(self.fd, self.mask == POLLOUT, os_error(res, "poll"))
            return 0
        if res > 0 and not is_ready(self.fd, self.mask, res):
            self.loop.call_later(HALF_CLOSED_RETRY, self._arm_again)
            return 0
        try:
            if res > 0:
                self.loop.run_handle(self.handle)
        finally:
            # A KeyboardInterrupt of the callback leaves the run, and the next run watches on.
            if not self.removed:
                self.loop.add_rearm(self)
        return 0

    def _arm_again(self):
        self.arm()


@cython.freelist(64)
cdef class PollOnce:

    cdef int arm(self) except -1:
        cdef io_uring_sqe *sqe
        if self.finished or self.poll_op.in_flight:
            return 0
        sqe = self.loop.ring.submission()
        io_uring_prep_poll_add(sqe, self.fd, self.mask)
        return self.loop.ring.start(sqe, &self.poll_op)

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        if self.finished or self.future.done():
            return 0
        if res == -ECANCELED:
            return self.arm()
        if res > 0 and not is_ready(self.fd, self.mask, res):
            self.loop.call_later(HALF_CLOSED_RETRY, self._arm_again)
            return 0
        if res < 0:
            self.future.set_exception(os_error(res, "poll"))
        else:
            self.future.set_result(None)
        return 0

    def _arm_again(self):
        self.arm()

    cdef int finish(self) except -1:
        """The wait is over, or given up."""
        self.finished = True
        if self.poll_op.in_flight:
            self.loop.ring.cancel(&self.poll_op)
        return 0


cdef PollOnce poll_once(LoopCore loop, int fd, unsigned int mask):
    """Begin a wait until *fd* is ready; its future tells when."""
    cdef PollOnce waiter = PollOnce.__new__(PollOnce)
    waiter.loop = loop
    waiter.fd = fd
    waiter.mask = mask
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


cdef int poll_watcher_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<PollWatcher>op.owner).on_poll(res, flags)


cdef int poll_once_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<PollOnce>op.owner).on_poll(res, flags)
