"""The wake-up that ends a loop's sleep from outside: a descriptor, polled and never read here.

Other threads write to an eventfd, signals to the signal module's wake-up socket. A WakeUp is an
object of its own, so that the ring's reference to it does not keep an abandoned loop alive.
"""

from cpython.object cimport PyObject

from uringloop._kernel.errors cimport ECANCELED, os_error
from uringloop._kernel.io_uring cimport IORING_CQE_F_MORE, io_uring_sqe
from uringloop._kernel.libc cimport POLLIN
from uringloop._kernel.sockets cimport io_uring_prep_poll_multishot
from uringloop._ring.ring cimport BACKGROUND, Operation, Ring, operation_init


cdef class WakeUp:

    def __cinit__(self, Ring ring not None, int fd, on_wake=None):
        self.ring = ring
        self.fd = fd
        self.on_wake = on_wake
        operation_init(&self.poll_op, wake_up_on_poll, <PyObject*>self)
        self.poll_op.policy = BACKGROUND

    cdef int arm(self) except -1:
        """Arm the poll. Every write to the descriptor posts a completion; nothing reads it."""
        cdef io_uring_sqe *sqe
        if self.poll_op.in_flight:
            return 0
        sqe = self.ring.submission()
        io_uring_prep_poll_multishot(sqe, self.fd, POLLIN)
        return self.ring.start(sqe, &self.poll_op)

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        try:
            if res > 0 and self.on_wake is not None:
                self.on_wake()
        finally:
            if not flags & IORING_CQE_F_MORE:
                # An overflow of the completion queue or a change of thread has ended the poll.
                if res < 0 and res != -ECANCELED:
                    raise os_error(res, "poll")
                self.arm()
        return 0


cdef int wake_up_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<WakeUp>op.owner).on_poll(res, flags)
