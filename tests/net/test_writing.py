"""Writing on TCP transports: types of data, order, large and queued writes, write_eof()."""

from __future__ import annotations

import array
import asyncio
import socket
import sys
from collections.abc import Callable, Iterable

import pytest
from support.protocols import Collector
from support.roles import (
    HalfOpen,
    Loop,
    link,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    released,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair

import uringloop
from uringloop import testing

# Small kernel buffers, so that a write of PLENTY stays queued in the transport.
NARROW = 16 * 1024
PLENTY = 4 * 1024 * 1024


# ── writing ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@on_loop
async def test_write_accepts_every_bytes_like_type(
    each_loop: Loop, kind: Callable[[bytes], bytes | bytearray | memoryview]
) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.write(kind(b""))
        transport.write(kind(b"hello"))
        assert await read_exactly(each_loop, peer, 5) == b"hello"


@on_loop
async def test_write_sends_all_bytes_of_a_view_of_wider_items(each_loop: Loop) -> None:
    numbers = array.array("I", range(100))
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.write(memoryview(numbers))
        expected = numbers.tobytes()
        assert await read_exactly(each_loop, peer, len(expected)) == expected


# Issue 51. A view with gaps is sent without them. asyncio copies it only if other bytes wait to be
# sent, and ends the connection otherwise.
GAPS = memoryview(b"g-a-p-s-")[::2]


@pytest.mark.parametrize("queued", [b"", noise(0, PLENTY)], ids=["idle", "queued"])
@on_loop
async def test_a_view_with_gaps_is_sent_without_them(loop: uringloop.Loop, queued: bytes) -> None:
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.write(queued)
        transport.write(GAPS)
        transport.writelines([b" ", memoryview(b"back")[::-1], b" "])
        transport.write(memoryview(array.array("I", range(100)))[::5])
        expected = queued + b"gaps kcab " + array.array("I", range(0, 100, 5)).tobytes()
        assert await read_exactly(loop, peer, len(expected)) == expected


@on_loop
async def test_a_view_with_gaps_is_a_copy(loop: uringloop.Loop) -> None:
    data = bytearray(b"o-l-d-")
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.write(memoryview(data)[::2])
        data[:] = b"n-e-w-"
        assert await read_exactly(loop, peer, 3) == b"old"


@pytest.mark.parametrize("wrong", ["text", None, 5, [b"list"]])
@on_loop
async def test_write_refuses_objects_that_are_not_bytes_like(
    each_loop: Loop, wrong: object
) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        write: Callable[[object], None] = transport.write  # type: ignore[assignment]
        wanted = "a bytes-like object"
        if sys.version_info >= (3, 14):
            wanted = "a bytes, bytearray, or memoryview object"
        expected = f"data argument must be {wanted}, not '{type(wrong).__name__}'"
        with pytest.raises(TypeError) as caught:
            write(wrong)
        assert str(caught.value) == expected
        assert not transport.is_closing()


@on_loop
async def test_a_bytearray_may_change_right_after_write(each_loop: Loop) -> None:
    buffer = bytearray(b"before")
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.write(buffer)
        buffer[:] = b"after!"
        assert await read_exactly(each_loop, peer, 6) == b"before"


@on_loop
async def test_a_queued_bytearray_may_change_and_shrink(loop: uringloop.Loop) -> None:
    # uringloop only: asyncio keeps a view of unsent bytes, and sends the new content.
    data = noise(PLENTY)
    buffer = bytearray(data)
    async with stream(loop, Collector(loop), buffer_size=NARROW) as (transport, peer):
        transport.write(buffer)
        transport.writelines([buffer])
        buffer[:] = bytes(PLENTY)
        buffer.clear()
        assert await read_exactly(loop, peer, 2 * PLENTY) == data + data


def as_generator(pieces: list[bytes]) -> Iterable[bytes]:
    return (piece for piece in pieces)


@pytest.mark.parametrize("kind", [list, tuple, as_generator])
@on_loop
async def test_writelines_sends_every_piece_in_order(
    each_loop: Loop, kind: Callable[[list[bytes]], Iterable[bytes]]
) -> None:
    pieces = [noise(size, size) for size in (1, 700, 3, 10_000)] * 20
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.write(b"first ")
        transport.writelines(kind(pieces))
        transport.write(b" last")
        expected = b"first " + b"".join(pieces) + b" last"
        assert await read_exactly(each_loop, peer, len(expected)) == expected


@on_loop
async def test_writelines_of_an_empty_list_sends_nothing(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.writelines([])
        transport.close()
        assert await read_to_end(each_loop, peer) == b""


@on_loop
async def test_writelines_refuses_text(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        with pytest.raises(TypeError, match=r"bytes-like object|bytearray, or memoryview"):
            transport.writelines([b"good", "bad"])  # type: ignore[list-item]
        # asyncio 3.15 queues b"good" and never sends it; close() would wait for it.
        transport.abort()
        assert await read_to_end(each_loop, peer) == b""


@on_loop
async def test_thousands_of_small_writes_keep_their_order(each_loop: Loop) -> None:
    lines = [b"%d\n" % number for number in range(20_000)]
    expected = b"".join(lines)
    async with stream(each_loop, Collector(each_loop), buffer_size=NARROW) as (transport, peer):
        reading = each_loop.create_task(read_exactly(each_loop, peer, len(expected)))
        for number, line in enumerate(lines):
            transport.write(line)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        assert await reading == expected


@pytest.mark.parametrize("megabytes", [1, 16, pytest.param(64, marks=pytest.mark.slow)])
@on_loop
async def test_a_large_write_arrives_whole(each_loop: Loop, megabytes: int) -> None:
    data = noise(megabytes << 20)
    collector = Collector(each_loop)
    async with link(each_loop, Collector(each_loop), collector) as (transport, _):
        transport.write(data)
        assert await collector.received(len(data)) == data


@on_loop
async def test_bytes_that_are_sent_do_not_make_the_next_write_leave_early(
    loop: uringloop.Loop,
) -> None:
    large = noise(0, 10_000)
    async with stream(loop, Collector(loop)) as (transport, peer):
        peer.settimeout(10)
        # Each of these writes sends its bytes at once.
        for _ in range(30):
            transport.write(large)
            received = b""
            while len(received) < len(large):
                received += peer.recv(len(large))
        peer.setblocking(False)
        entries = loop._kernel_entries
        transport.write(b"end")
        assert loop._kernel_entries == entries
        assert await read_exactly(loop, peer, 3) == b"end"


@on_loop
async def test_both_directions_carry_large_data_at_once(each_loop: Loop) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    to_left, to_right = noise(PLENTY, 1), noise(PLENTY, 2)
    async with link(each_loop, left, right) as (left_transport, right_transport):
        left_transport.write(to_right)
        right_transport.write(to_left)
        assert await left.received(PLENTY) == to_left
        assert await right.received(PLENTY) == to_right


@on_loop
async def test_writes_on_a_lost_connection_warn_after_the_fifth(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, _):
        transport.abort()
        for _ in range(4):
            transport.write(b"into the void")
        assert caplog.messages == []
        transport.write(b"into the void")
        transport.write(b"into the void")
        assert caplog.messages == ["socket.send() raised exception."] * 2
        assert await collector.lost is None


@on_loop
async def test_writelines_of_an_empty_list_is_not_a_lost_write(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        transport.abort()
        for _ in range(10):
            transport.writelines([])
        assert caplog.messages == []


@on_loop
async def test_writelines_of_empty_pieces_is_not_a_lost_write(
    loop: uringloop.Loop, caplog: pytest.LogCaptureFixture
) -> None:
    # uringloop only: asyncio 3.12 and later fails here on its own state.
    async with stream(loop, Collector(loop)) as (transport, _):
        transport.abort()
        for _ in range(10):
            transport.writelines([b"", b""])
        assert caplog.messages == []
        for _ in range(6):
            transport.writelines([b"", b"into the void"])
        assert caplog.messages == ["socket.send() raised exception."] * 2


@on_loop
async def test_writelines_after_close_sends_nothing(loop: uringloop.Loop) -> None:
    # uringloop only: asyncio 3.12 and later fails here on its own state, with a TypeError.
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.close()
        transport.writelines([b"too", b"late"])
        assert await read_to_end(loop, peer) == b""


# ── write_eof() ───────────────────────────────────────────────────────────────────────────


@on_loop
async def test_write_eof_ends_the_stream_and_keeps_reading(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        assert transport.can_write_eof()
        transport.write(b"request")
        transport.write_eof()
        transport.write_eof()
        assert await read_to_end(each_loop, peer) == b"request"
        assert not transport.is_closing()
        peer.send(b"answer")
        assert await collector.received(6) == b"answer"


@on_loop
async def test_write_eof_waits_for_buffered_writes(each_loop: Loop) -> None:
    data = noise(PLENTY)
    async with stream(each_loop, Collector(each_loop), buffer_size=NARROW) as (transport, peer):
        transport.write(data)
        transport.write_eof()
        assert await read_to_end(each_loop, peer) == data
        assert not transport.is_closing()


@on_loop
async def test_writing_after_write_eof_is_an_error(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        transport.write_eof()
        with pytest.raises(RuntimeError) as caught:
            transport.write(b"more")
        assert str(caught.value) == "Cannot call write() after write_eof()"
        with pytest.raises(RuntimeError, match=r"Cannot call write\w*\(\) after write_eof\(\)"):
            transport.writelines([b"more"])


@on_loop
async def test_both_sides_can_half_close_in_sequence(each_loop: Loop) -> None:
    left, right = HalfOpen(each_loop), HalfOpen(each_loop)
    async with link(each_loop, left, right) as (left_transport, right_transport):
        left_transport.write_eof()
        await right.eof
        right_transport.write(b"after your end")
        right_transport.write_eof()
        await left.eof
        assert await left.received(14) == b"after your end"
        assert not left_transport.is_closing()
        assert not right_transport.is_closing()


@pytest.mark.parametrize("left", [b"", b"left"], ids=["all sent", "queued"])
def test_an_aborted_connection_whose_last_send_the_kernel_takes_late_is_released(
    left: bytes,
) -> None:
    loop = testing.Loop()

    async def main() -> None:
        sockets = [tcp_pair() for _ in range(2)]
        ends = [HalfOpen(loop) for _ in sockets]
        for end, (ours, peer) in zip(ends, sockets, strict=True):
            await loop.create_connection(lambda: end, sock=ours)  # noqa: B023  # Called here.
            # After the peer's end no receive is in flight.
            peer.shutdown(socket.SHUT_WR)
            await end.eof
        # Two transports that write in a turn leave their sends to the ring.
        for end in ends:
            end.transport.write(b"sent")
        # The kernel refuses every enter for want of memory.
        loop.faults = testing.Faults(busy=1.0)
        await turns()
        ends[0].transport.write(left)
        ends[0].transport.abort()
        await until(ends[0].lost.done)
        await turns(3)
        loop.faults = testing.Faults()
        await released(ends[0].transport)
        assert sockets[0][1].recv(10) == b"sent"
        ends[1].transport.abort()
        await released(ends[1].transport)
        for _, peer in sockets:
            peer.close()

    try:
        loop.run_until_complete(main())
        assert loop._operations_in_flight == 0
    finally:
        loop.close()
