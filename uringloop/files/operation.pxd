"""One request of a file, in flight on the loop's ring or in a thread of its executor."""

from cpython.object cimport PyObject

from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._ring.ring cimport Operation
from uringloop._turn.turn cimport LoopCore

cdef enum:
    # Bytes that are copied without a look at the clock: 15 to 60 us into fresh memory.
    SLICE_BYTES = 128 * 1024


cdef class Descriptor:
    # The descriptor of a file. It is not closed before the operations that use it have ended.
    cdef int fd                     # -1 once it is closed
    # These two are used in the critical section: the garbage collector may destroy a call in any
    # thread.
    cdef int in_flight
    cdef object idle                # the future of `_become_idle`, or None

    cdef int check_open(self) except -1
    cdef void started(self) noexcept
    cdef int ended(self) except -1
    cdef object end_of_all(self)


# The drawing is in operation.pyx.
cdef enum Stage:
    PREPARED        # not begun
    OUT_OF_TIME     # not begun: the turn had no time for the rest, which may be cached
    BEGUN           # on the ring or in a thread, and counted in its file's `in_flight`
    PERFORMED       # by a thread; its loop has not been told
    ENDED           # `res` is set, or `filled` has everything


# The properties of an operation, fixed before it begins.
cdef enum Trait:
    IDEMPOTENT = 1 << 0     # may be submitted again: doing it twice has the same effect
    DETACHABLE = 1 << 1     # a cancelled caller need not wait for the end
    NEEDS_THREAD = 1 << 2   # the ring lacks this operation, or the caller's rights
    LINKED = 1 << 3         # behind another: ECANCELED means that the other one failed


cdef class FileOperation:
    cdef Operation op
    cdef io_uring_sqe request       # copied to the ring; copied again if the ring is lost
    cdef LoopCore loop              # whose ring has it; None for a thread of the executor
    cdef Descriptor file            # whose `in_flight` counts it, or None
    cdef object held                # bytes, views, paths: the memory that the kernel reads or fills
    cdef object future              # resolved at the end of the operation
    cdef int res                    # a count, a descriptor or -errno, once it has ended
    cdef int generation             # of the ring that it was submitted to
    cdef Stage stage
    cdef unsigned int traits        # bits of Trait
    cdef bint cancelled             # by the task that awaits it
    cdef Py_ssize_t filled          # bytes that were read from the page cache

    cdef object run(self)
    cdef int begin(self) except -1
    cdef int submit(self) except -1
    cdef int cancel(self) except -1
    cdef int on_end(self, int res) except -1
    cdef bint had_no_worker(self) noexcept
    cdef int resolve_future(self) except -1


cdef FileOperation new_operation(Descriptor file, object held)
cdef int begin_linked(FileOperation first, FileOperation second) except -1
cdef LoopCore ring_loop()
cdef LoopCore loop_for(unsigned int opcode)
cdef bint can_link(unsigned int first, unsigned int second) except -1
