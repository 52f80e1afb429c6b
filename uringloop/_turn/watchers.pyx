"""Watched descriptors: add_reader, add_writer, the ends of child processes.

An epoll instance holds the descriptors, and the ring waits for that instance only. A poll request
for each descriptor would keep its file open until the kernel has ended the request: after close()
the port would still be in use, and the peer would not see the FIN. epoll drops a descriptor at once
when it is removed or closed.

Readiness is level-triggered, as in asyncio: the wait is armed again at the end of a turn in which
callbacks have run. Nothing here reads, writes or closes a descriptor of the program.

Without a GIL other threads may watch descriptors, too, as asyncio lets them outside of debug mode:
ipykernel does it. epoll_ctl(2) has its effect at once, whatever the loop does; the fields are
changed in critical sections. Only the loop's thread, or one that has claimed a loop that does not
run, arms the wait and looks for the transport that owns a descriptor.
"""

from asyncio import constants

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint64_t

from uringloop._cpython.pyapi cimport FREE_THREADED, Py_DECREF_owned
from uringloop._kernel.atomics cimport load_int
from uringloop._kernel.epoll cimport (
    EPOLLIN,
    EPOLLOUT,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    epoll_event,
    uring_epoll_wait,
)
from uringloop._kernel.errors cimport EBADF, ECANCELED, EEXIST, EINVAL, errno, os_error
from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport POLLIN, close
from uringloop._kernel.sockets cimport io_uring_prep_poll_add, uring_prep_epoll_wait
from uringloop._ring.features cimport EPOLL_WAIT
from uringloop._ring.ring cimport BACKGROUND, Operation, operation_init
from uringloop._turn.fd_table cimport FdTable
from uringloop._turn.handles cimport Handle
from uringloop._turn.sleeper cimport CREDIT_MAX, EVENTS_MAX, EpollUser, Sleeper
from uringloop._turn.turn cimport LoopCore, runs_here, try_to_claim, unclaim


cdef enum:
    # A removal can leave a few events of a descriptor that is not watched any more. If more
    # completions in a row than this bring such events, epoll reports a closed descriptor, which a
    # duplicate keeps in the instance.
    STALE_BATCHES_MAX = 16
