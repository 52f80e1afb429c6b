"""One request of a file, in flight on the loop's ring or in a thread of its executor.

A FileOperation owns all that the kernel reads or fills on its behalf, until the kernel has
answered: the ring, or the thread, holds the operation. The request is a submission of its own,
copied into the ring's queue; under another loop than ours the same request is performed by a
thread. Who awaits it comes back after its end, and so do those who cancel it, except where all
memory is the operation's own and nothing is changed by it (`detachable`).

An ECANCELED that nobody asked for has one of two reasons. A ring that is lost, with a thread that
has ended: what can be done twice is submitted again. Or the kernel could start no worker, for the
limits of the process: then it is done here, and the loop waits.
"""

from asyncio import CancelledError, Future, get_running_loop

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.errors cimport ECANCELED, EINTR
from uringloop._kernel.files cimport (
    io_uring_prep_read,
    uring_copy_submission,
    uring_is_cached,
    uring_leave_to_worker,
    uring_link,
    uring_perform,
    uring_perform_here,
    uring_unlink,
)
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport close
from uringloop._ring.ring cimport (
    HOLDS_DESCRIPTOR,
    NEVER_CANCELLED,
    RUN_WAITS,
    WORKER_OWNS_MEMORY,
    Operation,
    operation_init,
)
from uringloop._turn.timers cimport NO_DEADLINE
from uringloop._turn.turn cimport LoopCore


cdef class InFlight:

    cdef int ended(self) except -1:
        self.operations_in_flight -= 1
        if self.idle is not None and not self.operations_in_flight:
            if not self.idle.done():
                self.idle.set_result(None)
            self.idle = None
        return 0

    async def _become_idle(self):
        """Wait until no operation uses the descriptor."""
        while self.operations_in_flight:
            if self.idle is None or self.idle.done():
                self.idle = Future(loop=get_running_loop())
            await self.idle


@cython.freelist(64)
@cython.no_gc_clear
cdef class FileOperation:

    def __dealloc__(self):
        if self.op.policy & HOLDS_DESCRIPTOR and self.res >= 0:
            # Nobody has taken it.
            close(self.res)
        if self.counted:
            # Its loop was closed before it could be told of the end.
            self.file.ended()

    cdef object run(self):
        """Have it done, and return what waits for its end. The result is then in `res`."""
        self.begin()
        return self.end()

    cdef int begin(self) except -1:
        self.loop = None if self.in_thread else ring_loop()
        self.future = Future(loop=get_running_loop())
        if self.loop is not None:
            self.submit()
        else:
            performed = get_running_loop().run_in_executor(None, self._perform)
            performed.add_done_callback(self._performed)
        if self.file is not None:
            self.counted = True
            self.file.operations_in_flight += 1
        return 0

    async def end(self):
        """Wait for its end."""
        try:
            await self.future
        except CancelledError:
            self.cancel()
            if self.detachable:
                raise
            while not self.has_ended:
                self.future = Future(loop=get_running_loop())
                try:
                    await self.future
                except CancelledError:
                    # The first one is raised when the kernel has let go of the memory.
                    continue
            raise
        except BaseException:
            # Whoever awaits it is thrown away: it ends alone.
            self.cancel()
            raise

    cdef int submit(self) except -1:
        cdef io_uring_sqe *sqe
        if not self.loop.ring.workers_limited:
            self.loop.ring.limit_workers()
        sqe = self.loop.ring.submission()
        uring_copy_submission(sqe, &self.request)
        # Submitted again it stands alone.
        uring_unlink(&self.request)
        self.generation = self.loop.ring.generation
        return self.loop.ring.start(sqe, &self.op)

    cdef int cancel(self) except -1:
        """Ask for an early end. A thread can not be stopped, and what closes must not be."""
        if self.op.policy & NEVER_CANCELLED:
            return 0
        self.cancelled = True
        if self.op.in_flight:
            self.loop.ring.cancel(&self.op)
        return 0

    def _perform(self):
        """Do it here and now: a thread of the executor calls this."""
        cdef int res
        with nogil:
            res = uring_perform(&self.request)
            while res == -EINTR and not self.op.policy & NEVER_CANCELLED:
                res = uring_perform(&self.request)
        # The loop may be closed before it is told.
        self.res = res
        return res

    def _performed(self, performed):
        self.on_end(-ECANCELED if performed.cancelled() else performed.result())

    cdef int on_end(self, int res) except -1:
        if res == -ECANCELED and self.had_no_worker():
            with nogil:
                res = uring_perform_here(&self.request)
        # A descriptor is closed at once, whatever it says.
        if ((res == -EINTR and not self.op.policy & NEVER_CANCELLED)
                or (res == -ECANCELED and self.repeatable)):
            if not self.cancelled and self.loop is not None and not self.loop.closed:
                return self.submit()
        self.res = res
        self.has_ended = True
        if self.counted:
            self.counted = False
            self.file.ended()
        return self.tell()

    cdef bint had_no_worker(self) noexcept:
        """Whether an ECANCELED means that nobody could be found to do it."""
        if self.cancelled or self.follows or self.loop is None:
            return False
        if self.generation != self.loop.ring.generation or not self.loop.ring.u.open:
            return False
        # The end of a loop cancels everything, but never what closes.
        return self.op.policy & NEVER_CANCELLED != 0 or not self.loop.closed

    cdef int tell(self) except -1:
        if self.future.get_loop().is_closed():
            # Nobody will be resumed; and what a worker may still use keeps only what it must.
            self.future = None
        elif not self.future.done():
            self.future.set_result(None)
        return 0


