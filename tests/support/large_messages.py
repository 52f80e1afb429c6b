"""What the tests of large messages share: connections that have had some, and who reads them.

A connection whose messages are large is read in another way than one with small messages, and
changes back and forth as they grow and shrink. None of that is to be seen from outside: every test
brings its connection there first, by large messages that are acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import uringloop
from support.loops import run_turns
from support.protocols import Collector
from support.roles import PATIENCE, Loop, ended, noise, reset
from support.sockets import tcp_pair

KIB = 1024
MESSAGE = noise(16 * KIB, 99)
PLENTY = noise(2 * KIB * KIB, 98)

both_kinds = pytest.mark.parametrize("kind", ["tcp", "unix"])


def in_flight(loop: Loop) -> tuple[int, int]:
    """Return how many operations do not end and how many buffers are out; asyncio has none."""
    if not isinstance(loop, uringloop.Loop):
        return 0, 0
    deadline = time.monotonic() + PATIENCE
    while loop._operations_in_flight and time.monotonic() < deadline:
        run_turns(loop)
    return loop._operations_in_flight, loop._buffers_out


# ── who reads ─────────────────────────────────────────────────────────────────────────────────


class Plain(Collector):
    """Reads as a Protocol."""

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        return self

    async def take(self, count: int) -> bytes:
        data = await self.received(count)
        del self.data[:count]
        return data[:count]

    async def rest(self) -> bytes:
        assert await self.lost is None
        return bytes(self.data)


class Filled(Plain, asyncio.BufferedProtocol):
    """Reads as a BufferedProtocol, which several updates may be needed to fill for one arrival."""

    size = 10_000

    def get_buffer(self, sizehint: int) -> memoryview:
        # A view: asyncio's TLS fills slices of what it gets.
        self.memory = memoryview(bytearray(self.size))
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.memory[:nbytes]))


class Streamed:
    """Reads by asyncio's StreamReader."""

    def __init__(self, loop: Loop) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        self.protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)

    async def take(self, count: int) -> bytes:
        return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        return await self.reader.read()


Sink = Plain | Streamed
READERS: dict[str, Callable[[Loop], Sink]] = {
    "protocol": Plain,
    "buffered": Filled,
    "reader": Streamed,
}
all_readers = pytest.mark.parametrize("make", READERS.values(), ids=list(READERS))
PROTOCOLS: dict[str, type[Plain]] = {"protocol": Plain, "buffered": Filled}
protocols = pytest.mark.parametrize("make", PROTOCOLS.values(), ids=list(PROTOCOLS))


# ── connections ─────────────────────────────────────────────────────────────────────────────────


def pair_of(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "tcp":
        return tcp_pair()
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


async def enlarge(loop: Loop, sink: Sink, peer: socket.socket) -> None:
    """Send large messages until the average one is large; each waits for the one before."""
    for _ in range(40):
        await loop.sock_sendall(peer, MESSAGE)
        assert await sink.take(len(MESSAGE)) == MESSAGE


@contextlib.asynccontextmanager
async def large(
    loop: Loop, sink: Sink, kind: str = "tcp"
) -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Connect *sink* to a raw peer whose messages are large."""
    ours, peer = pair_of(kind)
    with peer:
        transport, _ = await loop.create_connection(lambda: sink.protocol, sock=ours)
        try:
            await enlarge(loop, sink, peer)
            yield transport, peer
        finally:
            await ended(transport)


@contextlib.contextmanager
def beside(peer: socket.socket, work: Callable[[], object]) -> Iterator[None]:
    """Do *work* with the peer's socket, now a blocking one, in a thread beside the block."""

    def run() -> None:
        # Reset or closed by the block, where that is what it tests.
        with contextlib.suppress(ConnectionError):
            work()

    peer.setblocking(True)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
        raise
    finally:
        thread.join()
        if peer.fileno() != -1:
            peer.setblocking(False)


def fail(kind: str, transport: asyncio.WriteTransport, peer: socket.socket) -> None:
    """End the connection with an error for the transport."""
    if kind == "tcp":
        reset(peer)
    else:
        # A UNIX socket closed with something unread in it.
        transport.write(b"unread")
        assert isinstance(transport, asyncio.Transport)
        transport.get_write_buffer_size()
        os.close(peer.detach())
