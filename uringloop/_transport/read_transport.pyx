"""Receiving: when the next receive is armed, and the stash of a paused transport.

    IDLE ──arm()──> POLL_ONCE or POLL
    IDLE ──arm()──> MULTISHOT ──cancel_multishot(), by a pause──> PAUSING
                     │     ^                                       │   │
                     │     └─────────────undo_cancel()─────────────┘   │ cancel_multishot()
                     │                                                 v
                     └─────────────cancel_multishot()──────────────> STOPPING
    POLL_ONCE, POLL, MULTISHOT, PAUSING, STOPPING ──disarmed()──> IDLE
    IDLE ──starve()──> STARVED ──rearm()──> IDLE
    IDLE ──delay_recv()──> DELAYED ──_recv_later()──> IDLE
    any state ──end_input()──> ENDED

In the five states from which disarmed() leads to IDLE, `recv_op` is in flight until its last
completion. If the input ends while `recv_op` is in flight, the state remains ENDED after that
completion.

A poll takes nothing from the descriptor, so it may stay in flight while reading is paused, and the
state does not change when it is cancelled. A receive by the ring takes bytes before the protocol is
called, so `pause_reading` cancels it; what the receive has taken by then goes to the stash. If
`resume_reading` is called in the turn of the pause, it undoes the cancel, unless the stash or
something else needs the cancel by then (STOPPING).

An item of the stash is whatever the subclass puts there: bytes, a datagram with its address, an
error, the end of the input. Each turn delivers one item, at the point where a selector would report
the descriptor, so that what a protocol schedules for one item runs before the next item. A stream
delivers in one turn all its stashed bytes and those that the socket has by then.

`on_recv` arms the next receive even if the protocol raises KeyboardInterrupt: no later completion
would arm it.
"""

from asyncio.log import logger

from uringloop._kernel.atomics cimport count_total, load_int, store_int
from uringloop._kernel.io_uring cimport IORING_CQE_F_MORE
from uringloop._kernel.libc cimport MSG_PEEK
from uringloop._transport.transport cimport CLOSING, OPEN, Transport, load_life, polling_or_idle


# Seconds until the next poll of a datagram socket that polls report as readable although it is not,
# because it is half closed.
cdef double RECV_DELAY = 0.001


