"""What programs that were written for readiness rely on, on a loop that gets completions.

The rules are those of docs/decisions/0004-receiving.md: every end is told; nothing is taken from a
descriptor ahead of a protocol that has paused, closed or handed it over; what a protocol schedules
for its bytes runs before it is told of the end; what is there when a transport is connected comes
behind the callbacks of one turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from support.datagrams import Mailbox
from support.leaks import open_fds
from support.loops import each_ring
from support.protocols import Collector
from support.roles import (
    abort_and_wait,
    end,
    nothing_comes,
    on_loop,
    released,
    run_script,
    turns,
    until,
)
from support.sockets import tcp_pair, unix_pair
from support.software_ring import room_for
from support.tls_contexts import Contexts

import uringloop
from uringloop import streams

Loop = asyncio.AbstractEventLoop
Pair = Callable[[], tuple[socket.socket, socket.socket]]

Pairs = pytest.mark.parametrize("pair", [tcp_pair, unix_pair])
# A connection receives by polls at its beginning, and by the ring after some messages.
Warmings = pytest.mark.parametrize("warming", [0, 2, 9])
# More connections than the pool of receive buffers has buffers at its beginning.
MANY = 100


class Buffered(Collector, asyncio.BufferedProtocol):
    """A Collector that gets its bytes in a buffer of its own."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.memory = bytearray(1 << 18)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.memory[:nbytes]))


Protocols = pytest.mark.parametrize("kind", [Collector, Buffered])


async def connected(
    loop: Loop, protocol: asyncio.BaseProtocol, pair: Pair
) -> tuple[asyncio.Transport, socket.socket]:
    ours, peer = pair()
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    return transport, peer


async def warm(peer: socket.socket, protocol: Collector, messages: int) -> None:
    """Exchange *messages* small messages, one after the other."""
    for _ in range(messages):
        peer.send(b"hello")
        await protocol.received(len(protocol.data) + 5)


def drain(sock: socket.socket) -> bytes:
    """Return what a socket holds; close it."""
    data = bytearray()
    with sock, contextlib.suppress(BlockingIOError):
        sock.setblocking(False)
        while piece := sock.recv(1 << 20):
            data += piece
    return bytes(data)


def send_all_there_is_room_for(peer: socket.socket, size: int) -> bytes:
    data = os.urandom(size)
    return data[: peer.send(data)]


# ── every end is told ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 4, 10_000, 100_000])
@pytest.mark.parametrize("how", ["reset", "close", "half"])
@Pairs
@Warmings
@on_loop
async def test_every_end_is_told(
    each_loop: Loop, pair: Pair, warming: int, how: str, size: int
) -> None:
    before = open_fds()
    opened = []
    for _ in range(MANY if size < 100_000 else 10):
        protocol = Collector(each_loop)
        opened.append((protocol, *await connected(each_loop, protocol, pair)))
    for protocol, _, peer in opened:
        await warm(peer, protocol, warming)
    await nothing_comes(each_loop)
    sent = []
    for _, _, peer in opened:
        # In one turn: the loop finds all bytes and all ends at once.
        sent.append(send_all_there_is_room_for(peer, size) if size else b"")
        end(peer, how)
    for (protocol, transport, peer), data in zip(opened, sent, strict=True):
        exc = await protocol.lost
        assert exc is None or (how == "reset" and isinstance(exc, ConnectionResetError))
        # The kernel drops what is unread when a TCP connection is reset behind it; not before.
        assert protocol.data[5 * warming :] == data or how == "reset"
        await released(transport)
        peer.close()
    await until(lambda: open_fds() == before)


@pytest.mark.parametrize("how", ["reset", "close"])
@Pairs
@Warmings
@on_loop
async def test_an_end_while_reading_is_paused_is_told_after_the_pause(
    each_loop: Loop, pair: Pair, warming: int, how: str
) -> None:
    protocol = Collector(each_loop)
    transport, peer = await connected(each_loop, protocol, pair)
    await warm(peer, protocol, warming)
    transport.pause_reading()
    peer.send(b"last words")
    end(peer, how)
    await nothing_comes(each_loop)
    assert not protocol.lost.done()
    transport.resume_reading()
    await protocol.lost
    peer.close()


# ── nothing is taken ahead of the protocol ───────────────────────────────────────────────────


