"""How a ring ends: what is in flight is cancelled, and its completions are taken."""

from uringloop._core.ring cimport LINGER, RETRIES, Operation, Ring, operation_of
from uringloop._native.trace cimport uring_trace_complete
from uringloop._native.uring cimport (
    IORING_CQE_F_MORE,
    io_uring_cqe,
    uring_completion,
    uring_consume,
    uring_head,
    uring_submit,
    uring_submit_and_look,
    uring_tail,
    uring_wait_more,
)


cdef int drain(Ring ring) except -1:
    """Cancel everything and take the completions; only opening and closing is told of.

    So that closing descriptors has its effect: a socket's FIN, a port's freedom. A thread that
    does not own the ring can not cancel: the kernel does, some milliseconds after its end.
    """
    cdef Operation *op
    cdef unsigned int expected = 0
    cdef int idle = 0
    cdef bint by_worker = False
    if not ring.u.open or ring.u.inherited or not ring.u.enabled:
        return 0
    ring.held = ring.u.threaded
    if uring_submit(&ring.u) < 0:
        return 0
    ring._confirm()
    op = ring.in_flight.next
    while op != &ring.in_flight:
        if not op.closes:
            ring.cancel(op)
        by_worker = by_worker or op.lends
        expected += 1
        op = op.next
    while ring.in_flight.next != &ring.in_flight and idle < RETRIES:
        idle += 1
        if by_worker:
            with nogil:
                uring_wait_more(&ring.u, 1, LINGER)
        else:
            uring_submit_and_look(&ring.u, expected)
            expected = 1
        if take_all(ring):
            idle = 0
    ring.held = ring.u.threaded and ring.in_flight.next != &ring.in_flight
    return 0


cdef bint take_all(Ring ring) except -1:
    """Take the completions that are there now; whether there were any."""
    cdef Operation *op
    cdef io_uring_cqe *cqe
    cdef unsigned int head = uring_head(&ring.u)
    cdef bint found = False
    while head != uring_tail(&ring.u):
        found = True
        cqe = uring_completion(&ring.u, head)
        op = operation_of(cqe.user_data)
        head += 1
        uring_consume(&ring.u, head)
        if op != NULL and (op.opens or op.closes):
            ring._complete(op, cqe.res, cqe.flags)
        elif op != NULL and not cqe.flags & IORING_CQE_F_MORE:
            let_go(ring, op, cqe.res)
    return found


cdef int let_go(Ring ring, Operation *op, int res) except -1:
    """End *op*, and tell nobody but the trace."""
    if ring.trace.fd >= 0:
        uring_trace_complete(&ring.trace, op.opcode, op.number, res, False, False)
    ring._let_go(op, <object>op.owner)
    return 0
