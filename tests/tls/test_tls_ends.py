"""The end of TLS connections, also while reading is paused; in some cases here asyncio hangs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from support.leaks import leak_checked
from support.protocols import Collector
from support.roles import (
    Loop,
    narrow_pair,
    noise,
    on_loop,
    read_exactly,
    record_handler_calls,
    turns,
)
from support.sockets import tcp_pair
from support.tls_contexts import Contexts
from support.tls_peers import Filler, Peer, ending, last_flight, tls_stream
from support.virtual_time import SEEDS

import uringloop
from uringloop import testing


@pytest.fixture(params=["real", *SEEDS], ids=["real", *map("seed{}".format, SEEDS)])
def loop(request: pytest.FixtureRequest) -> Iterator[uringloop.Loop]:
    """A loop in real time, and in virtual time under each seed, checked for leaks afterwards.

    A connection that ends only when its shutdown times out exceeds the limits of virtual time, too.
    """
    seed = request.param
    factory = uringloop.new_event_loop if seed == "real" else lambda: testing.Loop(seed)
    for created in leak_checked(factory):
        assert isinstance(created, uringloop.Loop)
        yield created


@on_loop
async def test_close_ends_a_paused_connection_whose_peer_has_disconnected(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # asyncio waits forever for resume_reading(), which a program that has closed does not call.
    right = Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        await loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.close()
        assert await asyncio.wait_for(right.lost, 5) is None
        assert not right.data


@pytest.mark.parametrize("server_side", [False, True])
@on_loop
async def test_addresses_are_known_after_the_end(
    loop: uringloop.Loop, contexts: Contexts, server_side: bool
) -> None:
    # asyncio returns the default. Programs log the address of a client that has gone.
    right = Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=server_side) as (transport, peer):
        sockname, peername = peer.sock.getsockname(), peer.sock.getpeername()
        peer.sock.close()
        await asyncio.wait_for(right.lost, 5)
        assert transport.get_extra_info("sockname") == peername
        assert transport.get_extra_info("peername") == sockname
        assert transport.get_extra_info("socket", "none") == "none"


class Sleepy(Collector):
    """Pauses reading in data_received."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.pause_reading()


