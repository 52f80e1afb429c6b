"""TLS connections whose protocols raise KeyboardInterrupt, end the connection, or turn it around.

Each happens within a call by which the connection itself is at a turning point: its first bytes,
its last ones, or a pause.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import itertools
import signal
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.interrupts import LEAVING, after, leave_in, runs
from support.protocols import Collector
from support.roles import (
    PATIENCE,
    Loop,
    narrow_pair,
    noise,
    on_loop,
    record_handler_calls,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.tls_contexts import Contexts, client_context
from support.tls_peers import (
    Below,
    Filler,
    Peer,
    ending,
    last_flight,
    records,
    tls_link,
    tls_stream,
)

import uringloop

# Connections that a server accepts in several batches.
CLIENTS = 90

# ── KeyboardInterrupt ────────────────────────────────────────────────────────────────────────


@LEAVING
@pytest.mark.parametrize("buffered", [False, True])
def test_the_end_follows_first_bytes_that_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], buffered: bool
) -> None:
    right: Any = Filler(loop, 4) if buffered else Collector(loop)
    leave_in(right, "buffer_updated" if buffered else "data_received", leaving)

    async def talk() -> None:
        ours, theirs = tcp_pair()
        with theirs:
            peer = Peer(loop, theirs, contexts.client)

            async def greet() -> None:
                await loop.sock_sendall(theirs, await last_flight(peer, b"early bird"))
                theirs.shutdown(socket.SHUT_WR)

            accepting = loop.connect_accepted_socket(lambda: right, ours, ssl=contexts.server)
            (transport, _), _ = await asyncio.gather(accepting, greet())
            async with ending(transport):
                assert await right.lost is None
                assert right.data == b"early bird"

    assert runs(loop, talk(), leaving) == 1


@contextlib.asynccontextmanager
async def leaving_below(
    loop: Loop, right: Collector, contexts: Contexts, leaving: type[BaseException]
) -> AsyncIterator[tuple[asyncio.Transport, Peer]]:
    """Connect *right* to a peer over TLS; the next write to the transport below ends the run."""
    ours, theirs = tcp_pair()
    with theirs:
        peer = Peer(loop, theirs, contexts.client)
        plain, _ = await loop.connect_accepted_socket(lambda: right, ours)
        below: Any = Below(plain)
        async with ending(plain):
            starting = loop.start_tls(
                below, right, contexts.server, server_side=True, ssl_shutdown_timeout=60
            )
            transport, _ = await asyncio.gather(starting, peer.handshake())
            assert transport is not None
            leave_in(below, "write", leaving)
            yield transport, peer


@LEAVING
def test_a_refused_handshake_ends_after_the_alert_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException]
) -> None:
    async def talk() -> None:
        ours, theirs = tcp_pair()
        with theirs:
            right = Collector(loop)
            plain, _ = await loop.connect_accepted_socket(lambda: right, ours)
            below: Any = Below(plain)
            leave_in(below, "write", leaving)
            starting = loop.start_tls(below, right, contexts.server, server_side=True)
            handshake = loop.create_task(starting)
            await loop.sock_sendall(theirs, b"\x16\x03\x01\x00\x05hello")
            with pytest.raises(ssl.SSLError):
                await handshake
            assert (await loop.sock_recv(theirs, 100)).startswith(b"\x15\x03")
            assert not await loop.sock_recv(theirs, 100)

    assert runs(loop, talk(), leaving) == 1


@LEAVING
@pytest.mark.parametrize("closed", [False, True])
def test_a_bad_record_ends_the_connection_after_the_alert_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], closed: bool
) -> None:
    right = Collector(loop)

    async def talk() -> None:
        async with leaving_below(loop, right, contexts, leaving) as (transport, peer):
            if closed:
                transport.pause_reading()
            await loop.sock_sendall(peer.sock, b"\x17\x03\x03\x01\x00" + bytes(256))
            if closed:
                await turns(20)
                # A callback, because the write raises within it.
                loop.call_soon(transport.close)
            exc = await right.lost
            assert isinstance(exc, ssl.SSLError)
            assert not isinstance(exc, ssl.SSLEOFError)
            with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
                await peer.read()

    assert runs(loop, talk(), leaving) == 1


@LEAVING
@pytest.mark.parametrize("first", ["us", "peer"])
def test_the_connection_ends_after_close_notify_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], first: str
) -> None:
    right = Collector(loop)

    async def talk() -> None:
        async with leaving_below(loop, right, contexts, leaving) as (transport, peer):
            transport.pause_reading()
            if first == "peer":
                peer.notify()
                await peer.flush()
                await turns(20)
            # A callback, because the write raises within it.
            loop.call_soon(transport.close)
            assert await peer.read_to_end() == b""
            await peer.close()
            assert await right.lost is None
            assert right.calls == ["connection_made", "eof_received", "connection_lost"]

    assert runs(loop, talk(), leaving) == 1


@LEAVING
@pytest.mark.parametrize("closing", ["us", "peer"])
def test_the_connection_ends_after_eof_received_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], closing: str
) -> None:
    left = Collector(loop)
    leave_in(left, "eof_received", leaving)

    async def talk() -> None:
        async with tls_stream(loop, left, contexts, shutdown_timeout=60) as (transport, peer):
            if closing == "us":
                transport.close()
                assert await peer.read_to_end() == b""
            await peer.close()
            assert await left.lost is None
            assert left.calls == ["connection_made", "eof_received", "connection_lost"]

    assert runs(loop, talk(), leaving) == 1


@LEAVING
@pytest.mark.parametrize("name", ["pause_writing", "resume_writing"])
def test_flow_control_may_end_the_run_while_reading_is_paused(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], name: str
) -> None:
    data = bytes(20_000_000)
    left, right = Collector(loop), Collector(loop)
    leave_in(left, name, leaving)

    async def talk() -> None:
        async with tls_link(loop, left, right, contexts) as (transport, other):
            transport.set_write_buffer_limits(high=1)
            transport.pause_reading()
            other.write(b"answer")
            other.pause_reading()
            # A callback, because pause_writing() raises within it.
            loop.call_soon(transport.write, data)
            await until(lambda: "pause_writing" in left.calls)
            other.resume_reading()
            await right.received(len(data))
            assert not left.data
            transport.resume_reading()
            assert await left.received(6) == b"answer"

    assert runs(loop, talk(), leaving) == 1


@LEAVING
def test_close_goes_on_after_pause_writing_ended_the_run(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException]
) -> None:
    left, right = Collector(loop), Collector(loop)
    leave_in(left, "pause_writing", leaving)

    async def talk() -> None:
        async with tls_link(loop, left, right, contexts, buffer_size=4096) as (transport, other):
            transport.set_write_buffer_limits(high=1)

            def end() -> None:
                # Held until close(), which writes more than the transport below accepts.
                for _ in range(4):
                    transport.write(bytes(4000))
                transport.close()

            other.pause_reading()
            await fill_lower(transport)
            loop.call_soon(end)
            await until(lambda: "pause_writing" in left.calls)
            other.resume_reading()
            assert await right.lost is None
            assert await left.lost is None

    assert runs(loop, talk(), leaving) == 1


class Interrupted(ssl.SSLObject):
    """Raises an exception after a read, whose plaintext is lost, or after a write."""

    raised: BaseException | None = None

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        data = super().read(len)
        self.leave()
        return data

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.leave()
        return count

    def leave(self) -> None:
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


@LEAVING
@pytest.mark.parametrize("buffered", [False, True])
def test_plaintext_that_an_interrupted_read_loses_ends_the_connection(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], buffered: bool
) -> None:
    client = client_context()
    client.sslobject_class = Interrupted
    left: Any = Filler(loop, 4) if buffered else Collector(loop)

    async def talk() -> None:
        made = Contexts(contexts.server, client)
        async with tls_stream(loop, left, made) as (transport, peer):
            await peer.send(b"good")
            await until(lambda: left.data == b"good")
            transport.get_extra_info("ssl_object").raised = leaving()
            await peer.send(b"lost")
            await peer.send(b"late")
            assert isinstance(await left.lost, ConnectionAbortedError)
            assert left.data == b"good"

    assert runs(loop, talk(), leaving) == 1


@LEAVING
@pytest.mark.parametrize("size", [10, 10_000])
def test_a_write_that_is_interrupted_is_not_sent_twice(
    loop: uringloop.Loop, contexts: Contexts, leaving: type[BaseException], size: int
) -> None:
    client = client_context()
    client.sslobject_class = Interrupted
    left = Collector(loop)

    async def talk() -> None:
        made = Contexts(contexts.server, client)
        async with tls_stream(loop, left, made) as (transport, peer):
            transport.get_extra_info("ssl_object").raised = leaving()
            # A callback, because a large write raises within it.
            loop.call_soon(transport.write, noise(size))
            loop.call_soon(transport.write, b"after it")
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                await peer.read()
            assert isinstance(await left.lost, ConnectionAbortedError)

    assert runs(loop, talk(), leaving) == 1


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("sizes", [[60_000], [600_000], [4000, 4000, 4000, 4000, 3000]])
@pytest.mark.parametrize("before", [220_000, 240_000, 255_000])
def test_callbacks_may_run_while_records_are_passed_on(
    loop: uringloop.Loop, contexts: Contexts, before: int, sizes: list[int], leaves: bool
) -> None:
    # Many queued bytes are flushed early, by which a server accepts.
    sent = [noise(size, size) for size in sizes]
    last = b"written while the records were passed on"
    left, other = Collector(loop), Collector(loop)

    async def talk() -> None:
        writing: list[asyncio.Transport] = []
        accepted: list[int] = []

        def factory() -> asyncio.Protocol:
            if not accepted:
                # The others are accepted while it writes.
                loop.call_soon(write_both)
            accepted.append(len(accepted))
            if writing:
                writing.pop().write(last)
                if leaves:
                    raise KeyboardInterrupt
            return asyncio.Protocol()

        def write_both() -> None:
            plain.write(bytes(before))
            for data in sent[:-1]:
                transport.write(data)
            writing.append(transport)
            transport.write(sent[-1])

        server = await loop.create_server(factory, "127.0.0.1", 0, backlog=200)
        linked = tls_stream(loop, left, contexts, buffer_size=8192)
        plainly = stream(loop, other, buffer_size=8192)
        async with plainly as (plain, _), linked as (transport, peer):
            with contextlib.ExitStack() as clients:
                clients.callback(server.close)
                for _ in range(CLIENTS):
                    address = server.sockets[0].getsockname()
                    clients.enter_context(socket.create_connection(address))
                await until(lambda: len(accepted) == CLIENTS and not writing)
                expected = b"".join([*sent, last])
                assert await peer.read_exactly(len(expected)) == expected
                assert transport.get_write_buffer_size() == 0

    assert runs(loop, talk(), KeyboardInterrupt) == leaves


class Alarmed(Filler):
    """Sets an alarm before its buffer is filled, which raises KeyboardInterrupt in the meantime."""

    delay = 0.0
    filling = False

    def get_buffer(self, sizehint: int) -> bytearray:
        signal.setitimer(signal.ITIMER_REAL, self.delay)
        self.filling = True
        return super().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.filling = False
        super().buffer_updated(nbytes)

    def ring(self, number: int, frame: object) -> None:
        if self.filling:
            self.filling = False
            raise KeyboardInterrupt


def test_an_alarm_within_a_read_of_openssl_leaves_no_gap(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    data = noise(200_000)
    endings = []

    async def talk(right: Alarmed) -> None:
        async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
            transport.pause_reading()
            await peer.send(data)
            transport.resume_reading()
            await until(lambda: right.lost.done() or len(right.data) == len(data))
            endings.append(right.lost.result() if right.lost.done() else None)
            assert data.startswith(right.data)

    before = signal.getsignal(signal.SIGALRM)
    try:
        # The first alarms may ring before OpenSSL is called, and the last ones after it.
        for attempt in range(1, 200):
            right = Alarmed(loop, len(data))
            right.delay = attempt * 5e-6
            signal.signal(signal.SIGALRM, right.ring)
            runs(loop, talk(right), KeyboardInterrupt)
            if endings[-1] is not None:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert isinstance(endings[-1], ConnectionAbortedError)
    assert endings[:-1] == [None] * (len(endings) - 1)


async def fill_lower(transport: Any) -> None:
    """Write until the transport below has nearly as many bytes as it accepts."""
    below = transport._ssl_protocol._transport
    _, high = below.get_write_buffer_limits()
    while below.get_write_buffer_size() < high - 5000:
        transport.write(bytes(4000))
        await turns()


def lower(transport: Any) -> bool:
    """Return whether the transport below has paused its protocol."""
    paused: bool = transport._ssl_protocol._transport._protocol_paused
    return paused


# ── an end within a call ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["buffer_updated", "get_buffer"])
@pytest.mark.parametrize("ends", [False, True], ids=["open", "at-its-end"])
@on_loop
async def test_abort_ends_a_buffered_protocol_with_much_unread(
    loop: uringloop.Loop, contexts: Contexts, name: str, ends: bool
) -> None:
    handler_calls = record_handler_calls(loop)
    right = Filler(loop, 10)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        await peer.send(noise(5000))
        if ends:
            peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        after(right, name, transport.abort)
        transport.resume_reading()
        assert await right.lost is None
        assert len(right.data) <= 10
        assert not right.ended
    assert handler_calls == []


@on_loop
async def test_abort_in_pause_writing_ends_a_closing_connection(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    handler_calls = record_handler_calls(loop)
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, buffer_size=4096) as (transport, _):
        while not lower(transport):
            transport.write(bytes(20_000))
            await turns()
        transport.set_write_buffer_limits(high=1_000_000)
        after(left, "pause_writing", transport.abort)
        transport.write(bytes(2_000_000))
        transport.close()
        assert await left.lost is None
    assert handler_calls == []


@on_loop
async def test_start_tls_returns_none_if_the_connection_is_aborted_before_its_first_step(
    each_loop: Loop, contexts: Contexts
) -> None:
    ours, theirs = tcp_pair()
    with theirs:
        collector = Collector(each_loop)
        plain, _ = await each_loop.connect_accepted_socket(lambda: collector, ours)
        starting = each_loop.create_task(
            each_loop.start_tls(plain, collector, contexts.server, server_side=True)
        )
        each_loop.call_soon(plain.abort)
        result = await starting
        assert result is None
        await turns(5)


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError])
@on_loop
async def test_an_exception_for_the_first_bytes_ends_the_connection(
    each_loop: Loop, contexts: Contexts, error: type[BaseException]
) -> None:
    handler_calls = record_handler_calls(each_loop)
    raised = error("no idea")

    class Failing(Collector):
        def data_received(self, data: bytes) -> None:
            raise raised

    ours, theirs = tcp_pair()
    with theirs:
        right = Failing(each_loop)
        peer = Peer(each_loop, theirs, contexts.client)

        async def greet() -> None:
            await each_loop.sock_sendall(theirs, await last_flight(peer, b"early bird"))

        greeting = each_loop.create_task(greet())
        transport, _ = await each_loop.connect_accepted_socket(
            lambda: right, ours, ssl=contexts.server
        )
        async with ending(transport):
            await greeting
            assert await right.lost is raised
    assert [call["exception"] for call in handler_calls] == [raised]
    assert {"message", "exception", "transport", "protocol"} <= handler_calls[0].keys()


@on_loop
async def test_a_cancelled_error_at_the_peers_end_ends_the_connection(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # On asyncio nothing ends it.
    handler_calls = record_handler_calls(loop)
    raised: BaseException = asyncio.CancelledError("no idea")

    class Failing(Collector):
        def data_received(self, data: bytes) -> None:
            raise raised

    right = Failing(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        await peer.send(b"last words")
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await right.lost is raised
    assert [call["exception"] for call in handler_calls] == [raised]


@on_loop
async def test_an_exception_of_connection_lost_is_reported_with_its_name(
    each_loop: Loop, contexts: Contexts
) -> None:
    handler_calls = record_handler_calls(each_loop)

    class Failing(Collector):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            raise ValueError("no idea")

    left = Failing(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, _):
        transport.abort()
        await left.lost
        await turns(2)
    [call] = handler_calls
    assert "Failing.connection_lost(" in str(call["message"])


@on_loop
async def test_a_protocol_may_leave_its_connection_in_data_received(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    class Leaving(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            below = self.transport._ssl_protocol._transport  # type: ignore[attr-defined]
            below.set_protocol(asyncio.Protocol())
            del self.transport
            gc.collect()

    ours, theirs = tcp_pair()
    with theirs:
        right: Any = Leaving(loop)
        peer = Peer(loop, theirs, contexts.client)
        accepting = loop.connect_accepted_socket(lambda: right, ours, ssl=contexts.server)
        (transport, _), _ = await asyncio.gather(accepting, peer.handshake())
        fileno = transport.get_extra_info("socket").fileno
        below = transport._ssl_protocol._transport
        del transport
        await peer.send(b"good-bye")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await right.received(8)
            gc.collect()
        assert "unclosed transport <SSLTransport open over" in str(caught[0].message)
        below.abort()
        await until(lambda: fileno() == -1)


class Clear:
    """What a peer sends behind its close_notify."""

    none = b""
    text = b"221 bye\r\n"
    record = b"\x17\x03\x03\x00\x20" + bytes(32)


@pytest.mark.parametrize("behind", [Clear.none, Clear.text, Clear.record], ids=repr)
@pytest.mark.parametrize("buffered", [False, True])
@on_loop
async def test_a_connection_ends_whatever_follows_close_notify(
    loop: uringloop.Loop, contexts: Contexts, buffered: bool, behind: bytes
) -> None:
    right: Any = Filler(loop, 4) if buffered else Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        peer.notify()
        await loop.sock_sendall(peer.sock, peer.outgoing.read() + behind)
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, PATIENCE) is None
        assert right.data == b"last words"


@on_loop
async def test_close_in_get_buffer_is_a_clean_end(loop: uringloop.Loop, contexts: Contexts) -> None:
    # The peer's close_notify is there already.
    right = Filler(loop, 100)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"not wanted")
        peer.notify()
        await loop.sock_sendall(peer.sock, peer.outgoing.read())
        await turns(20)
        after(right, "get_buffer", transport.close)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, PATIENCE) is None
        assert not right.data


@pytest.mark.parametrize("name", ["get_buffer", "buffer_updated"])
@on_loop
async def test_a_protocol_that_is_replaced_at_the_peers_end_leaves_the_rest_to_the_next(
    loop: uringloop.Loop, contexts: Contexts, name: str
) -> None:
    data = noise(1000)
    right, following = Filler(loop, 10), Collector(loop)
    following.connection_made = lambda transport: None  # type: ignore[method-assign]
    following.calls.append("connection_made")
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        await peer.send(data)
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        after(right, name, lambda: transport.set_protocol(following))
        transport.resume_reading()
        assert await asyncio.wait_for(following.lost, PATIENCE) is None
        assert right.data + following.data == data


# ── errors of records ────────────────────────────────────────────────────────────────────────


@on_loop
async def test_an_alert_is_the_last_record_after_a_damaged_one(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # A write of the same turn, which OpenSSL could no longer encrypt, is not an error of its own.
    handler_calls = record_handler_calls(loop)

    class Eager(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(b"held until the end of the turn")

    left = Eager(loop)
    async with tls_stream(loop, left, contexts) as (_, peer):
        peer.tls.write(b"good")
        good = peer.outgoing.read()
        peer.tls.write(b"damaged")
        damaged = bytearray(peer.outgoing.read())
        damaged[-1] ^= 1
        await loop.sock_sendall(peer.sock, good + damaged)
        error = await left.lost
        assert isinstance(error, ssl.SSLError)
        # An OSError is not reported.
        assert handler_calls == []
        # An alert that is encrypted: a level, a description, and the type of the record.
        [last] = await records(loop, peer.sock, 1)
        assert len(last) == 5 + 2 + 1 + 16
        assert await loop.sock_recv(peer.sock, 100) == b""


# ── buffers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 7, 16_000])
@on_loop
async def test_get_buffer_is_never_asked_for_nothing(
    loop: uringloop.Loop, contexts: Contexts, size: int
) -> None:
    data = noise(40_000)

    class Obedient(Filler):
        def get_buffer(self, sizehint: int) -> bytearray:
            self.buffer = bytearray(min(sizehint, size))
            return super().get_buffer(sizehint)

    right = Obedient(loop, 0)
    async with tls_stream(loop, right, contexts, server_side=True) as (_, peer):
        await peer.send(data)
        await until(lambda: len(right.data) == len(data))
        assert right.data == data
        assert min(right.hints) > 0


class Sparing(ssl.SSLObject):
    """Reads at most seven bytes, into no buffer, and writes bytes only."""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        assert buffer is None
        return super().read(min(len, 7))

    def write(self, data: Any) -> int:
        assert type(data) is bytes
        return super().write(data[:9000])


@pytest.mark.parametrize("buffered", [False, True])
@on_loop
async def test_objects_of_another_class_read_and_write_as_they_like(
    loop: uringloop.Loop, contexts: Contexts, buffered: bool
) -> None:
    data = noise(50_000)
    client = client_context()
    client.sslobject_class = Sparing
    made = Contexts(contexts.server, client)
    left: Any = Filler(loop, 100) if buffered else Collector(loop)
    async with tls_stream(loop, left, made, shutdown_timeout=60) as (transport, peer):
        assert isinstance(transport.get_extra_info("ssl_object"), Sparing)
        for written in (data, data[:10], data[:10_000]):
            transport.write(written)
            assert await peer.read_exactly(len(written)) == written
        await peer.send(data)
        await until(lambda: len(left.data) == len(data))
        assert left.data == data
        transport.close()
        assert await peer.read_to_end() == b""
        await peer.close()
        assert await left.lost is None


class Odd(ssl.SSLObject):
    """Returns what an SSLObject does not."""

    returned: Any = None

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        data = super().read(len)
        return data if self.returned is None else self.returned(data)

    def write(self, data: Any) -> int:
        count = super().write(data)
        return count if self.returned is None else self.returned(count)


@pytest.mark.parametrize("returned", [lambda _: 1 << 40, lambda _: -1, lambda _: "text"])
@pytest.mark.parametrize("way", ["read", "write"])
@on_loop
async def test_an_object_that_returns_nonsense_ends_the_connection(
    loop: uringloop.Loop, contexts: Contexts, way: str, returned: Callable[[object], object]
) -> None:
    record_handler_calls(loop)
    client = client_context()
    client.sslobject_class = Odd
    left = Collector(loop)
    made = Contexts(contexts.server, client)
    async with tls_stream(loop, left, made) as (transport, peer):
        transport.get_extra_info("ssl_object").returned = returned
        if way == "read":
            await peer.send(b"data")
        else:
            transport.write(bytes(100_000))
        assert isinstance(await left.lost, (TypeError, ValueError))


@on_loop
async def test_an_object_may_read_a_bytearray(loop: uringloop.Loop, contexts: Contexts) -> None:
    client = client_context()
    client.sslobject_class = Odd
    left = Collector(loop)
    made = Contexts(contexts.server, client)
    async with tls_stream(loop, left, made) as (transport, peer):
        transport.get_extra_info("ssl_object").returned = bytearray
        await peer.send(b"data")
        assert await left.received(4) == b"data"


class Named(ssl.SSLObject):
    """Describes its cipher in its own way."""

    def cipher(self) -> Any:
        return {"name": "of its own"}


@on_loop
async def test_an_object_may_describe_its_cipher_in_its_own_way(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    client = client_context()
    client.sslobject_class = Named
    left = Collector(loop)
    async with tls_stream(loop, left, Contexts(contexts.server, client)) as (transport, peer):
        assert transport.get_extra_info("cipher") == {"name": "of its own"}
        await peer.send(b"data")
        assert await left.received(4) == b"data"


class Stubborn(ssl.SSLObject):
    """Refuses to write while `wants_read`, as OpenSSL does during a renegotiation."""

    wants_read = False

    def write(self, data: Any) -> int:
        if self.wants_read:
            raise ssl.SSLWantReadError
        return super().write(data)


@pytest.mark.parametrize("sizes", [[4000] * 6, [4000, 100_000, 10], [16_000, 1000, 20_000, 5]])
@on_loop
async def test_writes_keep_their_order_while_openssl_wants_to_read(
    each_loop: Loop, contexts: Contexts, sizes: list[int]
) -> None:
    client = client_context()
    client.sslobject_class = Stubborn
    data = [bytes([number]) * size for number, size in enumerate(sizes)]
    async with tls_stream(each_loop, Collector(each_loop), Contexts(contexts.server, client)) as (
        transport,
        peer,
    ):
        sslobj = transport.get_extra_info("ssl_object")
        sslobj.wants_read = True
        for piece in data:
            transport.write(piece)
        await turns(3)
        sslobj.wants_read = False
        await peer.send(b"go on")
        assert await peer.read_exactly(sum(sizes)) == b"".join(data)


@on_loop
async def test_writelines_accepts_every_buffer_of_bytes(
    each_loop: Loop, contexts: Contexts
) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with tls_link(each_loop, left, right, contexts) as (transport, _):
        pieces: list[Any] = [array.array("B", b"one"), bytearray(b"two"), b"three"]
        transport.writelines(pieces)
        assert await right.received(11) == b"onetwothree"


# ── pauses ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("buffered", [False, True])
@on_loop
async def test_a_pause_after_the_peers_end_keeps_what_is_unread(
    loop: uringloop.Loop, contexts: Contexts, buffered: bool
) -> None:
    # asyncio drops it.
    data = noise(1000)
    right: Any = Filler(loop, 100) if buffered else Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        await peer.send(data)
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        transport.pause_reading()
        await turns(20)
        assert not right.data
        assert not right.lost.done()
        transport.resume_reading()
        assert await right.lost is None
        assert right.data == data


@on_loop
async def test_many_small_buffers_do_not_starve_other_callbacks(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    right = Filler(loop, 100)
    fills: list[int] = []

    def watch() -> None:
        fills.append(len(right.hints))
        if not right.lost.done():
            loop.call_soon(watch)

    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        await peer.send(noise(20_000))
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        watch()
        await right.lost
        assert len(right.data) == 20_000
    assert max(after - before for before, after in itertools.pairwise(fills)) <= 2


@on_loop
async def test_close_notify_is_sent_by_a_transport_that_was_full(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    data = noise(400_000)
    async with tls_stream(each_loop, left, contexts, buffer_size=4096, shutdown_timeout=60) as (
        transport,
        peer,
    ):
        transport.write(data)
        transport.close()
        assert await peer.read_to_end() == data
        await peer.close()
        assert await left.lost is None


@on_loop
async def test_a_paused_protocol_is_resumed_if_start_tls_finds_room_at_once(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # The bytes leave before the first step of the handshake.
    ours, theirs = narrow_pair(4096)
    collector = Collector(loop)
    with theirs:
        plain, _ = await loop.connect_accepted_socket(lambda: collector, ours)
        plain.set_write_buffer_limits(1000)
        count = 0
        while "pause_writing" not in collector.calls:
            plain.write(bytes(2000))
            count += 2000
            await turns(3)
        peer = Peer(loop, theirs, contexts.client)
        async with ending(plain):
            starting = loop.create_task(
                loop.start_tls(plain, collector, contexts.server, server_side=True)
            )
            while count:
                try:
                    count -= len(theirs.recv(count))
                except BlockingIOError:
                    await turns()
            await peer.handshake()
            assert await starting is not None
            await until(lambda: "resume_writing" in collector.calls)


@on_loop
async def test_resume_reading_in_connection_made_delivers_nothing_before_the_handshake_is_reported(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    order: list[str] = []

    class Turning(Collector):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()
            self.transport.resume_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            order.append("data")

    ours, theirs = tcp_pair()
    with theirs:
        right = Turning(loop)
        peer = Peer(loop, theirs, contexts.client)

        async def greet() -> None:
            await loop.sock_sendall(theirs, await last_flight(peer, b"early bird"))

        greeting = loop.create_task(greet())
        transport, _ = await loop.connect_accepted_socket(lambda: right, ours, ssl=contexts.server)
        order.append("returned")
        async with ending(transport):
            await greeting
            assert await right.received(10) == b"early bird"
            assert order[0] == "returned"


# ── what only the package creates ────────────────────────────────────────────────────────────


@on_loop
async def test_misuse_raises_an_exception(loop: uringloop.Loop, contexts: Contexts) -> None:
    async with tls_stream(loop, Collector(loop), contexts) as (transport, _):
        with pytest.raises(TypeError, match=r"^cannot create 'SSLTransport' instances$"):
            type(transport)()
        protocol: Any = transport._ssl_protocol  # type: ignore[attr-defined]
        for count in (-1, 1, 1 << 20):
            with pytest.raises(ValueError, match=f"does not have {count} bytes"):
                protocol.buffer_updated(count)
        protocol.connection_made(transport)
        assert not transport.is_closing()


def test_resume_reading_on_a_closed_loop_raises_runtime_error(contexts: Contexts) -> None:
    made = uringloop.new_event_loop()

    async def open_and_pause() -> Any:
        ours, theirs = tcp_pair()
        peer = Peer(made, theirs, contexts.client)
        accepting = made.connect_accepted_socket(lambda: Collector(made), ours, ssl=contexts.server)
        (transport, _), _ = await asyncio.gather(accepting, peer.handshake())
        transport.pause_reading()
        theirs.close()
        return transport

    transport = made.run_until_complete(open_and_pause())
    made.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        transport.resume_reading()
    with warnings.catch_warnings():
        # Nothing can close it any more.
        warnings.simplefilter("ignore", ResourceWarning)
        del transport
        gc.collect()
