"""Helpers of the tests of large messages: readers, and connections that have received some.

A connection with large messages is polled and read by recv(2), one with small messages is not. It
changes back and forth as messages grow and shrink, without a visible effect. Each test starts with
large messages, each of which is sent when the previous one has been read.
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
from support.roles import PATIENCE, Loop, abort_and_wait, noise, reset
from support.sockets import tcp_pair, unix_pair

KIB = 1024
MESSAGE = noise(16 * KIB, 99)
PLENTY = noise(2 * KIB * KIB, 98)

both_kinds = pytest.mark.parametrize("kind", ["tcp", "unix"])


def in_flight(loop: Loop) -> tuple[int, int]:
    """Return how many operations stay in flight and how many buffers in use; 0, 0 on asyncio."""
    if not isinstance(loop, uringloop.Loop):
        return 0, 0
    deadline = time.monotonic() + PATIENCE
    while loop._operations_in_flight and time.monotonic() < deadline:
        run_turns(loop)
    return loop._operations_in_flight, loop._buffers_out


# ── readers ───────────────────────────────────────────────────────────────────────────────────


class Plain(Collector):
    """A reader that is a Protocol."""

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        return self

    async def take(self, count: int) -> bytes:
        data = await self.received(count)
        del self.data[:count]
        return data[:count]

    async def until_eof(self) -> bytes:
        assert await self.lost is None
        return bytes(self.data)


class Filled(Plain, asyncio.BufferedProtocol):
    """A reader that is a BufferedProtocol; one receive may take several updates."""

    size = 10_000

    def get_buffer(self, sizehint: int) -> memoryview:
        # A view, because asyncio's TLS writes into slices of the buffer.
        self.memory = memoryview(bytearray(self.size))
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.memory[:nbytes]))


class Streamed:
    """A reader that is asyncio's StreamReader."""

    def __init__(self, loop: Loop) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        self.protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)

    async def take(self, count: int) -> bytes:
        return await self.reader.readexactly(count)

    async def until_eof(self) -> bytes:
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
    return tcp_pair() if kind == "tcp" else unix_pair()


async def enlarge(loop: Loop, sink: Sink, peer: socket.socket) -> None:
    """Send large messages, each when the previous one is read, until their average is large."""
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
            await abort_and_wait(transport)


@contextlib.contextmanager
def in_thread_during(peer: socket.socket, work: Callable[[], object]) -> Iterator[None]:
    """Do *work* in a thread during the block, with the peer's socket made blocking."""

    def run() -> None:
        # Some blocks reset or close the connection while the thread works.
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
    """Close the peer's socket so that the transport gets ECONNRESET."""
    if kind == "tcp":
        reset(peer)
    else:
        # A UNIX socket that is closed with unread bytes resets the connection.
        transport.write(b"unread")
        assert isinstance(transport, asyncio.Transport)
        transport.get_write_buffer_size()
        os.close(peer.detach())
