"""A pair of queues: submissions out, completions in, and who owns what memory until when.

A Ring owns the kernel's queues and knows no transport: it dispatches through the function pointer
of the Operation that a completion names. While an operation is in flight the ring holds one
reference to its owner. It drops the reference when it takes the terminal completion, or when it
confirms a quiet operation; `_abandon` is for a ring that will never deliver a completion. So no
completion names an operation that has been freed.

A security policy may forbid io_uring while the ring is in use (seccomp, a sysctl). A software ring
then takes its place:

    ALLOWED ──forbid()──> FORBIDDEN ──forbid_enter()──> ENTER_FORBIDDEN
                              │                               │
                              └───────────────┬───────────────┘
                                          _install()
                                              v
                                          REPLACED ──fall_back()──> FALLEN_BACK

The thread that runs the loop may call every method. Another thread may prepare submissions while
the loop does not run. Only the kernel knows which thread a ring belongs to: it returns EEXIST to
all others (see `take_over`).
"""

import os

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_TYPE
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from uringloop._kernel.atomics cimport (
    count_int,
    count_total,
    load_uint,
    store_int,
    store_int_release,
)
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.epoll cimport epoll_event
from uringloop._kernel.errors cimport (
    EAGAIN,
    EBADR,
    EBUSY,
    ECANCELED,
    ECONNABORTED,
    EEXIST,
    EINTR,
    ENOENT,
    ENXIO,
    ETIME,
    os_error,
)
from uringloop._kernel.io_uring cimport (
    IORING_CQE_F_MORE,
    IOSQE_CQE_SKIP_SUCCESS,
    io_uring_cqe,
    io_uring_sqe,
)
from uringloop._kernel.sockets cimport uring_prep_cancel, uring_set_user_data
from uringloop._kernel.trace cimport (
    uring_trace_cancel,
    uring_trace_complete,
    uring_trace_enter,
    uring_trace_start,
)
from uringloop._ring.at_epoll cimport (
    uring_join_epoll,
    uring_leave_epoll,
    uring_sleep_at_epoll,
)
from uringloop._ring.features cimport (
    MIN_WAIT,
    NO_IOWAIT,
    QUIET_SENDS,
    kernel_refuses,
    kernel_uses,
    software_uses,
    try_kernel,
)
from uringloop._ring.forks cimport (
    uring_forget,
    uring_forks,
    uring_remember,
    uring_take_place,
    uring_watch_forks,
)
from uringloop._ring.uring cimport (
    URING_CLOSED,
    URING_DISABLED,
    URING_ENABLED,
    URING_FOREVER,
    URING_INHERITED,
    uring,
    uring_close,
    uring_completion,
    uring_consume,
    uring_disable_min_wait,
    uring_disable_no_iowait,
    uring_enable,
    uring_get_life,
    uring_get_submission,
    uring_has_overflow,
    uring_has_task_work,
    uring_head,
    uring_is_forbidden,
    uring_is_usable,
    uring_life,
    uring_limit_workers,
    uring_move_submission,
    uring_needs_enter,
    uring_open,
    uring_open_soft,
    uring_open_soft_successor,
    uring_open_successor,
    uring_open_threaded,
    uring_pending,
    uring_post,
    uring_room,
    uring_sequence,
    uring_spin,
    uring_submit,
    uring_submit_and_collect,
    uring_submit_only,
    uring_submitted,
    uring_tail,
    uring_undo_cancel,
    uring_wait_batch,
    uring_wait_for,
    uring_wait_more,
)


cdef enum:
    # The queues are cyclic, and cleared when they are made: small ones stay in the cache. 128
    # submissions take 8 KiB; a full queue costs no more than an extra enter.
    SQ_ENTRIES = 128
    # 2048 completions take 32 KiB. An enter posts 20 of them. Before kernel 6.13 it posts all, and
    # the kernel keeps those that do not fit. The size of the queue also determines that of the hash
    # table in which a cancel looks up its user_data: with 9,000 operations in flight a cancel takes
    # 2.5 us, and 1.2 us with the largest table, that of 8192 completions.
    CQ_ENTRIES = 2048
    # A kernel thread (SQPOLL) frees submissions only after it has processed all that it found.
    SQ_ENTRIES_OF_THREAD = 512
    # The kernel's worker threads for regular files, which wait rather than compute: 32 of them sync
    # 1.3 times as many files a second as 8 do; more than 32 are no faster. The workers for other
    # files have no limit by default.
    BOUNDED_WORKERS_MAX = 32
    UNBOUNDED_WORKERS_MAX = 64
    # The number of completions that ends a gathering sleep: a turn with so many is cheap enough.
    BATCH_MAX = 64

    # After this many enters without progress, for example on a full submission queue, the ring
    # gives up.
    RETRIES_MAX = 64
    # How long one of RETRIES_MAX rounds waits for a kernel worker that a disk blocks: 2 s in all.
    # Memory that the worker still uses after that is never freed.
    LINGER_NS = 31_250_000

    # Rounds of cancelling at the end of a run. A cancel misses a send that the kernel is retrying
    # at that moment, which happens hundreds of times with busy peers.
    CANCEL_ROUNDS_MAX = 4096

    # For how many rounds of LINGER_NS, a quarter of a second in all, the end of a run waits for
    # opens. A descriptor that is opened later may be lost, but the open of a FIFO waits for its
    # peer.
    OPEN_ROUNDS_MAX = 8

