"""One request of a file, in flight on the loop's ring or in a thread of its executor."""

from cpython.object cimport PyObject

from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._ring.ring cimport Operation
from uringloop._turn.turn cimport LoopCore

cdef enum:
    # How long files work in a turn while somebody waits for the next one, in ns: an echo beside a
    # task that reads lines takes at most twice its time so.
    TURN_NS = 10 * 1000
    # The same on the software ring, which does not know whether anybody waits.
    SOFT_TURN_NS = 35 * 1000
    # The same under other loops, whose turns are not known and cost more.
    OTHERS_TURN_NS = 50 * 1000
    # How often it is looked whether somebody waits, once that time is over, in ns.
    LOOK_NS = 2 * 1000
    # Bytes that are copied without a look at the clock: 15 to 60 us with memory that is new.
    SLICE_BYTES = 128 * 1024


cdef class InFlight:
    # Counts the operations that use a descriptor: it is not closed before they have ended.
    cdef readonly int operations_in_flight
    cdef object idle                # a Future of who waits for them, or None

    cdef int ended(self) except -1


cdef class FileOperation:
    cdef Operation op
    cdef io_uring_sqe request       # what is asked for: submitted, again if its ring is lost
    cdef LoopCore loop              # whose ring has it; None for a thread of the executor
    cdef InFlight file              # what it counts for; None for one without a descriptor
    cdef object held                # bytes, views, paths: what the kernel reads or fills
    cdef object future              # of who waits
    cdef int res                    # a count, a descriptor or -errno, once it has ended
    cdef int generation             # of the ring that it was submitted to
    cdef bint in_thread             # the kernel's ring can not do it
    cdef bint counted               # in operations_in_flight
    cdef bint has_ended
    cdef bint cancelled             # by who waits
    cdef bint follows               # linked: an ECANCELED means that the first one was not done
    cdef bint repeatable            # doing it twice is doing it once
    cdef bint detachable            # who waits need not wait for the end of what he cancels
    cdef bint postponed             # the turn had no share for it, and it may be cached
    cdef Py_ssize_t filled          # bytes that were there without waiting

    cdef object run(self)
    cdef int begin(self) except -1
    cdef int submit(self) except -1
    cdef int cancel(self) except -1
    cdef int on_end(self, int res) except -1
    cdef bint had_no_worker(self) noexcept
    cdef int tell(self) except -1


cdef FileOperation new_operation(InFlight file, object held)
cdef int begin_linked(FileOperation first, FileOperation second) except -1
cdef LoopCore ring_loop()
cdef bint is_spent(LoopCore loop) except -1
