"""Receiving: when a receive is armed, and what a transport does with what comes while paused.

    IDLE ──arm()──> ARMED ──cancel_recv()──> CANCELLING      any ──end_input()──> ENDED
     ^ ^              │                          │
     │ └──────────────┴──── disarmed() <─────────┘
     └──rearm()── STARVED <──starve()── IDLE

A receive that is in flight when the input ends is a poll; it is cancelled.

`pause_reading` only sets a flag. What the kernel had taken from the socket by then, or takes
before it hears of the pause, goes to a stash; the first such item stops the flow. `resume_reading`
delivers the stash in a callback of its own, in order, and looks at the flag again after each item.
An item is whatever the subclass puts there: bytes, a datagram, an end.
"""

from asyncio.log import logger

from uringloop._kernel.libc cimport MSG_PEEK
from uringloop._transport.transport cimport CLOSING, OPEN, Transport


cdef class ReadTransport(Transport):

    cdef int want_recv(self) except -1:
        """Arm a receive if the protocol wants something and none is armed."""
        if self.life == OPEN and self.receiving == IDLE and not self.paused:
            self.submit_recv(False)
        return 0

    cdef int submit_recv(self, bint poll_first) except -1:
        """Prepare a receive and `arm` it; with *poll_first* it looks for no buffer before."""
        raise NotImplementedError

    cdef int rearm(self) except -1:
        # With a poll first: a receive that looks for a buffer first fails for want of one even when
        # the socket is idle.
        if self.receiving == STARVED:
            self.receiving = IDLE
            if self.life == OPEN and not self.paused:
                self.submit_recv(True)
        return 0

    cdef int arm(self, io_uring_sqe *sqe) except -1:
        """Put a prepared receive in flight."""
        assert self.receiving == IDLE
        self.receiving = ARMED
        return self.loop.ring.start(sqe, &self.recv_op)

    cdef void disarmed(self) noexcept:
        """The terminal completion of the receive has come."""
        if self.receiving != ENDED:
            self.receiving = IDLE

    cdef int cancel_recv(self) except -1:
        """Have the receive end; what it has taken meanwhile is still delivered."""
        if self.receiving == ARMED and self.recv_op.in_flight:
            self.receiving = CANCELLING
            self.loop.ring.cancel(&self.recv_op)
        return 0

    cdef int starve(self, BufferPool pool) except -1:
        """Receive again once *pool* has a buffer; until then the bytes stay in the socket."""
        if self.receiving == ENDED:
            return 0
        assert self.receiving == IDLE
        self.receiving = STARVED
        return self.loop.starve(self, pool)

    cdef int end_input(self) except -1:
        """Receive nothing more, ever."""
        self.cancel_recv()
        self.receiving = ENDED
        return 0

    cdef int stop_reading(self) except -1:
        """Take nothing more from the descriptor."""
        return self.cancel_recv()

    cdef int deliver_item(self, object item) except -1:
        """Hand an item of the stash to the protocol."""
        raise NotImplementedError

    cdef int deliver_end(self, object item) except -1:
        """Tell the protocol of an item after which there is nothing to read."""
        raise NotImplementedError

    cdef int deliver_last(self, object item) except -1:
        """Do that; a protocol that leaves the run is told by the next one again, as in asyncio."""
        try:
            return self.deliver_end(item)
        except (KeyboardInterrupt, SystemExit):
            self.keep_first(item)
            raise

    cdef object refusal(self, object buffer):
        """Return what recv_into() says of memory that can not be received into, as asyncio does."""
        try:
            # Peeking, should it say nothing: no byte is lost.
            self.need_socket().recv_into(buffer, 0, MSG_PEEK)
        except BaseException as exc:
            return exc
        return None

    cdef int take_item(self, object item) except -1:
        """Hand an item to the protocol, or keep it while reading is paused."""
        if self.paused or self.stash:
            return self.keep(item)
        return self.deliver_item(item)

    cdef int keep(self, object item) except -1:
        """Stash what came while reading is paused, and stop the flow."""
        if self.stash is None:
            self.stash = []
        self.stash.append(item)
        if self.paused:
            self.stop_reading()
        return 0

    cdef int keep_first(self, object item) except -1:
        """Stash what is left of the item that is being delivered: it goes before the others."""
        if self.stash is None:
            self.stash = []
        self.stash.insert(0, item)
        if not self.paused:
            self.schedule_stash()
        return 0

    cdef Py_ssize_t keep_rest(self, const char *rest, Py_ssize_t size) except -1:
        """Stash the *rest* of what is being delivered, for a nested run; return *size*.

        It goes before whatever that run receives.
        """
        self.keep_first(rest[:size])
        return size

    cdef int schedule_stash(self) except -1:
        if not self.stash_scheduled:
            self.stash_scheduled = True
            # In a context of its own: each delivery enters the transport's.
            self.loop.schedule(self._deliver_stash, (), None)
        return 0

    def _deliver_stash(self):
        self.stash_scheduled = False
        try:
            while self.stash and not self.paused and self.life < CLOSING:
                item = self.stash.pop(0)
                if self.stash and self.loop.nestable:
                    # A run within this delivery goes on with the others.
                    self.schedule_stash()
                self.deliver_item(item)
        finally:
            if self.stash and not self.paused and self.life < CLOSING:
                self.schedule_stash()
            self.want_recv()

    @property
    def _paused(self):
        return self.paused

    def pause_reading(self):
        if self.life >= CLOSING or self.paused:
            return
        self.paused = True
        if self.loop.debug:
            logger.debug("%r pauses reading", self)

    def resume_reading(self):
        if self.life >= CLOSING or not self.paused:
            return
        self.paused = False
        if self.stash:
            self.schedule_stash()
        else:
            self.want_recv()
        if self.loop.debug:
            logger.debug("%r resumes reading", self)

    def is_reading(self):
        return self.life < CLOSING and not self.paused
