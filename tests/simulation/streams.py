"""Streams in a random program: both ends of a connection read and write, and reads are cancelled.

Every read method, compiled streams and asyncio's, with limits down to one byte. What arrives must
be what was sent, in order, whatever is cancelled; if the kernel harms connections, its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from asyncio import exceptions
from collections.abc import Awaitable, Callable
from typing import Any

from support.tls_contexts import client_context, server_context

from uringloop import streams

# Sizes of what one end sends, and of the pieces in which it writes them.
SIZES = (0, 1, 100, 5000, 70_000, 300_000)
PIECES = (1, 7, 1000, 20_000, 100_000)
# Limits of the readers; asyncio's default is the last.
LIMITS = (1, 2, 3, 100, 65_536)
SECURE: dict[str, Any] = {"ssl_handshake_timeout": 1e6, "ssl_shutdown_timeout": 1e6}
SERVER = server_context()
CLIENT = client_context()

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Read = Callable[[asyncio.StreamReader, random.Random, int], Awaitable[bytes]]


async def read_some(reader: asyncio.StreamReader, rng: random.Random, left: int) -> bytes:
    return await reader.read(rng.choice((1, 3, 1000, 100_000)))


async def read_exactly(reader: asyncio.StreamReader, rng: random.Random, left: int) -> bytes:
    return await reader.readexactly(min(left, rng.choice((1, 3, 1000, 50_000, 200_000))))


async def read_too_much(reader: asyncio.StreamReader, rng: random.Random, left: int) -> bytes:
    try:
        return await reader.readexactly(left + rng.choice((1, 1000)))
    except exceptions.IncompleteReadError as exc:
        return exc.partial


async def read_until(reader: asyncio.StreamReader, rng: random.Random, left: int) -> bytes:
    """Read up to a separator; what is too long is read by its length."""
    try:
        return await reader.readuntil(rng.choice((b"\n", b"ab", b"abc")))
    except exceptions.IncompleteReadError as exc:
        return exc.partial
    except exceptions.LimitOverrunError as exc:
        return await reader.readexactly(max(1, exc.consumed))


# TLS has no half-closed connections: a read that needs the end would wait for ever.
READS: dict[str, tuple[Read, ...]] = {
    "plain": (read_some, read_exactly, read_until, read_too_much),
    "tls": (read_some, read_exactly),
}


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


class Conversation:
    """Two ends of one connection, each with what it has sent and what has arrived there."""

    def __init__(self, rng: random.Random, *, compiled: bool, layer: str, harmful: bool) -> None:
        self.rng = rng
        self.module: Any = streams if compiled else asyncio
        self.layer = layer
        self.harmful = harmful
        self.sent = [rng.randbytes(rng.choice(SIZES)) for _ in range(2)]
        self.arrived = [bytearray(), bytearray()]

    async def hold(self) -> None:
        """Connect, send in both directions, and receive until both ends are at their end."""
        ours, theirs = socket.socketpair() if self.layer == "plain" else tcp_pair()
        limit = self.rng.choice(LIMITS)
        secure: dict[str, Any] = {}
        if self.layer == "tls":
            secure = {"ssl": CLIENT, "server_hostname": "localhost", **SECURE}
        made = await asyncio.gather(
            self.module.open_connection(sock=ours, limit=limit, **secure),
            self.accept(theirs, limit),
            return_exceptions=True,
        )
        ends: list[End] = [end for end in made if isinstance(end, tuple)]
        failures = [exc for exc in made if isinstance(exc, BaseException)]
        tasks: list[asyncio.Task[None]] = []
        try:
            if failures:
                raise failures[0]
            for side, (reader, writer) in enumerate(ends):
                tasks.append(asyncio.ensure_future(self.send(side, writer)))
                tasks.append(asyncio.ensure_future(self.receive(side, reader)))
            await asyncio.gather(*tasks)
        finally:
            for _, writer in ends:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            # If one has failed, the others end with the connection.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, theirs: socket.socket, limit: int) -> End:
        """Make streams of the accepted end, a server's."""
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[End] = loop.create_future()
        secure: dict[str, Any] = {"ssl": SERVER, **SECURE} if self.layer == "tls" else {}

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set_result((reader, writer))

        reader = self.module.StreamReader(limit=limit, loop=loop)
        protocol = self.module.StreamReaderProtocol(reader, on_connection, loop=loop)
        await loop.connect_accepted_socket(lambda: protocol, theirs, **secure)
        return await connected

    async def send(self, which: int, writer: asyncio.StreamWriter) -> None:
        data = memoryview(self.sent[which])
        while data:
            size = self.rng.choice(PIECES)
            if self.rng.random() < 0.2:
                writer.writelines([data[:size][:1], bytes(data[:size][1:])])
            else:
                writer.write(self.rng.choice((bytes, bytearray))(data[:size]))
            data = data[size:]
            if self.rng.random() < 0.5:
                await writer.drain()
            else:
                await asyncio.sleep(0)
        if writer.can_write_eof():
            writer.write_eof()
        elif self.rng.random() < 0.5:
            await writer.drain()

    async def receive(self, which: int, reader: asyncio.StreamReader) -> None:
        """Receive all that the other end has sent; reads are cancelled after a few turns."""
        wanted, arrived = self.sent[1 - which], self.arrived[which]
        while len(arrived) < len(wanted):
            read = self.rng.choice(READS[self.layer])
            task = asyncio.ensure_future(read(reader, self.rng, len(wanted) - len(arrived)))
            if self.rng.random() < 0.3:
                for _ in range(self.rng.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            try:
                data = await task
            except asyncio.CancelledError:
                continue
            if not data:
                break
            arrived.extend(data)

    def difference(self) -> str | None:
        """Return what is wrong with what has arrived, or None."""
        for which in range(2):
            wanted, arrived = self.sent[1 - which], self.arrived[which]
            if arrived != wanted and not (self.harmful and wanted.startswith(arrived)):
                return f"streams: {len(arrived)} of {len(wanted)} bytes, or wrong bytes"
        return None
