"""Watched descriptors: add_reader and add_writer, by epoll."""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from uringloop._kernel.epoll cimport epoll_event
from uringloop._ring.ring cimport Operation
from uringloop._turn.fd_table cimport FdTable
from uringloop._turn.handles cimport Handle
from uringloop._turn.sleeper cimport EVENTS_MAX, EpollUser
from uringloop._turn.turn cimport LoopCore


cdef class Watched:
    # A descriptor that the program watches.
    cdef int fd
    cdef object file            # the argument of add_reader: a number or an object with fileno()
    cdef unsigned int number    # of the newest watch(); an event with another number is stale
    cdef unsigned int events    # EPOLLIN, EPOLLOUT: those with a handle
    cdef Handle reader
    cdef Handle writer

    cdef int put(self, unsigned int event, Handle handle) except -1
    cdef int cancel(self, unsigned int events) except -1


cdef class Watchers(EpollUser):
    cdef LoopCore loop          # None after close()
    cdef dict watched           # Watched by descriptor
    cdef FdTable by_fd          # the same, borrowed; looked up for each event
    cdef unsigned int asked     # calls of watch()
    cdef unsigned int resumed   # nested runs that have armed epoll again
    cdef int stale_batches      # completions in a row with events of unwatched descriptors
    cdef int failures           # of waits in a row
    cdef bint retrying          # a timer waits until the next attempt
    cdef Operation wait_op      # waits for events of the loop's epoll instance
    cdef bint direct            # wait_op fills `events` (EPOLL_WAIT); otherwise it is a poll
    cdef epoll_event[EVENTS_MAX] events     # those that the ring's request has brought

    cdef int forget(self, Watched watched) except -1
    cdef int control(self, int operation, Watched watched, unsigned int events) noexcept
    cdef int add(self, Watched watched, unsigned int event) except -1
    cdef int arm(self) except -1
    cdef int on_completion(self, int res) except -1
    cdef int fetch(self) noexcept
    cdef int wait_failed(self, int res) except -1
    cdef int retry_later(self, int res) except -1
    cdef inline bint waits_in_ring(self) noexcept:
        return not self.loop.sleeper.is_at_epoll()

    cdef int wait_again(self) except -1
    cdef int due_handles(self, epoll_event *events, int count, PyObject **due) noexcept
    cdef bint reports_unwatched(self) except -1
    cdef Watched watched_by(self, uint64_t key)
    cdef int renew(self) except -1
    cdef int replace_instance(self) except -1
