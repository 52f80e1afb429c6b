"""Helpers of the tests of TLS: a peer, connections to it, servers, raw TLS records.

The peer is a raw socket and an `ssl.SSLObject`, driven by ``loop.sock_*``: a test controls which
bytes of which record go over the wire, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import pytest

import uringloop
from support.protocols import Collector
from support.roles import Loop, narrow_pair, read_exactly, until
from support.sockets import tcp_pair
from support.tls_contexts import Contexts

T = TypeVar("T")


def sends_alerts(loop: Loop) -> bool:
    """Return whether *loop* sends an alert before it closes a connection on an error."""
    # asyncio does so since Python 3.16 (gh-98078).
    return isinstance(loop, uringloop.Loop) or sys.version_info >= (3, 16)


# ── a buffered protocol ──────────────────────────────────────────────────────────────────────


class Filler(asyncio.BufferedProtocol):
    """Record received bytes through its own buffer, whose size may change."""

    transport: asyncio.Transport

    def __init__(self, loop: Loop, size: int) -> None:
        self.buffer: bytearray | bytes = bytearray(size)
        self.data = bytearray()
        self.hints: list[int] = []
        self.ended = False
        self.lost: asyncio.Future[Exception | None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        self.hints.append(sizehint)
        # A view, because asyncio writes into slices of the buffer.
        return memoryview(self.buffer)  # type: ignore[return-value]

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


# ── the peer ─────────────────────────────────────────────────────────────────────────────────


class Peer:
    """The other end of a connection: an SSLObject over a raw, non-blocking socket."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
    ) -> None:
        self.loop = loop
        self.sock = sock
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        name = None if server_side else "localhost"
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side, name)

    def records(self, step: Callable[[], object]) -> bytes:
        """Run a step of the TLS protocol, and return the bytes that it wants to send."""
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
        return self.outgoing.read()

    def refuse(self) -> None:
        """Prepare a fatal alert, by which OpenSSL answers what is no record."""
        self.incoming.write(b"no record")
        with pytest.raises(ssl.SSLError):
            self.tls.read()

    def notify(self) -> None:
        """Prepare close_notify; the other end has not sent its own."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()

    async def flush(self) -> None:
        """Send all pending bytes of the TLS protocol."""
        await self.loop.sock_sendall(self.sock, self.outgoing.read())

    async def _drive(self, step: Callable[[], T]) -> T:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.loop.sock_recv(self.sock, 1 << 20)
                if data:
                    self.incoming.write(data)
                else:
                    self.incoming.write_eof()
            else:
                await self.flush()
                return result

    async def handshake(self) -> None:
        await self._drive(self.tls.do_handshake)

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self.flush()

    async def read(self) -> bytes:
        """Read some bytes: b"" after close_notify; raise SSLEOFError on EOF without it."""
        try:
            return await self._drive(lambda: self.tls.read(1 << 20))
        except ssl.SSLZeroReturnError:
            return b""

    async def read_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = await self.read()
            assert piece, f"end of stream after {len(data)} of {count} bytes"
            data += piece
        assert len(data) == count
        return bytes(data)

    async def read_to_end(self) -> bytes:
        data = bytearray()
        while piece := await self.read():
            data += piece
        return bytes(data)

    async def close(self) -> None:
        """Exchange close_notify."""
        await self._drive(self.tls.unwrap)


async def last_flight(peer: Peer, *after: bytes) -> bytes:
    """Do a client's handshake; return its last flight and records of *after*, unsent."""
    flight = peer.records(peer.tls.do_handshake)
    while peer.tls.version() is None or not flight:
        await peer.loop.sock_sendall(peer.sock, flight)
        peer.incoming.write(await peer.loop.sock_recv(peer.sock, 1 << 16))
        flight = peer.records(peer.tls.do_handshake)
    for data in after:
        peer.tls.write(data)
    return flight + peer.outgoing.read()


class Below:
    """A transport that start_tls() takes, although it has no base class of asyncio's."""

    _start_tls_compatible = True

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def __getattr__(self, name: str) -> object:
        return getattr(self.transport, name)


# ── connections ──────────────────────────────────────────────────────────────────────────────


def descriptor_of(transport: asyncio.BaseTransport) -> Callable[[], int]:
    """Return the bound fileno() of the socket, which a closed TLS transport no longer has."""
    fileno: Callable[[], int] = transport.get_extra_info("socket").fileno
    return fileno


