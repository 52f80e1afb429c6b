"""Calls of functions in the threads of a pool, and the way of their results to the loop."""

cimport cython
from libc.stdint cimport int64_t

from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport LoopCore


# A thread that waits for an item; on its stack, and in the queue's list until it is woken.
cdef struct Parked:
    int woken
    Parked *below


cdef class Item:
    cdef Item next              # in the queue, behind this one
    cdef int64_t put_ns         # when it was put
    cdef object foreign         # an item of the ThreadPoolExecutor's own; unused in a Job


@cython.final
cdef class Job(Item):
    cdef LoopCore loop
    cdef object awaited         # the caller's future
    cdef object function        # None once it has run
    cdef tuple args
    cdef Handle handle          # brings the outcome to the loop; None once it does
    cdef object result          # of the function
    cdef object exception       # that the function has raised, else None
    cdef bint cancelled         # the pool is shut down before the function has run

    cdef int perform(self) except -1
    cdef int complete(self) except -1


@cython.final
cdef class JobQueue:
    cdef Item first             # None if the queue is empty
    cdef Item last
    cdef Py_ssize_t count
    cdef int64_t waited_ns      # for how long the last item was in the queue
    cdef Parked *parked         # the threads that wait, the latest first
    cdef Py_ssize_t parked_count
    cdef bint one_is_waking     # a thread that was woken has not yet looked for an item
    cdef bint closed            # the pool, or the interpreter, is shutting down
    cdef bint ends              # a thread that finds the queue empty is to end
    cdef unsigned int process   # that of the parked threads, as PROCESS

    cdef int append(self, Item item) except -1
    cdef Item take(self, Parked *here)
    cdef Item remove_first(self)
    cdef void wake_one(self) noexcept
    cdef void forget_threads(self) noexcept
