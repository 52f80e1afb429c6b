"""The sleep in epoll_wait(2) of a loop that waits for little but watched descriptors.

The ring waits for the epoll instance of the watched descriptors by a request, and each of their
events then also takes a submission, a poll of the instance, task work and a completion. Where the
ring has nothing else to report, the loop sleeps in epoll_wait(2) instead, as loops on epoll do. Its
instance then also has the descriptor by which the ring ends such a sleep (at_epoll.h), and the
waker of other threads, which may not pass through the ring's (shared_sockets.h).

    IN_RING ──the ring brought only events for `needed` turns in a row──> AT_EPOLL
       ^                                                                     │
       └──────────────── `credit` is used up, or the ring was replaced ──────┘
    IN_RING ──the kernel refuses what AT_EPOLL needs──> ALWAYS_IN_RING

The owner of the descriptors gets the events as if its request had completed. Only the loop's thread
may call.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.epoll cimport (
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLET,
    EPOLLIN,
    epoll_ctl,
    epoll_event,
)
from uringloop._kernel.errors cimport EEXIST, EINTR, errno
from uringloop._ring.features cimport EPOLL_SLEEP, uses
from uringloop._ring.ring cimport Ring
from uringloop._ring.uring cimport URING_FOREVER, uring_is_usable, uring_pending


cdef enum:
    # The first change of place takes so many turns with nothing but events. The number doubles when
    # the loop has used up its credit, since a change takes six system calls.
    TURNS_MIN = 16
    TURNS_MAX = 1024
    # What AT_EPOLL gains and costs, in units of 0.08 us. A sleep that an event ended saves
    # SLEEP_GAIN, and one that the ring ended takes an enter more. A turn without a sleep makes a
    # call that looks for events, which a request of the ring does not need: five such turns for
    # each event are as expensive in either place.
    CREDIT_MAX = 32
    SLEEP_GAIN = 4
    RING_COST = 8
    LOOK_COST = 1
    # A ring's request that reads an eventfd does not write to the ring's (shared_sockets.h): after
    # this time without events the loop sleeps in the ring.
    SLEEP_MAX_NS = 100_000_000

# The data of events that are not of watched descriptors.
cdef uint64_t WAKE = <uint64_t>-1


@cython.final
cdef class EpollSleep:

    def __cinit__(self):
        self.place = ALWAYS_IN_RING

    def open(self, Ring ring not None, int waker_fd):
        """Begin with a new ring; writes to *waker_fd* end a sleep."""
        self.ring = ring
        self.waker_fd = waker_fd
        self.needed = TURNS_MIN
        # A kernel thread, a busy-polling loop and one that lets completions gather stay in the
        # ring.
        if (uses(EPOLL_SLEEP, ring.u.soft != NULL)
                and not ring.u.threaded and not ring.spin_ns and not ring.batch_ns):
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
        if self.ring.u.accept_epoll_fd >= 0 or self.ring.must_fall_back():
            # The ring ends sleeps at another instance, or is about to be replaced.
            return 0
        self.epoll_fd = epoll_fd
        if uring_join_epoll(&self.ring.u, epoll_fd, WAKE) < 0 or self._add_waker() < 0:
            self.place = ALWAYS_IN_RING
            uring_leave_epoll(&self.ring.u, epoll_fd)
            return 0
        self.place = AT_EPOLL
        self.generation = self.ring.generation
        self.credit = CREDIT_MAX
        self.found = 0
        return 0

    cdef int _add_waker(self) noexcept:
        cdef epoll_event event
        # By edge: one event for each write, and nothing reads it.
        event.events = EPOLLIN | EPOLLET
        event.data.u64 = WAKE
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, self.waker_fd, &event) < 0 and errno != EEXIST:
            return -errno
        return 0

    cdef int leave(self) except -1:
        """Wait in the ring again; the caller arms the request."""
        cdef epoll_event event
        if self.place != AT_EPOLL:
            return 0
        self.place = IN_RING
        self.found = 0
        self.completions = self.ring.completions
        if uring_is_usable(&self.ring.u):
            # Not in a forked child: the instance is also its parent's. Errors are ignored: the
            # instance may have been closed.
            epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, self.waker_fd, &event)
            uring_leave_epoll(&self.ring.u, self.epoll_fd)
        return 0

    cdef int _sleep(self, int64_t timeout_ns) except -1:
        # The loop has entered for work that the kernel holds back. If the flag is still set, it is
        # stale (uring_has_task_work), and costs an enter for each sleep until the ring has work.
        cdef bint by_ring = self.ring.has_task_work()
        cdef bint limited = self.ring.count and (
            timeout_ns == URING_FOREVER or timeout_ns > SLEEP_MAX_NS)
        if not self._submit(uring_pending(&self.ring.u) != 0):
            return self._go_back()
        if self.ring.has_completions():
            by_ring = True
            timeout_ns = 0
        elif limited:
            timeout_ns = SLEEP_MAX_NS
        if self._fetch(timeout_ns) or by_ring:
            self.credit -= RING_COST
        elif self.found > 0:
            self.credit = min(self.credit + SLEEP_GAIN, CREDIT_MAX)
        elif limited and self.found == 0:
            return self._go_back()
        # Events that have been fetched are reported again.
        return self._give_up() if self.credit <= 0 else 0

    cdef int _look(self) except -1:
        if not self._submit(uring_pending(&self.ring.u) or self.ring.has_task_work()):
            return self._go_back()
        self._fetch(0)
        if not self.found:
            self.credit -= LOOK_COST
        return self._give_up() if self.credit <= 0 else 0

    cdef bint _submit(self, bint needed) except -1:
        """Enter if *needed*; return whether the ring still ends sleeps at the instance."""
        # Not in a forked child, which would take its parent's wake-ups.
        self.ring.check_inherited()
        if needed:
            self.ring.submit()
        return self.generation == self.ring.generation and not self.ring.must_fall_back()

    cdef int _deliver(self) except -1:
        cdef int found = self.found
        self.found = 0
        return self.wait_op.on_completion(self.wait_op, found, 0)

    cdef int _give_up(self) except -1:
        """Go back to the ring, for longer each time."""
        self.needed = min(2 * self.needed, TURNS_MAX)
        return self._go_back()

    cdef int _go_back(self) except -1:
        # The owner of the descriptors arms its request at the end of the next turn.
        self.leave()
        self.wait_op.on_completion(self.wait_op, 0, 0)
        return 0

    cdef bint _fetch(self, int64_t timeout_ns) except -1:
        """Wait for events of watched descriptors; return whether something else ended the wait."""
        cdef bint woke = False
        cdef int index = 0
        cdef int count
        if timeout_ns:
            with nogil:
                count = self._wait(timeout_ns)
        else:
            count = self._wait(0)
        if count == -EINTR:
            count = 0
            woke = True
        while index < count:
            if self.events[index].data.u64 == WAKE:
                woke = True
                count -= 1
                self.events[index] = self.events[count]
            else:
                index += 1
        self.found = count
        if woke and self.ring.u.soft != NULL:
            # Only an enter finds out what the software ring has.
            self.ring.submit()
        return woke

    cdef int _wait(self, int64_t timeout_ns) noexcept nogil:
        return uring_sleep_at_epoll(
            &self.ring.u, self.epoll_fd, self.events, self.size, timeout_ns)