class Closing(Sleepy):
    """Pauses and then closes in data_received."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        assert self.transport is not None
        self.transport.close()


@pytest.mark.parametrize("kind", [Sleepy, Closing])
@on_loop
async def test_a_pause_within_the_last_bytes_does_not_disturb_the_end(
    each_loop: Loop, contexts: Contexts, kind: type[Sleepy]
) -> None:
    # close_notify and EOF have both arrived already.
    right = kind(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        peer.notify()
        await each_loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, 5) is None
        await turns(3)
        assert right.data == b"last words"


class Cautious(Filler):
    """Pauses reading after each piece; returns a bytearray, whose slices are copies."""

    def get_buffer(self, sizehint: int) -> bytearray:
        assert isinstance(self.buffer, bytearray)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self.transport.resume_reading)


@pytest.mark.parametrize("kind", [Filler, Cautious])
@on_loop
async def test_a_small_buffer_gets_everything_before_the_end(
    loop: uringloop.Loop, contexts: Contexts, kind: type[Filler]
) -> None:
    # asyncio fills the buffer once, decrypts further records into copies of it, and then closes.
    data = noise(50_000)
    right = kind(loop, 1000)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        for start in range(0, len(data), 700):
            peer.tls.write(data[start : start + 700])
        await loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, 5) is None
        assert right.data == data
        assert right.ended


class Unfit(Filler):
    """Returns a buffer that may be unusable."""

    memory: Any = bytearray(9)

    def get_buffer(self, sizehint: int) -> Any:
        return self.memory


@pytest.mark.parametrize(
    "buffer", [b"bytes", memoryview(b"read-only"), memoryview(bytearray(9))[::2], [1, 2], "text"]
)
@on_loop
async def test_an_unusable_buffer_ends_the_connection(
    each_loop: Loop, contexts: Contexts, buffer: object
) -> None:
    handler_calls = record_handler_calls(each_loop)
    right = Unfit(each_loop, 0)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        # Not before: asyncio calls get_buffer() in the handshake.
        right.memory = buffer
        await peer.send(b"x")
        error = await right.lost
    assert type(error) is TypeError
    assert str(error) == (
        f"read() argument 2 must be read-write bytes-like object, not {type(buffer).__name__}"
    )
    assert [call["exception"] for call in handler_calls] == [error]


# ── data from the peer after close() ─────────────────────────────────────────────────────────


async def answer_close_notify(peer: Peer) -> None:
    """Read the close_notify of the transport and answer it."""
    while await peer.read():
        raise AssertionError("data in place of a close_notify")
    await peer.close()


@pytest.mark.parametrize("buffered", [False, True])
@on_loop
async def test_data_after_close_is_dropped(
    loop: uringloop.Loop, contexts: Contexts, buffered: bool
) -> None:
    # OpenSSL fails when it reads data after it has sent close_notify, and asyncio passes the error
    # to connection_lost().
    left = Filler(loop, 100) if buffered else Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=20) as (transport, peer):
        transport.close()
        for _ in range(3):
            await peer.send(noise(20_000))
            await turns(5)
        await answer_close_notify(peer)
        assert await asyncio.wait_for(left.lost, 5) is None
        assert not left.data


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["a-record", "more-than-is-read-ahead"])
@on_loop
async def test_close_while_paused_sends_close_notify(
    loop: uringloop.Loop, contexts: Contexts, size: int
) -> None:
    # asyncio no longer reads, and waits for the peer's answer until the shutdown times out.
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=20) as (transport, peer):
        transport.pause_reading()
        sending = asyncio.ensure_future(peer.send(noise(size)))
        while not transport.get_read_buffer_size():  # type: ignore[attr-defined]
            await turns()
        await turns(20)
        transport.close()
        await sending
        await answer_close_notify(peer)
        assert await asyncio.wait_for(left.lost, 5) is None
        assert left.calls == ["connection_made", "eof_received", "connection_lost"]


@pytest.mark.parametrize("closed_first", [False, True])
@on_loop
async def test_nothing_is_delivered_after_close(
    loop: uringloop.Loop, contexts: Contexts, closed_first: bool
) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=20) as (transport, peer):
        transport.pause_reading()
        await peer.send(b"not wanted")
        while not transport.get_read_buffer_size():  # type: ignore[attr-defined]
            await turns()
        if not closed_first:
            transport.resume_reading()
        transport.close()
        if closed_first:
            transport.resume_reading()
        await answer_close_notify(peer)
        assert await asyncio.wait_for(left.lost, 5) is None
        assert not left.data


@pytest.mark.parametrize("close_notify", [False, True])
@pytest.mark.parametrize("closed_first", [False, True])
@on_loop
async def test_a_peer_that_does_not_read_keeps_no_connection_open(
    loop: uringloop.Loop, contexts: Contexts, close_notify: bool, closed_first: bool
) -> None:
    # asyncio's connection stays open for ever before 3.14.10.
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=0.1) as (transport, peer):
        transport.write(bytes(20_000_000))
        if closed_first:
            transport.close()
        if close_notify:
            await loop.sock_sendall(peer.sock, peer.records(peer.tls.unwrap))
        else:
            peer.sock.shutdown(socket.SHUT_WR)
        assert isinstance(await asyncio.wait_for(left.lost, 5), TimeoutError)


@on_loop
async def test_a_damaged_record_after_close_is_passed_to_connection_lost(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=20) as (transport, peer):
        transport.close()
        peer.tls.write(b"damaged")
        record = bytearray(peer.outgoing.read())
        record[-1] ^= 1
        await loop.sock_sendall(peer.sock, record)
        assert isinstance(await asyncio.wait_for(left.lost, 5), ssl.SSLError)


# ── data with the end of the handshake ───────────────────────────────────────────────────────


@pytest.mark.parametrize("ends", [False, True], ids=["data", "data-and-end"])
@pytest.mark.parametrize("buffered", [False, True])
@on_loop
async def test_start_tls_returns_before_the_first_bytes_are_delivered(
    loop: uringloop.Loop, contexts: Contexts, buffered: bool, ends: bool
) -> None:
    # asyncio calls data_received first, before the program has the new transport.
    ours, theirs = tcp_pair()
    with theirs:
        right: Any = Filler(loop, 100) if buffered else Collector(loop)
        plain, _ = await loop.connect_accepted_socket(lambda: right, ours)
        peer = Peer(loop, theirs, contexts.client)

        async def greet() -> None:
            await loop.sock_sendall(theirs, await last_flight(peer, b"early bird"))
            if ends:
                theirs.shutdown(socket.SHUT_WR)

        async with ending(plain):
            greeting = loop.create_task(greet())
            secured = await loop.start_tls(plain, right, contexts.server, server_side=True)
            assert secured is not None
            assert not right.data
            await greeting
            while len(right.data) < 10:
                await turns()
            assert right.data == b"early bird"
            if ends:
                assert await asyncio.wait_for(right.lost, 5) is None


@on_loop
async def test_a_program_may_close_before_the_first_bytes(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    ours, theirs = tcp_pair()
    with theirs:
        right = Collector(loop)
        peer = Peer(loop, theirs, contexts.client)

        async def greet() -> None:
            await loop.sock_sendall(theirs, await last_flight(peer, b"early bird"))

        greeting = loop.create_task(greet())
        transport, _ = await loop.connect_accepted_socket(lambda: right, ours, ssl=contexts.server)
        async with ending(transport):
            transport.write(b"no, thank you")
            transport.close()
            await greeting
            assert await peer.read_to_end() == b"no, thank you"
            await peer.close()
            assert await asyncio.wait_for(right.lost, 5) is None
            assert not right.data


@on_loop
async def test_close_resumes_the_writer_when_little_is_left(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts, buffer_size=4096) as (transport, peer):
        data = noise(2_000_000)
        transport.write(data)
        transport.write(data)
        transport.close()
        assert left.calls == ["connection_made", "pause_writing"]
        begun = b""
        while len(begun) < 1_000_000:
            begun += await peer.read()
        await turns(20)
        assert left.calls == ["connection_made", "pause_writing"]
        assert begun + await peer.read_to_end() == data + data
        assert left.calls[-1] == "resume_writing"
        await peer.close()
        assert await asyncio.wait_for(left.lost, 5) is None


@pytest.mark.parametrize("alert", [False, True], ids=["end", "alert"])
@on_loop
async def test_close_needs_no_close_notify_of_the_peer(
    each_loop: Loop, contexts: Contexts, alert: bool
) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, peer):
        transport.close()
        await turns()
        if alert:
            peer.refuse()
            await peer.flush()
        else:
            peer.sock.shutdown(socket.SHUT_WR)
        assert await asyncio.wait_for(left.lost, 5) is None
        assert left.calls == ["connection_made", "eof_received", "connection_lost"]


# ── where asyncio waits for ever, or fails ───────────────────────────────────────────────────


@on_loop
async def test_a_pause_in_connection_made_does_not_stop_the_handshake(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # asyncio sends nothing while reading is paused, and the peer waits for the last flight.
    class Pausing(Collector):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()

    collector = Pausing(loop)
    async with tls_stream(loop, collector, contexts) as (transport, peer):
        await peer.send(b"data")
        await turns(10)
        assert not collector.data
        transport.resume_reading()
        assert await collector.received(4) == b"data"


@on_loop
async def test_a_second_close_changes_nothing(loop: uringloop.Loop, contexts: Contexts) -> None:
    # asyncio's transport forgets its protocol: other methods raise AttributeError.
    collector = Collector(loop)
    async with tls_stream(loop, collector, contexts, shutdown_timeout=20) as (transport, peer):
        transport.close()
        transport.close()
        assert transport.is_closing()
        assert transport.get_extra_info("ssl_object") is not None
        assert transport.get_write_buffer_size() == 0
        transport.write(b"lost")
        await answer_close_notify(peer)
        assert await asyncio.wait_for(collector.lost, 5) is None


@on_loop
async def test_a_paused_writer_turns_to_tls(loop: uringloop.Loop, contexts: Contexts) -> None:
    # asyncio's SSLProtocol expects that pause_writing() comes before resume_writing() (gh-109051).
    ours, theirs = narrow_pair(4096)
    collector = Collector(loop)
    with theirs:
        plain, _ = await loop.connect_accepted_socket(lambda: collector, ours)
        plain.set_write_buffer_limits(1000)
        plain.write(noise(500_000))
        assert collector.calls == ["connection_made", "pause_writing"]
        peer = Peer(loop, theirs, contexts.client)

        async def follow() -> None:
            assert await read_exactly(loop, theirs, 500_000) == noise(500_000)
            await peer.handshake()

        async with ending(plain):
            starting = loop.start_tls(plain, collector, contexts.server, server_side=True)
            secured, _ = await asyncio.gather(starting, follow())
            assert secured is not None
            assert collector.calls == ["connection_made", "pause_writing", "resume_writing"]
            secured.write(b"secret")
            assert await peer.read_exactly(6) == b"secret"
