"""Where a loop sleeps: in its ring, or in epoll_wait(2)."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.atomics cimport store_int
from uringloop._kernel.epoll cimport epoll_event
from uringloop._ring.ring cimport Ring


cdef enum:
    # Events that are fetched in one turn; epoll reports more in the next turn.
    EVENTS_MAX = 128

    # The credit that watched descriptors can give a loop, in units of 0.08 us.
    CREDIT_MAX = 32


# Where the loop sleeps; the drawing is in sleeper.pyx.
cdef enum Place:
    IN_RING             # the ring waits for everything
    ALWAYS_IN_RING      # the kernel has refused what AT_EPOLL needs
    AT_EPOLL            # the loop sleeps in epoll_wait(2) at its epoll instance
    AT_EPOLL_EXCLUSIVE  # the instance also has the listening sockets; the ring does not poll them


cdef class EpollUser:
    # An object that has descriptors in the loop's epoll instance.
    cdef int arm(self) except -1
    cdef int on_ready(self, epoll_event *events, int count) except -1
    cdef int on_error(self, int res) except -1
    cdef int on_place(self) except -1
    cdef int search_missed(self) except -1
    cdef int on_close(self) except -1


cdef class Sleeper:
    cdef Ring ring
    cdef int epoll_fd           # the loop's epoll instance; -1 before open() and after close()
    cdef int waker_fd           # by which other threads end a sleep; the loop's
    cdef Place place
    cdef EpollUser watchers     # of the program's descriptors; None in a loop without I/O
    cdef EpollUser listeners    # the shared listening sockets; None before the first
    cdef int watching           # the program watches descriptors; any thread may set it
    cdef bint unarmed           # IN_RING: before the next sleep the watchers have to arm a request
    cdef epoll_event[EVENTS_MAX] events     # of watched descriptors, not delivered yet
    cdef int found              # their number
    cdef int error              # -errno of an epoll_wait(2), not delivered yet; else 0
    cdef epoll_event connection     # at a listening socket, to be delivered; else without events
    cdef int generation         # of the ring that ends sleeps at the instance
    cdef uint64_t completions   # of the ring, when it last brought events
    cdef int events_only        # turns in a row in which the ring brought nothing but events
    cdef int needed             # so many of them bring the loop to AT_EPOLL
    cdef int credit             # AT_EPOLL: what sleeping there has saved, less what it has cost
    cdef int64_t slept_ns       # in epoll_wait(2), by the newest sleep; 0 after a turn without one
    cdef int64_t looked_ns      # when a turn without a sleep last looked for events
    cdef int64_t searched_ns    # when search_missed() was last called
    cdef int64_t search_interval_ns     # between two of these calls, and so the longest sleep

    cdef int close_epoll(self) except -1

    cdef inline bint is_at_epoll(self) noexcept:
        return self.place >= AT_EPOLL

    cdef inline bint is_exclusive(self) noexcept:
        return self.place == AT_EPOLL_EXCLUSIVE

    cdef inline int set_watchers(self, EpollUser watchers) except -1:
        assert self.watchers is None
        self.watchers = watchers
        return 0

    cdef inline int set_listeners(self, EpollUser listeners) except -1:
        assert self.listeners is None
        self.listeners = listeners
        return 0

    cdef inline void note_watched(self, Py_ssize_t number) noexcept:
        """Note how many descriptors the program watches."""
        store_int(&self.watching, number != 0)

    cdef inline void request_arm(self) noexcept:
        """Have the watchers arm their request before the next sleep, if that is in the ring."""
        self.unarmed = not self.is_at_epoll()

    cdef bint note_events(self) except -1
    cdef bint go_to_epoll(self, int credit) except -1
    cdef bint enter_exclusive(self) except -1
    cdef int go_to_ring(self) except -1
    cdef int forbid_epoll(self) except -1
    cdef int renew(self) except -1
    cdef int control(self, int operation, int fd, epoll_event *event) noexcept

    cdef inline int wait(self, int64_t timeout_ns) except -1:
        """Submit what is prepared, and sleep."""
        if self.unarmed:
            self._arm()
        return self._sleep(timeout_ns) if self.is_at_epoll() else self.ring.wait(timeout_ns)

    cdef inline int submit(self) except -1:
        """Submit what is prepared, and fetch what is there, in a turn without a sleep."""
        if self.unarmed:
            self._arm()
        if self.is_at_epoll():
            return self._look()
        return self.ring.submit() if self.ring.needs_enter() else 0

    cdef inline int look_again(self) except -1:
        """Fetch events as a run begins: those of the run before may not be true any more."""
        self.looked_ns = 0
        return self._look() if self.is_at_epoll() else 0

    cdef inline int deliver(self) except -1:
        """Call the users of the instance for the events that were fetched."""
        return self._deliver() if self._has_events() else 0

    cdef inline bint _has_events(self) noexcept:
        """Return whether something was fetched that is not delivered yet."""
        return self.found or self.error or self.connection.events

    cdef inline void _drop_events(self) noexcept:
        """Forget what was fetched: epoll reports events again."""
        self.found = self.error = self.connection.events = 0

    cdef int _add_waker(self) noexcept
    cdef int _arm(self) except -1
    cdef int64_t _longest_ns(self) noexcept
    cdef int _sleep(self, int64_t timeout_ns) except -1

    cdef inline void _raise_credit(self, int credit) noexcept:
        self.credit = max(self.credit, credit)

    cdef void _pay_for_ring(self) noexcept
    cdef int _look(self) except -1
    cdef int _search(self, int64_t now) except -1
    cdef bint _ring_changes(self) noexcept
    cdef int _deliver(self) except -1
    cdef int _give_up(self) except -1
    cdef bint _fetch(self, int64_t timeout_ns) except -1
    cdef int _wait(self, int64_t timeout_ns) noexcept nogil


cdef inline uint64_t listening_key(int fd) noexcept:
    """Return the data of a listening socket's events. As an int it is less than -1."""
    return <uint64_t>(-2 - <int64_t>fd)


cdef inline int listening_fd(uint64_t key) noexcept:
    return <int>(-2 - <int64_t>key)
