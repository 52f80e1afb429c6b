"""Flow control: pausing and resuming both directions, watermarks, backpressure."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Callable

import pytest
from support.protocols import Collector
from support.roles import (
    Loop,
    link,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    reset,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.virtual_time import Stopwatch

import uringloop

# Small kernel buffers, so that a write of PLENTY stays queued in the transport.
NARROW = 16 * 1024
PLENTY = 4 * 1024 * 1024

# asyncio's default watermarks.
HIGH_WATER = 64 * 1024
LOW_WATER = 16 * 1024


# ── pausing the reader ────────────────────────────────────────────────────────────────────


@on_loop
async def test_no_data_is_delivered_while_paused(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        assert not transport.is_reading()
        for piece in (b"one ", b"two ", b"three"):
            peer.send(piece)
            await turns(5)
        assert collector.calls == ["connection_made"]
        transport.resume_reading()
        assert transport.is_reading()
        assert await collector.received(13) == b"one two three"


@on_loop
async def test_pausing_and_resuming_are_idempotent(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.resume_reading()
        transport.pause_reading()
        transport.pause_reading()
        peer.send(b"held")
        await turns(5)
        assert not collector.data
        transport.resume_reading()
        transport.resume_reading()
        assert await collector.received(4) == b"held"


@on_loop
async def test_pausing_in_connection_made_holds_the_first_byte(each_loop: Loop) -> None:
    if sys.version_info < (3, 11, 4) and not isinstance(each_loop, uringloop.Loop):
        pytest.skip("before 3.11.4 asyncio reads in spite of this pause (gh-103607)")

    class Held(Collector):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()

    ours, peer = tcp_pair()
    with peer:
        peer.send(b"first")
        held = Held(each_loop)
        transport, _ = await each_loop.create_connection(lambda: held, sock=ours)
        await turns(10)
        assert held.calls == ["connection_made"]
        transport.resume_reading()
        assert await held.received(5) == b"first"
        transport.close()
        await held.lost


@on_loop
async def test_pausing_inside_data_received_holds_the_next_call(each_loop: Loop) -> None:
    pieces: list[bytes] = []

    class Stepping(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            pieces.append(data)
            self.transport.pause_reading()

    stepping = Stepping(each_loop)
    data = noise(2 << 20)
    async with stream(each_loop, stepping) as (transport, peer):
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        while len(stepping.data) < len(data):
            seen = len(pieces)
            transport.resume_reading()
            await until(lambda seen=seen: len(pieces) > seen)  # type: ignore[misc]
            await turns(3)
            assert len(pieces) == seen + 1
        await sending
        assert bytes(stepping.data) == data


@on_loop
async def test_a_timer_can_resume_reading(each_virtual_loop: Loop) -> None:
    class Napping(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()
            self.loop.call_later(60, self.transport.resume_reading)

    napping = Napping(each_virtual_loop)
    async with stream(each_virtual_loop, napping) as (_, peer):
        watch = Stopwatch(each_virtual_loop)
        for turn in range(10):
            peer.send(noise(1000, turn))
            await napping.received(1000 * (turn + 1))
            assert watch.shows(60 if turn else 0)
        peer.close()
        assert await napping.lost is None
        assert watch.shows(60)
    assert bytes(napping.data) == b"".join(noise(1000, turn) for turn in range(10))


@on_loop
async def test_the_repr_says_whether_the_transport_reads(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        await turns(2)
        for _ in range(2):
            assert " read=polling " in repr(transport)
            transport.pause_reading()
            assert " read=idle " in repr(transport)
            await turns()
            assert " read=idle " in repr(transport)
            transport.resume_reading()
            assert " read=polling " in repr(transport)
            await turns()
        transport.close()
        assert " read=idle " in repr(transport)


@on_loop
async def test_the_end_of_stream_waits_while_paused(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        peer.send(b"last words")
        peer.close()
        await turns(10)
        assert collector.calls == ["connection_made"]
        transport.resume_reading()
        assert await collector.lost is None
    assert bytes(collector.data) == b"last words"
    assert collector.calls[1:] == ["data_received", "eof_received", "connection_lost"]


@on_loop
async def test_an_end_of_stream_without_data_waits_while_paused(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        await turns(3)
        peer.close()
        await turns(10)
        assert collector.calls == ["connection_made"]
        transport.resume_reading()
        assert await collector.lost is None
    assert collector.calls[1:] == ["eof_received", "connection_lost"]


@on_loop
async def test_a_reset_waits_while_paused(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        peer.send(b"last words")
        reset(peer)
        await turns(10)
        assert collector.calls == ["connection_made"]
        transport.resume_reading()
        assert isinstance(await collector.lost, ConnectionResetError)
    assert bytes(collector.data) == b"last words"


@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_a_paused_transport_can_be_closed_or_aborted(each_loop: Loop, end: str) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        peer.send(b"never read")
        await turns(5)
        if end == "close":
            transport.close()
        else:
            transport.abort()
        assert await collector.lost is None
    assert collector.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_pausing_and_resuming_a_closing_transport_does_nothing(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        peer.send(b"never read")
        transport.close()
        transport.pause_reading()
        transport.resume_reading()
        assert not transport.is_reading()
        assert await collector.lost is None
        transport.pause_reading()
        transport.resume_reading()
        assert not transport.is_reading()
    assert collector.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_a_paused_reader_can_still_write(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.pause_reading()
        transport.write(b"hello")
        assert await read_exactly(each_loop, peer, 5) == b"hello"


@on_loop
async def test_random_pauses_and_resumes_lose_no_byte(each_loop: Loop) -> None:
    rng = random.Random(7)
    paused_calls: list[bytes] = []

    class Storm(Collector):
        def data_received(self, data: bytes) -> None:
            if not self.transport.is_reading():
                paused_calls.append(data)
            super().data_received(data)
            toggle(self.transport)

    def toggle(transport: asyncio.Transport) -> None:
        for _ in range(rng.randrange(4)):
            transport.pause_reading() if rng.random() < 0.5 else transport.resume_reading()
        transport.pause_reading()
        match rng.randrange(3):
            case 0:
                transport.resume_reading()
            case 1:
                each_loop.call_soon(transport.resume_reading)
            case 2:
                each_loop.call_later(0.0005, transport.resume_reading)

    storm = Storm(each_loop)
    data = noise(PLENTY)
    async with stream(each_loop, storm, buffer_size=NARROW) as (_, peer):
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        assert await storm.received(len(data)) == data
        await sending
        peer.close()
        assert await storm.lost is None
    assert paused_calls == []


@on_loop
async def test_toggling_between_small_messages_keeps_their_order(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        for number in range(500):
            transport.pause_reading()
            peer.send(b"%04d" % number)
            if number % 3 == 0:
                await turns(number % 5)
            transport.resume_reading()
            if number % 7 == 0:
                await turns(1)
        expected = b"".join(b"%04d" % number for number in range(500))
        assert await collector.received(len(expected)) == expected


@on_loop
async def test_a_paused_reader_blocks_its_sender(each_loop: Loop) -> None:
    # More than both sockets' buffers and the stash hold; a loop that kept reading would exceed it.
    bound = 16 << 20
    collector = Collector(each_loop)
    data = noise(1 << 20)
    async with stream(each_loop, collector) as (transport, peer):
        transport.pause_reading()
        accepted = 0
        idle = 0
        while idle < 50 and accepted < 4 * bound:
            try:
                accepted += peer.send(data[accepted % len(data) :])
                idle = 0
            except BlockingIOError:
                idle += 1
            await turns()
        assert accepted < bound
        assert not collector.data
        peer.shutdown(socket.SHUT_WR)
        transport.resume_reading()
        assert await collector.lost is None
        repeated = data * (accepted // len(data) + 1)
        assert bytes(collector.data) == repeated[:accepted]


# ── the write buffer ──────────────────────────────────────────────────────────────────────


@on_loop
async def test_the_default_watermarks_are_those_of_asyncio(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        assert transport.get_write_buffer_limits() == (LOW_WATER, HIGH_WATER)
        assert transport.get_write_buffer_size() == 0


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [
        (None, None, (LOW_WATER, HIGH_WATER)),
        (1000, None, (250, 1000)),
        (None, 1000, (1000, 4000)),
        (1000, 1000, (1000, 1000)),
        (0, None, (0, 0)),
        (0, 0, (0, 0)),
        (3, None, (0, 3)),
    ],
)
@on_loop
async def test_watermarks_derive_from_each_other(
    each_loop: Loop, high: int | None, low: int | None, expected: tuple[int, int]
) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        transport.set_write_buffer_limits(high=5, low=5)
        transport.set_write_buffer_limits(high, low)
        assert transport.get_write_buffer_limits() == expected


@on_loop
async def test_lowering_the_mark_counts_only_bytes_the_socket_refused(each_loop: Loop) -> None:
    protocol = Collector(each_loop)
    async with stream(each_loop, protocol, buffer_size=20_000) as (transport, _):
        # The byte written in this turn is sent first, so that it does not count.
        transport.write(b"x")
        transport.set_write_buffer_limits(0)
        assert "pause_writing" not in protocol.calls
        transport.set_write_buffer_limits(10_000_000)
        transport.write(bytes(1_000_000))
        assert "pause_writing" not in protocol.calls
        transport.set_write_buffer_limits(0)
        assert protocol.calls[-1] == "pause_writing"


@pytest.mark.parametrize(("high", "low"), [(10, 11), (10, -1), (-1, None)])
@on_loop
async def test_invalid_watermarks_raise_value_error(
    each_loop: Loop, high: int, low: int | None
) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        with pytest.raises(ValueError, match="must be >= low") as caught:
            transport.set_write_buffer_limits(high, low)
        derived = high // 4 if low is None else low
        assert str(caught.value) == f"high ({high}) must be >= low ({derived}) must be >= 0"
        assert transport.get_write_buffer_limits() == (LOW_WATER, HIGH_WATER)


class Valve(Collector):
    """Record the size of the write buffer in pause_writing() and resume_writing()."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.sizes: list[tuple[str, int]] = []
        self.resumed: asyncio.Future[None] = loop.create_future()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.sizes.append(("pause", self.transport.get_write_buffer_size()))

    def resume_writing(self) -> None:
        super().resume_writing()
        self.sizes.append(("resume", self.transport.get_write_buffer_size()))
        if not self.resumed.done():
            self.resumed.set_result(None)


