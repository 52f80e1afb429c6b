"""class Wire: a connection through a simulated network.

Each end of the program's connection is a socket pair, whose other end a Relay holds. What a Relay
receives arrives at the other end later, in order:

    client  <── pair ──>  Relay  ──queue, timer──>  Relay  <── pair ──>  server

The program's operations on a connection that is new, or has large messages, are system calls of its
transports, to which no fault of the ring can happen. So the wire has these faults, too, for each
piece of data: `short`, `reset` and `no_memory`.

A wire that has died carries nothing, and tells nobody. As with TCP, only an end that sends, or has
asked for keep-alive, gets an error in the end.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import functools
import os
import socket
import weakref
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from uringloop._net.stream_transport import make_stream
from uringloop.testing.network import Route
from uringloop.testing.virtual_sockets import (
    VirtualSocket,
    end_with,
    leave_unread,
    on_option,
    on_reset,
    option_of,
)

if TYPE_CHECKING:
    from uringloop.testing.loop import Loop

# Bytes under way in one direction after which no more are taken from the sender.
WINDOW = 256 * 1024
# How long Linux retransmits data that nobody acknowledges: tcp_retries2.
GIVES_UP_S = 924.6
# How much later each part of a piece arrives than the part before. The clock reaches the next part
# only when nothing else can run: by then a program that reads has received the part before. Timers
# are due at the same time if they differ by no more than 0.1 us.
PART_S = 1e-6


class Mark(enum.Enum):
    """What is under way besides data."""

    END = "the end of the data"
    RESET = "a reset"


Piece: TypeAlias = bytes | Mark


def size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else 0


class Relay(asyncio.Protocol):
    """Holds one end of a wire."""

    transport: asyncio.Transport

    def __init__(self, wire: Wire, side: int) -> None:
        self.wire = wire
        self.side = side
        self.lost = False
        # The program's end of the pair.
        self.program: weakref.ref[VirtualSocket]
        # The error that the program's end gets when this one is closed; 0 stands for EOF.
        self.error = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Send at once, by system calls: the ring's faults are for the program's own sends.
        transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self.wire.carry(self.side, data)
        if not self.wire.directions[self.side].blocked:
            # After a pause a transport receives by system calls, to which no fault of the ring
            # happens: those are for the program's own receives.
            self.transport.pause_reading()
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        self.wire.carry(self.side, Mark.END)
        # The other direction stays open.
        return True

    def fail(self, error: int) -> None:
        """Close; the program's end gets *error*."""
        if not self.lost:
            self.error = error
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is about to be closed."""
        self.lost = True
        failed = self.error
        if exc is not None and not failed:
            self.error = errno.ECONNRESET
        self.leave_error()
        if not failed:
            self.wire.end_lost(self.side, exc)

    def leave_unread(self) -> None:
        """Leave a byte in the program's socket, which is about to be closed by a reset."""
        if not self.lost:
            leave_unread(self.transport.get_extra_info("socket").fileno())

    def leave_error(self) -> None:
        program = self.program()
        if self.error and program is not None and program.fileno() >= 0:
            leave_unread(program.fileno())
            end_with(program, self.error)
            self.wire.loop._end_with(os.fstat(program.fileno()).st_ino, self.error)

    def pause_writing(self) -> None:
        self.wire.directions[1 - self.side].block(self, True)

    def resume_writing(self) -> None:
        self.wire.directions[1 - self.side].block(self, False)


class Direction:
    """What is under way from one end to the other."""

    def __init__(self, wire: Wire, side: int) -> None:
        self.wire = wire
        self.side = side
        self.queue: deque[tuple[float, Piece]] = deque()
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None
        # When the last byte leaves, and when the newest piece arrives.
        self.free_at = 0.0
        self.newest = 0.0
        self.blocked: set[object] = set()
        # The end of the data has arrived.
        self.ended = False

    def add(self, piece: Piece, gap_s: float = 0.0) -> None:
        """Send *piece*, which arrives at least *gap_s* behind the one before."""
        route = self.wire.route()
        loop = self.wire.loop
        self.free_at = max(self.free_at, loop.time()) + size_of(piece) / route.bandwidth
        delay = route.latency + route.jitter * loop.random() + loop._network_delay()
        self.newest = max(self.newest + gap_s, self.free_at + delay)
        self.queue.append((self.newest, piece))
        self.take(piece)
        self.schedule()

    def take(self, piece: Piece) -> None:
        """Count what was taken from the sender, and take no more beyond the window."""
        self.size += size_of(piece)
        if self.size > WINDOW:
            self.block(self, True)

    def block(self, who: object, blocked: bool) -> None:
        """Take nothing from the sender as long as somebody blocks."""
        before = bool(self.blocked)
        (self.blocked.add if blocked else self.blocked.discard)(who)
        relay = self.wire.ends[self.side]
        if bool(self.blocked) == before or relay.lost:
            return
        if self.blocked:
            relay.transport.pause_reading()
        else:
            relay.transport.resume_reading()

    def schedule(self) -> None:
        if self.queue and self.timer is None and self.wire.route().open:
            self.timer = self.wire.loop.call_at(self.queue[0][0], self.deliver)

    def clear(self) -> None:
        """Lose what is under way."""
        self.queue.clear()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def deliver(self) -> None:
        self.timer = None
        now = self.wire.loop.time()
        target = self.wire.ends[1 - self.side]
        while self.queue and self.queue[0][0] <= now and self.wire.route().open:
            _, piece = self.queue.popleft()
            self.size -= size_of(piece)
            if target.lost:
                continue
            if isinstance(piece, bytes):
                target.transport.write(piece)
            elif piece is Mark.END:
                self.ended = True
                target.transport.write_eof()
            else:
                target.fail(errno.ECONNRESET)
        if self.size <= WINDOW:
            self.block(self, False)
        if not self.queue and self.wire.ends[self.side].lost and not target.lost:
            target.transport.close()
        self.wire.close_if_ended()
        self.schedule()


