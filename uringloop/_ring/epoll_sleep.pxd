"""The sleep in epoll_wait(2) of a loop that waits for little but watched descriptors."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.epoll cimport epoll_event
from uringloop._ring.ring cimport Operation, Ring
from uringloop._ring.uring cimport uring


cdef extern from "_ring/at_epoll.h" nogil:
    int uring_join_epoll(uring *u, int epoll_fd, uint64_t data)
    void uring_leave_epoll(uring *u, int epoll_fd)
    int uring_sleep_at_epoll(
        uring *u, int epoll_fd, epoll_event *events, int size, int64_t timeout_ns)


# Where the loop waits for watched descriptors; the drawing is in epoll_sleep.pyx.
cdef enum Place:
    IN_RING             # a request of the ring waits for the epoll instance
    AT_EPOLL            # the loop sleeps in epoll_wait(2); the ring has no request
    ALWAYS_IN_RING      # the kernel has refused what AT_EPOLL needs


cdef class EpollSleep:
    cdef Ring ring
    cdef int waker_fd           # by which other threads end a sleep; the loop's
    cdef Place place
    cdef int epoll_fd           # the watchers' instance, at which the loop sleeps; theirs
    cdef epoll_event *events    # the watchers' memory for events
    cdef int size               # of `events`
    cdef int found              # events there that are not delivered yet, or -errno
    cdef Operation *wait_op     # the watchers' request, which gets the events
    cdef uint64_t completions   # of the ring, when it last brought events
    cdef int generation         # of the ring that ends sleeps at the instance
    cdef int events_only        # turns in a row in which the ring brought nothing but events
    cdef int needed             # so many of them for AT_EPOLL
    cdef int credit             # AT_EPOLL: what it has gained, less what it has cost

    cdef bint suits(self) except -1
    cdef int enter(self, int epoll_fd) except -1
    cdef int leave(self) except -1

    cdef inline int wait(self, int64_t timeout_ns) except -1:
        """Submit what is prepared, and sleep in the ring or in epoll_wait(2)."""
        return self._sleep(timeout_ns) if self.place == AT_EPOLL else self.ring.wait(timeout_ns)

    cdef inline int submit(self) except -1:
        """Submit what is prepared, and fetch what is there, in a turn without a sleep."""
        if self.place == AT_EPOLL:
            return self._look()
        return self.ring.submit() if self.ring.needs_enter() else 0

    cdef inline int look_again(self) except -1:
        """Fetch events as a run begins: those of the run before may not be true any more."""
        return self._look() if self.place == AT_EPOLL else 0

    cdef inline int deliver(self) except -1:
        """Let the owner of the descriptors run the callbacks for the events fetched."""
        return self._deliver() if self.found else 0

    cdef int _add_waker(self) noexcept
    cdef int _sleep(self, int64_t timeout_ns) except -1
    cdef int _look(self) except -1
    cdef bint _submit(self, bint needed) except -1
    cdef int _deliver(self) except -1
    cdef int _give_up(self) except -1
    cdef int _go_back(self) except -1
    cdef bint _fetch(self, int64_t timeout_ns) except -1
    cdef int _wait(self, int64_t timeout_ns) noexcept nogil
