"""The order of a file's calls, their thread, and the time of files in the loop's turn."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._turn.turn cimport LoopCore


cdef class FilesOfLoop:
    # What files keep for a loop of the class LoopCore; used by its thread only.
    cdef int64_t deadline_ns        # when the calls of files must stop, in the turn `turn`
    cdef uint64_t turn              # the number of the newest turn in which a file was called
    # Loops for tests set this: neither the page cache nor the real time then decides what a call
    # does, as both differ from run to run.
    cdef bint reproducible

    cdef bint is_turn_spent(self, LoopCore loop) except -1


cdef class CallLock:
    cdef readonly bint locked       # a call holds the lock
    cdef object waiting             # a deque of the futures of later calls, or None
    # Without a GIL: the calls in progress, and their thread. Used in the critical section.
    cdef Py_ssize_t calls
    cdef unsigned long thread
    cdef int64_t until              # under other loops: when calls must wait for the next turn
    cdef LoopCore loop              # that has run the last call, or None
    cdef FilesOfLoop files          # of that loop, or None
    cdef unsigned int process       # the process in which it did so

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef bint add_call(self) noexcept
    cdef void drop_call(self) noexcept
    cdef int give_back(self) except -1
    cdef int pass_on(self) except -1
    cdef LoopCore running_loop(self)
    cdef bint is_spent(self) except -1
    cdef void begin_turn(self) noexcept
    cdef void forget_loop(self) noexcept


cdef FilesOfLoop files_of(LoopCore loop)
