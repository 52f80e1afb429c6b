"""The kernel's side of a server: its listening sockets, accepting until they are closed.

A Listener waits with a multishot poll and accepts with accept4(2) when the loop has time to serve
the connection. A multishot accept would take connections while the process computes, and from other
processes that share the socket: it keeps its place at the head of the socket's wait queue. The poll
takes nothing. It holds the listening file open, so `close` ends it first, out of turn, and an
immediate bind of the same port works.

A socket that other processes may accept from, too (it was passed in, the process has forked since,
or somebody else has signed for it), belongs to SharedListeners: the loop sleeps at an epoll
instance (shared_sockets.h), where a connection wakes one process that is free, and the processes
take turns.
The poll alone would do: it would wake all of them for each connection, and the fastest would take
most. A process that finds nobody else with the socket polls all the same, and so does one that is
busy with the connections it has, for a sleep in the ring costs less.
"""

import errno as errors
import os
import socket
from asyncio import constants, trsock

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from uringloop._cpython.pyapi cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.errors cimport (
    EAGAIN,
    ECANCELED,
    ECONNABORTED,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    os_error,
)
from uringloop._kernel.io_uring cimport io_uring_sqe, IORING_CQE_F_MORE
from uringloop._kernel.libc cimport (
    close,
    getsockname,
    IPPROTO_TCP,
    POLLIN,
    setsockopt,
    sockaddr,
    sockaddr_in6,
    TCP_NODELAY,
)
from uringloop._kernel.sockets cimport io_uring_prep_poll_multishot, uring_may_accept
from uringloop._net.stream cimport StreamTransport, new_accepted, new_stream, wants_nodelay
from uringloop._ring.features cimport SHARED_ACCEPT, uses
from uringloop._ring.ring cimport ENDS_WITH_RUN, Operation, operation_init
from uringloop._ring.shared_sockets cimport (
    URING_SEARCH_NS,
    sched_yield,
    uring_add_door,
    uring_add_waker,
    uring_close_doors,
    uring_has_company,
    uring_is_crowded,
    uring_leave_doors,
    uring_listen_at_doors,
    uring_open_doors,
    uring_remove_door,
    uring_reserve,
    uring_search,
    uring_sign,
    uring_step_back,
    uring_use_reserve,
)
from uringloop._ring.uring cimport uring_accept
from uringloop._ring.uring cimport uring
from uringloop._transport.addresses cimport NearEnd
from uringloop._transport.transport cimport Connections
from uringloop._turn.fd_watch cimport Watchers
from uringloop._turn.turn cimport Flushable, LoopCore


# Connections that are accepted in a row before other work has its turn.
ACCEPTS_MAX = 32

# How often a loop that does not sleep looks for connections to shared sockets: a look takes 0.2 us.
LOOK_EVERY_NS = 100_000

# After a rest so many turns in a row take one connection each, and let others have the processor
# first: those who have been woken for the next connections need some time to come. Without that, a
# burst of 40 connections to four idle processes on two processors often went to one of them.
SINGLES_MAX = 8

# A process that does not rest gives the processor up so often. Otherwise it took connections for as
# long as the scheduler let it run: of 480 connections, which four processes answer in 25 ms, one of
# them got less than half of its share in 15 of 100 runs, and now in 3. Giving it up for each
# connection cost a busy server 8 %.
YIELD_EVERY_NS = 300_000

# After so many short sleeps in a row that no connection has ended, a process is busy with those it
# has.
NAPS_MAX = 16

# How often a process looks for connections that another one was woken for and has not taken.
SEARCH_EVERY_NS = URING_SEARCH_NS

# How old the knowledge may be that nobody else accepts from a socket: a look takes 0.6 us.
COMPANY_EVERY_NS = 1_000_000

