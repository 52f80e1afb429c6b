"""class Wire: a connection through a simulated network.

Each end of the program's connection is a socket pair, whose other end a Relay holds. What a Relay
receives arrives at the other end later, in order:

    client  <── pair ──>  Relay  ──queue, timer──>  Relay  <── pair ──>  server
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING

from uringloop._net.stream import make_stream
from uringloop._testing.network import Route

if TYPE_CHECKING:
    from uringloop._testing.loop import Loop

# Bytes under way in one direction after which no more are taken from the sender.
WINDOW = 256 * 1024


class Relay(asyncio.Protocol):
    """Holds one end of a wire."""

    transport: asyncio.Transport

    def __init__(self, wire: Wire, side: int) -> None:
        self.wire = wire
        self.side = side
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.wire.carry(self.side, data)

    def eof_received(self) -> bool:
        self.wire.carry(self.side, None)
        # The other direction stays open.
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.wire.end_lost(self.side)

    def pause_writing(self) -> None:
        self.wire.directions[1 - self.side].block(self, True)

    def resume_writing(self) -> None:
        self.wire.directions[1 - self.side].block(self, False)


class Direction:
    """What is under way from one end to the other; None is the end of the data."""

    def __init__(self, wire: Wire, side: int) -> None:
        self.wire = wire
        self.side = side
        self.queue: deque[tuple[float, bytes | None]] = deque()
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None
        # When the last byte has left, and the newest piece arrives.
        self.free_at = 0.0
        self.newest = 0.0
        self.blocked: set[object] = set()
        # The end of the data has arrived.
        self.ended = False

    def add(self, data: bytes | None) -> None:
        route = self.wire.route()
        loop = self.wire.loop
        self.free_at = max(self.free_at, loop.time()) + len(data or b"") / route.bandwidth
        delay = route.latency + route.jitter * loop.random() + loop.network_delay()
        self.newest = max(self.newest, self.free_at + delay)
        self.queue.append((self.newest, data))
        self.size += len(data or b"")
        if self.size > WINDOW:
            self.block(self, True)
        self.schedule()

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

    def deliver(self) -> None:
        self.timer = None
        now = self.wire.loop.time()
        target = self.wire.ends[1 - self.side]
        while self.queue and self.queue[0][0] <= now and self.wire.route().open:
            _, data = self.queue.popleft()
            self.size -= len(data or b"")
            if target.lost:
                continue
            if data is None:
                self.ended = True
                target.transport.write_eof()
            else:
                target.transport.write(data)
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
        loop.network.add_waiting(self)

    def attach(self, side: int, sock: socket.socket) -> None:
        """Hold *sock*, whose other end is the program's."""
        sock.setblocking(False)
        make_stream(self.loop, sock, self.ends[side])

    def route(self) -> Route:
        return self.loop.network.route(*self.hosts)

    def route_changed(self) -> None:
        for direction in self.directions:
            direction.schedule()

    def carry(self, side: int, data: bytes | None) -> None:
        direction = self.directions[side]
        if data is None:
            direction.add(None)
            return
        for piece in self.loop.pieces(data):
            direction.add(piece)

    def end_lost(self, side: int) -> None:
        """The program has closed the end of *side*, or its process has let it go."""
        direction = self.directions[side]
        if not direction.queue:
            # The end of the data, if that was not sent before: the other end is closed, too.
            direction.add(None)

    def close_if_ended(self) -> None:
        """Close the relays when nothing more can pass in either direction."""
        if all(direction.ended for direction in self.directions):
            for relay in self.ends:
                if not relay.lost:
                    relay.transport.close()

    def forget(self) -> None:
        """Let the sockets go: the loop is closed."""
        for relay in self.ends:
            relay.__dict__.pop("transport", None)
