"""A pair of queues, and the operations that are in flight on it."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from uringloop._cpython.pyapi cimport FREE_THREADED, this_thread, visitproc
from uringloop._kernel.atomics cimport load_long, load_total
from uringloop._kernel.epoll cimport epoll_event
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.trace cimport uring_trace
from uringloop._ring.uring cimport (
    URING_CLOSED,
    uring,
    uring_accept,
    uring_ended_by,
    uring_get_life,
    uring_is_inherited,
    uring_is_usable,
    uring_misses_ends,
    uring_pending,
)


# How many forks lie between the first process that imported this module and this process.
cdef unsigned int PROCESS


# Called in the loop's thread for every completion of the operation; an exception (-1) leaves the
# turn.
ctypedef int (*completion)(Operation *op, int res, unsigned int flags) except -1


# The flags that `on_completion` gets when a quiet operation has succeeded without a completion;
# it must not call a protocol then. The kernel's flags never have this value.
cdef enum:
    CONFIRMED = 0x80000000
    # Marks the user_data of a quiet operation: the address of an Operation is a multiple of 4.
    QUIET = 1
    # The user_data of a cancel.
    CANCEL = 2


# What the owner sets for an operation before it starts: bits of `policy`. Of those that change
# later, HOLDS_DESCRIPTOR has no count; the ring removes RUN_WAITS from an open that takes too long,
# and corrects its count.
cdef enum Policy:
    ENDS_WITH_RUN = 1 << 0       # cancelled as a run ends: a send, the poll of a listening socket
    RUN_WAITS = 1 << 1           # a run waits for it, as when a worker uses the program's memory
    WORKER_OWNS_MEMORY = 1 << 2  # a worker may use its memory after the ring has been closed
    HOLDS_DESCRIPTOR = 1 << 3    # has a descriptor to close: completes even while the ring closes
    NEVER_CANCELLED = 1 << 4     # closes a descriptor, which a cancel would leak
    BACKGROUND = 1 << 5          # belongs to the loop itself: not counted as in flight


# Whether io_uring may be called; the drawing is in ring.pyx.
cdef enum Permission:
    ALLOWED             # no call has been refused
    FORBIDDEN           # a call has been refused: the next turn replaces the ring
    ENTER_FORBIDDEN     # the same, and nothing more can be submitted
    REPLACED            # by a software ring; the next turn calls on_fallback()
    FALLEN_BACK         # on_fallback() has been called


cdef struct Operation:
    # One request, embedded in the object that handles its completions. It is never freed
    # before its terminal completion, because the ring holds a reference to the owner until then.
    completion on_completion   # set once by the owner
    PyObject *owner            # borrowed; while in flight the ring holds one reference to it
    Operation *previous        # the ring's list of operations in flight
    Operation *next
    unsigned int policy        # bits of Policy; the ring counts operations in flight by them
    bint in_flight             # between start and the terminal completion
    bint cancelled             # on a ring with a kernel thread: ends with the run, too
    bint unwanted              # a cancel was prepared: one that misses the operation is repeated
    bint quiet                 # posts a completion only if it fails
    unsigned int sequence      # position after its submission if quiet, or after its newest cancel
    unsigned char opcode       # of its submission, if it is traced
    unsigned int number        # its number in the trace


@cython.final
cdef class Ring:
    # Opened by one of the functions below, closed by close() or dealloc.
    # Outside this package nothing but `testing` uses this field.
    cdef uring u
    cdef Operation in_flight           # sentinel of the circular list of operations in flight
    cdef Operation quiet               # the same for quiet operations, until they are confirmed
    cdef bint quiet_sends              # the ring supports them
    cdef readonly int count            # operations in flight, without BACKGROUND ones
    cdef int run_count                 # of these, the ones that end with the run
    cdef int run_waits_count           # of these, the ones that the end of a run waits for
    cdef bint workers_limited          # this ring's worker threads have been limited
    cdef int64_t spin_ns               # busy-poll for completions this long before a sleep
    cdef int64_t batch_ns              # let completions gather this long in a sleep
    cdef uring_trace trace             # records submissions and completions, if it is open
    cdef bint memory_pinned            # a kernel thread may outlive the ring: its memory must stay
    # The thread that runs the loop, once it has taken the ring over: no other may submit. Or 0.
    cdef unsigned long runner
    cdef unsigned int marked           # the tail of the completion queue at the newest `mark`
    cdef int generation                # incremented when a new ring replaces this one
    cdef bint cancel_missed            # a cancel has found no operation
    # Completions of a replaced ring may name buffers that still hold bytes. They are in the queue
    # before the index `old_end` until all have been dispatched. The flag then stays set, since the
    # indexes of the queue wrap around.
    cdef bint old_completions_dispatched
    cdef unsigned int old_end
    cdef int permission                # a Permission; any thread may read it
    cdef tuple forbidden_call          # errno and name of the first call that was refused, or None
    cdef object on_fallback            # a function, called with both after the fallback; or None
    cdef readonly uint64_t submissions
    cdef readonly uint64_t completions

    # ── what the ring is ─────────────────────────────────────────────────────────────────────

    # Any thread may call the first four.

    cdef inline uint64_t enters(self) noexcept:
        """Return the number of system calls that the ring has made."""
        return load_total(&self.u.enters)

    cdef inline bint is_inherited(self) noexcept:
        """Return whether this is a forked child, and the ring is its parent's."""
        return uring_is_inherited(&self.u)

    cdef inline bint is_usable(self) noexcept:
        """Return whether the ring is open, and this process's own."""
        return uring_is_usable(&self.u)

    cdef inline bint is_closed(self) noexcept:
        return uring_get_life(&self.u) == URING_CLOSED

    cdef inline bint is_software(self) noexcept:
        """Return whether this is a software ring: one that finds events only in an enter."""
        return self.u.soft != NULL

    cdef inline bint has_kernel_thread(self) noexcept:
        """Return whether a thread of the kernel takes the submissions (SQPOLL)."""
        return self.u.threaded

    # ── what differs between the kernel's ring and a software ring ───────────────────────────

    cdef inline int accept(self, int fd, void *name, unsigned int *size) noexcept nogil:
        """Accept without waiting, and store the peer's name; return a descriptor or -errno."""
        return uring_accept(&self.u, fd, name, size)

    cdef inline int ended_by(self, int fd, int res) noexcept:
        """Return what has ended a stream, 0 or -errno; *res* is what recv(2) has returned."""
        return uring_ended_by(&self.u, fd, res)

    cdef inline bint misses_ends(self) noexcept:
        """Return whether a multishot receive may miss the end of its connection."""
        return uring_misses_ends(&self.u)

    cdef int join_epoll(self, int epoll_fd, uint64_t data) noexcept
    cdef void leave_epoll(self, int epoll_fd) noexcept
    cdef int sleep_at_epoll(
        self, int epoll_fd, epoll_event *events, int size, int64_t timeout_ns) noexcept nogil

    # ── operations ───────────────────────────────────────────────────────────────────────────

    cdef inline bint has_submissions(self) noexcept:
        """Return whether submissions are prepared, or wait for the kernel's thread."""
        return uring_pending(&self.u) != 0

    cdef inline bint must_fall_back(self) noexcept:
        """Return whether the ring must be replaced, or its replacement reported."""
        return ALLOWED < self.permission < FALLEN_BACK

    cdef inline int check_not_forked(self) except -1:
        """Raise RuntimeError in a forked child: the descriptors there are still the parent's."""
        return self.check_usable() if self.is_inherited() else 0

    cdef unsigned int forks(self) noexcept
    cdef bint uses(self, unsigned int feature) noexcept
    cdef bint does(self, unsigned int opcode) noexcept
    cdef int check_usable(self) except -1
    cdef io_uring_sqe *submission(self) except NULL
    cdef int start(self, io_uring_sqe *sqe, Operation *op) except -1
    cdef int start_quiet(self, io_uring_sqe *sqe, Operation *op) except -1
    cdef int cancel(self, Operation *op) except -1
    cdef bint undo_cancel(self, Operation *op) noexcept
    cdef int _cancel_again(self) except -1
    cdef int submit(self) except -1
    cdef int submit_only(self) except -1
    cdef int wait(self, int64_t timeout_ns) except -1
    cdef bint spin(self, int64_t *timeout_ns) except -1
    cdef int gather(self) except -1
    cdef bint needs_enter(self) noexcept
    cdef bint has_task_work(self) noexcept
    cdef bint has_overflow(self) noexcept
    cdef bint has_completions(self) noexcept
    cdef bint mark(self) noexcept
    cdef int dispatch(self) except -1
    cdef int dispatch_marked(self) except -1
    cdef int complete_now(self, Operation *op) except -1
    cdef int reap(self, Operation *op) except -1
    cdef int make_room(self, unsigned int count) except -1
    cdef int limit_workers(self) except -1
    cdef int rebuild(self) except -1
    cdef int replace(self) except -1
    cdef int forbid(self, int res, str call) except -1
    cdef int forbid_enter(self, int res) except -1
    cdef int take_over(self) except -1
    cdef int end_run_operations(self) except -1
    cdef int fall_back(self) except -1
    cdef int drain(self) except -1
    cdef int close(self) except -1

    cdef int _begin(self, int res) except -1
    cdef void _forget(self) noexcept
    cdef int _link(self, io_uring_sqe *sqe, Operation *op, Operation *head) except -1
    cdef void _unlink(self, Operation *op) noexcept
    cdef void _let_go(self, Operation *op, object owner) noexcept
    cdef int _dispatch_only(self, Operation *op) except -1
    cdef unsigned int _to_gather(self) noexcept
    cdef int _submit_and_look(self, unsigned int expected) except -1
    cdef int _entered(self, int res) except -1
    cdef int _complete(self, Operation *op, int res, unsigned int flags) except -1
    cdef int _confirm(self) except -1
    cdef Operation *_last_submitted(self) noexcept
    cdef void _install(self, uring *fresh) noexcept
    cdef void _move_aside(self, Operation *orphans) noexcept
    cdef int _open_successor(self, uring *fresh) except -1
    cdef int _open_soft_successor(self, uring *fresh) except -1
    cdef void _move_submissions(self, uring *fresh) noexcept
    cdef int _await_workers(self) except -1
    cdef void _leave_opens(self) noexcept
    cdef bint _end_completed(self) except -1
    cdef int _end_silently(self, Operation *op, int res) except -1
    cdef int _abandon(self) noexcept


