"""What the program watches: add_reader, add_writer, the ends of child processes.

An epoll instance has the descriptors, and the ring waits for nothing but that. A request for each
would keep its file open until the kernel has ended the request: a port would not be free yet, a
peer would not hear of the end. epoll forgets a descriptor at once when it is removed, or closed.

It tells levels, as asyncio promises: it is asked anew at the end of a turn in which callbacks have
run. Nothing here reads, writes or closes a descriptor of the program's.
"""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from uringloop._kernel.epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
)
from uringloop._kernel.errors cimport ECANCELED, EEXIST, errno, os_error
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport close, POLLIN
from uringloop._kernel.sockets cimport io_uring_prep_poll_add, uring_prep_epoll_wait
from uringloop._ring.features cimport EPOLL_WAIT, uses
from uringloop._ring.ring cimport BACKGROUND, Operation, operation_init
from uringloop._ring.shared_sockets cimport uring_add_waker
from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport Flushable, LoopCore


READ = EPOLLIN
WRITE = EPOLLOUT

# So many completions with events of what nobody watches are no coincidence of removals.
cdef int STRANGERS_MAX = 16


@cython.final
cdef class Watched:

    cdef int put(self, unsigned int event, Handle handle) except -1:
        self.cancel(event)
        self.events |= event
        if event == EPOLLIN:
            self.reader = handle
        else:
            self.writer = handle
        return 0

    cdef int cancel(self, unsigned int events) except -1:
        if self.events & events & EPOLLIN:
            self.reader.cancel()
        if self.events & events & EPOLLOUT:
            self.writer.cancel()
        self.events &= ~events
        return 0