@on_loop
async def test_writing_pauses_above_high_and_resumes_at_low(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        ((call, size),) = valve.sizes
        assert call == "pause"
        assert HIGH_WATER < size <= PLENTY
        assert transport.get_write_buffer_size() == size
        transport.write(bytes(1000))
        assert transport.get_write_buffer_size() == size + 1000
        await read_exactly(each_loop, peer, PLENTY + 1000)
        await valve.resumed
        assert [call for call, _ in valve.sizes] == ["pause", "resume"]
        assert valve.sizes[1][1] <= LOW_WATER
        await until(lambda: transport.get_write_buffer_size() == 0)


@on_loop
async def test_small_writes_below_high_never_pause(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve) as (transport, peer):
        for _ in range(100):
            transport.write(bytes(1000))
            await read_exactly(each_loop, peer, 1000)
    assert valve.sizes == []


@on_loop
async def test_a_write_that_the_socket_takes_at_once_does_not_pause(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve) as (transport, peer):
        for _ in range(10):
            transport.write(bytes(HIGH_WATER + 1))
            await read_exactly(each_loop, peer, HIGH_WATER + 1)
    assert valve.sizes == []


@on_loop
async def test_the_first_byte_pauses_when_high_is_zero(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve, buffer_size=NARROW) as (transport, peer):
        transport.set_write_buffer_limits(high=0)
        assert valve.sizes == []
        transport.write(bytes(PLENTY))
        assert [call for call, _ in valve.sizes] == ["pause"]
        await read_exactly(each_loop, peer, PLENTY)
        await valve.resumed
        assert valve.sizes[1] == ("resume", 0)


@on_loop
async def test_pauses_and_resumes_come_in_pairs(each_loop: Loop) -> None:
    class Refilling(Valve):
        def resume_writing(self) -> None:
            super().resume_writing()
            if len(self.sizes) < 10:
                self.transport.write(bytes(PLENTY // 4))

    refilling = Refilling(each_loop)
    async with stream(each_loop, refilling, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY // 4))
        await read_exactly(each_loop, peer, 5 * PLENTY // 4)
        await until(lambda: len(refilling.sizes) == 10)
    assert [call for call, _ in refilling.sizes] == ["pause", "resume"] * 5


@on_loop
async def test_lowering_the_high_watermark_pauses_at_once(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve, buffer_size=NARROW) as (transport, _):
        transport.set_write_buffer_limits(high=2 * PLENTY)
        transport.write(bytes(PLENTY))
        assert valve.sizes == []
        transport.set_write_buffer_limits(high=1)
        assert [call for call, _ in valve.sizes] == ["pause"]


@on_loop
async def test_writelines_pauses_above_high(loop: uringloop.Loop) -> None:
    # uringloop only: writelines() of asyncio 3.12 and 3.13.0 does not check the high-water mark.
    valve = Valve(loop)
    async with stream(loop, valve, buffer_size=NARROW) as (transport, peer):
        transport.writelines([bytes(PLENTY // 2)] * 2)
        assert [call for call, _ in valve.sizes] == ["pause"]
        await read_exactly(loop, peer, PLENTY)
        await valve.resumed


@on_loop
async def test_a_paused_writer_is_not_resumed_by_an_abort(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve, buffer_size=NARROW) as (transport, _):
        transport.write(bytes(PLENTY))
        transport.abort()
        await valve.lost
    assert valve.calls == ["connection_made", "pause_writing", "connection_lost"]


@pytest.mark.parametrize(
    "cause", ["reset", "data_received", "eof_received", "pause_writing", "resume_writing"]
)
@on_loop
async def test_a_paused_writer_is_not_resumed_by_a_fatal_error(each_loop: Loop, cause: str) -> None:
    class Failing(Valve):
        def data_received(self, data: bytes) -> None:
            raise ValueError(cause)

        def eof_received(self) -> None:
            raise ValueError(cause)

        def pause_writing(self) -> None:
            super().pause_writing()
            if cause == "pause_writing":
                self.transport.abort()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.transport.write(bytes(PLENTY))
            self.transport.abort()

    record_handler_calls(each_loop)
    failing = Failing(each_loop)
    resumed = []
    async with stream(each_loop, failing, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        if cause == "reset":
            reset(peer)
        elif cause == "data_received":
            peer.send(b"x")
        elif cause == "eof_received":
            peer.shutdown(socket.SHUT_WR)
        elif cause == "resume_writing":
            await read_exactly(each_loop, peer, PLENTY)
            resumed = ["resume_writing", "pause_writing"]
        error = await failing.lost
    if cause in {"data_received", "eof_received"}:
        assert isinstance(error, ValueError)
    elif cause == "reset":
        assert isinstance(error, ConnectionError)
    else:
        assert error is None
    assert failing.calls == ["connection_made", "pause_writing", *resumed, "connection_lost"]


@on_loop
async def test_closing_resumes_the_writer_when_the_data_is_sent(each_loop: Loop) -> None:
    valve = Valve(each_loop)
    async with stream(each_loop, valve, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        transport.close()
        assert len(await read_to_end(each_loop, peer)) == PLENTY
        await valve.lost
    assert valve.calls == [
        "connection_made",
        "pause_writing",
        "resume_writing",
        "connection_lost",
    ]


@pytest.mark.parametrize("callback", ["pause_writing", "resume_writing"])
@on_loop
async def test_an_error_in_a_flow_callback_is_reported_and_survived(
    each_loop: Loop, callback: str
) -> None:
    error = ValueError(callback)

    class Faulty(Valve):
        def pause_writing(self) -> None:
            super().pause_writing()
            if callback == "pause_writing":
                raise error

        def resume_writing(self) -> None:
            super().resume_writing()
            if callback == "resume_writing":
                raise error

    handler_calls = record_handler_calls(each_loop)
    faulty = Faulty(each_loop)
    async with stream(each_loop, faulty, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        await read_exactly(each_loop, peer, PLENTY)
        await faulty.resumed
        await until(lambda: len(handler_calls) == 1)
        assert handler_calls[0]["message"] == f"protocol.{callback}() failed"
        assert handler_calls[0]["exception"] is error
        assert handler_calls[0]["transport"] is transport
        assert handler_calls[0]["protocol"] is faulty
        assert not transport.is_closing()


@on_loop
async def test_backpressure_bounds_the_write_buffer(each_loop: Loop) -> None:
    class Source(Valve):
        """Write until pause_writing() is called."""

        largest = 0
        written = 0
        open = True

        def produce(self) -> None:
            while self.open and self.written < 2 * PLENTY:
                self.transport.write(bytes(10_000))
                self.written += 10_000
                self.largest = max(self.largest, self.transport.get_write_buffer_size())

        def pause_writing(self) -> None:
            super().pause_writing()
            self.open = False

        def resume_writing(self) -> None:
            super().resume_writing()
            self.open = True
            self.loop.call_soon(self.produce)

    source = Source(each_loop)
    async with stream(each_loop, source, buffer_size=NARROW) as (_, peer):
        source.produce()
        count = 0
        while count < source.written or source.written < 2 * PLENTY:
            count += len(await each_loop.sock_recv(peer, 4096))
        assert source.largest <= HIGH_WATER + 10_000


# ── both directions ───────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_relay_with_backpressure_forwards_every_byte(each_loop: Loop) -> None:
    class Relay(Collector):
        """Forward received data to the other relay; pause its reading while our writes pause."""

        other: Callable[[], asyncio.Transport]

        def data_received(self, data: bytes) -> None:
            self.other().write(data)

        def pause_writing(self) -> None:
            self.other().pause_reading()

        def resume_writing(self) -> None:
            self.other().resume_reading()

    near, far = Relay(each_loop), Relay(each_loop)
    near.other = lambda: far.transport
    far.other = lambda: near.transport
    data = noise(2 * PLENTY)
    async with (
        stream(each_loop, near, buffer_size=NARROW) as (_, source),
        stream(each_loop, far, buffer_size=NARROW) as (transport, sink),
    ):
        sending = each_loop.create_task(each_loop.sock_sendall(source, data))
        received = bytearray()
        while len(received) < len(data):
            received += await read_exactly(each_loop, sink, min(65_536, len(data) - len(received)))
            assert transport.get_write_buffer_size() < 1 << 20
        await sending
        assert bytes(received) == data


@on_loop
async def test_an_echo_that_pauses_reading_returns_every_byte(each_loop: Loop) -> None:
    class Careful(Collector):
        """Write received data back, and pause reading while writing is paused."""

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

        def pause_writing(self) -> None:
            self.transport.pause_reading()

        def resume_writing(self) -> None:
            self.transport.resume_reading()

    collector = Collector(each_loop)
    data = noise(2 * PLENTY)
    async with link(each_loop, collector, Careful(each_loop)) as (transport, _):
        transport.write(data)
        assert await collector.received(len(data)) == data
