"""The compiled data path of TLS: sizes, subclasses and exceptions that no other TLS test covers."""

from __future__ import annotations

import asyncio
import ssl
from unittest import mock

import pytest
from support.protocols import Collector
from support.roles import Loop, noise, on_loop, record_handler_calls, until
from support.tls_contexts import Contexts
from support.tls_peers import tls_stream

import uringloop
from uringloop._tls import ssl_protocol

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


def test_a_connection_has_no_buffer_until_one_is_asked_for(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    protocol = ssl_protocol.new_protocol(
        loop, asyncio.Protocol(), contexts.server, None, server_side=True
    )
    assert len(protocol._ssl_buffer) == 1  # type: ignore[attr-defined]
    assert len(protocol.get_buffer(-1)) == RECORD
    assert len(protocol.get_buffer(5 * RECORD)) == RECORD
    protocol._app_transport._closed = True


@pytest.mark.parametrize("name", ["SSLProtocol", "_SSLProtocolTransport"])
@on_loop
async def test_classes_derive_from_those_of_asyncio(
    each_loop: Loop, contexts: Contexts, name: str
) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, _):
        shown = transport if name == "_SSLProtocolTransport" else transport._ssl_protocol  # type: ignore[attr-defined]
        assert isinstance(shown, getattr(asyncio.sslproto, name))
