"""Servers of each kind for tests, and their clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from support.protocols import Echo
from support.roles import (
    close_server,
    nothing_left,
)
from support.tls_contexts import Contexts
from support.tls_peers import no_connections_left
from uringloop import Loop
from uringloop._net.servers import Server

LOCALHOST = "127.0.0.1"


class Desk:
    """A protocol factory: each protocol answers one question and closes its connection."""

    def __init__(self) -> None:
        self.present = self.most = self.total = 0

    def __call__(self) -> Visit:
        return Visit(self)


class Visit(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.desk.total += 1
        self.desk.present += 1
        self.desk.most = max(self.desk.most, self.desk.present)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"to " + data)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.desk.present -= 1


class Site:
    """A server of one kind, TCP, on a given socket, UNIX or TLS, and its clients."""

    def __init__(self, loop: Loop, kind: str, folder: Path, contexts: Contexts) -> None:
        self.loop, self.kind, self.folder, self.contexts = loop, kind, folder, contexts
        self.clients = contextlib.ExitStack()

    async def start(self, factory: Callable[[], Any], **options: Any) -> Server:
        options |= {"backlog": 1000}
        if self.kind == "unix":
            path = str(self.folder / "socket")
            return await self.loop.create_unix_server(factory, path, **options)
        if self.kind == "given":
            sock = socket.create_server((LOCALHOST, 0), backlog=1000)
            return await self.loop.create_server(factory, sock=sock, **options)
        options["ssl"] = self.contexts.server if self.kind == "tls" else None
        return await self.loop.create_server(factory, LOCALHOST, 0, **options)

    @contextlib.asynccontextmanager
    async def serving(self, factory: Callable[[], Any], **options: Any) -> AsyncIterator[Server]:
        """Serve; at the end close all, and check that no descriptor and no operation is left."""
        if self.kind == "given":
            # The loop keeps its epoll instance from the first socket on that was given.
            await close_server(await self.start(Echo))
        async with nothing_left(self.loop):
            self.server = await self.start(factory, **options)
            with self.clients:
                yield self.server
            self.server.abort_clients()
            await close_server(self.server)
            await no_connections_left(self.server)

    def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket; the kernel completes this without the loop."""
        client = self.clients.enter_context(socket.socket(self.server.sockets[0].family))
        client.settimeout(10)
        client.connect(self.server.sockets[0].getsockname())
        client.setblocking(False)
        return client

    def connect_many(self, count: int) -> list[socket.socket]:
        """Connect sockets, of which each sends its number."""
        clients = [self.connect() for _ in range(count)]
        for number, client in enumerate(clients):
            client.send(b"%d" % number)
        return clients

    async def open(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.kind == "tls":
            options |= {"ssl": self.contexts.client, "server_hostname": "localhost"}
        return await asyncio.open_connection(sock=self.connect(), **options)

    async def ask(self, question: bytes) -> bytes:
        reader, writer = await self.open()
        writer.write(question)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def ask_many(self, count: int) -> None:
        """Ask a desk *count* questions at once; each must be answered."""
        questions = [b"%d" % number for number in range(count)]
        answers = await asyncio.gather(*map(self.ask, questions))
        assert answers == [b"to " + question for question in questions]
