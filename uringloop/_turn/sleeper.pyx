"""Where a loop sleeps: in its ring, or in epoll_wait(2).

The ring is the better place for all that it can wait for. But two kinds of descriptors are in an
epoll instance, of which each loop has one:

- Those that the program watches (watchers.pyx). The ring can wait for the instance by a request;
  then each event also takes a submission, a poll of the instance, task work and a completion. A
  loop that has little else to do sleeps at the instance itself, as loops on epoll do.
- Listening sockets from which other processes accept, too (_net/shared_listeners.pyx). A connection
  wakes one of the processes that wait for it exclusively. A request of a ring goes on waiting while
  its process computes, and would take the wake-up from a process that is free. epoll does not: with
  EPOLLEXCLUSIVE an instance passes a wake-up on unless a thread sleeps in epoll_wait(2) at that
  moment (4.5, ep_poll_callback in fs/eventpoll.c).

    IN_RING ──go_to_epoll()──> AT_EPOLL ──enter_exclusive()──> AT_EPOLL_EXCLUSIVE
       ^                          │                                │
       └───────go_to_ring()───────┴────────────────────────────────┘
    IN_RING ──forbid_epoll(), or the kernel refuses what AT_EPOLL needs──> ALWAYS_IN_RING

While the loop sleeps at the instance, this also has the descriptor by which the ring ends a sleep
(at_epoll.h), and the waker of other threads: the kernel's ring does not write to its eventfd from
within a write to another eventfd (6.18 writes once, and then no more). AT_EPOLL_EXCLUSIVE, it has
the listening sockets, too, which the ring polls otherwise. While the loop is IN_RING, the instance
has the watched descriptors only.

A loop goes to the instance when the ring has brought nothing but events of watched descriptors for
`needed` turns in a row, or when another process accepts from one of its sockets. It stays while it
has credit:

    a sleep that an event has ended                              gains SLEEP_GAIN, up to CREDIT_MAX
    a sleep that a connection has ended                          sets it to CONNECTION_CREDIT
    a short sleep that the ring has ended                        costs RING_COST
    a long one, in a process with shared sockets, which
    thus has time for connections                                sets it to CONNECTION_CREDIT
    a turn without a sleep that finds no watched descriptor ready    costs LOOK_COST

Only the loop's thread may call the methods, except control() and note_watched(), which other
threads may call in a critical section of the watchers.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.atomics cimport load_int
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.epoll cimport (
    EPOLLET,
    EPOLLIN,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    epoll_create1,
    epoll_ctl,
    epoll_event,
)
from uringloop._kernel.errors cimport (
    EEXIST,
    EINTR,
    EMFILE,
    ENFILE,
    ENOMEM,
    ENOSPC,
    errno,
    os_error,
)
from uringloop._kernel.libc cimport close
from uringloop._ring.features cimport EPOLL_SLEEP
from uringloop._ring.ring cimport Ring
from uringloop._ring.uring cimport URING_FOREVER


cdef enum:
    # The first change of place takes so many turns with nothing but events. The number doubles when
    # the loop has used up its credit, since going there and back takes four system calls.
    TURNS_MIN = 16
    TURNS_MAX = 1024
    NEVER = 0x7FFFFFFF

    # In the units of CREDIT_MAX. A sleep in epoll_wait(2) that an event has ended saves SLEEP_GAIN;
    # one that the ring has ended takes an enter more. A turn without a sleep makes a call that
    # looks for events, which a request of the ring does not need: with four such turns for each
    # event, either place is as expensive as the other.
    SLEEP_GAIN = 4
    RING_COST = 8
    LOOK_COST = 1

    # The credit of a loop to which a connection has come: it pays for sixteen short sleeps that the
    # ring ends.
    CONNECTION_CREDIT = 128

    # A process with shared sockets that sleeps for less is busy with the connections that it has.
    SHORT_SLEEP_NS = 1_000_000

    # A ring's request that reads an eventfd completes without a write to the ring's own eventfd,
    # and so does not end a sleep at the instance: after this time without events the loop sleeps in
    # the ring.
    SLEEP_MAX_NS = 100_000_000

    # A process that was woken for a connection and is then killed, stopped or not scheduled takes
    # the wake-up with it, and no other process is woken for that connection. All processes search
    # for such connections at this interval, which doubles while nothing happens: a search costs
    # 50 us, most of it for leaving an idle state of the processor.
    SEARCH_INTERVAL_NS = 50_000_000
    SEARCH_INTERVAL_MAX_NS = 200_000_000

    # The interval at which a loop that watches nothing and does not sleep looks for connections.
    LOOK_EVERY_NS = 100_000

# The data of events that are not of watched descriptors, nor of listening sockets.
cdef uint64_t WAKE = <uint64_t>-1


cdef class EpollUser:

    cdef int arm(self) except -1:
        """Have the ring wait for this user's events."""
        raise NotImplementedError

    cdef int on_ready(self, epoll_event *events, int count) except -1:
        """Handle *count* events of this user's descriptors."""
        raise NotImplementedError

    cdef int on_error(self, int res) except -1:
        """A wait for events has failed with *res*, -errno."""
        raise NotImplementedError

    cdef int on_place(self) except -1:
        """Wait as the new place of the loop demands."""
        raise NotImplementedError

    cdef int search_missed(self) except -1:
        """Look for what epoll may have missed: nothing has happened for some time."""
        return 0

    cdef int on_close(self) except -1:
        """Close what this user has beside the instance, which is about to be closed."""
        return 0


