"""Data that the peer sent before a reset is delivered before the reset is reported.

In most tests the peer answers and closes while its socket has unread bytes, so that its kernel
sends a RST. A server that refuses an upload ("413") does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from support.protocols import Collector
from support.roles import narrow_pair, on_loop, reset, stream, turns, until
from support.sockets import tcp_pair
from support.tls_contexts import Contexts

import uringloop

ANSWER = b"HTTP/1.1 413 Content Too Large\r\n\r\n"
UPLOAD = bytes(10_000_000)
# Large receives switch a connection to polling.
LARGE = bytes(1_000_000)

Loop = asyncio.AbstractEventLoop
Kinds = pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])


class Refusing(threading.Thread):
    """A server that sends *first*, waits, answers, and closes with most of the upload unread."""

    def __init__(self, sock: socket.socket, contexts: Contexts | None, first: bytes) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.contexts = contexts
        self.first = first
        self.may_answer = threading.Event()

    def run(self) -> None:
        self.sock.setblocking(True)
        if self.sock.family == socket.AF_INET:
            # By default the answer may wait for the acknowledgement of the handshake's last bytes.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn = self.sock
        if self.contexts is not None:
            conn = self.contexts.server.wrap_socket(conn, server_side=True)
        with conn:
            conn.sendall(self.first)
            conn.recv(1)
            self.may_answer.wait()
            conn.sendall(ANSWER)


def block_until_closed(server: Refusing) -> None:
    """Block the loop until the answer and the reset have arrived, so that it sees both at once."""
    server.join()
    time.sleep(0.005)


async def no_more_room(sock: socket.socket) -> None:
    """Wait until *sock* has had no room for 20 ms: nothing of the upload is on its way.

    A send that is due when the reset arrives may fail before the answer has been read, on asyncio.
    """
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    full = 0
    while full < 10:
        await asyncio.sleep(0.002)
        full = 0 if poll.poll(0) else full + 1


def is_reset(sock: socket.socket) -> bool:
    """Return whether a reset has arrived."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


@contextlib.asynccontextmanager
async def refused(
    kind: str, contexts: Contexts, first: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Refusing]]:
    """Connect asyncio's streams to a `Refusing` server, and start the upload."""
    ours, theirs = socket.socketpair() if kind == "unix" else tcp_pair()
    secure = kind == "tls"
    server = Refusing(theirs, contexts if secure else None, first)
    server.start()
    reader, writer = await asyncio.open_connection(
        sock=ours,
        ssl=contexts.client if secure else None,
        server_hostname="localhost" if secure else None,
    )
    try:
        await reader.readexactly(len(first))
        writer.write(UPLOAD)
        await no_more_room(ours)
        yield reader, writer, server
    finally:
        server.may_answer.set()
        writer.transport.abort()
        await asyncio.to_thread(server.join)
        await turns(3)


