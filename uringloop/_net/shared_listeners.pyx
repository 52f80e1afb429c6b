"""Listening sockets that other processes accept from, too.

A socket is shared if the program has passed it in, if the process has forked since the server's
start, or if another process or loop accepts from it. A loop with shared sockets sleeps at the
accept epoll (shared_sockets.h), where a connection wakes one sleeping process, and the processes
alternate. Polls on the ring would wake all processes for each connection, and the fastest would
accept most of them.

A process whose sockets no other process accepts from sleeps in its ring, and so does a process that
is busy with the connections that it has: a sleep in the ring costs less.
"""

import os

cimport cython
from libc.stdint cimport int64_t

from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport POLLIN, sched_yield
from uringloop._kernel.sockets cimport io_uring_prep_poll_multishot
from uringloop._ring.features cimport SHARED_ACCEPT, uses
from uringloop._ring.shared_sockets cimport (
    URING_SEARCH_NS,
    uring_add_listener,
    uring_add_waker,
    uring_close_accept_epoll,
    uring_is_shared,
    uring_is_crowded,
    uring_sleep_in_ring,
    uring_poll_accept_epoll,
    uring_open_accept_epoll,
    uring_remove_listener,
    uring_reserve,
    uring_recover_wakeups,
    uring_mark_shared,
)
from uringloop._ring.uring cimport uring
from uringloop._turn.watchers cimport Watchers
from uringloop._turn.flushable cimport Flushable
from uringloop._turn.turn cimport LoopCore


cdef enum:
    # The interval at which a loop that does not sleep polls the accept epoll, which takes 0.2 us.
    LOOK_EVERY_NS = 100_000

    # After a sleep, this many turns accept one connection each and call sched_yield(2) first: the
    # processes that the next connections have woken need time to run. Without the call, one of four
    # idle processes on two processors often got all of a burst of 40 connections.
    SINGLES_MAX = 8
    # The value of SharedListeners.full_turns at which a turn accepts up to ACCEPTS_MAX connections.
    FULL_TURNS_MAX = SINGLES_MAX + 5

    # The interval at which a process that does not sleep calls sched_yield(2). Without the call it
    # accepted for as long as the scheduler let it run: of 480 connections, which four processes
    # answer in 25 ms, one process got less than half of its share in 15 of 100 runs, and now in 3.
    # A call for each connection cost a busy server 8 %.
    YIELD_EVERY_NS = 300_000

    # After this many short sleeps in a row, none of them ended by a new connection, a process
    # counts as busy with the connections that it has.
    SHORT_SLEEPS_MAX = 16

    # The interval of checks whether others accept from this process's sockets. One takes 0.6 us.
    OTHERS_EVERY_NS = 1_000_000

# The number of this process's loops that accept from a shared socket, by its inode; changed in
# a critical section.
cdef dict LOOPS = {}
os.register_at_fork(after_in_child=LOOPS.clear)

cdef class ListeningSocket(Flushable):
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
        """Whether a child, or a process that has the socket, may have begun to accept from it."""
        cdef int64_t now
        if self.forks != self.loop.ring.forks():
            self.forks = self.loop.ring.forks()
            return True
        now = uring_clock_ns()
        if now - self.checked_ns < OTHERS_EVERY_NS:
            return False
        self.checked_ns = now
        return self.inode in LOOPS or uring_is_shared(self.fd)


