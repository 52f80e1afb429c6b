"""start_tls: an open connection becomes TLS, also with unsent bytes or while reading is paused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.protocols import Collector, Echo
from support.roles import (
    Loop,
    link,
    narrow_pair,
    noise,
    on_loop,
    read_exactly,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.tls_contexts import Contexts, stranger_context
from support.tls_peers import (
    Below,
    Filler,
    Peer,
    ending,
    no_connections_left,
    tls_link,
    tls_stream,
)
from support.virtual_time import Stopwatch

import uringloop

LOCALHOST = "127.0.0.1"
NARROW = 16 * 1024
# More than two transports hold.
PLENTY = 3 * 1024 * 1024


async def secured(
    loop: Loop,
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    contexts: Contexts,
    *,
    server_side: bool = False,
) -> asyncio.Transport:
    """Start TLS on an open connection, and return its new transport."""
    context = contexts.server if server_side else contexts.client
    name = None if server_side else "localhost"
    changed = await loop.start_tls(
        transport, protocol, context, server_side=server_side, server_hostname=name
    )
    assert changed is not None
    if isinstance(protocol, Collector):
        protocol.transport = changed
    return changed


@contextlib.asynccontextmanager
async def opened(
    loop: Loop, protocol: asyncio.BaseProtocol, *, buffer_size: int = 0
) -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Connect *protocol* to a raw peer, which `start_tls` may turn into TLS."""
    ours, theirs = narrow_pair(buffer_size) if buffer_size else tcp_pair()
    with theirs:
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        async with ending(transport):
            yield transport, theirs


# ── both directions ──────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_client_turns_to_tls(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        plain.write(b"STARTTLS\n")
        assert await read_exactly(each_loop, sock, 9) == b"STARTTLS\n"
        peer = Peer(each_loop, sock, contexts.server, server_side=True)
        starting = secured(each_loop, plain, left, contexts)
        transport, _ = await asyncio.gather(starting, peer.handshake())
        assert transport.get_extra_info("ssl_object").version()
        assert transport.get_extra_info("socket") is plain.get_extra_info("socket")
        assert transport.get_protocol() is left
        transport.write(b"secret")
        assert await peer.read_exactly(6) == b"secret"
        await peer.send(b"answer")
        assert await left.received(6) == b"answer"
        await peer.close()
        assert await left.lost is None
        # No second connection_made.
        assert left.calls == [
            "connection_made",
            "data_received",
            "eof_received",
            "connection_lost",
        ]