cdef FileOperation new_operation(InFlight file, object held):
    cdef FileOperation operation = FileOperation.__new__(FileOperation)
    operation.file = file
    operation.held = held
    operation_init(&operation.op, file_operation_on_completion, <PyObject*>operation)
    operation.op.policy = WORKER_OWNS_MEMORY
    return operation


def is_cached(int fd, int64_t offset, int64_t size):
    """Whether reading that much of a file there would not wait for its disk."""
    return uring_is_cached(fd, offset, size)


async def read_ahead(int fd, int64_t offset, Py_ssize_t size):
    """Have that much of a file be read into the page cache, if it can be."""
    cdef FileOperation operation = new_operation(None, take_bytes(PyBytes_New(NULL, size)))
    operation.op.policy |= RUN_WAITS
    operation.repeatable = operation.detachable = True
    io_uring_prep_read(
        &operation.request, fd, PyBytes_AS_STRING(operation.held), <unsigned int>size, offset)
    uring_leave_to_worker(&operation.request)
    await operation.run()


cdef int begin_linked(FileOperation first, FileOperation second) except -1:
    """Begin both on the ring, *second* when *first* has been done, and only if that was all of it.

    Otherwise *second* ends with ECANCELED; so it must not be `repeatable`.
    """
    ring_loop().ring.make_room(2)
    uring_link(&first.request)
    second.follows = True
    first.begin()
    second.begin()
    return 0


cdef LoopCore ring_loop():
    """Return the running loop if it is one of ours, else None."""
    loop = get_running_loop()
    return <LoopCore>loop if isinstance(loop, LoopCore) else None


cdef bint is_spent(LoopCore loop) except -1:
    """Whether files have used up their time in this turn, and somebody waits for the next one.

    While nobody waits they go on. In debug mode they do not: a callback that takes so long would be
    reported.
    """
    cdef int64_t now = uring_clock_ns()
    if now < loop.files_until:
        return False
    if loop.files_until == 0:
        loop.files_until = now + (TURN_NS if loop.ring.u.soft == NULL else SOFT_TURN_NS)
        return False
    if loop.debug or not nobody_waits(loop):
        return True
    loop.files_until = now + LOOK_NS
    return False


cdef bint nobody_waits(LoopCore loop) except -1:
    """Whether a turn would find nothing to do now: known without a call of the kernel."""
    cdef int64_t deadline
    # The software ring would have to ask the kernel.
    if loop.ring.u.soft != NULL or not loop.is_idle():
        return False
    if PyList_GET_SIZE(loop.rearm_list) or loop.ring.needs_enter() or loop.timers.due_end:
        return False
    deadline = loop.timers.next_deadline_ns()
    return deadline == NO_DEADLINE or deadline > loop.now_ns()


cdef int file_operation_on_completion(Operation *op, int res, unsigned int flags) except -1:
    return (<FileOperation>op.owner).on_end(res)
