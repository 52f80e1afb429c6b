"""Recent faults of asyncio and uvloop, each tested on uringloop.

The first comment of a test is the issue's number, with gh- for CPython's issues. The tests run on
uringloop only, because versions of asyncio before the fix have the fault.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import Mailbox, drained, endpoint, fill_receiver, unix_pair
from support.leaks import open_fds
from support.protocols import Collector
from support.roles import on_loop, record_handler_calls, turns, until
from support.sockets import tcp_pair
from support.tls_contexts import Contexts

import uringloop
from uringloop._net import clients

LOCALHOST = "127.0.0.1"
BIG = 8_000_000
RESUMED = ["connection_made", "pause_writing", "resume_writing", "connection_lost"]

Leave = Callable[[asyncio.Transport], None]


# ── closing ──────────────────────────────────────────────────────────────────────────────────


class Leaving(Collector):
    """Call *leave* with the transport in resume_writing()."""

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Leave) -> None:
        super().__init__(loop)
        self.leave = leave

    def resume_writing(self) -> None:
        super().resume_writing()
        self.leave(self.transport)


class LeavingPipe(Leaving):
    """The same for a pipe, whose transport is an asyncio.WriteTransport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.calls.append("connection_made")


def close(transport: asyncio.Transport) -> None:
    transport.close()


def abort(transport: asyncio.Transport) -> None:
    transport.abort()


def write_and_close(transport: asyncio.Transport) -> None:
    transport.write(b"last")
    transport.close()


def end_and_close(transport: asyncio.Transport) -> None:
    transport.write_eof()
    transport.close()


@pytest.mark.parametrize("leave", [close, abort, write_and_close, end_and_close])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
@on_loop
async def test_connection_lost_runs_once_if_resume_writing_ends_a_stream(
    loop: uringloop.Loop, kind: str, leave: Leave
) -> None:
    # gh-156512
    ours, peer = tcp_pair() if kind == "tcp" else socket.socketpair()
    peer.setblocking(False)
    protocol = Leaving(loop, leave)
    with peer:
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        transport.set_write_buffer_limits(high=0)
        transport.write(bytes(BIG))
        received = 0
        while piece := await loop.sock_recv(peer, 1 << 20):
            received += len(piece)
        assert received == BIG + (4 if leave is write_and_close else 0)
        assert await protocol.lost is None
        await turns(5)
    # A second connection_lost() would raise InvalidStateError from `lost`.
    assert protocol.calls == RESUMED


@on_loop
async def test_connection_lost_runs_once_if_resume_writing_closes_a_pipe(
    loop: uringloop.Loop,
) -> None:
    # gh-156512
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    protocol = LeavingPipe(loop, close)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(writing, "wb", 0))
    transport.set_write_buffer_limits(high=0)
    transport.write(bytes(1_000_000))
    while not protocol.lost.done():
        try:
            os.read(reading, 1 << 20)
        except BlockingIOError:
            await turns()
    await turns(5)
    os.close(reading)
    assert protocol.calls == RESUMED


class LeavingMailbox(Mailbox):
    """Close the endpoint in resume_writing()."""

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.close()


