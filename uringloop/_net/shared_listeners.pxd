"""Listening sockets that other processes accept from, too."""

from libc.stdint cimport int64_t

from uringloop._ring.ring cimport Operation
from uringloop._turn.sleeper cimport EpollUser, Sleeper
from uringloop._turn.turn cimport LoopCore, TurnUser


cdef enum:
    # Connections accepted in a row before other work runs.
    ACCEPTS_MAX = 32


cdef class ListeningSocket(TurnUser):
    cdef LoopCore loop
    cdef int fd
    cdef object inode           # of the socket: the same in all processes that have it
    cdef Operation poll_op      # multishot
    cdef bint shared            # while it accepts, SharedListeners wait for its connections
    cdef unsigned int forks     # of this process, at the newest call of is_shared_by_now()
    cdef int64_t checked_ns     # when is_shared_by_now() last looked for other processes

    cdef int submit_poll(self) except -1
    cdef int accept_waiting(self, int most) except -1
    cdef bint is_shared_by_now(self) except -1
    cdef bint others_accept(self) except -1


cdef class SharedListeners(EpollUser):
    cdef LoopCore loop
    cdef Sleeper sleeper        # the loop's
    cdef dict listeners         # ListeningSocket by descriptor
    cdef int spare_fd           # for a connection when no descriptor is free; or -1
    cdef int full_turns         # counts turns that accepted their maximum, up to FULL_TURNS_MAX
    cdef bint seen_others       # at `checked_ns` others accepted from one of the sockets
    cdef int64_t checked_ns     # when others_accept() last looked for other processes
    cdef int64_t yielded_ns     # when this process last gave up the processor

    cdef int add(self, ListeningSocket listener) except -2
    cdef int remove(self, ListeningSocket listener) except -1
    cdef bint wait_at_epoll(self) except -1
    cdef int join_queue(self, ListeningSocket listener) noexcept
    cdef int leave_queue(self, ListeningSocket listener) noexcept
    cdef int requeue(self, ListeningSocket listener) noexcept
    cdef int keep_spare(self) noexcept
    cdef bint use_spare(self) noexcept
    cdef bint others_accept(self) except -1