class Leaving(Collector):
    """Leaves the connection to other code at the first bytes behind those of the warming."""

    def __init__(self, loop: Loop, leave: Callable[[asyncio.Transport], None]) -> None:
        super().__init__(loop)
        self.leave = leave
        self.ready = False
        self.left: asyncio.Future[socket.socket] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.ready and not self.left.done():
            self.act()

    def act(self) -> None:
        self.leave(self.transport)
        if not self.left.done():
            self.left.set_result(self.transport.get_extra_info("socket").dup())


class LeavingBuffered(Leaving, Buffered):
    pass


class LeavingByTask(Leaving):
    def act(self) -> None:
        self.ready = False
        self.task = self.loop.create_task(self.act_later())

    async def act_later(self) -> None:
        super().act()


def pause(transport: asyncio.Transport) -> None:
    transport.pause_reading()


def abort(transport: asyncio.Transport) -> None:
    protocol = transport.get_protocol()
    assert isinstance(protocol, Leaving)
    protocol.left.set_result(transport.get_extra_info("socket").dup())
    transport.abort()


@pytest.mark.parametrize("leave", [pause, abort])
@pytest.mark.parametrize("kind", [Leaving, LeavingBuffered, LeavingByTask])
@pytest.mark.parametrize("warming", [0, 1, 2])
@Pairs
@on_loop
async def test_what_a_protocol_leaves_is_in_the_socket(
    each_loop: Loop,
    pair: Pair,
    warming: int,
    kind: type[Leaving],
    leave: Callable[[asyncio.Transport], None],
) -> None:
    protocol = kind(each_loop, leave)
    transport, peer = await connected(each_loop, protocol, pair)
    with peer:
        await warm(peer, protocol, warming)
        protocol.ready = True
        sent = bytearray()
        # More than the loop receives at once, in several turns.
        while not protocol.left.done():
            with contextlib.suppress(BlockingIOError):
                sent += send_all_there_is_room_for(peer, 400_000)
            await turns()
        await turns(3)
        with contextlib.suppress(BlockingIOError):
            sent += send_all_there_is_room_for(peer, 10_000)
        await turns(3)
        rest = drain(await protocol.left)
        assert len(protocol.data) - 5 * warming + len(rest) == len(sent)
        assert protocol.data[5 * warming :] + rest == sent
        await abort_and_wait(transport)


@Protocols
@Pairs
@Warmings
@on_loop
async def test_a_paused_transport_takes_nothing_more(
    each_loop: Loop, pair: Pair, warming: int, kind: type[Collector]
) -> None:
    protocol = kind(each_loop)
    transport, peer = await connected(each_loop, protocol, pair)
    with peer:
        await warm(peer, protocol, warming)
        await nothing_comes(each_loop)
        transport.pause_reading()
        sent = send_all_there_is_room_for(peer, 50_000)
        await nothing_comes(each_loop)
        assert drain(transport.get_extra_info("socket").dup()) == sent
        transport.resume_reading()
        peer.send(b"more")
        await protocol.received(5 * warming + 4)
        assert protocol.data[5 * warming :] == b"more"
        await abort_and_wait(transport)


@Pairs
@Warmings
@on_loop
async def test_a_second_pause_in_a_turn_takes_nothing_more(
    each_loop: Loop, pair: Pair, warming: int
) -> None:
    protocol = Collector(each_loop)
    transport, peer = await connected(each_loop, protocol, pair)
    with peer:
        await warm(peer, protocol, warming)
        await nothing_comes(each_loop)
        transport.pause_reading()
        # Takes the cancel of the first pause back.
        transport.resume_reading()
        transport.pause_reading()
        sent = send_all_there_is_room_for(peer, 50_000)
        await nothing_comes(each_loop)
        assert drain(transport.get_extra_info("socket").dup()) == sent
        await abort_and_wait(transport)


class Halting(Collector):
    """Pauses at each piece, resumes in a callback, and notes what comes before the next piece."""

    halts = False

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.loop = loop
        self.events: list[str] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.halts:
            self.events.append("data")
            self.transport.pause_reading()
            self.loop.call_soon(self.resume)

    def resume(self) -> None:
        self.transport.resume_reading()
        self.loop.call_soon(self.events.append, "callback")