cdef int ACCEPTS = ACCEPTS_MAX
cdef int64_t LOOK_EVERY = LOOK_EVERY_NS
cdef int64_t SEARCH_EVERY = SEARCH_EVERY_NS
cdef int64_t COMPANY_EVERY = COMPANY_EVERY_NS
cdef int64_t YIELD_EVERY = YIELD_EVERY_NS
cdef unsigned int NAPS = NAPS_MAX
cdef int SINGLES = SINGLES_MAX
# After so many full turns one accepts ACCEPTS_MAX.
cdef int FULL = SINGLES_MAX + 5
# How many loops of this process accept from a shared socket, by its inode. Under the GIL.
cdef dict LOOPS = {}
os.register_at_fork(after_in_child=LOOPS.clear)
# What accept4(2) tells of the connection that it has dropped, not of the listening socket.
cdef frozenset CONNECTION_ERRORS = frozenset(-getattr(errors, name) for name in (
    "ECONNABORTED", "EINTR", "EPROTO", "EPERM", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
    "EHOSTUNREACH", "ENETUNREACH"))
# What a socket is bound to that takes connections to every address of the machine.
cdef frozenset ANY_ADDRESS = frozenset(("0.0.0.0", "::"))
# linux/in.h and linux/in6.h: the socket module has no names for them.
cdef int IP_TRANSPARENT = 19
cdef int IPV6_TRANSPARENT = 75
# Their names are kept as the kernel has them.
cdef frozenset NAMED_FAMILIES = frozenset((socket.AF_INET, socket.AF_INET6))