@contextlib.asynccontextmanager
async def ending(*transports: asyncio.WriteTransport) -> AsyncIterator[None]:
    """Abort the transports that are open at the end, and wait until every socket is closed."""
    sockets = [transport.get_extra_info("socket") for transport in transports]
    try:
        yield
    finally:
        for transport, sock in zip(transports, sockets, strict=True):
            if sock.fileno() != -1:
                transport.abort()
        await until(lambda: all(sock.fileno() == -1 for sock in sockets))


@contextlib.asynccontextmanager
async def tls_stream(
    loop: Loop,
    protocol: asyncio.BaseProtocol,
    contexts: Contexts,
    *,
    server_side: bool = False,
    buffer_size: int = 0,
    shutdown_timeout: float | None = None,
) -> AsyncIterator[tuple[asyncio.Transport, Peer]]:
    """Connect *protocol* to a peer over TLS, as the client or with *server_side* as the server."""
    ours, theirs = narrow_pair(buffer_size) if buffer_size else tcp_pair()
    with theirs:
        if server_side:
            peer = Peer(loop, theirs, contexts.client)
            accepting = loop.connect_accepted_socket(
                lambda: protocol,
                ours,
                ssl=contexts.server,
                ssl_shutdown_timeout=shutdown_timeout,
            )
            (transport, _), _ = await asyncio.gather(accepting, peer.handshake())
        else:
            peer = Peer(loop, theirs, contexts.server, server_side=True)
            connecting = loop.create_connection(
                lambda: protocol,
                sock=ours,
                ssl=contexts.client,
                server_hostname="localhost",
                ssl_shutdown_timeout=shutdown_timeout,
            )
            (transport, _), _ = await asyncio.gather(connecting, peer.handshake())
        async with ending(transport):
            yield transport, peer


@contextlib.asynccontextmanager
async def tls_link(
    loop: Loop,
    left: asyncio.BaseProtocol,
    right: asyncio.BaseProtocol,
    contexts: Contexts,
    *,
    buffer_size: int = 0,
) -> AsyncIterator[tuple[asyncio.Transport, asyncio.Transport]]:
    """Connect two protocols of one loop over TLS: a client on the left, a server on the right."""
    ours, theirs = narrow_pair(buffer_size) if buffer_size else tcp_pair()
    (client, _), (server, _) = await asyncio.gather(
        loop.create_connection(
            lambda: left, sock=ours, ssl=contexts.client, server_hostname="localhost"
        ),
        loop.connect_accepted_socket(lambda: right, theirs, ssl=contexts.server),
    )
    async with ending(client, server):
        yield client, server


@contextlib.asynccontextmanager
async def tls_serving(
    loop: Loop,
    factory: Callable[[], asyncio.BaseProtocol],
    context: ssl.SSLContext,
    *,
    handshake_timeout: float | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Serve *factory* over TLS on a free port; at the end wait until no connection is left."""
    server = await loop.create_server(
        factory,
        "127.0.0.1",
        0,
        ssl=context,
        ssl_handshake_timeout=handshake_timeout,
        backlog=1000,
    )
    address: tuple[str, int] = server.sockets[0].getsockname()
    try:
        yield address
    finally:
        server.close()
        await no_connections_left(server)


async def no_connections_left(server: asyncio.Server) -> None:
    """Wait until a closed server has no connection left; before 3.12 wait_closed() does not."""
    await server.wait_closed()
    clients = getattr(server, "_clients", None)
    if clients is None:
        # Before 3.12 asyncio's servers only count connections, and so do uringloop's.
        await until(lambda: getattr(server, "_active_count", 0) == 0)
    else:
        await until(lambda: not clients)


async def tls_client(
    loop: Loop,
    address: tuple[str, int],
    context: ssl.SSLContext,
    *,
    handshake_timeout: float | None = None,
) -> tuple[asyncio.Transport, Collector]:
    """Connect a collector to a TLS server on loopback."""
    return await loop.create_connection(
        lambda: Collector(loop),
        *address,
        ssl=context,
        server_hostname="localhost",
        ssl_handshake_timeout=handshake_timeout,
    )


@contextlib.contextmanager
def accepting() -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """Listen with a raw, non-blocking socket from which the test accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener, listener.getsockname()


async def records(loop: Loop, sock: socket.socket, count: int) -> list[bytes]:
    """Read *count* whole TLS records."""
    found = []
    for _ in range(count):
        header = await read_exactly(loop, sock, 5)
        found.append(header + await read_exactly(loop, sock, int.from_bytes(header[3:5])))
    return found
