"""The sleep in epoll_wait(2) of a loop that waits for little but watched descriptors.

The ring waits for the epoll instance of the watched descriptors by a request, and each of their
events then also takes a submission, a poll of the instance, task work and a completion. Where the
ring has nothing else to report, the loop sleeps in epoll_wait(2) instead, as loops on epoll do. Its
instance then also has the eventfd that the kernel writes to when the ring has something, and the
waker of other threads, which may not pass through the ring's (shared_sockets.h).

    IN_RING ──the ring brought only events for `needed` turns in a row──> AT_EPOLL
       ^                                                                     │
       └── the ring ended several sleeps, LOOKS_MAX looks of a busy loop ────┘
           found nothing, or the ring was replaced
    IN_RING ──the kernel refuses the eventfd──> ALWAYS_IN_RING

The owner of the descriptors gets the events as if its request had completed. Only the loop's thread
may call.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.atomics cimport count_total
from uringloop._kernel.epoll cimport (
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLET,
    EPOLLIN,
    epoll_ctl,
    epoll_event,
    uring_epoll_wait,
)
from uringloop._kernel.errors cimport EEXIST, EINTR, errno
from uringloop._ring.ring cimport ALLOWED, Ring
from uringloop._ring.uring cimport (
    URING_FOREVER,
    uring_close_eventfd,
    uring_open_eventfd,
    uring_pending,
)


# The first change of place takes so many turns with nothing but events. The number doubles with
# each return, since a change takes six system calls.
TURNS_MIN = 16
TURNS_MAX = 1024
# A sleep that the ring ended costs an enter more than one in the ring, and one that an event ended
# saves half of that.
CREDIT_MAX = 16
RING_COST = 4
# A loop that does not sleep looks for events in each turn; a request in the ring needs no look.
LOOKS_MAX = 8
# A ring's request that reads an eventfd does not write to the ring's (shared_sockets.h): after this
# time without events the loop sleeps in the ring.
SLEEP_MAX_NS = 100_000_000

# The data of events that are not of watched descriptors.
cdef uint64_t WAKE = <uint64_t>-1
cdef int FIRST_TURNS = TURNS_MIN
cdef int MOST_TURNS = TURNS_MAX
cdef int CREDIT = CREDIT_MAX
cdef int COST = RING_COST
cdef int LOOKS = LOOKS_MAX
cdef int64_t SLEEP_MAX = SLEEP_MAX_NS


@cython.final
cdef class EpollSleep:

    def __cinit__(self):
        self.place = ALWAYS_IN_RING

    def open(self, Ring ring not None, int waker_fd):
        """Begin with a new ring; writes to *waker_fd* end a sleep."""
        self.ring = ring
        self.waker_fd = waker_fd
        self.needed = FIRST_TURNS
        # A kernel thread, a busy-polling loop and one that lets completions gather stay in the
        # ring, and a software ring's own epoll instance would be in the watchers' and they in it.
        if ring.u.soft == NULL and not ring.u.threaded and not ring.spin_ns and not ring.batch_ns:
            self.place = IN_RING

    cdef bint suits(self) except -1:
        """Note that the ring has brought events; return whether the loop should go to epoll."""
        cdef uint64_t brought = self.ring.completions - self.completions
        self.completions = self.ring.completions
        self.events_only = self.events_only + 1 if brought == 1 else 0
        return self.place == IN_RING and self.events_only >= self.needed

    cdef int enter(self, int epoll_fd) except -1:
        """Sleep at *epoll_fd* from now on, if the kernel permits it."""
        assert self.place == IN_RING and not self.wait_op.in_flight
        self.events_only = 0
        if self.ring.u.accept_epoll_fd >= 0 or self.ring.permission != ALLOWED:
            # The loop has an eventfd already, and sleeps in epoll_wait(2) on its own.
            return 0
        self.epoll_fd = epoll_fd
        if uring_open_eventfd(&self.ring.u) < 0:
            self.place = ALWAYS_IN_RING
            return 0
        if self._add(self.ring.u.eventfd) < 0 or self._add(self.waker_fd) < 0:
            self.place = ALWAYS_IN_RING
            uring_close_eventfd(&self.ring.u)
            return 0
        self.place = AT_EPOLL
        self.generation = self.ring.generation
        self.credit = CREDIT
        self.empty_looks = self.found = 0
        return 0

    cdef int leave(self) except -1:
        """Wait in the ring again; the caller arms the request."""
        cdef epoll_event event
        if self.place != AT_EPOLL:
            return 0
        self.place = IN_RING
        self.found = 0
        self.completions = self.ring.completions
        # Errors are ignored: the instance may be a new one.
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, self.waker_fd, &event)
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, self.ring.u.eventfd, &event)
        uring_close_eventfd(&self.ring.u)
        return 0

    cdef int _sleep(self, int64_t timeout_ns) except -1:
        cdef bint ring_woke
        cdef bint limited
        # The loop has entered for work that the kernel holds back. If the flag is still set, it is
        # stale (uring_has_task_work), and costs an enter for each sleep until the ring has work.
        cdef bint stale = self.ring.has_task_work()
        if uring_pending(&self.ring.u):
            self.ring.submit()
        if self.generation != self.ring.generation or self.ring.permission != ALLOWED:
            return self._go_back()
        if self.ring.has_completions():
            self.credit -= COST
            return self._look()
        limited = self.ring.count and (timeout_ns == URING_FOREVER or timeout_ns > SLEEP_MAX)
        if limited:
            timeout_ns = SLEEP_MAX
        with nogil:
            ring_woke = self._fetch(-1 if timeout_ns == URING_FOREVER else timeout_ns)
        self.empty_looks = 0
        if ring_woke or stale:
            self.credit -= COST
        elif self.found > 0:
            self.credit = min(self.credit + COST // 2, CREDIT)
        elif limited and self.found == 0:
            return self._go_back()
        # Events that have been fetched are reported again.
        return self._give_up() if self.credit <= 0 else 0

    cdef int _look(self) except -1:
        if self.generation != self.ring.generation:
            return self._go_back()
        self._fetch(0)
        self.empty_looks = 0 if self.found else self.empty_looks + 1
        return self._give_up() if self.empty_looks >= LOOKS else 0

    cdef int _deliver(self) except -1:
        cdef int found = self.found
        self.found = 0
        return self.wait_op.on_completion(self.wait_op, found, 0)

    cdef int _give_up(self) except -1:
        """Go back to the ring, for longer each time."""
        self.needed = min(2 * self.needed, MOST_TURNS)
        return self._go_back()

    cdef int _go_back(self) except -1:
        # The owner of the descriptors arms its request at the end of the next turn.
        self.leave()
        self.wait_op.on_completion(self.wait_op, 0, 0)
        return 0

    cdef int _add(self, int fd) noexcept:
        cdef epoll_event event
        # By edge: one event for each write, and nothing reads it.
        event.events = EPOLLIN | EPOLLET
        event.data.u64 = WAKE
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 and errno != EEXIST:
            return -errno
        return 0

    cdef bint _fetch(self, int64_t timeout_ns) noexcept nogil:
        """Wait for events of watched descriptors; return whether something else ended the wait."""
        cdef bint woke = False
        cdef int index = 0
        cdef int count = uring_epoll_wait(self.epoll_fd, self.events, self.size, timeout_ns)
        count_total(&self.ring.u.enters, 1)
        if count < 0:
            self.found = 0 if errno == EINTR else -errno
            return False
        while index < count:
            if self.events[index].data.u64 == WAKE:
                woke = True
                count -= 1
                self.events[index] = self.events[count]
            else:
                index += 1
        self.found = count
        return woke