uring_watch_forks()
# 0 in the first process that imported this module; a forked child adds one.
PROCESS = 0


def _count_fork():
    global PROCESS
    PROCESS += 1


os.register_at_fork(after_in_child=_count_fork)


cdef bint has_missed(const io_uring_cqe *cqe) noexcept:
    """Return whether *cqe* is the completion of a cancel that has found no operation."""
    return cqe.user_data == CANCEL and cqe.res == -ENOENT


cdef bint may_try_again(int res) noexcept:
    """Return whether an enter that has failed with *res*, -errno, may succeed in the next turn."""
    return res == -EINTR or res == -ETIME or res == -EAGAIN or res == -EBUSY


cdef object wrong_thread():
    """Return asyncio's error for a call in another thread than the loop's."""
    return RuntimeError(
        "Non-thread-safe operation invoked on an event loop other than the current one")


@cython.final
cdef class Ring:

    def __cinit__(self):
        self.in_flight.previous = &self.in_flight
        self.in_flight.next = &self.in_flight
        self.quiet.previous = &self.quiet
        self.quiet.next = &self.quiet
        self.trace.fd = -1
        self.old_completions_dispatched = True

    cdef int _begin(self, int res) except -1:
        """Begin with a ring that was opened with the result *res*."""
        if res < 0:
            raise os_error(res, self.u.call.decode())
        # A kernel thread may take a quiet send while the loop sleeps: nothing would confirm it.
        self.quiet_sends = self.uses(QUIET_SENDS) and not self.u.threaded
        if not self.uses(NO_IOWAIT):
            uring_disable_no_iowait(&self.u)
        if not self.uses(MIN_WAIT):
            uring_disable_min_wait(&self.u)
        uring_remember(&self.u)
        return 0

    cdef bint uses(self, unsigned int feature) noexcept:
        """Return whether this ring has *feature* and it is enabled."""
        return kernel_uses(feature) if self.u.soft == NULL else software_uses(feature)

    cdef bint does(self, unsigned int opcode) noexcept:
        """Return whether this ring may do an operation on files; if not, a thread does it."""
        return self.u.files and (self.u.soft != NULL or not kernel_refuses(opcode))

    def __dealloc__(self):
        self._abandon()
        self._forget()

    cdef void _forget(self) noexcept:
        """Close the ring, and remove it from the fork handler's list."""
        uring_forget(&self.u)
        uring_close(&self.u)

    # ── a sleep in epoll_wait(2), see at_epoll.h ─────────────────────────────────────────────

    cdef int join_epoll(self, int epoll_fd, uint64_t data) noexcept:
        """End sleeps at *epoll_fd*, by an event with *data*, when there is something to enter for.

        Return 0 or -errno.
        """
        return uring_join_epoll(&self.u, epoll_fd, data)

    cdef void leave_epoll(self, int epoll_fd) noexcept:
        """Undo join_epoll()."""
        uring_leave_epoll(&self.u, epoll_fd)

    cdef int sleep_at_epoll(
            self, int epoll_fd, epoll_event *events, int size, int64_t timeout_ns) noexcept nogil:
        """Wait until *epoll_fd* has events; return their number, or -errno."""
        return uring_sleep_at_epoll(&self.u, epoll_fd, events, size, timeout_ns)

    # ── forks ────────────────────────────────────────────────────────────────────────────────

    cdef unsigned int forks(self) noexcept:
        """Return how many children this process has forked."""
        return load_uint(&uring_forks)

    cdef int check_usable(self) except -1:
        cdef uring_life life = uring_get_life(&self.u)
        if life == URING_INHERITED:
            raise RuntimeError(
                "the event loop was inherited through a fork; a child process must create its own"
            )
        if life == URING_CLOSED:
            raise RuntimeError("Event loop is closed")
        return 0

    # ── submitting ───────────────────────────────────────────────────────────────────────────

    cdef io_uring_sqe *submission(self) except NULL:
        """Return a free submission; if the queue is full, submit first."""
        cdef io_uring_sqe *sqe
        if not uring_is_usable(&self.u):
            self.check_usable()
        if is_used_elsewhere(self):
            raise wrong_thread()
        sqe = uring_get_submission(&self.u)
        if sqe == NULL:
            self.make_room(1)
            sqe = uring_get_submission(&self.u)
        return sqe

    cdef int make_room(self, unsigned int count) except -1:
        """Free *count* submissions, so that they can go to the kernel together."""
        cdef int tries = 0
        while uring_room(&self.u) < count:
            tries += 1
            if tries > RETRIES_MAX:
                raise os_error(-EAGAIN, "io_uring_enter")
            self.submit()
            if self.permission == ENTER_FORBIDDEN:
                self.replace()
        return 0

    cdef int start(self, io_uring_sqe *sqe, Operation *op) except -1:
        """Put a prepared submission in flight for *op*, with a reference to its owner."""
        uring_set_user_data(sqe, <uint64_t><uintptr_t>op, 0)
        return self._link(sqe, op, &self.in_flight)

    cdef int _link(self, io_uring_sqe *sqe, Operation *op, Operation *head) except -1:
        assert not op.in_flight
        Py_INCREF(<object>op.owner)
        op.in_flight = True
        append(head, op)
        if not op.policy & BACKGROUND:
            count_int(&self.count, 1)
        if ends_with_run(op):
            self.run_count += 1
        if op.policy & RUN_WAITS:
            self.run_waits_count += 1
        if self.trace.fd >= 0:
            op.opcode = sqe.opcode
            op.number = uring_trace_start(
                &self.trace, sqe, op.quiet, Py_TYPE(<object>op.owner).tp_name)
        return 0

    cdef int start_quiet(self, io_uring_sqe *sqe, Operation *op) except -1:
        """Like `start`, for a submission that posts a completion only if it fails.

        The kernel completes it while it is submitted; `_confirm` notifies the owner.
        """
        uring_set_user_data(sqe, <uint64_t><uintptr_t>op | QUIET, IOSQE_CQE_SKIP_SUCCESS)
        op.sequence = uring_sequence(&self.u)
        op.quiet = True
        return self._link(sqe, op, &self.quiet)

    cdef int cancel(self, Operation *op) except -1:
        """Submit a cancel of *op*; only the operation's own completion says that it has ended."""
        cdef io_uring_sqe *sqe = self.submission()
        uring_prep_cancel(sqe, <uint64_t><uintptr_t>op)
        uring_set_user_data(sqe, CANCEL, IOSQE_CQE_SKIP_SUCCESS)
        op.unwanted = op.in_flight
        if not op.quiet:
            op.sequence = uring_sequence(&self.u)
        if self.trace.fd >= 0:
            uring_trace_cancel(&self.trace, "cancel", op.opcode, op.number)
        if self.u.threaded and op.in_flight and not ends_with_run(op):
            # The operation ends some time after the enter; end_run_operations() waits for that.
            op.cancelled = True
            self.run_count += 1
        return 0

    cdef bint undo_cancel(self, Operation *op) noexcept:
        """Undo the newest cancel of *op*; return False if it has been submitted."""
        if not uring_undo_cancel(&self.u, op.sequence, <uint64_t><uintptr_t>op):
            return False
        op.unwanted = False
        if self.trace.fd >= 0:
            uring_trace_cancel(&self.trace, "keep", op.opcode, op.number)
        return True

    cdef int _cancel_again(self) except -1:
        """Cancel again the operations in flight that have been cancelled.

        The kernel does not find an operation that it is about to try again, because the descriptor
        has become ready. Most cancels that find nothing come after the operation's completion.
        """
        cdef Operation *op = self.in_flight.next
        cdef int generation = self.generation
        self.cancel_missed = False
        while op != &self.in_flight and self.generation == generation:
            if op.unwanted:
                self.cancel(op)
            op = op.next
        return 0

    # ── entering the kernel ──────────────────────────────────────────────────────────────────

    cdef bint needs_enter(self) noexcept:
        return uring_needs_enter(&self.u)

    cdef bint has_task_work(self) noexcept:
        return uring_has_task_work(&self.u)

    cdef bint has_overflow(self) noexcept:
        return uring_has_overflow(&self.u)

    cdef bint has_completions(self) noexcept:
        return uring_head(&self.u) != uring_tail(&self.u)

    cdef int submit(self) except -1:
        """Submit what is prepared and collect deferred completions, without sleeping."""
        self.check_usable()
        return self._entered(uring_submit(&self.u))

    cdef int submit_only(self) except -1:
        """Submit what is prepared, and collect nothing."""
        self.check_usable()
        return self._entered(uring_submit_only(&self.u))

    cdef int wait(self, int64_t timeout_ns) except -1:
        """Submit what is prepared and sleep until a completion, a signal or the timeout."""
        cdef int res
        cdef unsigned int wanted = self._to_gather()
        self.check_usable()
        if self.spin_ns and self.spin(&timeout_ns):
            return 0
        with nogil:
            res = uring_wait_batch(&self.u, wanted, self.batch_ns, timeout_ns)
        return self._entered(res)

    cdef bint spin(self, int64_t *timeout_ns) except -1:
        """Poll for completions before a sleep, for `spin_ns` at most.

        Return whether the sleep is not needed any more; otherwise take the time off *timeout_ns*.
        """
        cdef bint found
        cdef int64_t began
        cdef int64_t longest = self.spin_ns
        if timeout_ns[0] != URING_FOREVER:
            longest = min(longest, timeout_ns[0])
        self.check_usable()
        if uring_pending(&self.u):
            # The next turn follows at once, and spins.
            self.submit()
            return True
        began = uring_clock_ns()
        with nogil:
            found = uring_spin(&self.u, longest)
        if found:
            self.submit()
            if self.has_completions():
                return True
        if timeout_ns[0] == URING_FOREVER:
            return False
        timeout_ns[0] -= uring_clock_ns() - began
        return timeout_ns[0] <= 0

    cdef int gather(self) except -1:
        """Let completions gather after a sleep elsewhere, if that is asked for."""
        cdef unsigned int wanted = self._to_gather()
        cdef int res
        if wanted <= 1:
            return 0
        with nogil:
            res = uring_wait_for(&self.u, wanted, 0, self.batch_ns)
        return self._entered(res)

    cdef unsigned int _to_gather(self) noexcept:
        """Return how many completions a sleep waits for."""
        return <unsigned int>min(self.count, <int>BATCH_MAX) if self.batch_ns else 1

    cdef int _submit_and_look(self, unsigned int expected) except -1:
        """Submit what is prepared; give a kernel thread time to post *expected* completions."""
        self.check_usable()
        return self._entered(uring_submit_and_collect(&self.u, expected))

    cdef int _entered(self, int res) except -1:
        if self.quiet.next != &self.quiet:
            self._confirm()
        if res >= 0:
            count_total(&self.submissions, <unsigned int>res)
            return 0
        if self.trace.fd >= 0:
            uring_trace_enter(&self.trace, res)
        # The next turn tries again: what was not submitted is still queued.
        if may_try_again(res):
            return 0
        if res == -EBADR and not self.u.threaded:
            # The kernel lost a completion for want of memory: what is in flight is unknown.
            return self.rebuild()
        if uring_is_forbidden(res) and not self.u.threaded and self.u.soft == NULL:
            # Only record it: a protocol may be on the stack, and no other must be called from here.
            return self.forbid_enter(res)
        if res == -EEXIST:
            if self.runner:
                raise wrong_thread()
            return self.rebuild()
        raise os_error(res, "io_uring_enter" if self.u.soft == NULL else "epoll_wait")

    # ── completions ──────────────────────────────────────────────────────────────────────────

    cdef bint mark(self) noexcept:
        """Record which completions are there; return whether the kernel holds more of them back."""
        self.marked = uring_tail(&self.u)
        return uring_has_task_work(&self.u)

    cdef int dispatch(self) except -1:
        """Deliver the completions that are there now to their owners, in the kernel's order."""
        self.marked = uring_tail(&self.u)
        return self.dispatch_marked()

    cdef int dispatch_marked(self) except -1:
        """Like `dispatch`, for the completions that were there at the newest `mark`."""
        cdef unsigned int head, flags
        cdef io_uring_cqe *cqe
        cdef Operation *op
        cdef int res
        cdef int generation = self.generation
        if not uring_is_usable(&self.u):
            self.check_usable()
        # Read again each time: a callback that takes completions out of turn may consume some.
        head = uring_head(&self.u)
        while <int>(self.marked - head) > 0:
            cqe = uring_completion(&self.u, head)
            op = operation_of(cqe.user_data)
            res = cqe.res
            flags = cqe.flags
            if op == NULL:
                self.cancel_missed |= has_missed(cqe)
            head += 1
            # Consumed before the callback runs: an exception must not deliver it twice.
            uring_consume(&self.u, head)
            if op != NULL:
                self._complete(op, res, flags)
                # The indexes are valid only for the ring they were read from, and in this process.
                if not uring_is_usable(&self.u) or self.generation != generation:
                    return self.check_not_forked()
                head = uring_head(&self.u)
        if self.cancel_missed:
            self._cancel_again()
        if not self.old_completions_dispatched:
            self.old_completions_dispatched = <int>(self.old_end - head) <= 0
        return 0

    cdef int _complete(self, Operation *op, int res, unsigned int flags) except -1:
        # Keep the owner to the end of this call, whatever references the callback drops.
        cdef object owner = <object>op.owner
        assert op.in_flight
        count_total(&self.completions, 1)
        if self.trace.fd >= 0:
            uring_trace_complete(
                &self.trace, op.opcode, op.number, res, flags & IORING_CQE_F_MORE, False)
        if not flags & IORING_CQE_F_MORE:
            self._let_go(op, owner)
        return op.on_completion(op, res, flags)

    cdef int _confirm(self) except -1:
        """Notify the owners of the quiet operations that the kernel has completed.

        Runs after every enter and before its completions are dispatched, so that a protocol
        that is called next finds its bytes gone from the write queue.
        """
        cdef unsigned int index = uring_head(&self.u)
        cdef Operation *op
        cdef uint64_t user_data
        if uring_has_overflow(&self.u):
            # A failure may be among the completions that the kernel holds back: wait for them.
            return 0
        while index != uring_tail(&self.u):
            user_data = uring_completion(&self.u, index).user_data
            index += 1
            if user_data & QUIET:
                # It has failed: from here on it is like any other operation.
                op = operation_of(user_data)
                op.quiet = False
                remove(op)
                append(&self.in_flight, op)
        op = self._last_submitted()
        while op != &self.quiet:
            owner = <object>op.owner
            if self.trace.fd >= 0:
                uring_trace_complete(&self.trace, op.opcode, op.number, 0, False, True)
            self._let_go(op, owner)
            op.on_completion(op, 0, CONFIRMED)
            op = self._last_submitted()
        return 0

    cdef Operation *_last_submitted(self) noexcept:
        """Return the newest quiet operation that the kernel has taken, or the list's head."""
        cdef Operation *op = self.quiet.previous
        while op != &self.quiet and not uring_submitted(&self.u, op.sequence):
            op = op.previous
        return op

    cdef void _unlink(self, Operation *op) noexcept:
        remove(op)
        op.in_flight = False
        op.unwanted = False
        op.quiet = False
        if not op.policy & BACKGROUND:
            count_int(&self.count, -1)
        if ends_with_run(op):
            self.run_count -= 1
            op.cancelled = False
        if op.policy & RUN_WAITS:
            self.run_waits_count -= 1

    cdef void _let_go(self, Operation *op, object owner) noexcept:
        """End *op* and drop the ring's reference to its *owner*. The caller has its own."""
        self._unlink(op)
        Py_DECREF(owner)

    cdef int reap(self, Operation *op) except -1:
        """Cancel *op* and complete it now, out of turn; others keep their order.

        This is for the few callers that cannot wait for the next turn. If the kernel does not end
        the operation at once, its completion is dispatched like any other.
        """
        cdef int tries = 0
        while op.in_flight and tries < RETRIES_MAX and self.permission != ENTER_FORBIDDEN:
            tries += 1
            # Every round cancels, so that a completion comes: the operation's or the cancel's.
            self.cancel(op)
            self._submit_and_look(1)
            self._dispatch_only(op)
        return 0

    cdef int complete_now(self, Operation *op) except -1:
        """Deliver the completions of *op*, which has been cancelled, out of turn."""
        if op.in_flight and self.has_completions():
            self._dispatch_only(op)
        if op.in_flight and self.u.threaded:
            return self.reap(op)
        return 0

    cdef int _dispatch_only(self, Operation *wanted) except -1:
        """Deliver the completions of *wanted*; for NULL, of all that the end of a run needs."""
        cdef unsigned int index = uring_head(&self.u)
        cdef io_uring_cqe *cqe
        cdef Operation *op
        cdef unsigned int flags
        cdef int generation = self.generation
        # Drop the leading completions that have no operation, or none any more, so that none is
        # skipped twice.
        while index != uring_tail(&self.u):
            cqe = uring_completion(&self.u, index)
            if operation_of(cqe.user_data) != NULL:
                break
            self.cancel_missed |= has_missed(cqe)
            index += 1
            uring_consume(&self.u, index)
        while index != uring_tail(&self.u):
            cqe = uring_completion(&self.u, index)
            op = operation_of(cqe.user_data)
            index += 1
            if op != NULL and (op == wanted or (
                    wanted == NULL and (ends_with_run(op) or op.policy & RUN_WAITS))):
                # The queue is writable: without user_data the dispatch skips this completion.
                cqe.user_data = 0
                flags = cqe.flags
                self._complete(op, cqe.res, flags)
                if self.generation != generation or not uring_is_usable(&self.u):
                    break
                # The callback may have run the loop, which has consumed completions.
                if <int>(uring_head(&self.u) - index) > 0:
                    index = uring_head(&self.u)
        if self.cancel_missed and uring_is_usable(&self.u):
            self._cancel_again()
        return 0

    cdef int limit_workers(self) except -1:
        """Limit the worker threads that the kernel starts for this ring; ignore a failure."""
        self.workers_limited = True
        uring_limit_workers(&self.u, BOUNDED_WORKERS_MAX, UNBOUNDED_WORKERS_MAX)
        return 0

    # ── threads ──────────────────────────────────────────────────────────────────────────────

    cdef int rebuild(self) except -1:
        """Replace the ring: deliver what has completed, end the rest with an error.

        The error is ECONNABORTED for operations that end with a run, ECANCELED for others. An
        owner that has not cancelled its operation takes ECANCELED as "arm again".
        """
        cdef Operation orphans
        cdef uring fresh
        cdef int generation = self.generation
        cdef object failure = None
        # This can raise, so it comes first. An owner that finds the queue full may rebuild, too.
        while self.has_completions():
            self.dispatch()
            if self.generation != generation or not uring_is_usable(&self.u):
                return 0
        self._open_successor(&fresh)
        # Move all operations aside: owners arm new ones while the list is walked.
        self._move_aside(&orphans)
        self._move_submissions(&fresh)
        self._install(&fresh)
        # Walk to the end despite exceptions: the list's head is on this stack.
        while orphans.next != &orphans:
            try:
                if orphans.next.policy & WORKER_OWNS_MEMORY:
                    # A worker may use its memory: keep the owner for good.
                    Py_INCREF(<object>orphans.next.owner)
                # How much of a send has gone out is unknown: sending it again might repeat bytes.
                unknown = ends_with_run(orphans.next)
                self._complete(orphans.next, -ECONNABORTED if unknown else -ECANCELED, 0)
            except BaseException as exc:
                failure = failure or exc
        if failure is not None:
            raise failure
        return 0

    cdef int replace(self) except -1:
        """Continue on a software ring, where a security policy forbids the kernel's.

        Calls no owner: completions and prepared submissions move to the new ring, and the other
        operations complete there with the errors of `rebuild`.
        """
        cdef Operation orphans
        cdef Operation *op
        cdef uring fresh
        cdef io_uring_cqe *cqe
        cdef unsigned int index = uring_head(&self.u)
        # The completions that the kernel holds back are lost: only an enter would post them.
        cdef bint lost = self.permission == ENTER_FORBIDDEN and uring_has_overflow(&self.u)
        self._open_soft_successor(&fresh)
        self._move_aside(&orphans)
        while index != uring_tail(&self.u):
            cqe = uring_completion(&self.u, index)
            index += 1
            op = operation_of(cqe.user_data)
            if op != NULL:
                uring_post(&fresh, <uint64_t><uintptr_t>op, cqe.res, cqe.flags)
                if not cqe.flags & IORING_CQE_F_MORE:
                    op.quiet = False
                    remove(op)
                    append(&self.in_flight, op)
        # The new queue is as long as the old one, so all of them are in it.
        self.old_end = uring_tail(&fresh)
        self.old_completions_dispatched = self.old_end == uring_head(&fresh)
        self._move_submissions(&fresh)
        while orphans.next != &orphans:
            op = orphans.next
            op.quiet = False
            move_first(&orphans, &self.in_flight)
            if op.policy & WORKER_OWNS_MEMORY:
                Py_INCREF(<object>op.owner)
            unknown = ends_with_run(op) or (lost and not op.policy & BACKGROUND)
            uring_post(
                &fresh, <uint64_t><uintptr_t>op, -ECONNABORTED if unknown else -ECANCELED, 0)
        self._install(&fresh)
        return 0

    cdef void _install(self, uring *fresh) noexcept:
        if fresh.soft != NULL and self.u.soft == NULL:
            self.quiet_sends = software_uses(QUIET_SENDS)
            assert self.permission == FORBIDDEN or self.permission == ENTER_FORBIDDEN
            store_int_release(&self.permission, REPLACED)
        uring_take_place(&self.u, fresh)
        self.marked = uring_head(&self.u)
        self.workers_limited = False
        self.generation += 1

    cdef void _move_aside(self, Operation *orphans) noexcept:
        orphans.next = orphans.previous = orphans
        while self.quiet.next != &self.quiet:
            move_first(&self.quiet, orphans)
        while self.in_flight.next != &self.in_flight:
            move_first(&self.in_flight, orphans)

    cdef int _open_successor(self, uring *fresh) except -1:
        """Open a ring to replace this one; a software ring if the kernel refuses one."""
        cdef int res
        cdef str call
        if self.u.soft != NULL:
            return self._open_soft_successor(fresh)
        res = uring_open_successor(fresh, &self.u)
        if res == 0:
            return 0
        call = fresh.call.decode()
        if uring_open_soft_successor(fresh, &self.u) < 0:
            raise os_error(res, call)
        return self.forbid(res, call)

    cdef int _open_soft_successor(self, uring *fresh) except -1:
        cdef int res = uring_open_soft_successor(fresh, &self.u)
        if res < 0:
            raise os_error(res, fresh.call.decode())
        return 0

    cdef void _move_submissions(self, uring *fresh) noexcept:
        """Move prepared submissions to another ring; their operations stay in flight."""
        cdef unsigned int index
        cdef io_uring_sqe *sqe
        cdef Operation *op
        for index in range(uring_pending(&self.u)):
            sqe = uring_move_submission(fresh, &self.u, index)
            op = operation_of(sqe.user_data)
            if op != NULL:
                remove(op)
                append(&self.quiet if op.quiet else &self.in_flight, op)
                op.sequence = uring_sequence(fresh)

    cdef int forbid(self, int res, str call) except -1:
        """Record that *call* has been refused: the next turn replaces the ring."""
        if self.permission == ALLOWED:
            self.forbidden_call = (-res, call)
            store_int(&self.permission, FORBIDDEN)
        return 0

    cdef int forbid_enter(self, int res) except -1:
        """Record that io_uring_enter has been refused: nothing more can be submitted."""
        assert self.u.soft == NULL
        self.forbid(res, "io_uring_enter")
        store_int(&self.permission, ENTER_FORBIDDEN)
        return 0

    cdef int _abandon(self) noexcept:
        """Drop the references of operations that will never complete."""
        cdef Operation *op
        while self.quiet.next != &self.quiet:
            move_first(&self.quiet, &self.in_flight)
        while self.in_flight.next != &self.in_flight:
            op = self.in_flight.next
            if op.policy & WORKER_OWNS_MEMORY:
                # A worker may use its memory: keep the owner for good, but end the wait for it.
                self._unlink(op)
                op.on_completion(op, -ECANCELED, 0)
            else:
                self._let_go(op, <object>op.owner)
        return 0

    # ── runs, and the end ────────────────────────────────────────────────────────────────────

    cdef int take_over(self) except -1:
        """Make the calling thread the ring's issuer; a new ring replaces one of another thread.

        The kernel binds a ring to the thread that enables it, and returns EEXIST to all others.
        Thread identifiers do not help: a new thread often has the one of a dead thread.
        """
        cdef int res
        self.check_usable()
        if self.u.life == URING_DISABLED:
            res = uring_enable(&self.u)
            if uring_is_forbidden(res):
                self.forbid(res, "io_uring_register")
                return self.replace()
            if res < 0:
                raise os_error(res, "io_uring_register")
        return self._entered(uring_submit(&self.u))

    cdef int end_run_operations(self) except -1:
        """End the operations that a change of the thread or of the ring would break.

        These are sends, because only their completions say how much was sent, and polls of
        listening sockets, because a ring that its thread has left would keep the socket open for
        some time. A receive may stay armed, because whatever the kernel took from its socket is in
        the completion queue.
        """
        cdef Operation *op
        cdef int generation
        cdef int tries = 0
        if not uring_is_usable(&self.u):
            return 0
        while self.run_count and tries < CANCEL_ROUNDS_MAX:
            tries += 1
            generation = self.generation
            op = self.in_flight.next
            # If a cancel finds the queue full, it submits; that may replace the ring and the list.
            while op != &self.in_flight and self.generation == generation:
                if ends_with_run(op):
                    self.cancel(op)
                op = op.next
            self._submit_and_look(self.run_count)
            if self.permission == ENTER_FORBIDDEN:
                self.replace()
            if uring_has_overflow(&self.u):
                # The kernel holds back completions until a dispatch makes room for them.
                self.dispatch()
            else:
                self._dispatch_only(NULL)
        if self.run_waits_count:
            self._await_workers()
        while uring_has_overflow(&self.u) and tries < 2 * CANCEL_ROUNDS_MAX:
            # The kernel keeps completions that found the queue full; they would be lost with the
            # ring.
            tries += 1
            self.dispatch()
            self.submit()
        return 0

    cdef int _await_workers(self) except -1:
        """Wait, for a limited time, for workers that use files for the program.

        Only this thread can take their completions.
        """
        cdef int before, waits = 0
        while self.run_waits_count and waits < RETRIES_MAX:
            before = self.run_waits_count
            with nogil:
                uring_wait_more(&self.u, 1, LINGER_NS)
            self._dispatch_only(NULL)
            waits = 0 if self.run_waits_count < before else waits + 1
            if waits == OPEN_ROUNDS_MAX:
                self._leave_opens()
        return 0

    cdef void _leave_opens(self) noexcept:
        """No longer wait for files that are being opened: a FIFO may wait for its peer for ever."""
        cdef Operation *op = self.in_flight.next
        while op != &self.in_flight:
            if op.policy & HOLDS_DESCRIPTOR and op.policy & RUN_WAITS:
                op.policy &= ~RUN_WAITS
                self.run_waits_count -= 1
            op = op.next

    cdef int fall_back(self) except -1:
        """Switch to the software ring, after a security policy has forbidden a call to io_uring."""
        if self.permission == FORBIDDEN:
            # This replaces the ring already if it finds that the ring cannot be entered any more.
            self.end_run_operations()
        if self.permission < REPLACED:
            self.replace()
        assert self.permission == REPLACED
        store_int_release(&self.permission, FALLEN_BACK)
        if self.on_fallback is not None:
            self.on_fallback(*self.forbidden_call)
        return 0

    cdef int drain(self) except -1:
        """Cancel all operations and take their completions.

        Only then does closing a descriptor take effect: a socket sends its FIN, a port is free.
        Only the callbacks of operations that have a descriptor to close run. A thread that does not
        own the ring cannot cancel; the kernel ends the operations some milliseconds after the
        ring's end.
        """
        cdef Operation *op
        cdef unsigned int expected = 0
        cdef int idle = 0
        cdef bint by_worker = False
        cdef int generation = self.generation
        cdef int res
        if self.u.life != URING_ENABLED:
            return 0
        self.memory_pinned = self.u.threaded
        res = uring_submit(&self.u)
        if res < 0 and not may_try_again(res):
            return 0
        self._confirm()
        op = self.in_flight.next
        while op != &self.in_flight:
            if not op.policy & NEVER_CANCELLED:
                self.cancel(op)
            if self.generation != generation:
                # A cancel found the queue full, and the ring was replaced: the list is another.
                return self.drain()
            by_worker = by_worker or op.policy & WORKER_OWNS_MEMORY != 0
            expected += 1
            op = op.next
        while self.in_flight.next != &self.in_flight and idle < RETRIES_MAX:
            idle += 1
            if by_worker:
                with nogil:
                    uring_wait_more(&self.u, 1, LINGER_NS)
            else:
                uring_submit_and_collect(&self.u, expected)
                expected = 1
            if self._end_completed():
                idle = 0
            if self.cancel_missed:
                self._cancel_again()
        self.memory_pinned = self.u.threaded and self.in_flight.next != &self.in_flight
        return 0

    cdef bint _end_completed(self) except -1:
        """End the operations whose completions are there now; return whether there were any."""
        cdef Operation *op
        cdef io_uring_cqe *cqe
        cdef unsigned int head = uring_head(&self.u)
        cdef bint found = False
        while head != uring_tail(&self.u):
            found = True
            cqe = uring_completion(&self.u, head)
            op = operation_of(cqe.user_data)
            self.cancel_missed |= has_missed(cqe)
            head += 1
            uring_consume(&self.u, head)
            if op != NULL and op.policy & (HOLDS_DESCRIPTOR | NEVER_CANCELLED):
                self._complete(op, cqe.res, cqe.flags)
            elif op != NULL and not cqe.flags & IORING_CQE_F_MORE:
                self._end_silently(op, cqe.res)
        return found

    cdef int _end_silently(self, Operation *op, int res) except -1:
        """End *op* without its callback; only the trace records it."""
        if self.trace.fd >= 0:
            uring_trace_complete(&self.trace, op.opcode, op.number, res, False, False)
        self._let_go(op, <object>op.owner)
        return 0

    cdef int close(self) except -1:
        """Close the ring. The caller has ended the operations, or cannot do so any more."""
        self._forget()
        if not self.memory_pinned:
            self._abandon()
        return 0


