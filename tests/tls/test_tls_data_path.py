"""The compiled data path of TLS: sizes, subclasses and exceptions that no other TLS test covers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any
from unittest import mock

import pytest
from support.protocols import Collector
from support.roles import Loop, noise, on_loop, record_handler_calls, turns, until
from support.tls_contexts import Contexts, client_context
from support.tls_peers import Filler, tls_stream

import uringloop
from uringloop._tls.ssl_protocol import SSLProtocol

RECORD = 16 * 1024


@on_loop
async def test_messages_of_every_size_arrive_whole(each_loop: Loop, contexts: Contexts) -> None:
    collector = Collector(each_loop)
    async with tls_stream(each_loop, collector, contexts) as (transport, peer):
        total = 0
        for size in (1, 2, 1000, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD, 200_001):
            await peer.send(noise(size, size))
            total += size
            assert (await collector.received(total))[-size:] == noise(size, size)
            transport.write(noise(size, size))
            assert await peer.read_exactly(size) == noise(size, size)


def receive_at_once(loop: Loop, near: socket.socket, far: socket.socket) -> None:
    """Send and receive within one call, as a task with an eager start does."""
    far.send(bytes(100_000))
    receiving = loop.sock_recv(near, 200_000)
    with pytest.raises(StopIteration):
        receiving.send(None)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_the_program_may_receive_from_a_socket_in_data_received(
    loop: uringloop.Loop, contexts: Contexts, size: int, debug: bool
) -> None:
    class Receiving(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            receive_at_once(loop, near, far)

    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        collector = Receiving(loop)
        async with tls_stream(loop, collector, contexts) as (_, peer):
            for _ in range(3):
                collector.data.clear()
                await asyncio.gather(peer.send(noise(size)), collector.received(size))
                assert collector.data == noise(size)

    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        loop.set_debug(debug)
        check(loop=loop)


def test_the_program_may_receive_from_a_socket_within_openssl(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    def receive(*arguments: object) -> None:
        receive_at_once(loop, near, far)

    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        client = client_context()
        client._msg_callback = receive  # type: ignore[attr-defined]
        collector = Collector(loop)
        both = Contexts(contexts.server, client)
        async with tls_stream(loop, collector, both) as (_, peer):
            for _ in range(3):
                collector.data.clear()
                await asyncio.gather(peer.send(noise(1_000_000)), collector.received(1_000_000))
                assert collector.data == noise(1_000_000)

    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        check(loop=loop)


@on_loop
async def test_a_paused_connection_takes_little_more_than_its_limit(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    collector = Collector(loop)
    async with tls_stream(loop, collector, contexts) as (transport, peer):
        # From now on the transport below receives large messages.
        await asyncio.gather(peer.send(noise(1_000_000)), collector.received(1_000_000))
        transport.pause_reading()
        sending = asyncio.create_task(peer.send(noise(1_000_000)))
        await turns(200)
        unread = transport.get_read_buffer_size()  # type: ignore[attr-defined]
        assert 256 * 1024 <= unread < (256 + 64) * 1024
        collector.data.clear()
        transport.resume_reading()
        await asyncio.gather(sending, collector.received(1_000_000))
        assert collector.data == noise(1_000_000)


@on_loop
async def test_lines_are_written_in_order(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        transport.writelines([b"one ", b"two ", b"three "])
        transport.writelines([bytearray(b"four "), memoryview(b"five "), b"six"])
        assert await peer.read_exactly(27) == b"one two three four five six"


@on_loop
async def test_a_stream_reader_receives_plaintext(each_loop: Loop, contexts: Contexts) -> None:
    reader = asyncio.StreamReader(limit=1000)
    protocol = asyncio.StreamReaderProtocol(reader)
    async with tls_stream(each_loop, protocol, contexts) as (_, peer):
        await peer.send(b"a line\n" + noise(30_000))
        assert await reader.readline() == b"a line\n"
        assert await reader.readexactly(30_000) == noise(30_000)


@on_loop
async def test_the_methods_of_an_sslobject_subclass_are_called(
    each_loop: Loop, contexts: Contexts
) -> None:
    class Counting(ssl.SSLObject):
        reads = 0

        def read(self, *args: object) -> bytes:
            Counting.reads += 1
            return super().read(*args)  # type: ignore[arg-type]

    with mock.patch.object(ssl.SSLContext, "sslobject_class", Counting):
        collector = Collector(each_loop)
        async with tls_stream(each_loop, collector, contexts) as (_, peer):
            before = Counting.reads
            await peer.send(b"counted")
            assert await collector.received(7) == b"counted"
            assert Counting.reads > before


@on_loop
async def test_an_exception_of_the_protocol_is_reported_as_by_asyncio(
    each_loop: Loop, contexts: Contexts
) -> None:
    class Interrupting(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data == b"stop":
                raise RuntimeError("stop")

    handler_calls = record_handler_calls(each_loop)
    collector = Interrupting(each_loop)
    async with tls_stream(each_loop, collector, contexts) as (_, peer):
        await peer.send(b"stop")
        await until(lambda: collector.lost.done())
    assert [type(call["exception"]) for call in handler_calls] == [RuntimeError]
    assert handler_calls[0]["message"] == "Fatal error on SSL protocol"


def test_a_buffer_has_room_for_a_record(loop: uringloop.Loop, contexts: Contexts) -> None:
    protocol = SSLProtocol(loop, asyncio.Protocol(), contexts.server, None, server_side=True)
    for hint in (-1, 5 * RECORD):
        assert memoryview(protocol.get_buffer(hint)).nbytes == RECORD
    protocol._app_transport.abort()


@on_loop
async def test_an_empty_buffer_is_an_error(loop: uringloop.Loop, contexts: Contexts) -> None:
    # asyncio takes it for the peer's close_notify.
    handler_calls = record_handler_calls(loop)
    filler = Filler(loop, 0)
    async with tls_stream(loop, filler, contexts) as (_, peer):
        await peer.send(b"data")
        assert isinstance(await filler.lost, RuntimeError)
    assert str(handler_calls[0]["exception"]) == "get_buffer() returned an empty buffer"


# ── what programs look for ───────────────────────────────────────────────────────────────────


@on_loop
async def test_private_names_that_programs_read(each_loop: Loop, contexts: Contexts) -> None:
    collector = Collector(each_loop)
    async with tls_stream(each_loop, collector, contexts) as (opened, _):
        transport: Any = opened
        tls = transport._ssl_protocol
        assert isinstance(opened, asyncio.Transport)
        assert issubclass(tls.__class__, asyncio.BufferedProtocol)
        assert tls._app_transport is transport
        assert tls._app_protocol is collector
        assert tls._loop is transport._loop is each_loop
        assert tls._transport.get_extra_info("socket").fileno() >= 0
        assert tls._sslobj is tls._extra["ssl_object"] is transport.get_extra_info("ssl_object")
        assert tls._sslcontext is transport.get_extra_info("sslcontext")
        assert not transport._closed
    assert transport._closed


@on_loop
async def test_a_program_may_replace_connection_lost(each_loop: Loop, contexts: Contexts) -> None:
    # Programs of aiohttp's client learn in this way when its connections have ended.
    collector = Collector(each_loop)
    async with tls_stream(each_loop, collector, contexts) as (transport, _):
        tls: Any = transport._ssl_protocol  # type: ignore[attr-defined]
        original = tls.connection_lost
        calls: list[object] = []

        def connection_lost(exc: Exception | None) -> None:
            calls.append(exc)
            original(exc)

        tls.connection_lost = connection_lost
        transport.abort()
        await collector.lost
    assert calls == [None]
