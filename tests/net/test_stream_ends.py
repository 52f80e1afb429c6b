"""asyncio's streams: an error that a program has caught is not reported when they are collected."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from asyncio import streams
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.roles import on_loop, reset, turns, until
from support.tls_contexts import Contexts

import uringloop

LOCALHOST = "127.0.0.1"


@pytest.fixture
def young_futures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the garbage collector between the creation of a stream's protocol and of its future.

    A full collection then examines the future before the protocol, whose finalizer would have
    retrieved the future's exception.
    """
    create = streams.FlowControlMixin.__init__

    def collect_and_create(
        protocol: streams.FlowControlMixin, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        create(protocol, loop=loop)
        gc.collect(0)

    gc.collect()
    gc.disable()
    monkeypatch.setattr(streams.FlowControlMixin, "__init__", collect_and_create)
    yield
    gc.enable()


class Handler:
    """Echo a byte twice, catch the error of the next read and close, as most services do."""

    def __init__(self) -> None:
        self.raised = 0
        self.ended = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(2 * await reader.readexactly(1))
            await reader.read(1)
        except ConnectionError:
            self.raised += 1
        writer.close()
        self.ended = True

    async def end(self, server: asyncio.Server) -> None:
        await until(lambda: self.ended)
        server.close()
        await server.wait_closed()
        await turns(3)
        assert self.raised == 1


@contextlib.asynccontextmanager
async def collected() -> AsyncIterator[None]:
    """Collect garbage after the block; `on_loop` fails the test if something is reported."""
    yield
    await turns(3)
    gc.collect()
    await turns()


async def echoed(loop: uringloop.Loop, sock: socket.socket) -> None:
    sock.setblocking(False)
    await loop.sock_sendall(sock, b"x")
    assert await loop.sock_recv(sock, 1) == b"x"


@pytest.mark.usefixtures("young_futures")
@on_loop
async def test_a_reset_that_a_handler_caught_is_not_reported_again(loop: uringloop.Loop) -> None:
    async with collected():
        handler = Handler()
        server = await asyncio.start_server(handler, LOCALHOST, 0)
        sock = socket.create_connection(server.sockets[0].getsockname())
        await echoed(loop, sock)
        reset(sock)
        await handler.end(server)


@pytest.mark.usefixtures("young_futures")
@on_loop
async def test_a_reset_unix_stream_is_not_reported_again(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    async with collected():
        handler = Handler()
        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(handler, path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            await echoed(loop, sock)
            # The socket is closed with a byte unread, which is a reset.
        await handler.end(server)


@pytest.mark.usefixtures("young_futures")
@pytest.mark.parametrize("upgraded", [False, True], ids=["ssl", "start_tls"])
@on_loop
async def test_a_reset_under_tls_is_not_reported_again(
    loop: uringloop.Loop, contexts: Contexts, upgraded: bool
) -> None:
    async with collected():
        serve = Handler()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if upgraded:
                await writer.start_tls(contexts.server)
            await serve(reader, writer)

        server = await asyncio.start_server(
            handle, LOCALHOST, 0, ssl=None if upgraded else contexts.server
        )
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(
            *address,
            ssl=None if upgraded else contexts.client,
            server_hostname=None if upgraded else "localhost",
        )
        if upgraded:
            await writer.start_tls(contexts.client, server_hostname="localhost")
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        near = writer.get_extra_info("socket")
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
        await serve.end(server)


@pytest.mark.usefixtures("young_futures")
@on_loop
async def test_a_broken_pipe_that_drain_raised_is_not_reported_again(loop: uringloop.Loop) -> None:
    async def write() -> None:
        read_fd, write_fd = os.pipe()
        reader = asyncio.StreamReader()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(write_fd, "wb", 0)
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        writer.write(bytes(1_000_000))
        os.close(read_fd)
        await until(lambda: reader.exception() is not None)
        try:
            await writer.drain()
        except BrokenPipeError:
            return
        raise AssertionError("drain() did not raise BrokenPipeError")

    async with collected():
        await write()


@pytest.mark.usefixtures("young_futures")
@on_loop
async def test_wait_closed_still_raises_the_error(loop: uringloop.Loop) -> None:
    async with collected():
        server = await asyncio.start_server(lambda _reader, _writer: None, LOCALHOST, 0)
        with socket.create_server((LOCALHOST, 0)) as listener:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            peer, _ = listener.accept()
            reset(peer)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()
        server.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@on_loop
async def test_the_collection_of_a_stream_that_a_handler_abandoned_reports_no_error(
    loop: uringloop.Loop,
) -> None:
    """The finalizer of its StreamWriter closes a transport whose own finalizer may have run."""
    abandoned = []

    async def abandon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        abandoned.append(await reader.read())

    async with await asyncio.start_server(abandon, LOCALHOST, 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
        await until(lambda: abandoned == [b""])
        async with collected():
            pass


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@on_loop
async def test_a_finalizer_that_closes_a_collected_transport_causes_connection_lost(
    loop: uringloop.Loop,
) -> None:
    class Closer:
        def __init__(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def __del__(self) -> None:
            self.transport.close()

    class Abandoned(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.closer = Closer(transport)

        def eof_received(self) -> bool:
            events.append("eof_received")
            return True

        def connection_lost(self, exc: BaseException | None) -> None:
            events.append(exc)

    events: list[object] = []
    server = await loop.create_server(Abandoned, LOCALHOST, 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
        await until(lambda: events == ["eof_received"])
        async with collected():
            pass
        await turns(3)
    assert events == ["eof_received", None]