cdef Ring open_ring(bint files):
    """Open a ring of the kernel, which may do operations on *files*, or may not.

    Raises OSError if the kernel refuses one.
    """
    cdef Ring ring = Ring.__new__(Ring)
    try_kernel()
    ring._begin(uring_open(&ring.u, SQ_ENTRIES, CQ_ENTRIES, files))
    return ring


cdef Ring open_ring_with_thread(bint files, unsigned int idle_ms, int cpu):
    """Open a ring like `open_ring`, whose submissions a kernel thread takes (SQPOLL).

    The thread sleeps after *idle_ms* milliseconds without work; *cpu* is its processor, -1 for any.
    Raises OSError if the kernel refuses, ValueError if this process may not use that processor.
    """
    cdef Ring ring = Ring.__new__(Ring)
    cdef int res
    try_kernel()
    res = uring_open_threaded(&ring.u, SQ_ENTRIES_OF_THREAD, CQ_ENTRIES, files, idle_ms, cpu)
    if res == -ENXIO:
        raise ValueError(f"this process may not use processor {cpu}")
    ring._begin(res)
    return ring


cdef Ring open_software_ring():
    """Open a software ring. Raises OSError if the kernel refuses what it needs."""
    cdef Ring ring = Ring.__new__(Ring)
    ring._begin(uring_open_soft(&ring.u, SQ_ENTRIES, CQ_ENTRIES))
    return ring
