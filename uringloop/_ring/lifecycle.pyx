"""How a run begins and ends, and how a ring and a loop's use of the kernel's end.

What is in flight and must not stay so is cancelled, and its completions are taken. Only the thread
that runs the loop, or that closes it, may call.
"""

from uringloop._kernel.errors cimport os_error
from uringloop._kernel.io_uring cimport io_uring_cqe, IORING_CQE_F_MORE
from uringloop._kernel.trace cimport uring_trace_complete
from uringloop._ring.ring cimport (
    HOLDS_DESCRIPTOR,
    LINGER,
    NEVER_CANCELLED,
    RETRIES,
    WORKER_OWNS_MEMORY,
    Operation,
    Ring,
    ends_with_run,
    operation_of,
)
from uringloop._ring.uring cimport (
    uring_completion,
    uring_consume,
    uring_enable,
    uring_has_overflow,
    uring_head,
    uring_is_forbidden,
    uring_submit,
    uring_submit_and_look,
    uring_tail,
    uring_wait_more,
)


# A cancel misses a send that is being retried: with busy peers hundreds of times.
SETTLE_MAX = 4096

cdef int SETTLE = SETTLE_MAX


cdef bint take_over(Ring ring) except -1:
    """Make the calling thread the one that submits; True when that took a new ring.

    The kernel binds a ring to the thread that enables it, and answers EEXIST to every other.
    Thread identifiers are no help: a new thread often gets the dead one's.
    """
    cdef int res, generation
    ring.check_inherited()
    if not ring.u.enabled:
        res = uring_enable(&ring.u)
        if uring_is_forbidden(res):
            ring.forbid(res, "io_uring_register")
            ring.replace()
            return True
        if res < 0:
            raise os_error(res, "io_uring_register")
    generation = ring.generation
    ring._entered(uring_submit(&ring.u))
    return ring.generation != generation


cdef int settle(Ring ring) except -1:
    """End what cannot survive a change of thread; called by the owner as its run ends.

    A send: only its completion tells how much has gone. An accept: a dead ring's would take the
    wake-up of the next connection. A receive left armed is harmless: what the kernel took from
    a socket is in the completion queue.
    """
    cdef Operation *op
    cdef int tries = 0
    if ring.u.inherited or not ring.u.open:
        return 0
    while ring.run_count and tries < SETTLE:
        tries += 1
        op = ring.in_flight.next
        while op != &ring.in_flight:
            if ends_with_run(op):
                ring.cancel(op)
            op = op.next
        ring._submit_and_look(ring.run_count)
        if ring.enter_forbidden:
            ring.replace()
        ring._take_completions_of(NULL)
    if ring.lingering:
        await_workers(ring)
    while uring_has_overflow(&ring.u) and tries < 2 * SETTLE:
        # The kernel keeps completions that found the queue full; a new ring would lose them.
        tries += 1
        ring.dispatch()
        ring.submit()
    return 0


cdef int await_workers(Ring ring) except -1:
    """Wait for the reads and writes of files, not for long: only this thread hears of them."""
    cdef int before, waits = 0
    while ring.lingering and waits < RETRIES:
        before = ring.lingering
        with nogil:
            uring_wait_more(&ring.u, 1, LINGER)
        ring._take_completions_of(NULL)
        waits = 0 if ring.lingering < before else waits + 1
    return 0


cdef int fall_over(Ring ring) except -1:
    """Go on, on the software ring: a security policy forbids what the kernel's ring needs."""
    if ring.u.soft == NULL and not ring.enter_forbidden:
        settle(ring)
    if ring.u.soft == NULL:
        ring.replace()
    ring.forbidden = None
    if ring.on_fall is not None:
        ring.on_fall(*ring.fallen)
    return 0


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
        if not op.policy & NEVER_CANCELLED:
            ring.cancel(op)
        by_worker = by_worker or op.policy & WORKER_OWNS_MEMORY != 0
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
        if op != NULL and op.policy & (HOLDS_DESCRIPTOR | NEVER_CANCELLED):
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
