"""What the task of a suspended read waits for, in place of a future."""

from uringloop._turn.turn cimport LoopCore


cdef enum WaiterState:
    PENDING
    RESOLVED
    FAILED          # result() raises `error`
    CANCELLED       # result() raises CancelledError


cdef class ReadWaiter:
    cdef LoopCore loop
    cdef WaiterState state
    cdef bint blocking          # asyncio's mark of a future that is being awaited
    cdef object callback        # called when the state is no longer PENDING; None before it is set
    cdef object context         # in which `callback` is called
    cdef list more_callbacks    # pairs of a further callback and its context; mostly None
    cdef object error           # FAILED: the exception; CANCELLED: the message

    cdef int add_callback(self, object callback, object context) except -1
    cdef int reset(self) except -1
    cdef int resolve(self) except -1
    cdef int schedule_callbacks(self) except -1
    cdef int schedule(self, object callback, object context) except -1


cdef ReadWaiter new_waiter(LoopCore loop)
