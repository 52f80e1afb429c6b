"""The start and end of a run, the switch to the software ring, and the end of a ring.

Operations that must not stay in flight are cancelled, and their completions taken. Only the thread
that runs the loop, or that closes it, may call this module.
"""

from uringloop._kernel.atomics cimport store_int_release
from uringloop._kernel.errors cimport os_error
from uringloop._kernel.io_uring cimport io_uring_cqe, IORING_CQE_F_MORE
from uringloop._kernel.trace cimport uring_trace_complete
from uringloop._ring.ring cimport ENTER_FORBIDDEN, FALLEN_BACK, FORBIDDEN, REPLACED
from uringloop._ring.ring cimport HOLDS_DESCRIPTOR, NEVER_CANCELLED, RUN_WAITS, WORKER_OWNS_MEMORY
from uringloop._ring.ring cimport (
    LINGER_NS, RETRIES_MAX, Operation, Ring, ends_with_run, operation_of)
from uringloop._ring.uring cimport (
    URING_DISABLED,
    URING_ENABLED,
    uring_completion,
    uring_consume,
    uring_enable,
    uring_has_overflow,
    uring_head,
    uring_is_forbidden,
    uring_is_usable,
    uring_submit,
    uring_submit_and_collect,
    uring_tail,
    uring_wait_more,
)


cdef enum:
    # Rounds of cancelling at the end of a run. A cancel misses a send that the kernel is retrying
    # at that moment, which happens hundreds of times with busy peers.
    CANCEL_ROUNDS_MAX = 4096

    # Rounds of LINGER_NS, a quarter of a second in all, that a run's end waits for opens. A
    # descriptor that is opened later may be lost, but the open of a FIFO waits for its peer.
    OPEN_ROUNDS_MAX = 8


cdef bint take_over(Ring ring) except -1:
    """Make the calling thread the ring's issuer; return whether a new ring has replaced the ring.

    The kernel binds a ring to the thread that enables it, and returns EEXIST to all others.
    Thread identifiers do not help: a new thread often has the one of a dead thread.
    """
    cdef int res, generation
    ring.check_inherited()
    if ring.u.life == URING_DISABLED:
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


cdef int end_run_operations(Ring ring) except -1:
    """End the operations that a change of the thread or of the ring would break.

    Sends: only their completions say how much was sent. Polls of listening sockets: a ring whose
    thread has left it would keep the socket open for some time. A receive may stay armed: what
    the kernel took from a socket is in the completion queue.
    """
    cdef Operation *op
    cdef int tries = 0
    if not uring_is_usable(&ring.u):
        return 0
    while ring.run_count and tries < CANCEL_ROUNDS_MAX:
        tries += 1
        op = ring.in_flight.next
        while op != &ring.in_flight:
            if ends_with_run(op):
                ring.cancel(op)
            op = op.next
        ring._submit_and_look(ring.run_count)
        if ring.permission == ENTER_FORBIDDEN:
            ring.replace()
        ring._take_completions_of(NULL)
    if ring.run_waits_count:
        await_workers(ring)
    while uring_has_overflow(&ring.u) and tries < 2 * CANCEL_ROUNDS_MAX:
        # The kernel keeps completions that found the queue full; they would be lost with the ring.
        tries += 1
        ring.dispatch()
        ring.submit()
    return 0


cdef int await_workers(Ring ring) except -1:
    """Wait, for a limited time, for workers that use files for the program.

    Only this thread can take their completions.
    """
    cdef int before, waits = 0
    while ring.run_waits_count and waits < RETRIES_MAX:
        before = ring.run_waits_count
        with nogil:
            uring_wait_more(&ring.u, 1, LINGER_NS)
        ring._take_completions_of(NULL)
        waits = 0 if ring.run_waits_count < before else waits + 1
        if waits == OPEN_ROUNDS_MAX:
            leave_opens(ring)
    return 0


cdef void leave_opens(Ring ring) noexcept:
    """No longer wait for files that are being opened: a FIFO may wait for its peer for ever."""
    cdef Operation *op = ring.in_flight.next
    while op != &ring.in_flight:
        if op.policy & HOLDS_DESCRIPTOR and op.policy & RUN_WAITS:
            op.policy &= ~RUN_WAITS
            ring.run_waits_count -= 1
        op = op.next


cdef int fall_back(Ring ring) except -1:
    """Switch to the software ring, after a security policy has forbidden a call to io_uring."""
    if ring.permission == FORBIDDEN:
        # Unless this finds that the ring cannot be entered any more, and replaces it.
        end_run_operations(ring)
    if ring.permission < REPLACED:
        ring.replace()
    assert ring.permission == REPLACED
    store_int_release(&ring.permission, FALLEN_BACK)
    if ring.on_fallback is not None:
        ring.on_fallback(*ring.forbidden_call)
    return 0


cdef int drain(Ring ring) except -1:
    """Cancel all operations and take their completions.

    Only then does closing a descriptor take effect: a socket sends its FIN, a port is free. Only
    the callbacks of operations that open or close a descriptor run. A thread that does not own the
    ring cannot cancel; the kernel ends the operations some milliseconds after the ring's end.
    """
    cdef Operation *op
    cdef unsigned int expected = 0
    cdef int idle = 0
    cdef bint by_worker = False
    if ring.u.life != URING_ENABLED:
        return 0
    ring.memory_pinned = ring.u.threaded
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
    while ring.in_flight.next != &ring.in_flight and idle < RETRIES_MAX:
        idle += 1
        if by_worker:
            with nogil:
                uring_wait_more(&ring.u, 1, LINGER_NS)
        else:
            uring_submit_and_collect(&ring.u, expected)
            expected = 1
        if take_all(ring):
            idle = 0
    ring.memory_pinned = ring.u.threaded and ring.in_flight.next != &ring.in_flight
    return 0


cdef bint take_all(Ring ring) except -1:
    """Take the completions that are there now; return whether there were any."""
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
    """End *op* without its callback; only the trace records it."""
    if ring.trace.fd >= 0:
        uring_trace_complete(&ring.trace, op.opcode, op.number, res, False, False)
    ring._let_go(op, <object>op.owner)
    return 0