@on_loop
async def test_connection_lost_runs_once_if_resume_writing_ends_an_endpoint(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    # gh-156512
    ours, peer = unix_pair(tmp_path)
    with peer:
        async with endpoint(loop, LeavingMailbox(), sock=ours) as (transport, mailbox):
            fill_receiver(ours)
            transport.set_write_buffer_limits(high=0)
            transport.sendto(b"last")
            while not mailbox.lost:
                drained(peer)
                await turns()
            await turns(5)
            assert mailbox.calls == RESUMED


@pytest.mark.parametrize(
    "last", [b"", bytearray(), memoryview(b"")], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("first", [b"", b"some", bytes(BIG)], ids=["empty", "small", "big"])
@on_loop
async def test_writelines_with_an_empty_last_piece_sends_and_closes(
    loop: uringloop.Loop, first: bytes, last: bytes | bytearray | memoryview
) -> None:
    # gh-155888
    ours, peer = tcp_pair()
    collector = Collector(loop)
    with peer:
        transport, _ = await loop.create_connection(lambda: collector, sock=ours)
        transport.writelines([first, last])
        transport.write(b"end")
        transport.close()
        received = bytearray()
        while piece := await loop.sock_recv(peer, 1 << 20):
            received += piece
        assert received == first + b"end"
        assert await collector.lost is None


# ── descriptors: leaks and double closes ─────────────────────────────────────────────────────


def fail(*_args: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("step", "tls"),
    [("protocol", False), ("protocol", True), ("transport", False)],
    ids=["protocol", "protocol-tls", "transport"],
)
@on_loop
async def test_a_failure_after_connect_leaves_no_socket(
    loop: uringloop.Loop,
    monkeypatch: pytest.MonkeyPatch,
    contexts: Contexts,
    step: str,
    tls: bool,
) -> None:
    # gh-153133
    gc.disable()
    factory: Callable[[], Any] = asyncio.Protocol
    if step == "protocol":
        factory = fail
    else:
        monkeypatch.setattr(clients, "make_stream", fail)
    with socket.create_server((LOCALHOST, 0)) as listener:
        fds = open_fds()
        try:
            await loop.create_connection(
                factory,
                *listener.getsockname(),
                ssl=contexts.client if tls else None,
                server_hostname="localhost" if tls else None,
            )
        except ZeroDivisionError as exc:
            # Keep the traceback: its frames would keep an unclosed socket alive.
            kept = exc
        assert open_fds() == fds
        del kept
    gc.enable()


@on_loop
async def test_a_failing_factory_of_a_server_leaves_no_socket(loop: uringloop.Loop) -> None:
    # gh-155934
    record_handler_calls(loop)
    server = await loop.create_server(fail, LOCALHOST, 0)  # type: ignore[arg-type]
    with socket.create_connection(server.sockets[0].getsockname()) as peer:
        peer.setblocking(False)
        fds = open_fds()
        assert await loop.sock_recv(peer, 1) == b""
        assert open_fds() == fds
    server.close()
    await server.wait_closed()


class Counting(io.FileIO):
    """A file that records at each close whether its descriptor is still open."""

    def __init__(self, fd: int, mode: str, notes: list[bool]) -> None:
        super().__init__(fd, mode)
        self.notes = notes

    def close(self) -> None:
        if not self.closed:
            try:
                os.fstat(self.fileno())
                self.notes.append(True)
            except OSError:
                self.notes.append(False)
        super().close()


@pytest.mark.parametrize("end", ["both", "reader", "writer"])
@on_loop
async def test_the_descriptor_of_a_pipe_is_closed_once(loop: uringloop.Loop, end: str) -> None:
    # uvloop 763, 764: at a second close the number may belong to another file.
    notes: list[bool] = []
    reading, writing = os.pipe()
    left = await loop.connect_read_pipe(asyncio.Protocol, Counting(reading, "rb", notes))
    right = await loop.connect_write_pipe(asyncio.BaseProtocol, Counting(writing, "wb", notes))
    await turns(3)
    if end != "writer":
        left[0].close()
    if end != "reader":
        # The reader gets EOF, and closes itself.
        right[0].close()
    del left, right
    gc.collect()
    await until(lambda: len(notes) == 2)
    # os.pipe() reuses the free numbers; a second close would close these descriptors.
    taken = os.pipe()
    await turns(5)
    gc.collect()
    for fd in taken:
        os.fstat(fd)
        os.close(fd)
    assert notes == [True, True]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
@on_loop
async def test_the_socket_of_a_cancelled_connection_is_closed_once(
    loop: uringloop.Loop, family: socket.AddressFamily
) -> None:
    # uvloop 740, 766
    ours, peer = tcp_pair() if family == socket.AF_INET else socket.socketpair()
    connect = loop.create_connection if family == socket.AF_INET else loop.create_unix_connection
    with peer:
        task = loop.create_task(connect(asyncio.Protocol, sock=ours))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: ours.fileno() == -1)
        taken = os.pipe()
        ours.close()
        await turns(5)
        for fd in taken:
            os.fstat(fd)
            os.close(fd)


# ── lost connections and lost bytes ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("turns_before_cancel", range(5))
@on_loop
async def test_a_cancelled_sock_accept_drops_no_connection(
    loop: uringloop.Loop, turns_before_cancel: int
) -> None:
    # gh-153761
    with socket.create_server((LOCALHOST, 0)) as listener:
        listener.setblocking(False)
        task = loop.create_task(loop.sock_accept(listener))
        await turns(2)
        with socket.create_connection(listener.getsockname()) as peer:
            await turns(turns_before_cancel)
            task.cancel()
            try:
                conn, address = await task
            except asyncio.CancelledError:
                conn, address = await loop.sock_accept(listener)
            conn.close()
            assert address == peer.getsockname()


class Into(asyncio.BufferedProtocol):
    """Return the same bytearray from every get_buffer()."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.data = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]


@on_loop
async def test_tls_records_that_arrive_together_do_not_overwrite_each_other(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # gh-156275: records that arrived together overwrote each other in the protocol's bytearray.
    into = Into()
    server = await loop.create_server(lambda: into, LOCALHOST, 0, ssl=contexts.server)
    collector = Collector(loop)
    transport, _ = await loop.create_connection(
        lambda: collector,
        *server.sockets[0].getsockname(),
        ssl=contexts.client,
        server_hostname="localhost",
    )
    expected = bytearray()
    for number in range(60):
        piece = bytes([number]) * 37
        expected += piece
        transport.write(piece)
        if number % 7 == 0:
            await turns()
    await until(lambda: len(into.data) >= len(expected))
    assert into.data == expected
    transport.close()
    await collector.lost
    server.close()
    await server.wait_closed()
