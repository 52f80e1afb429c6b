"""Listening sockets that other processes accept from, too.

A socket is shared if the program has passed it in, if the process has forked since the server's
start, or if another process or loop accepts from it. The loop's epoll instance has the shared
sockets, and the loop sleeps there (_turn/sleeper.pyx): a connection wakes one sleeping process. A
process that has taken a connection moves to the end of the socket's wait queue, so the processes
alternate. Polls on the ring would wake all processes for each connection, and the fastest would
accept most of them.

A sleep at epoll costs 2 us more than one in the ring: a second system call, and the eventfd. So a
process that is alone with its sockets, or busy with the connections that it has, sleeps in its
ring, and polls the sockets there. These polls take no wake-up from other processes. After a
connection the process sleeps at epoll again if other processes accept from the socket.
"""

import os

cimport cython
from libc.stdint cimport int64_t

from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.epoll cimport (
    EPOLLEXCLUSIVE,
    EPOLLIN,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    epoll_event,
)
from uringloop._kernel.errors cimport EEXIST
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport POLLIN, close, sched_yield
from uringloop._kernel.sockets cimport io_uring_prep_poll_multishot, uring_may_accept
from uringloop._kernel.wakeup cimport uring_new_wake_fd
from uringloop._net.shared_sockets cimport (
    uring_is_crowded,
    uring_is_shared,
    uring_mark_shared,
    uring_unmark_shared,
)
from uringloop._ring.features cimport SHARED_ACCEPT
from uringloop._turn.sleeper cimport EpollUser, listening_fd, listening_key
from uringloop._turn.turn cimport LoopCore, TurnUser


cdef enum:
    # After a sleep, this many turns accept one connection each and call sched_yield(2) first: the
    # processes that the next connections have woken need time to run. Without the call, one of four
    # idle processes on two processors often got all of a burst of 40 connections.
    SINGLES_MAX = 8
    # The value of SharedListeners.full_turns at which a turn accepts up to ACCEPTS_MAX connections.
    FULL_TURNS_MAX = SINGLES_MAX + 5

    # The interval at which a process that does not sleep calls sched_yield(2). Without the call it
    # accepted for as long as the scheduler let it run: of 480 connections, which four processes
    # answer in 25 ms, one process got less than half of its share in 15 of 100 runs; with the call,
    # in 3. A call for each connection cost a busy server 8 %.
    YIELD_EVERY_NS = 300_000

    # After a shorter sleep, the connection may have been there before the sleep began.
    SLEPT_NS = 20_000

    # The interval of the checks whether others accept from this process's sockets; a check takes
    # 0.6 us.
    OTHERS_EVERY_NS = 1_000_000

# The number of this process's loops that accept from a shared socket, by its inode; changed in
# a critical section.
cdef dict LOOPS = {}
os.register_at_fork(after_in_child=LOOPS.clear)

cdef class ListeningSocket(TurnUser):
    """A listening socket, as SharedListeners use it."""

    def start(self):
        """Begin to accept."""
        raise NotImplementedError

    cdef int submit_poll(self) except -1:
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        io_uring_prep_poll_multishot(sqe, self.fd, POLLIN)
        return self.loop.ring.start(sqe, &self.poll_op)

    cdef int accept_waiting(self, int most) except -1:
        """Accept up to *most* of the waiting connections, and return their number."""
        raise NotImplementedError

    cdef bint is_shared_by_now(self) except -1:
        """Return whether another process, or another loop of this one, may accept from it by now.

        Within OTHERS_EVERY_NS of a check it is False, unchecked, unless this process has forked.
        """
        cdef int64_t now
        if self.forks != self.loop.ring.forks():
            self.forks = self.loop.ring.forks()
            return True
        now = uring_clock_ns()
        if now - self.checked_ns < OTHERS_EVERY_NS:
            return False
        self.checked_ns = now
        return self.others_accept()

    cdef bint others_accept(self) except -1:
        """Return whether others accept from it, if this loop does not: SharedListeners have it not.
        """
        return self.inode in LOOPS or uring_is_shared(self.fd)


cdef class SharedListeners(EpollUser):

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.sleeper = loop.sleeper
        self.listeners = {}
        self.spare_fd = -1

    def __dealloc__(self):
        self.use_spare()

    cdef int add(self, ListeningSocket listener) except -2:
        """Wait for connections of *listener*; return -1 if the kernel refuses."""
        self.loop.ring.check_usable()
        if listener.fd in self.listeners:
            return 0
        if not self.loop.ring.uses(SHARED_ACCEPT) or self.keep_spare() < 0:
            return -1
        self.listeners[listener.fd] = listener
        count_loop(listener, 1)
        if not self.wait_at_epoll() or self.join_queue(listener) < 0:
            self.remove(listener)
            return -1
        return 0

    cdef int remove(self, ListeningSocket listener) except -1:
        if self.listeners.pop(listener.fd, None) is None:
            return 0
        count_loop(listener, -1)
        self.leave_queue(listener)
        if not self.listeners:
            self.sleeper.go_to_ring()
            self.use_spare()
        return 0

    # ── the place of the loop ────────────────────────────────────────────────────────────────

    cdef bint wait_at_epoll(self) except -1:
        """Wait at the epoll instance again; return False if the kernel refuses."""
        cdef ListeningSocket listener
        if self.sleeper.is_exclusive():
            return True
        # The poll of a listener that was just removed may end behind the last one.
        if not self.listeners or not self.sleeper.enter_exclusive():
            return False
        self.full_turns = 0
        for listener in list(self.listeners.values()):
            if self.join_queue(listener) >= 0 and listener.poll_op.in_flight:
                self.loop.ring.cancel(&listener.poll_op)
        return True

    cdef int on_place(self) except -1:
        """Poll in the ring when the loop sleeps there, because this process is busy or alone."""
        cdef ListeningSocket listener
        assert not self.sleeper.is_at_epoll()
        for listener in list(self.listeners.values()):
            self.leave_queue(listener)
            try:
                if not listener.poll_op.in_flight:
                    listener.submit_poll()
            except OSError:
                # The end of this turn tries again.
                self.loop.add_flush(listener)
        return 0

    cdef int on_close(self) except -1:
        self.use_spare()
        return 0

    cdef int join_queue(self, ListeningSocket listener) noexcept:
        """Wait at the end of the socket's queue; return 0 or -errno."""
        cdef epoll_event event
        cdef int res = 0
        event.events = EPOLLIN | EPOLLEXCLUSIVE
        event.data.u64 = listening_key(listener.fd)
        # A forked child must not change the instance, which is also its parent's.
        if self.loop.ring.is_usable():
            res = self.sleeper.control(EPOLL_CTL_ADD, listener.fd, &event)
        return 0 if res == -EEXIST else res

    cdef int leave_queue(self, ListeningSocket listener) noexcept:
        cdef epoll_event event
        if self.loop.ring.is_usable():
            self.sleeper.control(EPOLL_CTL_DEL, listener.fd, &event)
        return 0

    cdef int requeue(self, ListeningSocket listener) noexcept:
        """Move this process to the end of the socket's queue."""
        self.leave_queue(listener)
        return self.join_queue(listener)

    # ── a spare descriptor ───────────────────────────────────────────────────────────────────

    cdef int keep_spare(self) noexcept:
        """Keep a descriptor for a connection that comes when this process has no other.

        Otherwise the connection would wait, because no other process was woken for it. Return
        -errno if no descriptor is free.
        """
        if self.spare_fd < 0:
            self.spare_fd = uring_new_wake_fd()
        return min(self.spare_fd, 0)

    cdef bint use_spare(self) noexcept:
        """Close the spare descriptor; return whether there was one."""
        if self.spare_fd < 0:
            return False
        close(self.spare_fd)
        self.spare_fd = -1
        return True

    # ── connections ──────────────────────────────────────────────────────────────────────────

    cdef int search_missed(self) except -1:
        """Look for connections whose wake-up went to a process that has not accepted them."""
        cdef ListeningSocket listener
        if not self.others_accept():
            return self.sleeper.go_to_ring()
        for listener in list(self.listeners.values()):
            if uring_may_accept(listener.fd):
                # epoll reports what already waits when a socket is added.
                self.requeue(listener)
        return 0

    cdef int on_ready(self, epoll_event *events, int count) except -1:
        """Accept one connection, and more if no other process accepts those that wait."""
        cdef ListeningSocket listener = self.listeners.get(listening_fd(events[0].data.u64))
        cdef int most
        cdef int64_t now
        if listener is None:
            return 0
        if not self.others_accept():
            # In the ring, the polls report this connection, too.
            return self.sleeper.go_to_ring()
        if self.sleeper.slept_ns >= SLEPT_NS:
            self.full_turns = 0
        now = uring_clock_ns()
        if self.full_turns and uring_is_crowded(listener.fd):
            self.full_turns = FULL_TURNS_MAX
        elif self.full_turns and (
                self.full_turns < SINGLES_MAX or now - self.yielded_ns >= YIELD_EVERY_NS):
            self.yielded_ns = now
            with nogil:
                sched_yield()
        most = min(1 << max(0, self.full_turns - SINGLES_MAX), ACCEPTS_MAX)
        if listener.accept_waiting(most) == most:
            self.full_turns = min(self.full_turns + 1, FULL_TURNS_MAX)
        else:
            self.full_turns = min(self.full_turns, SINGLES_MAX)
        return 0

    cdef bint others_accept(self) except -1:
        """Return whether other processes, or other loops of this one, accept from a socket here."""
        cdef ListeningSocket listener
        cdef int64_t now = uring_clock_ns()
        if now - self.checked_ns >= OTHERS_EVERY_NS:
            self.checked_ns = now
            self.seen_others = False
            for listener in self.listeners.values():
                # Mark it again: closing any descriptor of the socket drops the lock that marks it.
                uring_mark_shared(listener.fd)
                if LOOPS.get(listener.inode, 1) > 1 or uring_is_shared(listener.fd):
                    self.seen_others = True
        return self.seen_others


cdef int count_loop(ListeningSocket listener, int change) except -1:
    """Count a loop that begins or ends to accept from the socket of *listener*.

    The socket is marked as shared with other processes while there is one.
    """
    cdef int count
    with cython.critical_section(LOOPS):
        count = LOOPS.get(listener.inode, 0) + change
        if count > 0:
            LOOPS[listener.inode] = count
            uring_mark_shared(listener.fd)
        else:
            # In a forked child LOOPS is empty.
            LOOPS.pop(listener.inode, None)
            uring_unmark_shared(listener.fd)
    return 0
