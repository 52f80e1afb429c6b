"""What the program watches, told by epoll."""

from libc.stdint cimport uint64_t

from uringloop._kernel.epoll cimport epoll_event
from uringloop._ring.ring cimport Operation
from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport Flushable, LoopCore


cdef enum:
    # What is ready beyond these is told in the next turn.
    EVENTS_MAX = 128


cdef class Watched:
    # A descriptor of the program's.
    cdef int fd
    cdef object file            # what add_reader was given: the number, or what has one
    cdef unsigned int number    # of what was last asked for; tells old events from new ones
    cdef unsigned int events    # EPOLLIN, EPOLLOUT: for those there is a handle
    cdef Handle reader
    cdef Handle writer

    cdef int put(self, unsigned int event, Handle handle) except -1
    cdef int cancel(self, unsigned int events) except -1


cdef class Watchers(Flushable):
    cdef LoopCore loop          # None once it is closed
    cdef int epoll_fd           # ours; -1 once the loop is closed
    cdef dict watched           # a Watched by its descriptor
    cdef unsigned int asked     # how often something was asked for
    cdef unsigned int resumed   # how many nested runs have asked epoll anew
    cdef int strangers          # completions with events of what nobody watches
    cdef Operation wait_op      # for events of epoll_fd
    cdef bint direct            # which are in `events` then; otherwise it is a poll
    cdef epoll_event[EVENTS_MAX] events

    cdef int control(self, int operation, Watched watched, unsigned int events) noexcept
    cdef int add(self, Watched watched, unsigned int event) except -1
    cdef int arm(self) except -1
    cdef int on_events(self, int res, unsigned int flags) except -1
    cdef list ready_handles(self, int count)
    cdef bint has_strangers(self) except -1
    cdef Watched watched_by(self, uint64_t told)
    cdef int renew(self, bint lost) except -1