class Wire:
    """A connection between two hosts of a network."""

    def __init__(self, loop: Loop, one: str, other: str) -> None:
        self.loop = loop
        self.hosts = one, other
        self.ends = [Relay(self, side) for side in range(2)]
        self.directions = [Direction(self, side) for side in range(2)]
        self.dead = False
        # Sides that will get an error, because they have sent something that got lost.
        self.unanswered: set[int] = set()
        # The timers of keep-alive.
        self.probes: dict[int, asyncio.TimerHandle] = {}
        loop.network._add_connection(self)

    def attach(self, side: int, sock: socket.socket, program: VirtualSocket) -> None:
        """Hold *sock*, whose other end is the program's."""
        sock.setblocking(False)
        self.ends[side].program = weakref.ref(program)
        make_stream(self.loop, sock, self.ends[side])
        on_reset(program, self.ends[side].leave_unread)
        on_option(program, functools.partial(self.keep_alive, side))

    def route(self) -> Route:
        return self.loop.network.route(*self.hosts)

    def route_changed(self) -> None:
        for direction in self.directions:
            direction.schedule()

    def carry(self, side: int, piece: Piece) -> None:
        direction = self.directions[side]
        if isinstance(piece, bytes) and not self.dead and self.fails(side):
            return
        if self.dead:
            direction.take(piece)
            self.wait_for_answer(side)
        elif isinstance(piece, bytes):
            for number, part in enumerate(self.loop._parts(piece)):
                direction.add(part, PART_S if number else 0.0)
        else:
            direction.add(piece)

    def fails(self, side: int) -> bool:
        """Return whether a fault ends the connection before it carries what *side* has sent."""
        if self.loop._happens("half_open"):
            self.die()
        elif self.loop._happens("reset"):
            self.reset()
            return True
        elif self.loop._happens("no_memory"):
            # The other side's receive fails, which resets the connection.
            errors = [errno.ECONNRESET] * 2
            errors[1 - side] = errno.ENOMEM
            self.break_off(*errors)
            return True
        return False

    def end_lost(self, side: int, exc: Exception | None) -> None:
        """Tell the other side that the program has closed *side*, or that its relay has failed."""
        direction = self.directions[side]
        if self.dead:
            return
        if exc is not None:
            direction.add(Mark.RESET)
        elif not direction.queue:
            # Send the end of the data, if it was not sent before: the other end is closed, too.
            direction.add(Mark.END)

    def close_if_ended(self) -> None:
        """Close the relays when nothing more can pass in either direction."""
        if all(direction.ended for direction in self.directions):
            for relay in self.ends:
                if not relay.lost:
                    relay.transport.close()

    # ── dying ────────────────────────────────────────────────────────────────────────────────

    def reset(self) -> None:
        """Let both ends get ECONNRESET; what is under way is lost."""
        self.break_off(errno.ECONNRESET, errno.ECONNRESET)

    def break_off(self, *errors: int) -> None:
        """Let each end get its error, of the two *errors*; what is under way is lost."""
        for direction, relay, error in zip(self.directions, self.ends, errors, strict=True):
            direction.clear()
            relay.fail(error)

    def die(self) -> None:
        """Carry nothing any more, and tell nobody."""
        if self.dead:
            return
        self.dead = True
        for side, direction in enumerate(self.directions):
            if direction.queue or direction.blocked or self.is_arriving(side):
                self.wait_for_answer(side)
            direction.clear()
            self.keep_alive(side)

    def is_arriving(self, side: int) -> bool:
        """Return whether the other side's program has yet to take some of what *side* sent."""
        target = self.ends[1 - side]
        return not target.lost and target.transport.get_write_buffer_size() > 0

    def wait_for_answer(self, side: int) -> None:
        """Let an end that has sent into a dead wire fail in the end, as TCP does."""
        if side in self.unanswered:
            return
        self.unanswered.add(side)
        milliseconds = self.option(side, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        self.loop.call_later(milliseconds / 1000 or GIVES_UP_S, self.time_out, side)

    def keep_alive(self, side: int) -> None:
        """Let an end with keep-alive fail in the end, even if it does not send.

        Called when the wire dies, and when the program sets such an option later.
        """
        timer = self.probes.pop(side, None)
        if timer is not None:
            timer.cancel()
        if not self.dead or not self.option(side, socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return
        idle, interval, count = (
            self.option(side, socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        self.probes[side] = self.loop.call_later(idle + interval * count, self.give_up, side)

    def give_up(self, side: int) -> None:
        """Time out, as keep-alive got no answer.

        As on Linux, keep-alive does nothing while data is unacknowledged.
        """
        if side not in self.unanswered:
            self.time_out(side)

    def option(self, side: int, level: int, option: int) -> int:
        program = self.ends[side].program()
        return 0 if program is None else option_of(program, level, option)

    def time_out(self, side: int) -> None:
        self.ends[side].fail(errno.ETIMEDOUT)

    def forget(self) -> None:
        """Let the sockets go: the loop is closed."""
        for relay in self.ends:
            relay.lost = True
            relay.__dict__.pop("transport", None)
