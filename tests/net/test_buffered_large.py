"""BufferedProtocol with large messages, which are received into its buffer by a system call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from support.large_messages import MESSAGE, PLENTY, Filled, both_kinds, in_flight, large
from support.protocols import Collector
from support.roles import Loop, on_loop, record_handler_calls, turns, until

import uringloop


@pytest.fixture(autouse=True)
def nothing_in_flight(each_loop: Loop) -> Iterator[None]:
    """Check that the test leaves no operation in flight and no buffer out."""
    yield
    assert in_flight(each_loop) == (0, 0)


class Doing(Filled):
    """Does something, once, in get_buffer()."""

    transport: asyncio.Transport
    asked = 0
    wanted = ""
    other: asyncio.BaseProtocol | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        wanted, self.wanted = self.wanted, ""
        self.asked += 1
        if wanted == "pause":
            self.transport.pause_reading()
        elif wanted == "close":
            self.transport.close()
        elif wanted == "abort":
            self.transport.abort()
        elif wanted == "raise":
            raise ZeroDivisionError
        elif wanted == "empty":
            return memoryview(bytearray())
        elif wanted == "read-only":
            return memoryview(b"read-only")
        elif wanted == "replace":
            assert self.other is not None
            self.transport.set_protocol(self.other)
        elif wanted == "write":
            self.transport.write(b"answer")
        return super().get_buffer(sizehint)


async def send_all(loop: Loop, peer: socket.socket, data: bytes) -> None:
    await loop.sock_sendall(peer, data)


@both_kinds
@pytest.mark.parametrize("size", [1, 7, 4_096, 65_536, 300_000])
@on_loop
async def test_a_buffer_of_any_size_gets_every_byte(each_loop: Loop, kind: str, size: int) -> None:
    sink = Filled(each_loop)
    plenty = PLENTY[: 300 * size] if size < 100 else PLENTY
    async with large(each_loop, sink, kind) as (_, peer):
        sink.size = size
        sending = each_loop.create_task(send_all(each_loop, peer, plenty))
        assert await sink.take(len(plenty)) == plenty
        await sending


@both_kinds
@on_loop
async def test_pausing_in_get_buffer_delivers_nothing_and_loses_nothing(
    each_loop: Loop, kind: str
) -> None:
    sink = Doing(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        sink.wanted = "pause"
        await each_loop.sock_sendall(peer, MESSAGE)
        await until(lambda: sink.wanted == "")
        await turns(10)
        before = sink.asked
        # asyncio still fills the buffer that it has got.
        assert len(sink.data) in (0, min(sink.size, len(MESSAGE)))
        await turns(10)
        assert sink.asked == before
        transport.resume_reading()
        assert await sink.take(len(MESSAGE)) == MESSAGE


@both_kinds
@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_closing_in_get_buffer_ends_the_connection(
    each_loop: Loop, kind: str, end: str
) -> None:
    sink = Doing(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        sink.wanted = end
        await each_loop.sock_sendall(peer, MESSAGE)
        assert await sink.lost is None
        # One more buffer may be filled, as by asyncio; nothing comes after that.
        before = sink.asked
        await turns(5)
        assert sink.asked == before


@both_kinds
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("raise", ZeroDivisionError, "Fatal error: protocol.get_buffer() call failed."),
        ("empty", RuntimeError, "Fatal error: protocol.get_buffer() call failed."),
        ("read-only", TypeError, "Fatal read error on socket transport"),
    ],
)
@on_loop
async def test_a_fault_of_get_buffer_is_asyncios(
    each_loop: Loop, kind: str, fault: str, error: type[Exception], message: str
) -> None:
    handler_calls = record_handler_calls(each_loop)
    sink = Doing(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        sink.wanted = fault
        await each_loop.sock_sendall(peer, MESSAGE)
        assert type(await sink.lost) is error
    assert [call["message"] for call in handler_calls] == [message]


@both_kinds
@on_loop
async def test_writing_in_get_buffer_keeps_the_order(each_loop: Loop, kind: str) -> None:
    sink = Doing(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        sink.wanted = "write"
        await each_loop.sock_sendall(peer, MESSAGE)
        assert await sink.take(len(MESSAGE)) == MESSAGE
        assert await each_loop.sock_recv(peer, 100) == b"answer"


@both_kinds
@on_loop
async def test_a_protocol_replaced_in_get_buffer_loses_nothing(each_loop: Loop, kind: str) -> None:
    if not isinstance(each_loop, uringloop.Loop):
        pytest.skip("asyncio calls buffer_updated() of the new protocol, which does not have it")
    sink = Doing(each_loop)
    sink.other = other = Collector(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        other.connection_made(transport)
        sink.wanted = "replace"
        await each_loop.sock_sendall(peer, MESSAGE)
        assert await other.received(len(MESSAGE)) == MESSAGE
        assert sink.data == b""


class Exact(Filled):
    """Has a buffer for the rest of one message, which is empty until the message is taken."""

    asked = 0
    updated = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        self.asked += 1
        self.memory = memoryview(bytearray(len(MESSAGE) - len(self.data) % len(MESSAGE)))
        if len(self.data) == len(MESSAGE):
            return memoryview(bytearray())
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.updated += 1
        super().buffer_updated(nbytes)


@both_kinds
@pytest.mark.parametrize("pause", [0, 0.001])
@on_loop
async def test_a_buffer_is_asked_for_only_if_there_are_bytes(
    each_loop: Loop, kind: str, pause: float
) -> None:
    sink = Exact(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        for _ in range(50):
            await each_loop.sock_sendall(peer, MESSAGE)
            await sink.received(len(MESSAGE))
            await asyncio.sleep(pause)
            assert await sink.take(len(MESSAGE)) == MESSAGE
        assert sink.asked == sink.updated


@both_kinds
@on_loop
async def test_the_peers_end_comes_after_the_last_byte(each_loop: Loop, kind: str) -> None:
    sink = Filled(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        sink.size = 100_000
        await each_loop.sock_sendall(peer, MESSAGE)
        peer.shutdown(socket.SHUT_WR)
        assert await sink.until_eof() == MESSAGE
