"""BufferedProtocol: filling the protocol's buffer, its errors, closing and set_protocol()."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from support.protocols import Collector
from support.roles import (
    Failing,
    Loop,
    check_error_loses_connection,
    link,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    released,
    reset,
    stream,
    turns,
)
from support.sockets import tcp_pair


class Filling(asyncio.BufferedProtocol):
    """Return a buffer of a fixed size from get_buffer(), and record all received bytes."""

    transport: asyncio.Transport

    def __init__(self, loop: Loop, size: int) -> None:
        self.buffer = bytearray(size)
        self.data = bytearray()
        self.calls: list[str] = []
        self.hints: set[int] = set()
        self.counts: list[int] = []
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self._loop = loop
        self._wanted: list[tuple[int, asyncio.Future[None]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.append("connection_made")

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        self.hints.add(sizehint)
        self._note("get_buffer")
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._note("buffer_updated")
        self.counts.append(nbytes)
        self.data += self.buffer[:nbytes]
        for count, future in self._wanted:
            if len(self.data) >= count and not future.done():
                future.set_result(None)

    def eof_received(self) -> bool | None:
        self.calls.append("eof_received")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")
        self.lost.set_result(exc)

    def _note(self, call: str) -> None:
        if self.calls[-1] != call:
            self.calls.append(call)

    async def received(self, count: int) -> bytes:
        """Wait until *count* bytes or more are received, and return all of them."""
        if len(self.data) < count:
            future = self._loop.create_future()
            self._wanted.append((count, future))
            await future
        return bytes(self.data)


# ── filling ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_get_buffer_precedes_each_buffer_updated(each_loop: Loop) -> None:
    filling = Filling(each_loop, 1024)
    async with stream(each_loop, filling) as (_, peer):
        for count in (1, 2, 3):
            peer.send(b"x")
            await filling.received(count)
        peer.close()
        assert await filling.lost is None
    steps = [call for call in filling.calls if call in ("get_buffer", "buffer_updated")]
    assert steps[:6] == ["get_buffer", "buffer_updated"] * 3
    assert filling.counts == [1, 1, 1]
    assert filling.calls[0] == "connection_made"
    assert filling.calls[-2:] == ["eof_received", "connection_lost"]


@on_loop
async def test_the_size_hint_is_positive_or_minus_one(each_loop: Loop) -> None:
    filling = Filling(each_loop, 1024)
    async with stream(each_loop, filling) as (_, peer):
        peer.send(b"x")
        await filling.received(1)
    assert filling.hints
    assert all(hint == -1 or hint > 0 for hint in filling.hints)


@pytest.mark.parametrize("size", [1, 3, 100, 4096, 65_536, 1 << 20])
@on_loop
async def test_a_buffer_of_any_size_reassembles_the_stream(each_loop: Loop, size: int) -> None:
    data = noise(3000 * min(size, 300))
    filling = Filling(each_loop, size)
    async with stream(each_loop, filling) as (_, peer):
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        assert await filling.received(len(data)) == data
        await sending
    assert max(filling.counts) <= size
    assert min(filling.counts) > 0


@on_loop
async def test_the_end_of_stream_comes_after_the_last_byte(each_loop: Loop) -> None:
    data = noise(1000)
    filling = Filling(each_loop, 7)
    async with stream(each_loop, filling) as (_, peer):
        peer.send(data)
        peer.close()
        assert await filling.lost is None
    assert bytes(filling.data) == data


@on_loop
async def test_data_before_a_reset_reaches_the_buffer(each_loop: Loop) -> None:
    data = noise(1000)
    filling = Filling(each_loop, 64)
    async with stream(each_loop, filling) as (_, peer):
        peer.send(data)
        reset(peer)
        assert isinstance(await filling.lost, ConnectionResetError)
    assert bytes(filling.data) == data


@on_loop
async def test_the_buffer_may_be_a_view_into_something_larger(each_loop: Loop) -> None:
    class Parser(Filling):
        """Append to the bytes already in the buffer, as a parser of messages does."""

        filled = 0

        def get_buffer(self, sizehint: int) -> memoryview:
            return memoryview(self.buffer)[self.filled :]

        def buffer_updated(self, nbytes: int) -> None:
            self.filled += nbytes
            self.counts.append(nbytes)
            if self.filled == len(self.buffer):
                self.lost.set_result(None)

        def connection_lost(self, exc: Exception | None) -> None:
            """Do nothing: `lost` is resolved already, by buffer_updated()."""

    parser = Parser(each_loop, 50_000)
    data = noise(50_000)
    async with stream(each_loop, parser) as (_, peer):
        await each_loop.sock_sendall(peer, data)
        await parser.lost
        assert bytes(parser.buffer) == data


@on_loop
async def test_the_buffer_may_be_resized_between_updates(each_loop: Loop) -> None:
    class Elastic(Filling):
        def get_buffer(self, sizehint: int) -> bytearray:
            self.buffer += bytes(100)
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.buffer.clear()

    elastic = Elastic(each_loop, 0)
    data = noise(5000)
    async with stream(each_loop, elastic) as (_, peer):
        peer.send(data)
        assert await elastic.received(5000) == data
        # The loop exports no view of the buffer while the connection is idle.
        elastic.buffer += b"grown"
        elastic.buffer.clear()


@on_loop
async def test_the_buffer_is_not_written_outside_of_an_update(each_loop: Loop) -> None:
    filling = Filling(each_loop, 1000)
    async with stream(each_loop, filling) as (transport, peer):
        peer.send(b"a" * 10)
        await filling.received(10)
        assert filling.buffer == b"a" * 10 + bytes(990)
        transport.pause_reading()
        peer.send(b"b" * 1000)
        await turns(10)
        assert filling.buffer == b"a" * 10 + bytes(990)
        transport.resume_reading()
        await filling.received(1010)
        assert filling.data[10:] == b"b" * 1000


@on_loop
async def test_large_streams_arrive_whole(each_loop: Loop) -> None:
    data = noise(16 << 20)
    filling = Filling(each_loop, 200_000)
    async with link(each_loop, Collector(each_loop), filling) as (transport, _):
        transport.write(data)
        assert await filling.received(len(data)) == data


@on_loop
async def test_a_buffered_echo_answers_from_its_own_buffer(each_loop: Loop) -> None:
    class BufferedEcho(Filling):
        def buffer_updated(self, nbytes: int) -> None:
            self.transport.write(memoryview(self.buffer)[:nbytes])
            self.buffer[:nbytes] = bytes(nbytes)

    collector = Collector(each_loop)
    sent = b""
    async with link(each_loop, collector, BufferedEcho(each_loop, 8192)) as (transport, _):
        for turn in range(50):
            sent += (piece := noise(4000, turn))
            transport.write(piece)
            assert await collector.received(len(sent)) == sent


# ── errors ────────────────────────────────────────────────────────────────────────────────


class Faulty(Filling, Failing):
    """Raise in the given callback."""

    def __init__(self, loop: Loop, callback: str) -> None:
        super().__init__(loop, 100)
        self.callback = callback
        self.error = ValueError(callback)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        if self.callback == "get_buffer":
            raise self.error
        return super().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.callback == "buffer_updated":
            raise self.error
        super().buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        if self.callback == "eof_received":
            raise self.error
        return super().eof_received()


@pytest.mark.parametrize("callback", ["get_buffer", "buffer_updated", "eof_received"])
@on_loop
async def test_an_error_in_a_callback_loses_the_connection(each_loop: Loop, callback: str) -> None:
    await check_error_loses_connection(each_loop, Faulty(each_loop, callback))


@on_loop
async def test_an_empty_buffer_is_an_error_of_the_protocol(each_loop: Loop) -> None:
    handler_calls = record_handler_calls(each_loop)
    filling = Filling(each_loop, 0)
    async with stream(each_loop, filling) as (_, peer):
        peer.send(b"x")
        error = await filling.lost
        assert isinstance(error, RuntimeError)
        assert str(error) == "get_buffer() returned an empty buffer"
    assert [call["message"] for call in handler_calls] == [
        "Fatal error: protocol.get_buffer() call failed."
    ]


@pytest.mark.parametrize(
    "buffer", [b"bytes", memoryview(b"read-only"), memoryview(bytearray(9))[::2], [1, 2], "text"]
)
@on_loop
async def test_a_buffer_of_the_wrong_type_is_a_fatal_read_error(
    each_loop: Loop, buffer: object
) -> None:
    class Unfit(Filling):
        def get_buffer(self, sizehint: int) -> Any:
            return buffer

    handler_calls = record_handler_calls(each_loop)
    protocol = Unfit(each_loop, 0)
    async with stream(each_loop, protocol) as (_, peer):
        peer.send(b"x")
        error = await protocol.lost
        assert type(error) is TypeError
        # Since 3.16 the message gives the argument's name.
        assert str(error) in (
            f"recv_into() argument {name} must be read-write bytes-like object, "
            f"not {type(buffer).__name__}"
            for name in ("1", "'buffer'")
        )
    assert [call["message"] for call in handler_calls] == ["Fatal read error on socket transport"]


# ── closing and switching ─────────────────────────────────────────────────────────────────


@on_loop
async def test_closing_inside_buffer_updated_stops_the_data(each_loop: Loop) -> None:
    class Once(Filling):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.close()

    once = Once(each_loop, 4)
    async with stream(each_loop, once) as (_, peer):
        peer.send(b"more than four bytes")
        assert await once.lost is None
    assert bytes(once.data) == b"more"
    assert once.calls[-1] == "connection_lost"


@on_loop
async def test_pausing_inside_buffer_updated_stops_the_data(each_loop: Loop) -> None:
    class Stepping(Filling):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    stepping = Stepping(each_loop, 4)
    async with stream(each_loop, stepping) as (transport, peer):
        peer.send(b"0123456789")
        for count in (4, 8, 10):
            assert await stepping.received(count) == b"0123456789"[:count]
            await turns(5)
            assert len(stepping.data) == count
            transport.resume_reading()


@on_loop
async def test_a_stream_can_change_to_a_buffered_protocol_and_back(each_loop: Loop) -> None:
    first, second, third = Collector(each_loop), Filling(each_loop, 3), Collector(each_loop)
    second.calls.append("set_protocol")
    third.calls.append("set_protocol")
    async with stream(each_loop, first) as (transport, peer):
        peer.send(b"plain")
        assert await first.received(5) == b"plain"
        transport.set_protocol(second)
        peer.send(b"buffered")
        assert await second.received(8) == b"buffered"
        transport.set_protocol(third)
        peer.send(b"plain again")
        assert await third.received(11) == b"plain again"
        peer.close()
        assert await third.lost is None


@on_loop
async def test_changing_to_a_buffered_protocol_inside_data_received_loses_nothing(
    each_loop: Loop,
) -> None:
    class Switch(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.set_protocol(filling)
            self.transport.write(b"switched")

    filling = Filling(each_loop, 5)
    filling.calls.append("set_protocol")
    switch = Switch(each_loop)
    async with stream(each_loop, switch) as (_, peer):
        peer.send(b"upgrade")
        assert await read_exactly(each_loop, peer, 8) == b"switched"
        peer.send(b"the new protocol")
        assert await filling.received(16) == b"the new protocol"
    assert bytes(switch.data) == b"upgrade"


@on_loop
async def test_changing_to_a_plain_protocol_inside_buffer_updated_loses_nothing(
    each_loop: Loop,
) -> None:
    class Switch(Filling):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.set_protocol(collector)

    collector = Collector(each_loop)
    collector.calls.append("set_protocol")
    switch = Switch(each_loop, 4)
    data = noise(100_000)
    async with stream(each_loop, switch) as (_, peer):
        await each_loop.sock_sendall(peer, data)
        rest = await collector.received(len(data) - 4)
        assert bytes(switch.data) + rest == data


@on_loop
async def test_get_buffer_is_not_called_after_closing_in_connection_made(each_loop: Loop) -> None:
    class Brief(Filling):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            transport.close()

    ours, peer = tcp_pair()
    with peer:
        peer.send(b"never read")
        brief = Brief(each_loop, 10)
        transport, _ = await each_loop.create_connection(lambda: brief, sock=ours)
        assert await brief.lost is None
        await released(transport)
    assert brief.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_data_written_in_eof_received_is_flushed(each_loop: Loop) -> None:
    data = noise(4 << 20)

    class Answer(Filling):
        def eof_received(self) -> bool | None:
            self.transport.write(data)
            return None

    answer = Answer(each_loop, 10)
    async with stream(each_loop, answer, buffer_size=16_384) as (_, peer):
        peer.shutdown(socket.SHUT_WR)
        assert await read_to_end(each_loop, peer) == data
        assert await answer.lost is None


class BufferedByMethods(asyncio.BaseProtocol):
    """A buffered protocol by its methods, not by its base class."""

    def __init__(self, loop: Loop) -> None:
        self.buffer = bytearray(4)
        self.data = bytearray()
        self.eof: asyncio.Future[None] = loop.create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]

    def eof_received(self) -> None:
        self.eof.set_result(None)


def test_a_class_with_the_methods_of_a_buffered_protocol_is_one(loop: Loop) -> None:
    """uvloop does the same; asyncio checks isinstance() only and cannot use such a protocol."""

    async def receive() -> None:
        ours, peer = tcp_pair()
        with peer:
            like = BufferedByMethods(loop)
            transport, _ = await loop.create_connection(lambda: like, sock=ours)
            peer.sendall(noise(1000))
            peer.shutdown(socket.SHUT_WR)
            await like.eof
            assert like.data == noise(1000)
            await released(transport)

    loop.run_until_complete(receive())
