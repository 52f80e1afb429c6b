"""Connections with large messages: no byte lost, order, pausing, fairness, writing."""

from __future__ import annotations

import array
import asyncio
import fcntl
import random
import socket
import termios
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.large_messages import (
    KIB,
    MESSAGE,
    PLENTY,
    READERS,
    Plain,
    Sink,
    Streamed,
    all_readers,
    both_kinds,
    enlarge,
    fail,
    in_flight,
    in_thread_during,
    large,
    pair_of,
    protocols,
)
from support.protocols import Echo
from support.roles import (
    Loop,
    abort_and_wait,
    fill,
    link,
    on_loop,
    read_to_end,
    turns,
    until,
)


@pytest.fixture(autouse=True)
def nothing_in_flight(each_loop: Loop) -> Iterator[None]:
    """Check that the test leaves no operation in flight and no buffer out."""
    yield
    assert in_flight(each_loop) == (0, 0)


# ── whole and in order ────────────────────────────────────────────────────────────────────────


class FilledEcho(Echo, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> bytearray:
        self.memory = bytearray(30_000)
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.memory[:nbytes]))


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


def echo_of(kind: str, loop: Loop) -> asyncio.BaseProtocol:
    if kind == "reader":
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), echo_stream, loop=loop)
    return FilledEcho() if kind == "buffered" else Echo()


def phases(seed: int) -> Iterator[tuple[bool, list[bytes]]]:
    """Yield phases of large and of small messages, each with whether to await every message."""
    chosen = random.Random(seed)
    for phase in range(12):
        if phase % 2:
            sizes = [chosen.randint(1, 2000) for _ in range(80)]
        else:
            sizes = [chosen.choice([1, 5000, chosen.randint(1, 300 * KIB)]) for _ in range(12)]
        yield chosen.random() < 0.5, [chosen.randbytes(size) for size in sizes]


@both_kinds
@pytest.mark.parametrize("way", READERS)
@on_loop
async def test_messages_that_grow_and_shrink_come_back_whole(
    each_loop: Loop, way: str, kind: str
) -> None:
    left, right = pair_of(kind)
    sink = READERS[way](each_loop)
    near, _ = await each_loop.create_connection(lambda: sink.protocol, sock=left)
    far, _ = await each_loop.connect_accepted_socket(lambda: echo_of(way, each_loop), right)
    for one_by_one, messages in phases(len(way)):
        if one_by_one:
            for message in messages:
                near.write(message)
                assert await sink.take(len(message)) == message
        else:
            for message in messages:
                near.write(message)
            whole = b"".join(messages)
            assert await sink.take(len(whole)) == whole
    near.write_eof()
    assert await sink.until_eof() == b""
    await abort_and_wait(near)
    await abort_and_wait(far)