cdef class SharedListeners(Flushable):

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.listeners = {}

    cdef int add(self, ListeningSocket listener) except -2:
        """Wait for connections of *listener*; return -1 if the kernel refuses."""
        cdef uring *u = &self.loop.ring.u
        self.loop.ring.check_inherited()
        if listener.fd in self.listeners:
            return 0
        # While the process sleeps in its ring, the other listeners poll; this one would not.
        self.sleep_at_epoll()
        if not uses(SHARED_ACCEPT, u.soft != NULL):
            return -1
        if u.accept_epoll_fd < 0 and self.open_epoll() < 0:
            return -1
        self.listeners[listener.fd] = listener
        count_loop(listener, 1)
        uring_mark_shared(listener.fd)
        if uring_add_listener(u, listener.fd) < 0:
            self.remove(listener)
            return -1
        return 0

    cdef int open_epoll(self) except -2:
        cdef uring *u = &self.loop.ring.u
        cdef Watchers watchers = self.loop._watchers
        cdef int res
        watchers.wait_in_ring()
        res = uring_open_accept_epoll(u)
        if res >= 0:
            res = uring_add_waker(u, self.loop.waker.fd)
        if res >= 0:
            res = uring_add_waker(u, watchers.epoll_fd)
        if res >= 0:
            res = uring_reserve(u)
        if res < 0:
            uring_close_accept_epoll(u)
        return res

    cdef int remove(self, ListeningSocket listener) except -1:
        if self.listeners.pop(listener.fd, None) is not None:
            count_loop(listener, -1)
            uring_remove_listener(&self.loop.ring.u, listener.fd)
        return 0

    cdef int close_if_empty(self) except -1:
        """Sleep in the ring again when the last shared listening socket is closed."""
        if not self.listeners:
            uring_close_accept_epoll(&self.loop.ring.u)
        return 0

    cdef int flush(self) except -1:
        """Accept if a connection ended the sleep; without a sleep, look for connections."""
        cdef uring *u = &self.loop.ring.u
        cdef int64_t now
        if u.accept_epoll_fd < 0:
            return self.dissolve()
        if u.sleeps_in_ring:
            return 0
        if u.short_sleeps >= SHORT_SLEEPS_MAX:
            return self.sleep_in_ring()
        if u.ready_fd < 0:
            now = uring_clock_ns()
            if now - self.looked_ns < LOOK_EVERY_NS:
                return 0
            self.looked_ns = now
            uring_poll_accept_epoll(u, 0)
            if u.ready_fd < 0 and now - self.searched_ns >= URING_SEARCH_NS:
                self.searched_ns = now
                self.search()
        return self.accept_ready()

    cdef int search(self) except -1:
        """Look for connections whose wake-up went to a process that has not accepted them."""
        cdef uring *u = &self.loop.ring.u
        if not self.others_accept():
            return self.sleep_in_ring()
        uring_recover_wakeups(u)
        uring_poll_accept_epoll(u, 0)
        return 0

    cdef int accept_ready(self) except -1:
        """Accept one connection, and more if no other process accepts those that wait."""
        cdef uring *u = &self.loop.ring.u
        cdef ListeningSocket listener = self.listeners.get(u.ready_fd)
        cdef int most
        cdef int64_t now
        u.ready_fd = -1
        if listener is None:
            return 0
        if not self.others_accept():
            # The polls report this connection, too.
            return self.sleep_in_ring()
        if u.slept:
            u.slept = False
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
        """Whether other processes, or other loops of this one, accept from one of the sockets."""
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

    cdef int sleep_in_ring(self) except -1:
        """Sleep in the ring, with polls, because this process is busy or alone."""
        cdef ListeningSocket listener
        uring_sleep_in_ring(&self.loop.ring.u, True)
        for listener in list(self.listeners.values()):
            if not listener.poll_op.in_flight:
                listener.submit_poll()
        return 0

    cdef int sleep_at_epoll(self) except -1:
        """Sleep at the accept epoll again."""
        cdef ListeningSocket listener
        if self.loop.ring.u.sleeps_in_ring:
            self.full_turns = 0
            uring_sleep_in_ring(&self.loop.ring.u, False)
            for listener in list(self.listeners.values()):
                if listener.poll_op.in_flight:
                    self.loop.ring.cancel(&listener.poll_op)
        return 0

    cdef int dissolve(self) except -1:
        """Let each listener poll: the ring has lost its accept epoll in a change of thread."""
        cdef ListeningSocket listener
        cdef dict listeners = self.listeners
        self.listeners = {}
        for listener in listeners.values():
            count_loop(listener, -1)
            listener.shared = False
            listener.start()
        return 0


cdef int count_loop(ListeningSocket listener, int change) except -1:
    """Count a loop that begins or ends to accept from the socket of *listener*."""
    cdef int count
    with cython.critical_section(LOOPS):
        count = LOOPS.get(listener.inode, 0) + change
        if count > 0:
            LOOPS[listener.inode] = count
        else:
            # In a forked child LOOPS is empty.
            LOOPS.pop(listener.inode, None)
    return 0