# Seconds until the next wait after an error that stays; asyncio's delay for accepting.
RETRY_DELAY = constants.ACCEPT_RETRY_DELAY


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
cdef class Watchers(EpollUser):

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.watched = {}
        self.by_fd = FdTable()
        loop.sleeper.set_watchers(self)
        operation_init(&self.wait_op, watchers_on_events, <PyObject*>self)
        # Armed while any descriptor is watched, so not an operation that the program has started.
        self.wait_op.policy = BACKGROUND

    @cython.critical_section
    def watch(self, int fd, unsigned int event, callback, args, file=None):
        """Run *callback* with *args* whenever *fd* is ready; replace an earlier callback.

        *event* is EPOLLIN or EPOLLOUT. Raises OSError: PermissionError for a file that is always
        ready, such as a regular one.
        """
        cdef Watched watched = self.watched.get(fd)
        cdef Handle handle
        if self.loop is None:
            raise RuntimeError("Event loop is closed")
        self.loop.check_debug()
        self.loop.ring.check_usable()
        # Make the handle before registration: without a handle nothing would clear the events.
        handle = self.loop._make_handle(callback, args)
        self.asked += 1
        if watched is not None:
            watched.number = self.asked
            if self.control(EPOLL_CTL_MOD, watched, watched.events | event) < 0:
                # The program has closed the descriptor, which may belong to another file by now.
                watched.cancel(watched.events)
                self.forget(watched)
                watched = None
        if watched is None:
            watched = Watched.__new__(Watched)
            watched.fd = fd
            watched.number = self.asked
            self.add(watched, event)
            try:
                # In this order: without a GIL another thread may have added the descriptor, too.
                self.by_fd.add(fd, <PyObject*>watched)
                self.watched[fd] = watched
                self.loop.sleeper.note_watched(len(self.watched))
            except BaseException:
                self.by_fd.forget(fd)
                self.control(EPOLL_CTL_DEL, watched, 0)
                raise
        watched.file = file
        watched.put(event, handle)
        if not FREE_THREADED or runs_here(self.loop):
            self.arm_later()
        elif try_to_claim(self.loop):
            try:
                self.loop.check_closed()
                self.arm_later()
            finally:
                unclaim(self.loop)
        else:
            self.loop.call_soon_threadsafe(self.arm_later)
        return handle

    def arm_later(self):
        """Arm the wait at the end of this turn, or of the first one of the next run."""
        if self.loop is not None and not self.wait_op.in_flight:
            self.loop.sleeper.request_arm()

    @cython.critical_section
    def remove(self, fd, unsigned int event):
        """Stop watching *fd* for *event*; return whether it was watched."""
        cdef Watched watched
        if self.loop is not None:
            self.loop.check_debug()
        watched = self.watched.get(fd)
        if watched is None or not watched.events & event:
            return False
        self.loop.ring.check_usable()
        watched.cancel(event)
        # Errors are ignored: epoll has dropped a descriptor that the program has closed.
        if watched.events:
            self.control(EPOLL_CTL_MOD, watched, watched.events)
        else:
            self.forget(watched)
            self.control(EPOLL_CTL_DEL, watched, 0)
        return True

    @cython.critical_section
    def descriptor_of(self, file):
        """Return the descriptor of *file*, which may be closed, or -1 if it is not watched."""
        cdef Watched watched
        for watched in self.watched.values():
            if watched.file is file:
                return watched.fd
        return -1

    def resume(self):
        """Arm the wait for a nested run, which may have begun in a callback of on_ready().

        on_ready() then skips its other ready handles: epoll reports them again.
        """
        if self.loop is None:
            raise RuntimeError("Event loop is closed")
        self.resumed += 1
        self.loop.sleeper.request_arm()

    @cython.critical_section
    def close(self):
        """Forget everything, including the loop: a closed loop is in no reference cycle."""
        self.by_fd = FdTable()
        self.watched = {}
        self.loop = None

    cdef int forget(self, Watched watched) except -1:
        self.by_fd.forget(watched.fd)
        del self.watched[watched.fd]
        if self.loop is not None:
            self.loop.sleeper.note_watched(len(self.watched))
        return 0

    cdef int control(self, int operation, Watched watched, unsigned int events) noexcept:
        """Return 0 or -errno."""
        cdef epoll_event event
        event.events = events
        event.data.u64 = <uint64_t>watched.number << 32 | <unsigned int>watched.fd
        return self.loop.sleeper.control(operation, watched.fd, &event)

    cdef int add(self, Watched watched, unsigned int event) except -1:
        cdef int res = self.control(EPOLL_CTL_ADD, watched, event)
        if res == -EEXIST:
            # The program closed the descriptor before its removal, a duplicate kept it in epoll,
            # and the same file has the same number again.
            res = self.control(EPOLL_CTL_MOD, watched, event)
        if res < 0:
            raise os_error(res, "")
        return 0

    # ── readiness ────────────────────────────────────────────────────────────────────────────

    cdef int arm(self) except -1:
        cdef io_uring_sqe *sqe
        if (self.wait_op.in_flight or not self.watched or self.retrying
                or not self.waits_in_ring()):
            return 0
        sqe = self.loop.ring.submission()
        self.direct = self.loop.ring.uses(EPOLL_WAIT)
        if self.direct:
            uring_prep_epoll_wait(sqe, self.loop.sleeper.epoll_fd, self.events, EVENTS_MAX)
        else:
            io_uring_prep_poll_add(sqe, self.loop.sleeper.epoll_fd, POLLIN)
        return self.loop.ring.start(sqe, &self.wait_op)

    cdef int on_place(self) except -1:
        """Take the request out of the ring, or arm it at the end of this turn."""
        if not self.waits_in_ring():
            self.failures = 0
            return self.loop.ring.reap(&self.wait_op)
        self.loop.sleeper.request_arm()
        return 0

    cdef int on_completion(self, int res) except -1:
        if not self.waits_in_ring():
            # epoll_wait(2) reports the events again.
            return 0
        if res > 0 and not self.direct:
            res = self.fetch()
        return self.on_error(res) if res < 0 else self.on_ready(self.events, res)

    cdef int fetch(self) noexcept:
        """Return the number of events that are there now, or -errno."""
        cdef int res = uring_epoll_wait(
            self.loop.sleeper.epoll_fd, self.events, EVENTS_MAX, 0)
        return -errno if res < 0 else res

    cdef int on_ready(self, epoll_event *events, int count) except -1:
        # This call's own references: a callback may remove or replace the handles that follow it.
        cdef PyObject *due[2 * EVENTS_MAX]
        cdef int number = 0
        cdef int index = 0
        cdef unsigned int resumed = self.resumed
        try:
            self.failures = 0
            number = self.due_handles(events, count, due)
            if self.stale_batches > STALE_BATCHES_MAX and self.reports_unwatched():
                self.renew()
            # A nested run fetches other events: epoll reports the skipped ones again.
            while index < number and self.resumed == resumed:
                self.loop.run_handle(<Handle>due[index])
                index += 1
                self.loop.ring.check_not_forked()
        finally:
            for index in range(number):
                Py_DECREF_owned(due[index])
            # After a KeyboardInterrupt epoll reports the skipped handles in the next run again.
            self.wait_again()
        return 0

    cdef int on_error(self, int res) except -1:
        self.stale_batches = 0
        try:
            if res == -ECANCELED:
                self.failures = 0
            else:
                self.wait_failed(res)
        finally:
            self.wait_again()
        return 0

    cdef int wait_failed(self, int res) except -1:
        """Wait at a new instance, since other code may have closed this one; or wait later."""
        cdef Sleeper sleeper = self.loop.sleeper
        cdef bint is_foreign = res == -EBADF or res == -EINVAL
        self.failures += 1
        if self.failures == 1:
            # After another error the descriptor is still that of the loop's instance.
            return self.replace_instance() if is_foreign else self.renew()
        if sleeper.is_at_epoll():
            sleeper.forbid_epoll()
        return self.retry_later(res)

    cdef int retry_later(self, int res) except -1:
        """Report an error that may stay, and wait for events again after RETRY_DELAY."""
        self.retrying = True
        self.loop.call_later(RETRY_DELAY, self._retry)
        self.loop.call_exception_handler(
            {
                "message": "Waiting for descriptors failed",
                "exception": os_error(res, "epoll"),
            }
        )
        return 0

    def _retry(self):
        self.retrying = False
        self.failures = 0
        self.arm_later()

    @cython.critical_section
    cdef int due_handles(self, epoll_event *events, int count, PyObject **due) noexcept:
        """Write new references to the handles of *count* events to *due*; return their number."""
        cdef bint strange = False
        cdef int number = 0
        cdef unsigned int ready
        cdef Watched watched
        cdef int index
        for index in range(count):
            ready = events[index].events
            watched = self.watched_by(events[index].data.u64)
            if watched is None:
                strange = True
                continue
            # EPOLLERR and EPOLLHUP are for both handles.
            if ready & ~EPOLLOUT and watched.events & EPOLLIN:
                Py_INCREF(watched.reader)
                due[number] = <PyObject*>watched.reader
                number += 1
            if ready & ~EPOLLIN and watched.events & EPOLLOUT:
                Py_INCREF(watched.writer)
                due[number] = <PyObject*>watched.writer
                number += 1
        self.stale_batches = self.stale_batches + 1 if strange else 0
        return number

    cdef int wait_again(self) except -1:
        """Wait for the next events: from the end of this turn, or in the loop's next sleep."""
        cdef Sleeper sleeper = self.loop.sleeper
        if self.waits_in_ring():
            if sleeper.note_events() and not self.wait_op.in_flight and self.watched:
                sleeper.go_to_epoll(CREDIT_MAX)
        elif not self.watched and not sleeper.is_exclusive():
            sleeper.go_to_ring()
        sleeper.request_arm()
        return 0

    cdef Watched watched_by(self, uint64_t key):
        """Return the Watched of an event's *key*; None if it was removed or changed since."""
        cdef PyObject *watched = self.by_fd.at(<int><unsigned int>key)
        if watched == NULL or (<Watched>watched).number != key >> 32:
            return None
        return <Watched>watched

    @cython.critical_section
    cdef bint reports_unwatched(self) except -1:
        """Return whether epoll now reports a descriptor that is not watched."""
        cdef int index
        cdef uint64_t key
        self.stale_batches = 0
        for index in range(self.fetch()):
            key = self.events[index].data.u64
            # Others have events in the instance, too (sleeper.pyx).
            if <int><unsigned int>key >= 0 and self.watched_by(key) is None:
                return True
        return False

    cdef int renew(self) except -1:
        """Move to a new epoll instance, and close the old one.

        Otherwise epoll would report for ever a descriptor that was closed before its removal and
        has an open duplicate.
        """
        cdef int old = self.loop.sleeper.epoll_fd
        self.replace_instance()
        if self.loop.sleeper.epoll_fd != old:
            close(old)
        return 0

    @cython.critical_section
    cdef int replace_instance(self) except -1:
        """Move the watched descriptors to a new epoll instance."""
        cdef int res = self.loop.sleeper.renew()
        if res < 0:
            return self.retry_later(res)
        for watched in self.watched.values():
            # EBADF is ignored: a closed descriptor is never ready.
            self.control(EPOLL_CTL_ADD, watched, (<Watched>watched).events)
        return 0


def transport_of(LoopCore loop not None, fd):
    """Return the transport of *loop* that owns *fd*, or None; None if another thread runs it."""
    loop.check_debug()
    if not FREE_THREADED or runs_here(loop):
        return loop.fd_table.get(fd)
    # In a forked child nobody would give back what a thread of the parent has claimed.
    if loop.ring.is_inherited() or not try_to_claim(loop):
        return None
    try:
        return None if load_int(&loop.closed) else loop.fd_table.get(fd)
    finally:
        unclaim(loop)


cdef int watchers_on_events(Operation *op, int res, unsigned int flags) except -1:
    return (<Watchers>op.owner).on_completion(res)
