"""StreamReaders that receive bytes without Python code behave as with asyncio's own methods."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any
from unittest import mock

import pytest
from support.roles import Loop, noise, nothing_comes, on_loop, record_handler_calls, turns, until
from support.sockets import tcp_pair


async def opened(
    limit: int = 1 << 16,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]:
    ours, peer = tcp_pair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
    return reader, writer, peer


async def close_both(writer: asyncio.StreamWriter, peer: socket.socket) -> None:
    writer.transport.abort()
    peer.close()
    await turns(3)


def is_reading(writer: asyncio.StreamWriter) -> bool:
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)
    return transport.is_reading()


@on_loop
async def test_all_bytes_arrive_in_order_with_every_read_method(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=1000)
    data = noise(30_000).replace(b"\n", b".")
    sent = each_loop.create_task(
        each_loop.sock_sendall(peer, b"line\n" + data + b"last\r\n\r\nrest")
    )
    assert await reader.readline() == b"line\n"
    assert await reader.readexactly(20_000) == data[:20_000]
    some = await reader.read(700)
    assert 0 < len(some) <= 700
    left = data[20_000:]
    assert some + await reader.readexactly(len(left) - len(some)) == left
    assert await reader.readuntil(b"\r\n\r\n") == b"last\r\n\r\n"
    await sent
    peer.close()
    assert await reader.read() == b"rest"
    assert reader.at_eof()
    await close_both(writer, peer)


@on_loop
async def test_readline_refuses_a_line_beyond_the_limit(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=100)
    await each_loop.sock_sendall(peer, noise(500).replace(b"\n", b".") + b"\n")
    with pytest.raises(ValueError, match="limit"):
        await reader.readline()
    await close_both(writer, peer)


@on_loop
async def test_the_transport_pauses_at_twice_the_limit(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=1000)
    await each_loop.sock_sendall(peer, noise(1500))
    await until(lambda: len(reader._buffer) == 1500)  # type: ignore[attr-defined]
    assert is_reading(writer)
    await each_loop.sock_sendall(peer, noise(501))
    await until(lambda: not is_reading(writer))
    assert await reader.readexactly(1500) == noise(1500)
    assert is_reading(writer)
    assert await reader.readexactly(501) == noise(501)
    await close_both(writer, peer)


@on_loop
async def test_a_reader_without_a_transport_is_not_paused(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=10)
    with mock.patch.object(reader, "_transport", None):
        await each_loop.sock_sendall(peer, noise(100))
        await until(lambda: len(reader._buffer) == 100)  # type: ignore[attr-defined]
        assert is_reading(writer)
    await close_both(writer, peer)


@on_loop
async def test_a_cancelled_read_keeps_every_byte(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    task = each_loop.create_task(reader.readexactly(10))
    await turns(2)
    peer.send(b"12345")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    peer.send(b"67890")
    assert await reader.readexactly(10) == b"1234567890"
    await close_both(writer, peer)


@on_loop
async def test_replaced_methods_are_called(each_loop: Loop) -> None:
    seen = []
    original = asyncio.StreamReader.feed_data

    def feed_data(self: asyncio.StreamReader, data: bytes) -> None:
        seen.append(data)
        original(self, data)

    with mock.patch.object(asyncio.StreamReader, "feed_data", feed_data):
        reader, writer, peer = await opened()
        peer.send(b"watched")
        assert await reader.readexactly(7) == b"watched"
    assert seen == [b"watched"]
    await close_both(writer, peer)


@on_loop
async def test_methods_of_subclasses_are_called(each_loop: Loop) -> None:
    class Shouting(asyncio.StreamReader):
        def feed_data(self, data: Any) -> None:
            super().feed_data(data.upper())

    ours, peer = tcp_pair()
    reader = Shouting()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await each_loop.create_connection(lambda: protocol, sock=ours)
    peer.send(b"loud")
    assert await reader.readexactly(4) == b"LOUD"
    transport.abort()
    peer.close()
    await turns(3)


@on_loop
async def test_an_exported_buffer_ends_the_connection_with_buffer_error(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    peer.send(b"first")
    await until(lambda: len(reader._buffer) == 5)  # type: ignore[attr-defined]
    handler_calls = record_handler_calls(each_loop)
    with memoryview(reader._buffer):  # type: ignore[attr-defined]
        peer.send(b"second")
        await until(lambda: writer.transport.is_closing())
    assert [type(call["exception"]) for call in handler_calls] == [BufferError]
    assert handler_calls[0]["message"] == "Fatal error: protocol.data_received() call failed."
    await close_both(writer, peer)


@on_loop
async def test_data_after_feed_eof_ends_the_connection(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    reader.feed_eof()
    handler_calls = record_handler_calls(each_loop)
    peer.send(b"too late")
    await until(lambda: writer.transport.is_closing())
    assert [type(call["exception"]) for call in handler_calls] == [AssertionError]
    await close_both(writer, peer)


@on_loop
async def test_data_for_a_reader_that_is_gone_is_dropped(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    reader: asyncio.StreamReader | None = asyncio.StreamReader()
    assert reader is not None
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await each_loop.create_connection(lambda: protocol, sock=ours)
    del reader
    gc.collect()
    peer.send(b"to nobody")
    await nothing_comes(each_loop)
    assert not transport.is_closing()
    transport.abort()
    peer.close()
    await turns(3)