@Pairs
@Warmings
@on_loop
async def test_nothing_is_delivered_in_the_turn_of_resume_reading(
    each_loop: Loop, pair: Pair, warming: int
) -> None:
    protocol = Halting(each_loop)
    transport, peer = await connected(each_loop, protocol, pair)
    with peer:
        await warm(peer, protocol, warming)
        await nothing_comes(each_loop)
        protocol.halts = True
        # More than two buffers of the pool, all of it before the loop looks.
        sent = send_all_there_is_room_for(peer, 200_000)
        await protocol.received(5 * warming + len(sent))
        await turns(3)
        assert protocol.events == ["data", "callback"] * (len(protocol.events) // 2)
        await abort_and_wait(transport)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize("warming", [0, 2])
@on_loop
async def test_datagrams_behind_the_first_stay_in_the_socket(
    each_loop: Loop, family: int, warming: int
) -> None:
    class Leaver(Mailbox):
        def datagram_received(self, data: bytes, addr: object) -> None:
            super().datagram_received(data, addr)
            if data == b"leave":
                self.left = self.transport.get_extra_info("socket").dup()
                self.transport.abort()

    if family == socket.AF_INET:
        ours, peer = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
        ours.bind(("127.0.0.1", 0))
        peer.connect(ours.getsockname())
    else:
        ours, peer = socket.socketpair(family, socket.SOCK_DGRAM)
    with peer:
        _, mailbox = await each_loop.create_datagram_endpoint(Leaver, sock=ours)
        for count in range(1, warming + 1):
            peer.send(b"hello")
            await mailbox.received(count)
        await nothing_comes(each_loop)
        for data in (b"leave", b"one", b"two", b"three"):
            peer.send(data)
        await until(lambda: bool(mailbox.lost))
        with mailbox.left as left:
            left.setblocking(False)
            assert [left.recv(10) for _ in range(3)] == [b"one", b"two", b"three"]
        assert mailbox.data == [b"hello"] * warming + [b"leave"]


@pytest.mark.parametrize("warming", [0, 2, 9])
@on_loop
async def test_datagrams_come_without_delay_after_a_short_pause(
    loop: uringloop.Loop, warming: int
) -> None:
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    transport, mailbox = await loop.create_datagram_endpoint(Mailbox, local_addr=("127.0.0.1", 0))
    with peer:
        peer.connect(transport.get_extra_info("sockname"))
        for count in range(1, warming + 1):
            peer.send(b"hello")
            await mailbox.received(count)
        await nothing_comes(loop)
        transport.pause_reading()  # type: ignore[attr-defined]
        transport.resume_reading()  # type: ignore[attr-defined]
        peer.send(b"at once")
        await turns(2)
        assert mailbox.data == [b"hello"] * warming + [b"at once"]
        transport.abort()
        await until(lambda: bool(mailbox.lost))


# ── the bytes that were taken are handed over ────────────────────────────────────────────────


@Protocols
@Pairs
@Warmings
@on_loop
async def test_detach_returns_the_socket_and_what_has_arrived(
    loop: uringloop.Loop, pair: Pair, warming: int, kind: type[Collector]
) -> None:
    before = open_fds()
    protocol = kind(loop)
    transport, peer = await connected(loop, protocol, pair)
    with peer:
        await warm(peer, protocol, warming)
        sent = send_all_there_is_room_for(peer, 50_000)
        sock, data = transport.detach()  # type: ignore[attr-defined]
        with sock:
            assert await protocol.lost is None
            assert protocol.data == b"hello" * warming
            sent += send_all_there_is_room_for(peer, 1000)
            assert data + drain(sock.dup()) == sent
            sock.send(b"goes on")
            assert peer.recv(100) == b"goes on"
        assert peer.recv(100) == b""
    await until(lambda: open_fds() == before)


@on_loop
async def test_detach_hands_over_what_the_ring_has_taken(loop: uringloop.Loop) -> None:
    """A message in the same turn as another one: the ring has both, the protocol the first."""
    rest: list[tuple[socket.socket, bytes]] = []

    class Detaching(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data.startswith(b"detach"):
                rest.append(self.transport.detach())  # type: ignore[attr-defined]

    protocol = Detaching(loop)
    _, peer = await connected(loop, protocol, tcp_pair)
    with peer:
        await warm(peer, protocol, 9)
        sent = b"detach" + send_all_there_is_room_for(peer, 0)
        peer.send(sent)
        sent += send_all_there_is_room_for(peer, 200_000)
        await protocol.lost
        sock, data = rest[0]
        assert protocol.data[45:] + data + drain(sock) == sent


@on_loop
async def test_detach_refuses_unsent_data_and_closed_transports(loop: uringloop.Loop) -> None:
    protocol = Collector(loop)
    transport, peer = await connected(loop, protocol, tcp_pair)
    with peer:
        transport.write(bytes(10_000_000))
        with pytest.raises(RuntimeError, match=r"^written data is not sent yet$"):
            transport.detach()  # type: ignore[attr-defined]
        await abort_and_wait(transport)
        with pytest.raises(RuntimeError, match=r"^the transport is closing$"):
            transport.detach()  # type: ignore[attr-defined]


@on_loop
async def test_detach_without_a_free_descriptor_changes_nothing(loop: uringloop.Loop) -> None:
    protocol = Collector(loop)
    transport, peer = await connected(loop, protocol, tcp_pair)
    with peer:
        await warm(peer, protocol, 9)
        with room_for(0), pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            transport.detach()  # type: ignore[attr-defined]
        assert transport.is_reading()
        peer.send(b"more")
        await until(lambda: protocol.data.endswith(b"more"))
        await abort_and_wait(transport)


@on_loop
async def test_detach_at_the_end_of_the_input_leaves_the_end_in_the_socket(
    loop: uringloop.Loop,
) -> None:
    protocol = Collector(loop)
    transport, peer = await connected(loop, protocol, tcp_pair)
    with peer:
        await warm(peer, protocol, 9)
        transport.pause_reading()
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        await turns(3)
        sock, data = transport.detach()  # type: ignore[attr-defined]
        assert data + drain(sock) == b"last"
        assert await protocol.lost is None


# ── the end comes behind what the bytes have caused ──────────────────────────────────────────


class Tasked(Collector):
    """Starts a task for each piece of data."""

    async def process(self) -> None:
        self.calls.append("task")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.task = self.loop.create_task(self.process())


class TaskedBuffered(Tasked, Buffered):
    pass


@contextlib.asynccontextmanager
async def tls_connected(
    loop: Loop, contexts: Contexts, protocol: Collector
) -> AsyncIterator[tuple[asyncio.Transport, asyncio.Transport]]:
    """Connect *protocol* over TLS; yield its transport and that of its peer."""
    accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)  # type: ignore[arg-type]

    server = await loop.create_server(Peer, "127.0.0.1", 0, ssl=contexts.server)
    transport, _ = await loop.create_connection(
        lambda: protocol,
        *server.sockets[0].getsockname(),
        ssl=contexts.client,
        server_hostname="localhost",
    )
    yield transport, await accepted
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("size", [4, 20_000, 100_000])
@pytest.mark.parametrize("how", ["reset", "close", "half"])
@pytest.mark.parametrize("kind", [Tasked, TaskedBuffered])
@Pairs
@Warmings
@on_loop
async def test_a_task_that_the_last_bytes_start_runs_before_the_end_is_told(
    each_loop: Loop, pair: Pair, warming: int, kind: type[Tasked], how: str, size: int
) -> None:
    protocol = kind(each_loop)
    _, peer = await connected(each_loop, protocol, pair)
    await warm(peer, protocol, warming)
    await nothing_comes(each_loop)
    send_all_there_is_room_for(peer, size)
    end(peer, how)
    await protocol.lost
    peer.close()
    # Several pieces may come together, and their tasks after them.
    told = [call for call, _ in itertools.groupby(protocol.calls[1:])]
    ends = [call for call in told if call in ("eof_received", "connection_lost")]
    assert told[: -len(ends)] == ["data_received", "task"] * ((len(told) - len(ends)) // 2)
    assert told[-len(ends) :] == ends
    assert "task" in told


@Warmings
@on_loop
async def test_a_task_runs_before_the_end_over_tls(
    each_loop: Loop, warming: int, contexts: Contexts
) -> None:
    protocol = Tasked(each_loop)
    async with tls_connected(each_loop, contexts, protocol) as (_, peer):
        for count in range(1, warming + 1):
            peer.write(b"hello")
            await protocol.received(5 * count)
        peer.write(b"last")
        peer.abort()
        await protocol.lost
        assert protocol.calls[-1] == "connection_lost"
        assert "task" in protocol.calls
        assert protocol.calls.index("task") < protocol.calls.index("connection_lost")


@pytest.mark.parametrize("compiled", [False, True])
@Pairs
@Warmings
@on_loop
async def test_a_reader_returns_the_last_bytes_before_its_end(
    loop: uringloop.Loop, pair: Pair, warming: int, compiled: bool
) -> None:
    opening = streams.open_connection if compiled else asyncio.open_connection
    ours, peer = pair()
    reader, writer = await opening(sock=ours)
    for _ in range(warming):
        peer.send(b"hello")
        assert await reader.readexactly(5) == b"hello"
    events: list[object] = []

    async def read() -> None:
        events.append(await reader.read(100))
        events.append(reader.at_eof())

    task = loop.create_task(read())
    await turns(2)
    peer.send(b"last")
    peer.close()
    await task
    # The task that the bytes have woken does not find the end yet.
    assert events == [b"last", False]
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


# ── what is there when a transport is connected ──────────────────────────────────────────────


async def read_pipe(loop: Loop, protocol: Collector) -> object:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", 0))
    return os.fdopen(writing, "wb", 0)


async def socket_as_pipe(loop: Loop, protocol: Collector) -> object:
    ours, peer = socket.socketpair()
    peer.send(b"x")
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(ours.detach(), "rb", 0))
    return peer


async def unix_stream(loop: Loop, protocol: Collector) -> object:
    ours, peer = unix_pair()
    peer.send(b"x")
    await loop.create_connection(lambda: protocol, sock=ours)
    return peer


async def tcp_stream(loop: Loop, protocol: Collector) -> object:
    ours, peer = tcp_pair()
    peer.send(b"x")
    await loop.create_connection(lambda: protocol, sock=ours)
    return peer


async def accepted_stream(loop: Loop, protocol: Collector) -> object:
    ours, peer = tcp_pair()
    peer.send(b"x")
    await loop.connect_accepted_socket(lambda: protocol, ours)
    return peer


class ReadOnly(Collector):
    """A Collector for the transports of pipes, too."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.calls.append("connection_made")
        self.loop.call_soon(self.calls.append, "soon after connection_made")
        self.loop.call_later(0, self.calls.append, "timer of connection_made")


@pytest.mark.parametrize(
    "connect", [read_pipe, socket_as_pipe, unix_stream, tcp_stream, accepted_stream]
)
@on_loop
async def test_data_that_is_there_comes_after_the_connecting_task(
    each_loop: Loop, connect: Callable[[Loop, Collector], AsyncIterator[object]]
) -> None:
    protocol = ReadOnly(each_loop)
    peer = await connect(each_loop, protocol)  # type: ignore[misc]
    protocol.calls.append("connected")
    each_loop.call_soon(protocol.calls.append, "callback")
    await until(lambda: "callback" in protocol.calls and len(protocol.data) == 1)
    assert [call for call in protocol.calls if not call.startswith("timer")] == [
        "connection_made",
        "soon after connection_made",
        "connected",
        "data_received",
        "callback",
    ]
    protocol.transport.close()
    await protocol.lost
    peer.close()


# ── a pause whose cancel is not submitted ────────────────────────────────────────────────────

PAUSED = """
    import asyncio, contextlib, os, socket, uringloop

    class Protocol(asyncio.Protocol):
        count = 0

        def data_received(self, data):
            self.count += 1
            if self.count == 11:
                transport.pause_reading()
                then()

    async def connect():
        global transport
        ours, peer = socket.socketpair()
        transport, protocol = await loop.create_connection(Protocol, sock=ours)
        for count in range(1, 11):
            peer.send(b"x")
            while protocol.count < count:
                await asyncio.sleep(0)
        return peer

    def resume():
        with contextlib.suppress(RuntimeError):
            transport.resume_reading()

    loop = uringloop.Loop(backend=BACKEND)
    peer = loop.run_until_complete(connect())
    peer.send(b"x")
"""
ON_A_CLOSED_LOOP = """
    then = loop.stop
    loop.run_forever()
    loop.close()
    resume()
    print("went on")
"""
IN_A_CHILD = """
    def then():
        child = os.fork()
        resume()
        if not child:
            os._exit(7)
        loop.stop()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    loop.run_forever()
"""


@each_ring
@pytest.mark.parametrize(
    ("then", "printed"),
    [(ON_A_CLOSED_LOOP, "went on\n"), (IN_A_CHILD, "7\n")],
    ids=["closed", "child"],
)
def test_reading_is_resumed_where_the_ring_is_gone(then: str, printed: str, backend: str) -> None:
    ended = run_script(f"    BACKEND = {backend!r}{PAUSED}{then}")
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr
