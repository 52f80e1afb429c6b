"""One request of a file, in flight on the loop's ring or in a thread of its executor."""

from cpython.object cimport PyObject

from uringloop._core.loop cimport LoopCore
from uringloop._core.ring cimport Operation
from uringloop._native.uring cimport io_uring_sqe

cdef enum:
    # What a call that is answered at once counts, besides its bytes, against what a turn may copy.
    CALL_BYTES = 4096


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
cdef Py_ssize_t share_of(LoopCore loop, Py_ssize_t size) except? -1