cdef class ReadTransport(Transport):

    cdef int start_io(self) except -1:
        self.polls_left = POLLS_FIRST
        return self.want_recv()

    cdef int want_recv(self) except -1:
        """Arm a receive if the protocol reads and none is armed."""
        if not OPEN <= self.life < CLOSING or self.paused or self.stash:
            return 0
        if self.readable and self.receiving != ENDED:
            return self.loop.add_delivery(self)
        return self.submit_recv() if self.receiving == IDLE else 0

    cdef int submit_recv(self) except -1:
        """Prepare a receive or a poll, and `arm` it."""
        raise NotImplementedError

    cdef int on_recv(self, int res, unsigned int flags) except -1:
        """Deliver what a completion of `recv_op` brings; after the terminal one, receive again."""
        cdef bint is_last = not flags & IORING_CQE_F_MORE
        if is_last:
            self.disarmed()
        try:
            self.on_received(res, flags)
        finally:
            if is_last and self.life >= CLOSING:
                self.release_when_done()
            elif is_last:
                self.on_recv_end(res)
        return 0

    cdef int on_received(self, int res, unsigned int flags) except -1:
        """Deliver what a completion of `recv_op` brings, and give its buffer back."""
        raise NotImplementedError

    cdef int on_recv_end(self, int res) except -1:
        """`recv_op` has ended with *res* on an open transport: arm it again, or end the input."""
        raise NotImplementedError

    cdef int rearm(self) except -1:
        if self.receiving == STARVED:
            self.receiving = IDLE
            try:
                self.want_recv()
            except BaseException:
                # The loop has not taken the transport off its list, and calls this again.
                self.receiving = STARVED
                raise
        return 0

    cdef int arm(self, io_uring_sqe *sqe, Receiving state) except -1:
        """Put a prepared poll or receive in flight: *state* is POLL_ONCE, POLL or MULTISHOT."""
        assert self.receiving == IDLE
        count_total(&self.loop.counters.rearms, self.was_armed)
        self.was_armed = True
        self.receiving = state
        self.served_turn = self.loop.counters.turns
        return self.loop.ring.start(sqe, &self.recv_op)

    cdef int disarmed(self) except -1:
        """The terminal completion of the poll or the receive has come."""
        assert self.receiving not in (IDLE, DELAYED, STARVED)
        if self.receiving != ENDED:
            self.receiving = IDLE
        return 0

    cdef bint is_multishot(self) noexcept:
        """Return whether a receive by the ring, even a cancelled one, may still bring bytes."""
        return self.receiving in (MULTISHOT, PAUSING, STOPPING)

    cdef int cancel_multishot(self) except -1:
        """Cancel a receive by the ring; what it has received by then is still delivered."""
        if self.receiving == MULTISHOT:
            # While `paused` is set, only pause_reading() and detach() come here: later callers find
            # PAUSING. Nothing undoes the cancel of detach(), which ends the transport.
            self.receiving = PAUSING if self.paused else STOPPING
            self.loop.ring.cancel(&self.recv_op)
        elif self.receiving == PAUSING:
            self.receiving = STOPPING
        return 0

    cdef bint undo_cancel(self) noexcept:
        """Undo the cancel of a pause; return False if it has been submitted, or is needed."""
        if self.receiving != PAUSING or not self.loop.ring.undo_cancel(&self.recv_op):
            return False
        self.receiving = MULTISHOT
        return True

    cdef int cancel_recv(self) except -1:
        """Cancel the poll or the receive."""
        if self.receiving in (POLL_ONCE, POLL):
            return self.loop.ring.cancel(&self.recv_op)
        return self.cancel_multishot()

    cdef int starve(self) except -1:
        """Receive again when datagrams' pool has a buffer; until then they stay in the socket."""
        if self.receiving == ENDED:
            return 0
        assert self.receiving == IDLE
        self.receiving = STARVED
        return self.loop.starve(self)

    cdef int delay_recv(self) except -1:
        """Receive again after RECV_DELAY."""
        assert self.receiving == IDLE
        self.receiving = DELAYED
        self.loop.call_later(RECV_DELAY, self._recv_later)
        return 0

    def _recv_later(self):
        if self.receiving == DELAYED:
            self.receiving = IDLE
            self.want_recv()

    cdef int end_input(self) except -1:
        """Receive nothing more, ever."""
        self.cancel_recv()
        self.receiving = ENDED
        return 0

    cdef int stop_reading(self) except -1:
        """Cancel what waits for input."""
        return self.cancel_recv()

    cdef int return_to_polls(self) except -1:
        """Cancel a receive by the ring: polls, which take no bytes, are armed next."""
        self.polls_left = POLLS_FIRST
        return self.cancel_multishot()

    cdef int deliver_item(self, object item) except -1:
        """Pass an item of the stash to the protocol."""
        raise NotImplementedError

    cdef int deliver_end(self, object item) except -1:
        """Pass the end of the input, or the error that ended it, to the protocol."""
        raise NotImplementedError

    cdef int deliver_last(self, object item) except -1:
        """Call deliver_end(); if the protocol raises KeyboardInterrupt, stash the item again."""
        try:
            return self.deliver_end(item)
        except BaseException:
            self.stash_first(item)
            raise

    cdef object refusal(self, object buffer):
        """Return the exception that recv_into() raises for *buffer*: asyncio would report it."""
        try:
            # With MSG_PEEK no byte is lost if the call succeeds.
            self.need_socket().recv_into(buffer, 0, MSG_PEEK)
        except BaseException as exc:
            return exc
        return None

    cdef int deliver_or_stash(self, object item) except -1:
        """Pass an item to the protocol, or stash it while reading is paused."""
        if self.paused or self.stash:
            return self.stash_item(item)
        return self.deliver_item(item)

    cdef int stash_item(self, object item) except -1:
        """Stash an item that arrived while reading is paused, or in the turn of another item."""
        if self.stash is None:
            self.stash = []
        self.stash.append(item)
        return self.wait_for_stash()

    cdef int wait_for_stash(self) except -1:
        """Take nothing more before the stash has been delivered."""
        self.return_to_polls()
        return 0 if self.paused else self.loop.add_delivery(self)

    cdef int stash_first(self, object item) except -1:
        """Stash what is left of the item that is being delivered, before all other items."""
        if self.stash is None:
            self.stash = []
        self.stash.insert(0, item)
        return self.wait_for_stash()

    cdef Py_ssize_t stash_rest(self, const char *rest, Py_ssize_t size) except -1:
        """Stash the *rest* of what is being delivered, and return *size*.

        A nested run then delivers the rest before anything that the run receives.
        """
        self.stash_first(rest[:size])
        return size

    cdef int deliver_more(self) except -1:
        """Deliver the first item of the stash, or receive what a poll has reported."""
        if self.paused or not OPEN <= self.life < CLOSING:
            return 0
        if self.served_this_turn():
            # Reading was paused and resumed after this delivery had been queued.
            return self.loop.add_delivery(self)
        try:
            if self.stash:
                item = self.stash.pop(0)
                if self.stash:
                    # Queued before the call, so that a run nested in it delivers the other items.
                    self.loop.add_delivery(self)
                self.deliver_item(item)
            elif self.readable and self.receiving != ENDED:
                self.readable = False
                self.recv_ready()
        finally:
            self.want_recv()
        # The protocol may have forked: a child is given nothing by the other transports.
        self.loop.ring.check_not_forked()
        return 0

    # ── polls ────────────────────────────────────────────────────────────────────────────────

    cdef bint served_this_turn(self) noexcept:
        """Return whether this turn has armed or delivered already.

        An enter in mid-turn may bring more.
        """
        return self.served_turn == self.loop.counters.turns

    cdef bint may_receive(self) noexcept:
        """Return whether a system call may receive: the protocol reads, the ring takes nothing."""
        return not (self.paused or self.stash or self.life >= CLOSING or self.receiving == ENDED
                    or self.is_multishot())

    cdef int on_readable(self) except -1:
        """A poll has reported input: receive it now, or in the next turn if this one is busy."""
        if not self.may_receive():
            # The next poll reports it again.
            return 0
        if self.served_this_turn():
            self.readable = True
            return 0
        return self.recv_ready()

    cdef int recv_ready(self) except -1:
        """Receive and deliver what a poll has reported."""
        raise NotImplementedError

    cdef str describe_io(self):
        return self.describe_reading()

    cdef str describe_reading(self):
        # What is in flight may be a poll that a pause has left, or a receive that is cancelled.
        return polling_or_idle(
            self.recv_op.in_flight and not self.paused and self.life < CLOSING)

    cdef bint has_operations(self) noexcept:
        return self.recv_op.in_flight

    cdef int complete_cancelled(self) except -1:
        return self.loop.ring.complete_now(&self.recv_op)

    @property
    def _paused(self):
        return load_int(&self.paused) != 0

    def pause_reading(self):
        self.loop.check_owner()
        if self.life >= CLOSING or self.paused:
            return
        store_int(&self.paused, True)
        self.return_to_polls()
        if self.loop.in_debug_mode():
            logger.debug("%r pauses reading", self)

    def resume_reading(self):
        self.loop.check_owner()
        if self.life >= CLOSING or not self.paused:
            return
        store_int(&self.paused, False)
        # As with a selector, what a poll still reports in this turn is received in the next one.
        self.served_turn = self.loop.counters.turns
        if self.stash:
            self.loop.add_delivery(self)
        elif not self.undo_cancel():
            # A cancelled receive is followed by a poll, which reports one turn later than a
            # selector would.
            self.want_recv()
        if self.loop.in_debug_mode():
            logger.debug("%r resumes reading", self)

    def is_reading(self):
        return load_life(&self.life) < CLOSING and not load_int(&self.paused)