cdef class Listener(Flushable):

    def __cinit__(
            self, LoopCore loop not None, sock, factory, Connections connections not None,
            bint shared=False):
        self.loop = loop
        self.sock = sock
        self.fd = sock.fileno()
        self.inode = os.fstat(self.fd).st_ino
        self.factory = factory
        self.connections = connections
        self.shared = shared
        self.forks = loop.ring.forks()
        self.nodelay = wants_nodelay(sock)
        if self.nodelay:
            # Connections that are made from now on inherit it, which saves a system call for each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.nodelay = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.family in NAMED_FAMILIES:
            self.near = NearEnd(sock.family, sock.type, sock.proto)
            if is_bound_to_one_address(sock):
                self.near = self.near_end(self.fd)
                self.one_name = True
        self.context = PyContext_CopyCurrent()
        operation_init(&self.poll_op, listener_on_poll, <PyObject*>self)
        # A ring that is left by its thread would keep the listening file open for a while.
        self.poll_op.policy = ENDS_WITH_RUN

    def start(self):
        """Begin to accept."""
        if not self.accepts() or self.poll_op.in_flight:
            return
        if not self.shared or not self.share():
            self.submit_poll()

    def close(self):
        """Stop accepting now, and close the socket."""
        if self.closing:
            return
        self.closing = True
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        if self.shared:
            (<SharedListeners>self.loop.shared_listeners).remove(self)
            (<SharedListeners>self.loop.shared_listeners).close_if_empty()
        self.loop.ring.reap(&self.poll_op)
        if not self.poll_op.in_flight:
            self.sock.close()

    # ── accepting ────────────────────────────────────────────────────────────────────────────

    cdef int submit_poll(self) except -1:
        cdef io_uring_sqe *sqe = self.loop.ring.submission()
        io_uring_prep_poll_multishot(sqe, self.fd, POLLIN)
        return self.loop.ring.start(sqe, &self.poll_op)

    cdef bint share(self) except -1:
        """Wait beside other processes from now on; False where the kernel does not allow it."""
        if self.loop.shared_listeners is None:
            self.loop.shared_listeners = SharedListeners(self.loop)
        self.shared = (<SharedListeners>self.loop.shared_listeners).add(self) >= 0
        return self.shared

    cdef int on_poll(self, int res, unsigned int flags) except -1:
        cdef bint alone = not self.shared or self.is_alone()
        if not alone:
            (<SharedListeners>self.loop.shared_listeners).come_back()
        elif not self.shared and not self.closing and self.may_be_shared():
            alone = not self.share()
            if not alone:
                self.loop.ring.cancel(&self.poll_op)
        try:
            # The poll of a shared socket has told the other processes, too.
            if res > 0 and (alone or uring_may_accept(self.fd)):
                self.accept_waiting(ACCEPTS if alone else 1)
        finally:
            # A KeyboardInterrupt of the factory leaves the run, and the next run accepts on.
            if not flags & IORING_CQE_F_MORE:
                self.poll_ended(res)
        return 0

    cdef bint may_be_shared(self) except -1:
        """Whether a child, or somebody who was given the socket, may accept from it by now."""
        cdef int64_t now
        if self.forks != self.loop.ring.forks():
            self.forks = self.loop.ring.forks()
            return True
        now = uring_clock_ns()
        if now - self.asked_ns < COMPANY_EVERY:
            return False
        self.asked_ns = now
        return self.inode in LOOPS or uring_has_company(self.fd)

    cdef bint is_alone(self) except -1:
        """Whether this process sleeps in its ring because nobody else accepts from the socket."""
        return (self.loop.ring.u.away
                and not (<SharedListeners>self.loop.shared_listeners).has_company())

    cdef int poll_ended(self, int res) except -1:
        if self.closing:
            self.sock.close()
            return 0
        if self.shared:
            (<SharedListeners>self.loop.shared_listeners).come_back()
        # ECONNABORTED: of a ring that was replaced nobody knows what it has done.
        if res < 0 and res != -ECANCELED and res != -ECONNABORTED:
            return self.stop(res)
        # At the end of this turn, or in the first of the next run.
        return self.loop.add_flush(self)

    cdef int flush(self) except -1:
        self.start()
        if not self.shared or self.is_alone():
            self.accept_waiting(ACCEPTS)
        return 0

    cdef int accept_waiting(self, int most) except -1:
        """Accept up to *most* of the connections that wait, and return how many those were."""
        cdef sockaddr_in6 peer
        cdef unsigned int size
        cdef bint more = True
        cdef int res
        cdef int before = most
        cdef uring *u = &self.loop.ring.u
        try:
            while more and most > 0 and self.accepts():
                size = sizeof(peer)
                res = uring_accept(u, self.fd, &peer, &size)
                if res >= 0:
                    most -= 1
                    self.accepted(res, &peer, size)
                    if most == before - 1 and most > 0:
                        # Seldom: the rest of a burst is accepted until there is none.
                        more = uring_may_accept(self.fd)
                else:
                    more = self.accept_failed(res)
        finally:
            if self.accepts() and self.shared and not u.away:
                if most < before:
                    uring_step_back(u, self.fd)
                res = uring_reserve(u)
                if res < 0:
                    # Before it is woken for a connection that it can not take.
                    self.out_of_resources(res)
            elif self.accepts() and more:
                # The poll does not tell of these again.
                self.loop.add_flush(self)
        return before - most

    cdef bint accepts(self) noexcept:
        """Whether it is not closed, nor waiting for descriptors."""
        return not self.closing and not self.stopped and self.retry is None

    cdef bint accept_failed(self, int res) except -1:
        """Deal with an error of accept4(2); return whether to try again at once."""
        if res == -EAGAIN:
            # Those that have waited since before `TCP_NODELAY` was set have been accepted.
            self.nodelay = False
            return False
        if res in CONNECTION_ERRORS:
            return True
        if ((res == -EMFILE or res == -ENFILE) and not self.loop.ring.u.away
                and uring_use_reserve(&self.loop.ring.u)):
            return True
        if res == -EMFILE or res == -ENFILE or res == -ENOBUFS or res == -ENOMEM:
            self.out_of_resources(res)
        else:
            self.stop(res)
        return False

    cdef int stop(self, int res) except -1:
        """Give up: the descriptor is no listening socket any more."""
        self.report(os_error(res, "accept"), "socket.accept() failed")
        self.stopped = True
        return self.leave()

    cdef int leave(self) except -1:
        """Wait for connections no more."""
        if self.shared:
            (<SharedListeners>self.loop.shared_listeners).remove(self)
        if self.poll_op.in_flight:
            self.loop.ring.cancel(&self.poll_op)
        return 0

    cdef int accepted(self, int fd, const sockaddr_in6 *peer, unsigned int size) except -1:
        """Make the transport of a new connection, which owns *fd* from then on."""
        cdef StreamTransport transport = None
        PyContext_Enter(self.context)
        try:
            transport = self.connection(fd, peer, size, self.factory())
            self.connections.attach(transport)
            transport.begin(None)
        except (KeyboardInterrupt, SystemExit):
            self.drop(fd, transport)
            raise
        except BaseException as exc:
            self.drop(fd, transport)
            if self.loop.debug:
                self.loop.call_exception_handler(
                    {
                        "message": "Error on transport creation for incoming connection",
                        "exception": exc,
                    }
                )
        finally:
            PyContext_Exit(self.context)
        return 0

    cdef StreamTransport connection(
            self, int fd, const sockaddr_in6 *peer, unsigned int size, object protocol):
        cdef int on = 1
        cdef object sock
        if self.nodelay:
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        if self.near is not None:
            return new_accepted(
                self.loop, fd, self.near_end(fd), peer, size, protocol)
        sock = socket.socket(self.sock.family, self.sock.type, self.sock.proto, fd)
        try:
            return new_stream(self.loop, sock, protocol, None)
        except BaseException:
            # Whoever asked for the transport closes the descriptor.
            sock.detach()
            raise

    cdef NearEnd near_end(self, int fd):
        """Return what the connection shares with the one before it, if their names are equal."""
        cdef sockaddr_in6 name
        cdef unsigned int size = sizeof(name)
        if self.one_name:
            return self.near
        if getsockname(fd, <sockaddr*>&name, &size) < 0:
            size = 0
        if not self.near.is_named(&name, size):
            self.near = self.near.renamed(&name, size)
        return self.near

    cdef int drop(self, int fd, StreamTransport transport) except -1:
        """Close a connection that has got no protocol."""
        if transport is None:
            close(fd)
            return 0
        return transport.release()

    cdef int out_of_resources(self, int res) except -1:
        """Wait before the next try: connections go on waiting."""
        if self.shared:
            self.leave()
        self.report(os_error(res, ""), "socket.accept() out of system resource")
        self.retry = self.loop.call_later(constants.ACCEPT_RETRY_DELAY, self._retry_accept)
        return 0

    def _retry_accept(self):
        cdef int res = uring_reserve(&self.loop.ring.u)
        self.retry = None
        if res < 0:
            self.out_of_resources(res)
        else:
            self.start()
            self.accept_waiting(ACCEPTS)

    cdef int report(self, object exc, str message) except -1:
        self.loop.call_exception_handler(
            {
                "message": message,
                "exception": exc,
                "socket": trsock.TransportSocket(self.sock),
            }
        )
        return 0