@cython.final
cdef class Watchers(Flushable):

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.watched = {}
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise os_error(-errno, "epoll_create1")
        operation_init(&self.wait_op, watchers_on_events, <PyObject*>self)
        # Armed as long as anything is watched, which is no request of the program's.
        self.wait_op.policy = BACKGROUND

    def __dealloc__(self):
        self.close()

    def watch(self, int fd, unsigned int event, callback, args, file=None):
        """Run *callback* with *args* whenever *fd* is ready; replaces an earlier one.

        *event* is READ or WRITE. Raises OSError: PermissionError for what is always ready.
        """
        cdef Watched watched = self.watched.get(fd)
        cdef Handle handle
        if self.loop is None:
            raise RuntimeError("Event loop is closed")
        self.loop.ring.check_inherited()
        self.asked += 1
        if watched is not None:
            watched.number = self.asked
            if self.control(EPOLL_CTL_MOD, watched, watched.events | event) < 0:
                # The descriptor is another file's by now, or nobody's.
                watched.cancel(watched.events)
                del self.watched[fd]
                watched = None
        if watched is None:
            watched = Watched.__new__(Watched)
            watched.fd = fd
            watched.number = self.asked
            self.add(watched, event)
            self.watched[fd] = watched
        handle = self.loop._make_handle(callback, args)
        watched.file = file
        watched.put(event, handle)
        if not self.wait_op.in_flight:
            self.loop.add_rearm(self)
        return handle

    def remove(self, fd, unsigned int event):
        """Watch *fd* no more for *event*; return whether it was."""
        cdef Watched watched = self.watched.get(fd)
        if watched is None or not watched.events & event:
            return False
        self.loop.ring.check_inherited()
        watched.cancel(event)
        # It may be closed: then epoll has forgotten it.
        if watched.events:
            self.control(EPOLL_CTL_MOD, watched, watched.events)
        else:
            del self.watched[fd]
            self.control(EPOLL_CTL_DEL, watched, 0)
        return True

    def descriptor_of(self, file):
        """Return as which descriptor *file*, which may be closed, is watched; -1 if it is not."""
        cdef Watched watched
        for watched in self.watched.values():
            if watched.file is file:
                return watched.fd
        return -1

    def resume(self):
        """Ask epoll anew for a nested run, as it may be within a callback of on_events().

        Of the other handles that on_events() has found ready epoll tells again.
        """
        if self.loop is None:
            raise RuntimeError("Event loop is closed")
        self.resumed += 1
        if not self.wait_op.in_flight and self not in self.loop.rearm_list:
            # A flush that waits for this run may have taken it from the list already.
            self.flush_queued = True
            self.loop.rearm_list.append(self)

    def close(self):
        """Forget everything, the loop as well: a closed loop is part of no reference cycle."""
        self.watched = {}
        self.loop = None
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
            self.epoll_fd = -1

    cdef int control(self, int operation, Watched watched, unsigned int events) noexcept:
        """Return 0 or -errno."""
        cdef epoll_event event
        event.events = events
        event.data.u64 = <uint64_t>watched.number << 32 | <unsigned int>watched.fd
        return 0 if epoll_ctl(self.epoll_fd, operation, watched.fd, &event) == 0 else -errno

    cdef int add(self, Watched watched, unsigned int event) except -1:
        cdef int res = self.control(EPOLL_CTL_ADD, watched, event)
        if res == -EEXIST:
            # Closed, removed, and there again: a duplicate has kept it in epoll.
            res = self.control(EPOLL_CTL_MOD, watched, event)
        if res < 0:
            raise os_error(res, "")
        return 0

    # ── readiness ────────────────────────────────────────────────────────────────────────────

    cdef int flush(self) except -1:
        return self.arm()

    cdef int arm(self) except -1:
        cdef io_uring_sqe *sqe
        if self.wait_op.in_flight or not self.watched:
            return 0
        sqe = self.loop.ring.submission()
        self.direct = uses(EPOLL_WAIT, self.loop.ring.u.soft != NULL)
        if self.direct:
            uring_prep_epoll_wait(sqe, self.epoll_fd, self.events, EVENTS_MAX)
        else:
            io_uring_prep_poll_add(sqe, self.epoll_fd, POLLIN)
        return self.loop.ring.start(sqe, &self.wait_op)

    cdef int on_events(self, int res, unsigned int flags) except -1:
        cdef Handle handle
        cdef unsigned int resumed = self.resumed
        if res > 0 and not self.direct:
            res = epoll_wait(self.epoll_fd, self.events, EVENTS_MAX, 0)
        try:
            if res < 0 and res != -ECANCELED:
                self.renew(True)
            for handle in self.ready_handles(res):
                if self.resumed != resumed:
                    break
                self.loop.run_handle(handle)
        finally:
            # What an interrupt has kept from being called is ready in the next run as well.
            self.loop.add_rearm(self)
        return 0

    cdef list ready_handles(self, int count):
        """Return what is to be called; a callback may cancel those of others."""
        cdef bint strange = False
        cdef list handles = []
        cdef unsigned int events
        cdef Watched watched
        cdef int index
        for index in range(count):
            events = self.events[index].events
            watched = self.watched_by(self.events[index].data.u64)
            if watched is None:
                strange = True
                continue
            # An error or a hang-up is for both.
            if events & ~EPOLLOUT and watched.events & EPOLLIN:
                handles.append(watched.reader)
            if events & ~EPOLLIN and watched.events & EPOLLOUT:
                handles.append(watched.writer)
        self.strangers = self.strangers + 1 if strange else 0
        if self.strangers > STRANGERS_MAX and self.has_strangers():
            self.renew(False)
        return handles

    cdef Watched watched_by(self, uint64_t told):
        """Return what an event tells of, or None if that has been removed, or changed, since."""
        cdef Watched watched = self.watched.get(<int><unsigned int>told)
        return watched if watched is not None and watched.number == told >> 32 else None

    cdef bint has_strangers(self) except -1:
        """Whether epoll tells, now, of what nobody watches."""
        cdef int index
        self.strangers = 0
        for index in range(epoll_wait(self.epoll_fd, self.events, EVENTS_MAX, 0)):
            if self.watched_by(self.events[index].data.u64) is None:
                return True
        return False

    cdef int renew(self, bint lost) except -1:
        """Begin anew with what is still watched.

        For what was closed before it was removed while a duplicate lives on, of which epoll tells
        for ever. And for an instance that is *lost*: somebody has closed its descriptor.
        """
        cdef int fresh = epoll_create1(EPOLL_CLOEXEC)
        if fresh < 0:
            raise os_error(-errno, "epoll_create1")
        if not lost:
            close(self.epoll_fd)
        self.epoll_fd = fresh
        uring_add_waker(&self.loop.ring.u, fresh)
        for watched in self.watched.values():
            # One that is closed is not ready any more.
            self.control(EPOLL_CTL_ADD, watched, (<Watched>watched).events)
        return 0


cdef int watchers_on_events(Operation *op, int res, unsigned int flags) except -1:
    return (<Watchers>op.owner).on_events(res, flags)