cdef Ring open_ring(bint files)
cdef Ring open_ring_with_thread(bint files, unsigned int idle_ms, int cpu)
cdef Ring open_software_ring()
cdef object wrong_thread()


cdef inline void operation_init(Operation *op, completion on_completion, PyObject *owner) noexcept:
    op.on_completion = on_completion
    op.owner = owner
    op.previous = NULL
    op.next = NULL
    op.policy = 0
    op.in_flight = False
    op.cancelled = False
    op.unwanted = False
    op.quiet = False
    op.opcode = 0
    op.number = 0


cdef inline bint is_used_elsewhere(Ring ring) noexcept:
    """Return whether another thread runs the loop and no GIL protects the ring from this one."""
    return FREE_THREADED and load_long(&ring.runner) not in (0, this_thread())


cdef inline bint ends_with_run(const Operation *op) noexcept:
    return op.cancelled or op.policy & ENDS_WITH_RUN != 0


cdef inline Operation *operation_of(uint64_t user_data) noexcept:
    """Return the operation of a completion; NULL for a cancel, and for one that was taken."""
    return <Operation*><uintptr_t>(user_data & ~<uint64_t>(QUIET | CANCEL))


cdef inline void append(Operation *head, Operation *op) noexcept:
    op.next = head
    op.previous = head.previous
    op.previous.next = op
    head.previous = op


cdef inline void remove(Operation *op) noexcept:
    op.previous.next = op.next
    op.next.previous = op.previous


cdef inline void move_first(Operation *source, Operation *target) noexcept:
    cdef Operation *op = source.next
    remove(op)
    append(target, op)


cdef inline int traverse_operations(
        const Operation *head, visitproc visit, void *argument) noexcept:
    """Visit the owners that a list's operations keep alive, for the garbage collector."""
    cdef const Operation *op = head.next
    while op != head:
        if visit(op.owner, argument):
            return 1
        op = op.next
    return 0


cdef inline int traverse_ring(Ring ring, visitproc visit, void *argument) noexcept:
    # Owners that a closed ring still holds are kept for good: a kernel thread may use their memory.
    if ring is None or ring.is_closed():
        return 0
    return (traverse_operations(&ring.in_flight, visit, argument)
            or traverse_operations(&ring.quiet, visit, argument))