cdef bint is_bound_to_one_address(object sock) except -1:
    """Whether the connections of a listening socket all have its own name."""
    if sock.getsockname()[0] in ANY_ADDRESS:
        return False
    # A transparent proxy accepts what is addressed to others.
    if sock.family == socket.AF_INET:
        return not sock.getsockopt(socket.SOL_IP, IP_TRANSPARENT)
    return not sock.getsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT)


# ── sockets that other processes accept from, too ────────────────────────────────────────────────


cdef class SharedListeners(Flushable):

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.listeners = {}

    cdef int add(self, Listener listener) except -2:
        """Wait for *listener*; -1 where the kernel does not allow it."""
        cdef uring *u = &self.loop.ring.u
        self.loop.ring.check_inherited()
        if listener.fd in self.listeners:
            return 0
        # The others poll: this one would not.
        self.come_back()
        if not uses(SHARED_ACCEPT, u.soft != NULL):
            return -1
        if u.doors_fd < 0 and self.open_doors() < 0:
            return -1
        self.listeners[listener.fd] = listener
        LOOPS[listener.inode] = LOOPS.get(listener.inode, 0) + 1
        uring_sign(listener.fd)
        if uring_add_door(u, listener.fd) < 0:
            self.remove(listener)
            return -1
        return 0

    cdef int open_doors(self) except -2:
        cdef uring *u = &self.loop.ring.u
        cdef Watchers watchers = self.loop._watchers
        cdef int res = uring_open_doors(u)
        if res >= 0:
            res = uring_add_waker(u, self.loop.waker.fd)
        if res >= 0:
            res = uring_add_waker(u, watchers.epoll_fd)
        if res >= 0:
            res = uring_reserve(u)
        if res < 0:
            uring_close_doors(u)
        return res

    cdef int remove(self, Listener listener) except -1:
        if self.listeners.pop(listener.fd, None) is not None:
            sign_off(listener)
            uring_remove_door(&self.loop.ring.u, listener.fd)
        return 0

    cdef int close_if_empty(self) except -1:
        """Sleep as without shared listening sockets again when the last of them is closed."""
        if not self.listeners:
            uring_close_doors(&self.loop.ring.u)
        return 0

    cdef int flush(self) except -1:
        """Accept if a connection ended the sleep, and now and then without a sleep."""
        cdef uring *u = &self.loop.ring.u
        cdef int64_t now
        if u.doors_fd < 0:
            return self.dissolve()
        if u.away:
            return 0
        if u.naps >= NAPS:
            return self.go_away()
        if u.knocked_fd < 0:
            now = uring_clock_ns()
            if now - self.looked_ns < LOOK_EVERY:
                return 0
            self.looked_ns = now
            uring_listen_at_doors(u, 0)
            if u.knocked_fd < 0 and now - self.searched_ns >= SEARCH_EVERY:
                self.searched_ns = now
                self.search()
        return self.accept_knocked()

    cdef int search(self) except -1:
        """Look for connections whose wake-up went to a process that has not come for them."""
        cdef uring *u = &self.loop.ring.u
        if not self.has_company():
            return self.go_away()
        uring_search(u)
        uring_listen_at_doors(u, 0)
        return 0

    cdef int accept_knocked(self) except -1:
        """Accept one connection, and more if nobody else has come to take those that wait."""
        cdef uring *u = &self.loop.ring.u
        cdef Listener listener = self.listeners.get(u.knocked_fd)
        cdef int most
        cdef int64_t now
        u.knocked_fd = -1
        if listener is None:
            return 0
        if not self.has_company():
            # The polls tell of this connection, too.
            return self.go_away()
        if u.rested:
            u.rested = False
            self.full = 0
        now = uring_clock_ns()
        if self.full and uring_is_crowded(listener.fd):
            self.full = FULL
        elif self.full and (self.full < SINGLES or now - self.yielded_ns >= YIELD_EVERY):
            self.yielded_ns = now
            with nogil:
                sched_yield()
        most = min(1 << max(0, self.full - SINGLES), ACCEPTS)
        if listener.accept_waiting(most) == most:
            self.full = min(self.full + 1, FULL)
        else:
            self.full = min(self.full, SINGLES)
        return 0

    cdef bint has_company(self) except -1:
        """Whether other processes, or other loops of this one, accept from one of the sockets."""
        cdef Listener listener
        cdef int64_t now = uring_clock_ns()
        if now - self.asked_ns >= COMPANY_EVERY:
            self.asked_ns = now
            self.company = False
            for listener in self.listeners.values():
                # Again: the lock goes with any descriptor of the socket that the program closes.
                uring_sign(listener.fd)
                if LOOPS[listener.inode] > 1 or uring_has_company(listener.fd):
                    self.company = True
        return self.company

    cdef int go_away(self) except -1:
        """Sleep in the ring, where polls tell of connections: this process is busy, or alone."""
        cdef Listener listener
        uring_leave_doors(&self.loop.ring.u, True)
        for listener in list(self.listeners.values()):
            if not listener.poll_op.in_flight:
                listener.submit_poll()
        return 0

    cdef int come_back(self) except -1:
        """Sleep at the doors again."""
        cdef Listener listener
        if self.loop.ring.u.away:
            self.full = 0
            uring_leave_doors(&self.loop.ring.u, False)
            for listener in list(self.listeners.values()):
                if listener.poll_op.in_flight:
                    self.loop.ring.cancel(&listener.poll_op)
        return 0

    cdef int dissolve(self) except -1:
        """Let each listener wait alone: the ring has lost the doors in a change of thread."""
        cdef Listener listener
        cdef dict listeners = self.listeners
        self.listeners = {}
        for listener in listeners.values():
            sign_off(listener)
            listener.shared = False
            listener.start()
        return 0


cdef int sign_off(Listener listener) except -1:
    """Take *listener* out of the count of this process's loops; a forked child has none of them."""
    cdef object others = LOOPS.get(listener.inode, 1) - 1
    if others:
        LOOPS[listener.inode] = others
    else:
        LOOPS.pop(listener.inode, None)
    return 0


cdef int listener_on_poll(Operation *op, int res, unsigned int flags) except -1:
    return (<Listener>op.owner).on_poll(res, flags)