@both_kinds
@all_readers
@on_loop
async def test_messages_around_the_sizes_of_a_receive_arrive_whole(
    each_loop: Loop, make: Callable[[Loop], Sink], kind: str
) -> None:
    sink = make(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        for exact in (16, 32, 64, 128, 256, 512):
            for size in (exact * KIB - 1, exact * KIB, exact * KIB + 1, exact * KIB):
                message = PLENTY[:size]
                # Sent by a task: a StreamReader pauses the transport above twice its limit.
                sending = asyncio.ensure_future(each_loop.sock_sendall(peer, message))
                assert await sink.take(size) == message
                await sending


# ── pausing ───────────────────────────────────────────────────────────────────────────────────


@both_kinds
@protocols
@on_loop
async def test_no_data_is_delivered_between_pause_and_resume(
    each_loop: Loop, make: type[Plain], kind: str
) -> None:
    chosen = random.Random(7)
    paused = False
    unwanted = 0

    def resume() -> None:
        nonlocal paused
        paused = False
        sink.transport.resume_reading()

    class Pausing(make):  # type: ignore[misc, valid-type]
        def data_received(self, data: bytes) -> None:
            nonlocal paused, unwanted
            unwanted += paused
            super().data_received(data)
            if chosen.random() < 0.3:
                for _ in range(3):
                    self.transport.pause_reading()
                    self.transport.resume_reading()
            elif chosen.random() < 0.7:
                paused = True
                self.transport.pause_reading()
                if chosen.random() < 0.5:
                    each_loop.call_soon(resume)
                else:
                    each_loop.call_later(0.001, resume)

    sink: Plain = Pausing(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        with in_thread_during(peer, lambda: peer.sendall(PLENTY)):
            assert await sink.take(len(PLENTY)) == PLENTY
        # With single messages, too: after resume_reading() no further bytes trigger a receive.
        await enlarge(each_loop, sink, peer)
    assert unwanted == 0


def waiting(sock: socket.socket) -> int:
    """Return the number of unread bytes in the socket."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return count[0]


@both_kinds
@protocols
@on_loop
async def test_data_that_arrives_during_a_pause_stays_in_the_socket(
    each_loop: Loop, make: type[Plain], kind: str
) -> None:
    sink = make(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        transport.pause_reading()
        peer.send(MESSAGE)
        await turns(5)
        assert waiting(transport.get_extra_info("socket")) == len(MESSAGE)
        assert sink.data == b""
        sent = bytearray(MESSAGE)

        def write(_: bytes) -> int:
            count = peer.send(PLENTY[: 64 * KIB])
            sent.extend(PLENTY[:count])
            return count

        for _ in range(20):
            fill(write)
            await turns(2)
        # No more than the kernel's buffers.
        assert len(sent) < 16 * len(PLENTY)
        assert sink.data == b""
        transport.resume_reading()
        assert await sink.take(len(sent)) == sent
        await enlarge(each_loop, sink, peer)


@both_kinds
@all_readers
@on_loop
async def test_resume_delivers_data_that_arrived_during_the_pause(
    each_loop: Loop, make: Callable[[Loop], Sink], kind: str
) -> None:
    sink = make(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        for size in (1, 5000, len(MESSAGE), 100_000) * 5:
            transport.pause_reading()
            await each_loop.sock_sendall(peer, PLENTY[:size])
            await turns(3)
            transport.resume_reading()
            assert await sink.take(size) == PLENTY[:size]


@both_kinds
@on_loop
async def test_a_slow_stream_reader_pauses_the_transport(each_loop: Loop, kind: str) -> None:
    sink = Streamed(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        with in_thread_during(peer, lambda: peer.sendall(PLENTY)):
            await until(lambda: not transport.is_reading())
            await turns(5)
            # At most twice the limit plus one receive.
            assert len(sink.reader._buffer) <= 2 * 64 * KIB + 256 * KIB  # type: ignore[attr-defined]
            assert await sink.take(len(PLENTY)) == PLENTY


# ── fairness ──────────────────────────────────────────────────────────────────────────────────


@both_kinds
@protocols
@on_loop
async def test_a_flood_does_not_delay_others(each_loop: Loop, make: type[Plain], kind: str) -> None:
    class Flooded(make):  # type: ignore[misc, valid-type]
        size = 256 * KIB
        total = 0
        flooding = False

        def data_received(self, data: bytes) -> None:
            if self.flooding:
                self.total += len(data)
            else:
                super().data_received(data)

    flooded, asker = Flooded(each_loop), Plain(each_loop)
    stopped, finished = threading.Event(), threading.Event()

    def flood() -> None:
        while not stopped.is_set():
            peer.sendall(PLENTY)
        finished.set()

    async with (
        large(each_loop, flooded, kind) as (_, peer),
        link(each_loop, asker, Echo()) as (near, _),
    ):
        flooded.flooding = True
        with in_thread_during(peer, flood):
            for _ in range(10):
                began = time.monotonic()
                await asyncio.sleep(0.01)
                assert time.monotonic() - began < 0.5
                near.write(b"question")
                assert await asyncio.wait_for(asker.take(8), 0.5) == b"question"
            stopped.set()
            # The thread's last sendall() returns only when its bytes are read.
            await until(finished.is_set)
        assert flooded.total > len(PLENTY)


# ── writing ───────────────────────────────────────────────────────────────────────────────────


@both_kinds
@on_loop
async def test_large_and_small_writes_keep_their_order(each_loop: Loop, kind: str) -> None:
    chosen = random.Random(5)
    sink = Plain(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        sizes = [1, 100, 8 * KIB - 1, 8 * KIB, 8 * KIB + 1, 64 * KIB, 300_000, KIB * KIB]
        pieces = [PLENTY[: chosen.choice(sizes)] for _ in range(60)]
        reading = asyncio.ensure_future(read_to_end(each_loop, peer))
        for piece in pieces:
            if chosen.random() < 0.3:
                transport.writelines([piece[:10], piece[10:]])
            else:
                transport.write(piece)
            if chosen.random() < 0.3:
                await asyncio.sleep(0)
        transport.close()
        assert await reading == b"".join(pieces)
        assert await sink.lost is None
        calls = [name for name in sink.calls if name.endswith("_writing")]
        assert calls[::2] == ["pause_writing"] * len(calls[::2])
        assert calls[1::2] == ["resume_writing"] * len(calls[1::2])
        assert len(calls) % 2 == 0


@both_kinds
@pytest.mark.parametrize("size", [8 * KIB, 100_000])
@on_loop
async def test_a_write_to_a_closed_peer_closes_the_connection(
    each_loop: Loop, size: int, kind: str
) -> None:
    sink = Plain(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        fail(kind, transport, peer)
        transport.write(PLENTY[:size])
        assert transport.is_closing()
        assert transport.get_write_buffer_size() == 0
        transport.write(PLENTY[:size])
        assert isinstance(await sink.lost, ConnectionResetError | BrokenPipeError)
        assert sink.calls.count("pause_writing") == 0