async def all_of(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """Return all bytes of *reader*, and "end" for EOF or "error" for a ConnectionError."""
    received = b""
    try:
        while data := await reader.read(100_000):
            received += data
    except ConnectionError:
        return received, "error"
    return received, "end"


@Kinds
@pytest.mark.parametrize("first", [b"", LARGE], ids=["small-before", "large-before"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@on_loop
async def test_the_answer_to_an_unread_upload_arrives_before_the_reset(
    each_loop: Loop, contexts: Contexts, kind: str, first: bytes, busy: bool
) -> None:
    async with refused(kind, contexts, first) as (reader, _, server):
        reading = asyncio.create_task(all_of(reader))
        await turns(2)
        server.may_answer.set()
        if busy:
            block_until_closed(server)
        received, ending = await reading
        assert received == ANSWER
        assert ending == "error"


@on_loop
async def test_a_reset_while_writes_are_buffered_is_not_eof(each_loop: Loop) -> None:
    ours, theirs = narrow_pair(20_000)
    reader, writer = await asyncio.open_connection(sock=ours)
    theirs.send(ANSWER)
    writer.write(UPLOAD)
    reading = asyncio.create_task(all_of(reader))
    draining = asyncio.create_task(writer.drain())
    # The socket gets room repeatedly: the kernel continues the send that is in flight.
    for _ in range(30):
        with contextlib.suppress(BlockingIOError):
            theirs.recv(1 << 20)
        await asyncio.sleep(0.0007)
    reset(theirs)
    assert await reading == (ANSWER, "error")
    with pytest.raises(ConnectionResetError):
        await draining
    writer.close()
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()


@on_loop
async def test_eof_before_a_reset_stays_eof(each_loop: Loop) -> None:
    ours, theirs = narrow_pair(20_000)
    reader, writer = await asyncio.open_connection(sock=ours)
    theirs.send(ANSWER)
    theirs.shutdown(socket.SHUT_WR)
    writer.write(UPLOAD)
    assert await all_of(reader) == (ANSWER, "end")
    reset(theirs)
    with pytest.raises(ConnectionError):
        await writer.drain()
    writer.close()
    with pytest.raises(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("size", [10, len(UPLOAD)])
@pytest.mark.parametrize("between", [0, 1, 20])
@on_loop
async def test_a_reset_while_reading_is_paused_fails_the_next_write(
    each_loop: Loop, between: int, size: int
) -> None:
    # The receive that is still armed consumes ECONNRESET; the send gets EPIPE only.
    async with stream(each_loop, Collector(each_loop)) as (transport, theirs):
        protocol = transport.get_protocol()
        assert isinstance(protocol, Collector)
        await turns(3)
        transport.pause_reading()
        await turns(between)
        reset(theirs)
        await turns(between)
        transport.write(UPLOAD[:size])
        await until(lambda: protocol.calls[-1] == "connection_lost")
    assert isinstance(protocol.lost.result(), ConnectionResetError)


@on_loop
async def test_a_reset_after_a_full_stream_reader_fails_drain_and_read(each_loop: Loop) -> None:
    ours, theirs = tcp_pair()
    # The StreamReader pauses the transport above twice its limit.
    reader, writer = await asyncio.open_connection(sock=ours, limit=100)
    theirs.send(bytes(1000))
    await until(lambda: not writer.transport.is_reading())  # type: ignore[attr-defined]
    reset(theirs)
    await until(lambda: is_reset(ours))
    with pytest.raises(ConnectionResetError):  # noqa: PT012 # Which drain() raises is timing.
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()


@on_loop
async def test_a_write_after_the_peers_shut_rd_closes_the_connection(each_loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    protocol = Collector(each_loop)
    with theirs:
        theirs.setblocking(False)
        transport, _ = await each_loop.create_connection(lambda: protocol, sock=ours)
        theirs.shutdown(socket.SHUT_RD)
        transport.write(b"data")
        await until(lambda: protocol.calls[-1] == "connection_lost")
    assert isinstance(protocol.lost.result(), BrokenPipeError)


Action = Callable[[asyncio.Transport], None]


def write_eof(transport: asyncio.Transport) -> None:
    transport.write_eof()


def write(transport: asyncio.Transport) -> None:
    transport.write(b"more")


def close(transport: asyncio.Transport) -> None:
    transport.close()


def abort(transport: asyncio.Transport) -> None:
    transport.abort()


def pause(transport: asyncio.Transport) -> None:
    transport.pause_reading()


class Answering(Collector):
    """Call *act* with the transport in data_received()."""

    def __init__(self, loop: Loop, act: Action) -> None:
        super().__init__(loop)
        self.act = act

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.act(self.transport)


@pytest.mark.parametrize("act", [write, write_eof, close, abort, pause], ids=lambda f: f.__name__)
@on_loop
async def test_data_after_a_failed_send_reaches_a_protocol_that_acts(
    each_loop: Loop, act: Action
) -> None:
    protocol = Answering(each_loop, act)
    async with stream(each_loop, protocol, buffer_size=20_000) as (transport, peer):
        transport.write(UPLOAD)
        await no_more_room(transport.get_extra_info("socket"))
        peer.send(ANSWER)
        peer.close()
        await until(lambda: protocol.calls[-1] == "connection_lost")
    assert bytes(protocol.data) == ANSWER
    assert protocol.calls.count("connection_lost") == 1
    await turns(3)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("close_first", [False, True])
@on_loop
async def test_close_between_two_failing_sends_ends_the_connection(
    each_loop: Loop, paused: bool, close_first: bool
) -> None:
    (ours, peer), (others, other_peer) = tcp_pair(), tcp_pair()
    transport, protocol = await each_loop.create_connection(lambda: Collector(each_loop), sock=ours)
    # With a second transport that writes, the small write is submitted at the end of the turn.
    other, _ = await each_loop.create_connection(lambda: Collector(each_loop), sock=others)
    if paused:
        transport.pause_reading()

    def write_after_reset() -> None:
        reset(peer)
        if close_first:
            each_loop.call_soon(transport.close)
        transport.write(bytes(10_000))
        transport.write(b"small")
        other.write(b"small")
        if not close_first:
            each_loop.call_soon(transport.close)

    each_loop.call_soon(write_after_reset)
    with other_peer:
        assert isinstance(await protocol.lost, ConnectionError)
        other.close()


class Interrupting(Collector):
    """Raise KeyboardInterrupt in the first data_received() after `armed` is set."""

    armed = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("first", [b"", LARGE], ids=["small-before", "large-before"])
def test_after_an_interrupt_a_connection_whose_send_failed_ends_in_the_next_run(
    each_loop: Loop, first: bytes
) -> None:
    protocol = Interrupting(each_loop)
    ours, peer = socket.socketpair()

    async def connect() -> asyncio.WriteTransport:
        transport, _ = await each_loop.connect_accepted_socket(lambda: protocol, ours)
        await each_loop.sock_sendall(peer, first)
        await until(lambda: len(protocol.data) == len(first))
        return transport

    async def lost() -> None:
        async with asyncio.timeout(10):
            await protocol.lost

    def fail() -> None:
        peer.send(ANSWER)
        # The peer stays open: no EOF and no error end the receive.
        peer.shutdown(socket.SHUT_RD)
        protocol.armed = True
        transport.write(bytes(10_000))

    with peer:
        peer.setblocking(False)
        transport = each_loop.run_until_complete(connect())
        each_loop.call_soon(fail)
        with contextlib.suppress(KeyboardInterrupt):
            each_loop.run_until_complete(lost())
        each_loop.run_until_complete(lost())
        assert isinstance(protocol.lost.result(), BrokenPipeError)


@on_loop
async def test_writes_after_a_failed_send_are_lost(
    loop: uringloop.Loop, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream(loop, Collector(loop)) as (transport, peer):
        protocol = transport.get_protocol()
        assert isinstance(protocol, Collector)
        await turns(3)
        peer.send(ANSWER)
        reset(peer)
        transport.write(bytes(10_000))
        assert transport.is_closing()
        for _ in range(10):
            transport.write(b"more")
        assert transport.get_write_buffer_size() == 0
        await until(lambda: protocol.calls[-1] == "connection_lost")
        assert bytes(protocol.data) == ANSWER
        assert "pause_writing" not in protocol.calls
    assert caplog.messages[0] == "socket.send() raised exception."


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_a_shutdown_of_the_program_itself_is_no_reset(each_loop: Loop, paused: bool) -> None:
    left = Collector(each_loop)
    async with stream(each_loop, left) as (transport, _):
        if paused:
            transport.pause_reading()
            await turns()
        transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        transport.write(b"refused")
        assert isinstance(await left.lost, BrokenPipeError)
