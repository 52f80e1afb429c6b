"""One request of a file, in flight on the loop's ring or in a thread of its executor.

A FileOperation owns all memory that the kernel reads or fills for it until the kernel has finished:
the ring, or the thread, holds a reference to the operation. The request is a submission of its own,
which is copied into the ring's queue; under other event loops a thread performs the same request.
Awaiting and cancelling both return only after the end of the operation, except where the operation
owns all the memory and changes nothing (DETACHABLE).

    PREPARED ──begin()──> BEGUN ───────on_end()─────> ENDED
     │    ^                 ^ └─_perform()─> PERFORMED ─^ ^
     │    │                 │ begin()                     │
     │    └─take_cached()─> OUT_OF_TIME                   │
     └──from the page cache, or of no bytes───────────────┘

After EINTR on_end() submits the operation again, and it stays BEGUN. A thread lets go of the file
itself: the loop that the operation was begun on may be closed by then.

An ECANCELED without a cancel has one of two causes. If the ring was lost with a thread that has
ended, idempotent operations are submitted again. If the kernel could not start a worker because of
the process's limits, the request is performed in the loop's thread, which blocks.
"""

from asyncio import CancelledError, Future, _get_running_loop, get_running_loop

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyObject_CallNoArgs
from uringloop._kernel.atomics cimport count_int, load_int
from uringloop._kernel.errors cimport ECANCELED, EINTR
from uringloop._kernel.files cimport (
    uring_copy_submission,
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
    WORKER_OWNS_MEMORY,
    Operation,
    is_used_elsewhere,
    operation_init,
)
from uringloop._turn.turn cimport LoopCore

cdef object GET_RUNNING_LOOP = get_running_loop


cdef class Descriptor:

    def __cinit__(self, *args, **options):
        self.fd = -1

    @property
    def _operations_in_flight(self):
        return load_int(&self.in_flight)

    cdef int check_open(self) except -1:
        if load_int(&self.fd) < 0:
            raise ValueError("I/O operation on closed file.")
        return 0

    @cython.critical_section
    cdef void started(self) noexcept:
        count_int(&self.in_flight, 1)

    cdef int ended(self) except -1:
        cdef object idle = None
        with cython.critical_section(self):
            count_int(&self.in_flight, -1)
            if not self.in_flight:
                idle = self.idle
                self.idle = None
        return 0 if idle is None else resolve(idle)

    @cython.critical_section
    cdef object end_of_all(self):
        """Return a future for the end of the operations; None if there are none."""
        if not self.in_flight:
            return None
        if self.idle is None or self.idle.done():
            self.idle = Future(loop=get_running_loop())
        return self.idle

    async def _become_idle(self):
        """Wait until no operation uses the descriptor."""
        idle = self.end_of_all()
        while idle is not None:
            await idle
            idle = self.end_of_all()


cdef int resolve(object idle) except -1:
    """Resolve *idle*, which its loop's thread awaits, in that thread."""
    cdef object loop = idle.get_loop()
    if loop is _get_running_loop():
        resolve_here(idle)
        return 0
    # The operation has ended in a thread of the executor, or beside another loop.
    try:
        loop.call_soon_threadsafe(resolve_here, idle)
    except RuntimeError:
        # The loop is closed: no task can be resumed.
        pass
    return 0


def resolve_here(idle):
    if not idle.done():
        idle.set_result(None)


@cython.freelist(64)
@cython.no_gc_clear
cdef class FileOperation:

    def __dealloc__(self):
        if self.op.policy & HOLDS_DESCRIPTOR and self.res >= 0:
            # The opened descriptor was not taken.
            close(self.res)
        if self.stage == BEGUN and self.file is not None:
            # It was not submitted, or the loop was closed before the completion was delivered.
            self.file.ended()

    cdef object run(self):
        """Start the operation; return a coroutine that waits for its end, when `res` is set."""
        self.begin()
        return self.end()

    cdef int begin(self) except -1:
        assert self.stage <= OUT_OF_TIME
        self.loop = None if self.traits & NEEDS_THREAD else loop_for(self.request.opcode)
        self.future = Future(loop=get_running_loop())
        self.stage = BEGUN
        if self.file is not None:
            self.file.started()
        if self.loop is not None:
            self.submit()
        else:
            performed = get_running_loop().run_in_executor(None, self._perform)
            performed.add_done_callback(self._performed)
        return 0

    async def end(self):
        """Wait for the end of the operation."""
        try:
            await self.future
        except CancelledError:
            self.cancel()
            if self.traits & DETACHABLE:
                raise
            while self.stage != ENDED:
                self.future = Future(loop=get_running_loop())
                try:
                    await self.future
                except CancelledError:
                    # The first CancelledError is raised once the kernel has finished.
                    continue
            raise
        except BaseException:
            # The awaiting coroutine is destroyed: the operation ends by itself.
            self.cancel()
            raise

    cdef int submit(self) except -1:
        cdef io_uring_sqe *sqe
        if not self.loop.ring.workers_limited:
            self.loop.ring.limit_workers()
        sqe = self.loop.ring.submission()
        uring_copy_submission(sqe, &self.request)
        # If the request is submitted again, it is not linked.
        uring_unlink(&self.request)
        self.generation = self.loop.ring.generation
        return self.loop.ring.start(sqe, &self.op)

    cdef int cancel(self) except -1:
        """Submit a cancel, unless a thread performs the operation or it closes a descriptor."""
        if self.op.policy & NEVER_CANCELLED:
            return 0
        self.cancelled = True
        if self.op.in_flight:
            if is_used_elsewhere(self.loop.ring):
                # The garbage collector destroys the call, in a thread other than the loop's.
                self.loop.call_soon_threadsafe(self._cancel)
            else:
                self.loop.ring.cancel(&self.op)
        return 0

    def _cancel(self):
        self.cancel()

    def _perform(self):
        """Perform the request as a system call; runs in a thread of the executor."""
        cdef int res
        with nogil:
            res = uring_perform(&self.request)
            while res == -EINTR and not self.op.policy & NEVER_CANCELLED:
                res = uring_perform(&self.request)
        self.res = res
        if self.stage == BEGUN:
            self.stage = PERFORMED
            if self.file is not None:
                self.file.ended()
        return res

    def _performed(self, performed):
        self.on_end(-ECANCELED if performed.cancelled() else performed.result())

    cdef int on_end(self, int res) except -1:
        if res == -ECANCELED and self.had_no_worker():
            with nogil:
                res = uring_perform_here(&self.request)
        # close(2) has closed the descriptor even if it fails with EINTR.
        if ((res == -EINTR and not self.op.policy & NEVER_CANCELLED)
                or (res == -ECANCELED and self.traits & IDEMPOTENT)):
            if not self.cancelled and self.loop is not None and not self.loop.closed:
                return self.submit()
        self.res = res
        assert self.stage in (BEGUN, PERFORMED)
        if self.stage == BEGUN and self.file is not None:
            self.file.ended()
        self.stage = ENDED
        return self.resolve_future()

    cdef bint had_no_worker(self) noexcept:
        """Return whether an ECANCELED means that the kernel could not start a worker."""
        if self.cancelled or self.traits & LINKED or self.loop is None:
            return False
        if self.generation != self.loop.ring.generation or self.loop.ring.is_closed():
            return False
        # Closing a loop cancels every operation but those that close a descriptor.
        return self.op.policy & NEVER_CANCELLED != 0 or not self.loop.closed

    cdef int resolve_future(self) except -1:
        if self.future.get_loop().is_closed():
            # No task can be resumed. A worker may keep the operation, which then drops the future.
            self.future = None
        elif not self.future.done():
            self.future.set_result(None)
        return 0


cdef FileOperation new_operation(Descriptor file, object held):
    cdef FileOperation operation = FileOperation.__new__(FileOperation)
    operation.file = file
    operation.held = held
    operation_init(&operation.op, file_operation_on_completion, <PyObject*>operation)
    operation.op.policy = WORKER_OWNS_MEMORY
    return operation


cdef int begin_linked(FileOperation first, FileOperation second) except -1:
    """Submit both to the ring; *second* starts only after *first* has been done in full.

    Otherwise *second* ends with ECANCELED, so it must not be IDEMPOTENT.
    """
    ring_loop().ring.make_room(2)
    uring_link(&first.request)
    second.traits |= LINKED
    first.begin()
    second.begin()
    return 0


cdef LoopCore ring_loop():
    """Return the running loop if it is a uringloop.Loop, else None."""
    loop = PyObject_CallNoArgs(<PyObject*>GET_RUNNING_LOOP)
    return <LoopCore>loop if isinstance(loop, LoopCore) else None


cdef LoopCore loop_for(unsigned int opcode):
    """Return the running loop if its ring may do this operation, else None."""
    cdef LoopCore loop = ring_loop()
    return loop if loop is not None and loop.ring.does(opcode) else None


cdef bint can_link(unsigned int first, unsigned int second) except -1:
    """Return whether the running loop's ring may do both operations, as `begin_linked` needs."""
    return loop_for(first) is not None and loop_for(second) is not None


cdef int file_operation_on_completion(Operation *op, int res, unsigned int flags) except -1:
    return (<FileOperation>op.owner).on_end(res)