@on_loop
async def test_a_server_turns_to_tls(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with opened(each_loop, right) as (plain, sock):
        sock.send(b"STARTTLS\n")
        assert await right.received(9) == b"STARTTLS\n"
        plain.write(b"go\n")
        peer = Peer(each_loop, sock, contexts.client)
        starting = secured(each_loop, plain, right, contexts, server_side=True)

        async def answer() -> None:
            assert await read_exactly(each_loop, sock, 3) == b"go\n"
            await peer.handshake()
            await peer.send(b"secret")

        transport, _ = await asyncio.gather(starting, answer())
        assert (await right.received(15))[9:] == b"secret"
        transport.write(b"answer")
        assert await peer.read_exactly(6) == b"answer"
        transport.close()
        await peer.close()
        assert await right.lost is None


@on_loop
async def test_both_ends_turn_to_tls_and_send_a_lot(each_loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with link(each_loop, left, right) as (plain_left, plain_right):
        plain_left.write(b"before")
        assert await right.received(6) == b"before"
        client, server = await asyncio.gather(
            secured(each_loop, plain_left, left, contexts),
            secured(each_loop, plain_right, right, contexts, server_side=True),
        )
        there, back = noise(1_000_000, 1), noise(1_000_000, 2)
        client.write(there)
        server.write(back)
        assert (await right.received(1_000_006))[6:] == there
        assert await left.received(1_000_000) == back
        client.close()
        assert await left.lost is None
        assert await right.lost is None


@on_loop
async def test_queued_plain_bytes_are_sent_before_the_handshake(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        plain.write(b"in the clear")
        peer = Peer(each_loop, sock, contexts.server, server_side=True)

        async def answer() -> None:
            assert await read_exactly(each_loop, sock, 12) == b"in the clear"
            await peer.handshake()

        transport, _ = await asyncio.gather(secured(each_loop, plain, left, contexts), answer())
        transport.write(b"secret")
        assert await peer.read_exactly(6) == b"secret"


# ── bytes that the peer has sent before ──────────────────────────────────────────────────────


class Frame(asyncio.BufferedProtocol):
    """Receives exactly *size* bytes, pauses reading and calls *ready*, in buffer_updated."""

    def __init__(self, size: int, ready: Callable[[], None]) -> None:
        self.buffer = bytearray(size)
        self.filled = 0
        self.ready = ready

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if self.filled == len(self.buffer):
            self.transport.pause_reading()
            self.ready()


@on_loop
async def test_a_hello_in_the_segment_of_plain_bytes_is_not_lost(
    each_loop: Loop, contexts: Contexts
) -> None:
    """One segment has plain bytes, which fill the protocol's buffer, and then the ClientHello."""
    done = asyncio.Event()
    first = Frame(9, done.set)
    async with opened(each_loop, first) as (plain, sock):
        peer = Peer(each_loop, sock, contexts.client)
        sock.send(b"STARTTLS\n" + peer.records(peer.tls.do_handshake))
        await done.wait()
        assert first.buffer == b"STARTTLS\n"
        await turns(5)
        right = Collector(each_loop)
        right.connection_made(plain)
        starting = secured(each_loop, plain, right, contexts, server_side=True)
        transport, _ = await asyncio.gather(starting, peer.handshake())
        await peer.send(b"secret")
        assert await right.received(6) == b"secret"
        transport.write(b"answer")
        assert await peer.read_exactly(6) == b"answer"


@on_loop
async def test_a_paused_transport_turns_to_tls(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with opened(each_loop, right) as (plain, sock):
        plain.pause_reading()
        peer = Peer(each_loop, sock, contexts.client)
        sock.send(peer.records(peer.tls.do_handshake))
        await turns(10)
        assert not right.data
        starting = secured(each_loop, plain, right, contexts, server_side=True)
        transport, _ = await asyncio.gather(starting, peer.handshake())
        assert transport.is_reading()
        await peer.send(b"secret")
        assert await right.received(6) == b"secret"


@on_loop
async def test_bytes_received_while_paused_belong_to_tls(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with opened(each_loop, right) as (plain, sock):
        peer = Peer(each_loop, sock, contexts.client)
        sock.send(b"plain")
        assert await right.received(5) == b"plain"
        # The receive is armed when reading is paused: what arrives is stashed for TLS.
        plain.pause_reading()
        hello = peer.records(peer.tls.do_handshake)
        for piece in (hello[:7], hello[7:200], hello[200:]):
            sock.send(piece)
            await turns(10)
        starting = secured(each_loop, plain, right, contexts, server_side=True)
        await asyncio.gather(starting, peer.handshake())
        await peer.send(b"secret")
        assert (await right.received(11))[5:] == b"secret"


@on_loop
async def test_a_hello_before_connection_made_is_not_lost(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with opened(each_loop, right) as (plain, sock):
        sock.send(b"STARTTLS\n")
        await right.received(9)
        peer = Peer(each_loop, sock, contexts.client)
        starting = each_loop.create_task(
            secured(each_loop, plain, right, contexts, server_side=True)
        )
        await turns(1)
        # Reading is paused for one turn, until connection_made() of the new protocol.
        assert not plain.is_reading()
        sock.send(peer.records(peer.tls.do_handshake))
        await asyncio.gather(starting, peer.handshake())
        await peer.send(b"secret")
        assert (await right.received(15))[9:] == b"secret"


# ── streams ──────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_stream_writer_turns_to_tls(each_loop: Loop, contexts: Contexts) -> None:
    served = each_loop.create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go\n")
        await writer.start_tls(contexts.server)
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        served.set_result(None)

    server = await asyncio.start_server(serve, LOCALHOST, 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"STARTTLS\n")
    assert await reader.readline() == b"go\n"
    await writer.start_tls(contexts.client, server_hostname="localhost")
    assert writer.get_extra_info("ssl_object") is not None
    writer.write(b"secret\n")
    assert await reader.read() == b"SECRET\n"
    writer.close()
    await writer.wait_closed()
    await served
    server.close()
    await no_connections_left(server)


# ── failures ─────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_an_unknown_authority_ends_the_connection(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        peer = Peer(each_loop, sock, contexts.server, server_side=True)
        strangers = Contexts(contexts.server, stranger_context())
        starting = each_loop.create_task(secured(each_loop, plain, left, strangers))
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await peer.handshake()
        with pytest.raises(ssl.SSLCertVerificationError):
            await starting
        assert plain.is_closing()


@on_loop
async def test_eof_in_the_handshake_is_a_connection_reset(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        starting = each_loop.create_task(secured(each_loop, plain, left, contexts))
        assert (await each_loop.sock_recv(sock, 1 << 16))[:1] == b"\x16"
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            await starting
        assert plain.is_closing()


@on_loop
async def test_garbage_in_the_handshake_raises_ssl_error(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        starting = each_loop.create_task(secured(each_loop, plain, left, contexts))
        assert (await each_loop.sock_recv(sock, 1 << 16))[:1] == b"\x16"
        sock.send(b"500 no such command\r\n")
        with pytest.raises(ssl.SSLError):
            await starting
        assert plain.is_closing()


# asyncio's default is a minute.
@pytest.mark.parametrize(("timeout", "seconds"), [(20.0, 20.0), (None, 60.0)])
@on_loop
async def test_a_silent_peer_times_out(
    each_virtual_loop: Loop, contexts: Contexts, timeout: float | None, seconds: float
) -> None:
    left = Collector(each_virtual_loop)
    async with opened(each_virtual_loop, left) as (plain, _):
        watch = Stopwatch(each_virtual_loop)
        with pytest.raises(ConnectionAbortedError, match=r"^SSL handshake is taking longer than"):
            await each_virtual_loop.start_tls(
                plain,
                left,
                contexts.client,
                server_hostname="localhost",
                ssl_handshake_timeout=timeout,
            )
        assert watch.shows(seconds)


@on_loop
async def test_a_cancelled_start_closes_the_connection(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with opened(each_loop, left) as (plain, sock):
        starting = each_loop.create_task(secured(each_loop, plain, left, contexts))
        assert (await each_loop.sock_recv(sock, 1 << 16))[:1] == b"\x16"
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert await each_loop.sock_recv(sock, 1) == b""


@on_loop
async def test_wrong_arguments_are_refused(each_loop: Loop, contexts: Contexts) -> None:
    start = each_loop.start_tls
    async with stream(each_loop, Echo()) as (transport, peer):
        protocol = transport.get_protocol()
        with pytest.raises(TypeError, match=r"^sslcontext is expected to be an instance of ssl"):
            await start(transport, protocol, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^transport None is not supported by start_tls\(\)$"):
            await start(None, protocol, contexts.client)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"is not supported by start_tls\(\)$"):
            await start(asyncio.Transport(), protocol, contexts.client)
        for option in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
            options: dict[str, Any] = {option: 0}
            with pytest.raises(ValueError, match=rf"^{option} should be a positive number, got 0$"):
                await start(transport, protocol, contexts.client, **options)
        # The connection is as it was.
        assert transport.get_protocol() is protocol
        peer.send(b"ping")
        assert await read_exactly(each_loop, peer, 4) == b"ping"


@on_loop
async def test_any_transport_that_says_so_turns_to_tls(each_loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with link(each_loop, left, right) as (client, server):
        below: Any = Below(client)
        near, far = await asyncio.gather(
            secured(each_loop, below, left, contexts),
            secured(each_loop, server, right, contexts, server_side=True),
        )
        near.write(b"there")
        far.write(b"back")
        assert await right.received(5) == b"there"
        assert await left.received(4) == b"back"
        near.close()
        assert await left.lost is None
        assert await right.lost is None


# ── TLS in TLS ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_tls_inside_tls_works(each_loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with tls_link(each_loop, left, right, contexts) as (outer_left, outer_right):
        client, server = await asyncio.gather(
            secured(each_loop, outer_left, left, contexts),
            secured(each_loop, outer_right, right, contexts, server_side=True),
        )
        assert client.get_extra_info("ssl_object") is not outer_left.get_extra_info("ssl_object")
        there, back = noise(500_000, 1), noise(500_000, 2)
        client.write(there)
        server.write(back)
        assert await right.received(500_000) == there
        assert await left.received(500_000) == back
        client.close()
        assert await left.lost is None
        assert await right.lost is None


@pytest.mark.parametrize("size", [40_000, PLENTY])
@on_loop
async def test_the_end_of_the_outer_tls_follows_the_bytes_of_the_inner(
    loop: uringloop.Loop, contexts: Contexts, size: int
) -> None:
    # asyncio drops what does not fit the buffer.
    data = noise(size)
    left, right = Collector(loop), Filler(loop, size // 4000)
    linked = tls_link(loop, left, Collector(loop), contexts, buffer_size=NARROW)
    async with linked as (outer_left, outer_right):
        client, _ = await asyncio.gather(
            secured(loop, outer_left, left, contexts),
            secured(loop, outer_right, right, contexts, server_side=True),
        )
        client.write(data)
        outer_left.close()
        assert await right.lost is None
        assert right.data == data


@on_loop
async def test_the_end_of_the_outermost_tls_follows_the_bytes_of_the_innermost(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    data = noise(PLENTY)
    left, right = Collector(loop), Collector(loop)
    linked = tls_link(loop, left, right, contexts, buffer_size=NARROW)
    async with linked as (outermost, other):
        near, far = outermost, other
        for _ in range(2):
            near, far = await asyncio.gather(
                secured(loop, near, left, contexts),
                secured(loop, far, right, contexts, server_side=True),
            )
        near.write(data)
        outermost.close()
        assert await right.lost is None
        assert right.data == data


@on_loop
async def test_the_inner_tls_hands_over_what_waits_before_the_outer_ends(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # asyncio drops it.
    sent = noise(PLENTY)
    right = Collector(loop)
    linked = tls_stream(loop, right, contexts, server_side=True, buffer_size=NARROW)
    async with linked as (outer, peer):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = contexts.client.wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def do_handshake() -> None:
            while tls.version() is None:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                await peer.send(outgoing.read())
                if tls.version() is None:
                    incoming.write(await peer.read())

        secure = secured(loop, outer, right, contexts, server_side=True)
        transport, _ = await asyncio.gather(secure, do_handshake())
        transport.write(sent)
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        await peer.send(outgoing.read())
        received = bytearray()
        while data := await peer.read():
            incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while piece := tls.read(1 << 20):
                    received += piece
        assert received == sent


@on_loop
async def test_tls_inside_tls_is_encrypted_twice(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (outer, peer):
        starting = each_loop.create_task(secured(each_loop, outer, left, contexts))
        # The outer records contain the inner ClientHello.
        assert (await peer.read())[:1] == b"\x16"
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await until(outer.is_closing)
