"""Listening sockets that other processes accept from, too."""

from libc.stdint cimport int64_t

from uringloop._ring.ring cimport Operation
from uringloop._turn.flushable cimport Flushable
from uringloop._turn.turn cimport LoopCore


cdef enum:
    # Connections accepted in a row before other work runs.
    ACCEPTS_MAX = 32


cdef class ListeningSocket(Flushable):
    cdef LoopCore loop
    cdef int fd
    cdef object inode           # of the socket: the same in all processes that have it
    cdef Operation poll_op      # multishot
    cdef bint shared            # SharedListeners have it
    cdef unsigned int forks     # of this process, at the newest call of is_shared_by_now()
    cdef int64_t checked_ns     # when is_shared_by_now() last looked for other processes

    cdef int submit_poll(self) except -1
    cdef int accept_waiting(self, int most) except -1
    cdef bint is_shared_by_now(self) except -1


cdef class SharedListeners(Flushable):
    cdef LoopCore loop
    cdef dict listeners         # ListeningSocket by descriptor
    cdef int full_turns         # counts turns that accepted their maximum, up to FULL_TURNS_MAX
    cdef bint seen_others       # at `checked_ns` others accepted from one of the sockets
    cdef int64_t checked_ns     # when others_accept() last looked for other processes
    cdef int64_t yielded_ns     # when this process last gave up the processor
    cdef int64_t looked_ns      # when flush() last polled the accept epoll
    cdef int64_t searched_ns    # when flush() last called search()

    cdef int add(self, ListeningSocket listener) except -2
    cdef int open_epoll(self) except -2
    cdef int remove(self, ListeningSocket listener) except -1
    cdef int close_if_empty(self) except -1
    cdef int search(self) except -1
    cdef int accept_ready(self) except -1
    cdef bint others_accept(self) except -1
    cdef int sleep_in_ring(self) except -1
    cdef int sleep_at_epoll(self) except -1
    cdef int dissolve(self) except -1