@cython.final
cdef class Sleeper:

    def __cinit__(self):
        self.place = ALWAYS_IN_RING
        self.epoll_fd = -1

    def __dealloc__(self):
        if self.epoll_fd >= 0:
            close(self.epoll_fd)

    def open(self, Ring ring not None, int waker_fd):
        """Make the epoll instance, for a new ring; writes to *waker_fd* end a sleep.

        Raises OSError if the kernel refuses.
        """
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise os_error(-errno, "epoll_create1")
        self.ring = ring
        self.waker_fd = waker_fd
        self.place = IN_RING
        self.search_interval_ns = SEARCH_INTERVAL_NS
        self.needed = TURNS_MIN
        # A loop with a kernel thread, one that busy-polls, and one that lets completions gather
        # leave the ring only for shared sockets.
        if (not ring.uses(EPOLL_SLEEP)
                or ring.has_kernel_thread() or ring.spin_ns or ring.batch_ns):
            self.needed = NEVER

    cdef int close_epoll(self) except -1:
        """Close the instance, for good."""
        self.place = ALWAYS_IN_RING
        if self.listeners is not None:
            self.listeners.on_close()
        # Without a GIL another thread may be using the instance.
        with cython.critical_section(self if self.watchers is None else self.watchers):
            if self.epoll_fd >= 0:
                close(self.epoll_fd)
                self.epoll_fd = -1
        return 0

    cdef int control(self, int operation, int fd, epoll_event *event) noexcept:
        """Return 0 or -errno."""
        return 0 if epoll_ctl(self.epoll_fd, operation, fd, event) == 0 else -errno

    # ── the place ────────────────────────────────────────────────────────────────────────────

    cdef bint note_events(self) except -1:
        """Note that the ring has brought events; return whether the loop should go to epoll."""
        cdef uint64_t brought = self.ring.completions - self.completions
        self.completions = self.ring.completions
        self.events_only = self.events_only + 1 if brought == 1 else 0
        return self.place == IN_RING and self.events_only >= self.needed

    cdef bint go_to_epoll(self, int credit) except -1:
        """Sleep in epoll_wait(2) from now on; return False if the kernel does not permit it."""
        cdef int res
        if self.is_at_epoll():
            self._raise_credit(credit)
            return True
        self.events_only = 0
        if self.place == ALWAYS_IN_RING or self.ring.must_fall_back():
            return False
        assert self.place == IN_RING
        res = self.ring.join_epoll(self.epoll_fd, WAKE)
        if res >= 0:
            res = self._add_waker()
        if res < 0:
            self.ring.leave_epoll(self.epoll_fd)
            if res not in (-EMFILE, -ENFILE, -ENOMEM, -ENOSPC):
                self.place = ALWAYS_IN_RING
            return False
        self.place = AT_EPOLL
        self.generation = self.ring.generation
        self.credit = credit
        self._drop_events()
        if self.watchers is not None:
            self.watchers.on_place()
        return True

    cdef bint enter_exclusive(self) except -1:
        """Sleep at the instance, which the caller then adds the listening sockets to.

        Return False if the kernel does not permit it.
        """
        if not self.go_to_epoll(CONNECTION_CREDIT):
            return False
        assert self.place == AT_EPOLL and self.listeners is not None
        self.place = AT_EPOLL_EXCLUSIVE
        return True

    cdef int _add_waker(self) noexcept:
        cdef epoll_event event
        # Edge-triggered: each write makes one event, and nothing reads the descriptor.
        event.events = EPOLLIN | EPOLLET
        event.data.u64 = WAKE
        cdef int res = self.control(EPOLL_CTL_ADD, self.waker_fd, &event)
        return 0 if res == -EEXIST else res

    cdef int go_to_ring(self) except -1:
        """Sleep in the ring from now on."""
        cdef epoll_event event
        cdef bint had_listeners = self.is_exclusive()
        if not self.is_at_epoll():
            return 0
        self.place = IN_RING
        self._drop_events()
        self.completions = self.ring.completions
        if self.ring.is_usable():
            # Not in a forked child: the instance is also its parent's. Errors are ignored: the
            # instance may have been closed.
            self.control(EPOLL_CTL_DEL, self.waker_fd, &event)
            self.ring.leave_epoll(self.epoll_fd)
            if self.watchers is not None:
                self.watchers.on_place()
            if had_listeners:
                self.listeners.on_place()
        return 0

    cdef int forbid_epoll(self) except -1:
        """Sleep in the ring from now on, for good."""
        self.go_to_ring()
        assert not self.is_at_epoll() and not self._has_events()
        self.place = ALWAYS_IN_RING
        return 0

    cdef int _give_up(self) except -1:
        """Go back to the ring, for longer each time."""
        if not self.is_exclusive() and self.needed != NEVER:
            self.needed = min(2 * self.needed, TURNS_MAX)
        return self.go_to_ring()

    cdef int renew(self) except -1:
        """Replace the epoll instance by an empty one; later sleeps are in the ring.

        Return 0 or -errno. The caller closes the old instance, unless other code has.
        """
        cdef int fresh = epoll_create1(EPOLL_CLOEXEC)
        if fresh < 0:
            return -errno
        self.go_to_ring()
        self.epoll_fd = fresh
        return 0

    # ── sleeping ─────────────────────────────────────────────────────────────────────────────

    cdef int _arm(self) except -1:
        """Arm the watchers' request: this turn's callbacks, which cause new events, have run."""
        self.watchers.arm()
        self.unarmed = False
        return 0

    cdef int64_t _longest_ns(self) noexcept:
        """Return how long a sleep may be at most, or 0 for no limit."""
        if self.is_exclusive():
            return self.search_interval_ns
        return SLEEP_MAX_NS if self.ring.count else 0

    cdef int _sleep(self, int64_t timeout_ns) except -1:
        # The loop has entered for work that the kernel holds back. If the flag is still set, it is
        # stale (uring_has_task_work), and costs an enter for each sleep until the ring has work.
        cdef bint is_stale = self.ring.has_task_work()
        cdef bint by_ring = False
        cdef int64_t longest = self._longest_ns()
        cdef bint limited
        cdef int64_t began, now
        if self.ring.spin_ns and self.ring.spin(&timeout_ns):
            # The turn does not sleep, and the spinning has looked at the ring only.
            return self._look()
        # A forked child would take its parent's wake-ups.
        self.ring.check_usable()
        if self.ring.has_submissions():
            self.ring.submit()
        if self._ring_changes():
            return self.go_to_ring()
        limited = longest and (timeout_ns == URING_FOREVER or timeout_ns > longest)
        if self.ring.has_completions():
            by_ring = True
            timeout_ns = 0
        elif limited:
            timeout_ns = longest
        began = uring_clock_ns()
        by_ring = self._fetch(timeout_ns) or by_ring
        now = uring_clock_ns()
        self.slept_ns = now - began
        if by_ring and not self.connection.events:
            self.ring.gather()
        if by_ring or self._has_events():
            self.search_interval_ns = SEARCH_INTERVAL_NS
        if self.connection.events:
            self._raise_credit(CONNECTION_CREDIT)
        elif by_ring or is_stale:
            self._pay_for_ring()
        elif self.found:
            self._raise_credit(min(self.credit + SLEEP_GAIN, CREDIT_MAX))
        elif limited and not self.is_exclusive() and not self.error:
            return self.go_to_ring()
        if self.credit <= 0:
            # epoll reports the fetched events again.
            return self._give_up()
        return self._search(now) if self.is_exclusive() else 0

    cdef void _pay_for_ring(self) noexcept:
        """Change the credit by a sleep that the ring has ended."""
        if not self.is_exclusive() or self.slept_ns < SHORT_SLEEP_NS:
            self.credit -= RING_COST
        else:
            self._raise_credit(CONNECTION_CREDIT)

    cdef int _look(self) except -1:
        cdef int64_t now = uring_clock_ns() if self.is_exclusive() else 0
        cdef bint looks = load_int(&self.watching) or now - self.looked_ns >= LOOK_EVERY_NS
        self.slept_ns = 0
        self.search_interval_ns = SEARCH_INTERVAL_NS
        self.ring.check_usable()
        # A look also finds what a software ring has, which otherwise only an enter finds.
        if self.ring.has_submissions() or self.ring.has_task_work() or (
                not looks and self.ring.needs_enter()):
            self.ring.submit()
        if self._ring_changes():
            return self.go_to_ring()
        if not looks:
            return 0
        self.looked_ns = now
        self._fetch(0)
        if load_int(&self.watching) and not self._has_events():
            self.credit -= LOOK_COST
            if self.credit <= 0:
                return self._give_up()
        return self._search(now) if self.is_exclusive() else 0

    cdef int _search(self, int64_t now) except -1:
        """Let the listening sockets search for connections, if that is due."""
        if self.connection.events or now - self.searched_ns < self.search_interval_ns:
            return 0
        self.searched_ns = now
        self.search_interval_ns = min(2 * self.search_interval_ns, SEARCH_INTERVAL_MAX_NS)
        return self.listeners.search_missed()

    cdef bint _ring_changes(self) noexcept:
        """Return whether the ring that ends sleeps at the instance was, or will be, replaced."""
        return self.generation != self.ring.generation or self.ring.must_fall_back()

    cdef int _deliver(self) except -1:
        cdef int found = self.found
        cdef int error = self.error
        cdef epoll_event connection = self.connection
        # Before the calls, in which a nested run may fetch others.
        self._drop_events()
        if error:
            self.watchers.on_error(error)
        elif found:
            self.watchers.on_ready(self.events, found)
        if connection.events and self.is_exclusive():
            self.listeners.on_ready(&connection, 1)
        return 0

    cdef bint _fetch(self, int64_t timeout_ns) except -1:
        """Wait for events; return whether something else has ended the wait."""
        cdef bint woke = False
        cdef int index, count
        if timeout_ns:
            with nogil:
                count = self._wait(timeout_ns)
        else:
            count = self._wait(0)
        if count == -EINTR:
            count = 0
            woke = True
        self.found = 0
        self.error = min(count, 0)
        for index in range(count):
            # The key of a watched descriptor has the descriptor in its lower half.
            if <int><unsigned int>self.events[index].data.u64 >= 0:
                self.events[self.found] = self.events[index]
                self.found += 1
            elif self.events[index].data.u64 == WAKE:
                woke = True
            elif not self.connection.events:
                # Take the one that has waited the longest; the next call reports the others again.
                self.connection = self.events[index]
        if woke and self.ring.is_software():
            # Only an enter finds out what the software ring has.
            self.ring.submit()
        return woke

    cdef int _wait(self, int64_t timeout_ns) noexcept nogil:
        return self.ring.sleep_at_epoll(self.epoll_fd, self.events, EVENTS_MAX, timeout_ns)
