"""Connections with large messages: EOF, resets, urgent data, callbacks, sendfile, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.large_messages import (
    MESSAGE,
    PLENTY,
    Filled,
    Plain,
    Sink,
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
from support.roles import (
    PATIENCE,
    Loop,
    in_thread,
    on_disk,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    turns,
)
from support.tls_contexts import Contexts
from support.tls_peers import Peer, ending


@pytest.fixture(autouse=True)
def nothing_in_flight(each_loop: Loop) -> Iterator[None]:
    """Check that the test leaves no operation in flight and no buffer out."""
    yield
    assert in_flight(each_loop) == (0, 0)


# ── EOF and reset ─────────────────────────────────────────────────────────────────────────────


@both_kinds
@all_readers
@on_loop
async def test_eof_follows_the_last_bytes(
    each_loop: Loop, make: Callable[[Loop], Sink], kind: str
) -> None:
    for number in range(15):
        sink = make(each_loop)
        data = PLENTY[: 100_000 + 7001 * number]
        async with large(each_loop, sink, kind) as (_, peer):

            def send(peer: socket.socket = peer, data: bytes = data) -> None:
                peer.sendall(data)
                peer.close()

            with in_thread_during(peer, send):
                assert await sink.until_eof() == data


@both_kinds
@all_readers
@on_loop
async def test_eof_of_many_connections_follows_the_last_bytes(
    each_loop: Loop, make: Callable[[Loop], Sink], kind: str
) -> None:
    sinks = [make(each_loop) for _ in range(20)]
    async with contextlib.AsyncExitStack() as stack:
        peers = [(await stack.enter_async_context(large(each_loop, s, kind)))[1] for s in sinks]

        async def send(peer: socket.socket) -> None:
            await each_loop.sock_sendall(peer, PLENTY[:300_000])
            peer.close()

        sending = asyncio.gather(*map(send, peers))
        for sink in sinks:
            assert await sink.until_eof() == PLENTY[:300_000]
        await sending


@both_kinds
@protocols
@on_loop
async def test_eof_waits_for_resume_reading(each_loop: Loop, make: type[Plain], kind: str) -> None:
    for size in (0, 1, 50_000):
        sink = make(each_loop)
        async with large(each_loop, sink, kind) as (transport, peer):
            transport.pause_reading()
            await each_loop.sock_sendall(peer, PLENTY[:size])
            peer.close()
            await turns(5)
            assert not sink.data
            assert not sink.eof.done()
            transport.resume_reading()
            assert await sink.until_eof() == PLENTY[:size]
            assert sink.eof.done()


@both_kinds
@on_loop
async def test_either_side_may_half_close_first(each_loop: Loop, kind: str) -> None:
    class HalfOpen(Plain):
        def eof_received(self) -> bool:
            super().eof_received()
            return True

    for ours_first in (True, False):
        sink = HalfOpen(each_loop)
        async with large(each_loop, sink, kind) as (transport, peer):
            question = asyncio.ensure_future(read_to_end(each_loop, peer))
            if ours_first:
                transport.write(PLENTY)
                transport.write_eof()
                assert await question == PLENTY
            await each_loop.sock_sendall(peer, PLENTY[:500_000])
            peer.shutdown(socket.SHUT_WR)
            assert await sink.take(500_000) == PLENTY[:500_000]
            await sink.eof
            if not ours_first:
                transport.write(PLENTY)
                transport.close()
                assert await question == PLENTY
                assert await sink.lost is None


@both_kinds
@protocols
@on_loop
async def test_eof_of_our_own_shutdown_follows_the_bytes_before_it(
    each_loop: Loop, make: type[Plain], kind: str
) -> None:
    for size in (0, 1, 10_000, len(MESSAGE)):
        sink = make(each_loop)
        async with large(each_loop, sink, kind) as (transport, peer):
            # No turn of the loop passes between the two calls.
            peer.send(PLENTY[:size])
            transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            assert await sink.until_eof() == PLENTY[:size]


@both_kinds
@pytest.mark.parametrize("paused", [False, True])
@protocols
@on_loop
async def test_a_reset_follows_the_bytes_before_it(
    each_loop: Loop, make: type[Plain], paused: bool, kind: str
) -> None:
    sink = make(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        if paused:
            transport.pause_reading()
        await each_loop.sock_sendall(peer, PLENTY[:50_000])
        fail(kind, transport, peer)
        if paused:
            await turns(5)
            assert not sink.data
            assert not sink.lost.done()
            transport.resume_reading()
        assert isinstance(await sink.lost, ConnectionResetError)
        assert bytes(sink.data) == PLENTY[:50_000]
        assert "eof_received" not in sink.calls


# ── urgent data and descriptors ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [0, 1, 200_000])
@pytest.mark.parametrize("end", ["close", "go on"])
@all_readers
@on_loop
async def test_urgent_data_is_skipped_and_blocks_nothing(
    each_loop: Loop, make: Callable[[Loop], Sink], end: str, after: int
) -> None:
    sink = make(each_loop)
    async with large(each_loop, sink) as (_, peer):
        await each_loop.sock_sendall(peer, PLENTY[:100_000])
        try:
            peer.send(b"!", socket.MSG_OOB)
        except BlockingIOError:
            await sink.take(100_000)
            peer.send(b"!", socket.MSG_OOB)
        else:
            assert await sink.take(100_000) == PLENTY[:100_000]
        await each_loop.sock_sendall(peer, PLENTY[:after])
        assert await sink.take(after) == PLENTY[:after]
        if end == "go on":
            await turns(5)
            await enlarge(each_loop, sink, peer)
        peer.close()
        assert await sink.until_eof() == b""


@all_readers
@on_loop
async def test_a_descriptor_in_the_stream_is_dropped(
    each_loop: Loop, make: Callable[[Loop], Sink]
) -> None:
    # The each_loop fixture fails the test if a passed descriptor stays open.
    sink = make(each_loop)
    async with large(each_loop, sink, "unix") as (_, peer):
        for _ in range(3):
            with contextlib.closing(socket.socket()) as passed:
                await each_loop.sock_sendall(peer, PLENTY[:30_000])
                socket.send_fds(peer, [PLENTY[:20_000]], [passed.fileno()])
                await each_loop.sock_sendall(peer, PLENTY[:30_000])
            expected = PLENTY[:30_000] + PLENTY[:20_000] + PLENTY[:30_000]
            assert await sink.take(len(expected)) == expected


# ── actions of callbacks ──────────────────────────────────────────────────────────────────────


@both_kinds
@pytest.mark.parametrize("in_other_threads", [False, True], ids=["same thread", "other threads"])
@pytest.mark.parametrize("size", [500, 300_000], ids=["small", "large"])
@protocols
def test_after_an_interrupt_the_next_run_delivers_the_next_byte(
    each_loop: Loop, make: type[Plain], size: int, in_other_threads: bool, kind: str
) -> None:
    class Leaving(make):  # type: ignore[misc, valid-type]
        size = 3000
        armed = False
        calls_seen = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.calls_seen += self.armed
            if len(self.data) == len(expected):
                each_loop.stop()
            elif self.calls_seen % 3 == 1 and self.calls_seen < 60:
                raise KeyboardInterrupt

    def go_on() -> bool:
        try:
            each_loop.run_forever()
        except KeyboardInterrupt:
            return True
        return False

    expected = PLENTY[:500_000]
    ours, peer = pair_of(kind)
    transport, sink = each_loop.run_until_complete(
        each_loop.connect_accepted_socket(lambda: Leaving(each_loop), ours)
    )
    each_loop.run_until_complete(enlarge(each_loop, sink, peer))
    sink.armed = True
    left = 0
    # A lost byte must not hang the test.
    limit = each_loop.call_later(PATIENCE, each_loop.stop)

    def send() -> None:
        for start in range(0, len(expected), size):
            peer.sendall(expected[start : start + size])

    with peer:
        with in_thread_during(peer, send):
            while in_thread(go_on) if in_other_threads else go_on():
                left += 1
                assert len(sink.data) <= len(expected)
            assert bytes(sink.data) == expected
        limit.cancel()
        assert left
        transport.close()
        each_loop.run_until_complete(sink.lost)


@both_kinds
@pytest.mark.parametrize("method", ["close", "abort"])
@protocols
@on_loop
async def test_no_data_is_delivered_after_closing_in_a_callback(
    each_loop: Loop, make: type[Plain], method: str, kind: str
) -> None:
    class Ending(make):  # type: ignore[misc, valid-type]
        armed = False
        after = 0

        def data_received(self, data: bytes) -> None:
            self.after += self.transport.is_closing()
            super().data_received(data)
            if self.armed and len(self.data) > 200_000:
                getattr(self.transport, method)()

    sink = Ending(each_loop)
    async with large(each_loop, sink, kind) as (_, peer):
        sink.armed = True
        with in_thread_during(peer, lambda: peer.sendall(PLENTY * 4)):
            assert await sink.lost is None
            assert sink.after == 0
            assert PLENTY.startswith(sink.data)


@both_kinds
@pytest.mark.parametrize("method", ["close", "abort"])
@pytest.mark.parametrize("unread", [0, 100_000])
@on_loop
async def test_a_paused_connection_can_be_closed_or_aborted(
    each_loop: Loop, unread: int, method: str, kind: str
) -> None:
    sink = Plain(each_loop)
    async with large(each_loop, sink, kind) as (transport, peer):
        transport.pause_reading()
        with in_thread_during(peer, lambda: peer.sendall(PLENTY[:unread])):
            await turns(3)
            getattr(transport, method)()
            transport.resume_reading()
            assert await sink.lost is None
        assert sink.data == b""


@both_kinds
@on_loop
async def test_a_protocol_may_be_replaced_in_its_callback(each_loop: Loop, kind: str) -> None:
    chosen = random.Random(3)
    whole = bytearray()
    done = each_loop.create_future()

    def changing(base: type[Plain]) -> Plain:
        class Changing(base):  # type: ignore[misc, valid-type]
            size = 5000

            def data_received(self, data: bytes) -> None:
                whole.extend(data)
                if chosen.random() < 0.5:
                    transport.set_protocol(changing(chosen.choice([Plain, Filled])))
                if chosen.random() < 0.2:
                    transport.pause_reading()
                    each_loop.call_soon(transport.resume_reading)
                if len(whole) == len(PLENTY):
                    transport.set_protocol(first)
                    done.set_result(None)

        changed: Plain = Changing(each_loop)
        return changed

    first = Plain(each_loop)
    async with large(each_loop, first, kind) as (transport, peer):
        transport.set_protocol(changing(Plain))
        with in_thread_during(peer, lambda: peer.sendall(PLENTY)):
            await done
        assert whole == PLENTY
        await enlarge(each_loop, first, peer)


@both_kinds
@protocols
def test_an_exception_is_reported_and_closes_the_connection(
    each_loop: Loop, make: type[Plain], kind: str
) -> None:
    handler_calls = record_handler_calls(each_loop)

    class Failing(make):  # type: ignore[misc, valid-type]
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if len(self.data) > 2 * len(MESSAGE):
                raise ZeroDivisionError("of the protocol's")

    async def check() -> None:
        sink = Failing(each_loop)
        async with large(each_loop, sink, kind) as (_, peer):
            with in_thread_during(peer, lambda: peer.sendall(PLENTY)):
                assert isinstance(await sink.lost, ZeroDivisionError)
            assert PLENTY.startswith(sink.data)

    each_loop.run_until_complete(check())
    call = "data_received" if make is Plain else "buffer_updated"
    assert [str(context["message"]) for context in handler_calls] == [
        f"Fatal error: protocol.{call}() call failed."
    ]


# ── sendfile and TLS ──────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_file_can_be_sent_between_large_messages(each_loop: Loop, tmp_path: Path) -> None:
    sink = Plain(each_loop)
    async with large(each_loop, sink) as (transport, peer):
        with on_disk(tmp_path, PLENTY) as file:
            # Arrives while sendfile() pauses reading.
            await each_loop.sock_sendall(peer, PLENTY[:100_000])
            got, sent = await asyncio.gather(
                read_exactly(each_loop, peer, len(PLENTY)), each_loop.sendfile(transport, file)
            )
        assert (got, sent) == (PLENTY, len(PLENTY))
        assert await sink.take(100_000) == PLENTY[:100_000]
        await enlarge(each_loop, sink, peer)


@both_kinds
@protocols
@on_loop
async def test_tls_can_start_between_large_messages(
    each_loop: Loop, contexts: Contexts, make: type[Plain], kind: str
) -> None:
    sink = make(each_loop)
    ours, sock = pair_of(kind)
    with sock:
        plain, _ = await each_loop.create_connection(lambda: sink, sock=ours)
        async with ending(plain):
            await enlarge(each_loop, sink, sock)
            peer = Peer(each_loop, sock, contexts.server, server_side=True)
            transport, _ = await asyncio.gather(
                each_loop.start_tls(plain, sink, contexts.client, server_hostname="localhost"),
                peer.handshake(),
            )
            assert transport is not None
            for size in (1, 100_000, 10, 1_000_000):
                sending = asyncio.ensure_future(peer.send(PLENTY[:size]))
                assert await sink.take(size) == PLENTY[:size]
                await sending
                transport.write(PLENTY[:size])
                assert await peer.read_exactly(size) == PLENTY[:size]
