"""Workloads with both ends in one loop: server and clients of an echo, readers of a cached file.

They need no other process as a load, so the rate of operations depends on the loops alone. Each
workload prepares its connections or its file, and yields the program that makes a number of
operations. It runs in its loop's thread, and shares nothing with the loop of another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from uringloop.bench import echo
from uringloop.bench.settings import HOST

from .programs import Program

# Connections of an echo: enough that each turn handles several, as in a server.
CONNECTIONS = 16

# Bytes of a message. Each pair makes its own, as messages are: threads that send the same object
# count its references together.
MESSAGE_BYTES = 128

# Bytes that a read takes from the file.
BLOCK = 4096

# Reads of a cached file by uringloop do not suspend: after so many the loop may do something else.
READS_BEFORE_A_TURN = 100

Read = Callable[[int, int], Awaitable[bytes]]


# ── echoes ───────────────────────────────────────────────────────────────────────────────────


class EchoClient(asyncio.Protocol):
    """Sends a message, and the next one when the answer is complete, a given number of times."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.message = bytes(range(MESSAGE_BYTES))
        self.left = 0
        self.received = 0
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # as in echo

    def begin(self, count: int, done: asyncio.Future[None]) -> None:
        """Send the first of *count* messages; *done* gets its result after the last answer."""
        self.left, self.done = count, done
        self.transport.write(self.message)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received < MESSAGE_BYTES:
            return
        self.received = 0
        self.left -= 1
        if self.left:
            self.transport.write(self.message)
        elif self.done is not None:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.left and self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the server closed"))


@contextlib.asynccontextmanager
async def protocol_echo(file: Path) -> AsyncIterator[Program]:
    """Echo over TCP, asyncio.Protocol at both ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(echo.EchoProtocol, HOST, 0)
    address = server.sockets[0].getsockname()
    made = [await loop.create_connection(EchoClient, *address) for _ in range(CONNECTIONS)]

    async def requests(count: int) -> None:
        waiting = [loop.create_future() for _ in made]
        for (_, client), done in zip(made, waiting, strict=True):
            client.begin(count // CONNECTIONS, done)
        await asyncio.gather(*waiting)

    try:
        yield Program(requests, 50 * CONNECTIONS * CONNECTIONS, CONNECTIONS)
    finally:
        for transport, _ in made:
            transport.close()
        server.close()


@contextlib.asynccontextmanager
async def streams_echo(file: Path) -> AsyncIterator[Program]:
    """Echo over TCP, asyncio's streams at both ends."""
    server = await asyncio.start_server(echo.echo_stream, HOST, 0)
    address = server.sockets[0].getsockname()
    made = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS)]

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        message = bytes(range(MESSAGE_BYTES))
        for _ in range(count):
            writer.write(message)
            await writer.drain()
            if await reader.readexactly(MESSAGE_BYTES) != message:
                raise RuntimeError("the echo changed")

    async def requests(count: int) -> None:
        await asyncio.gather(*(ask(*streams, count // CONNECTIONS) for streams in made))

    try:
        yield Program(requests, 25 * CONNECTIONS * CONNECTIONS, CONNECTIONS)
    finally:
        for _, writer in made:
            writer.close()
        server.close()


# ── files ────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def own_reader(path: Path) -> AsyncIterator[Read]:
    """Read blocks with the files of uringloop."""
    import uringloop

    async with uringloop.open(path, "rb", buffering=0) as file:
        yield file.pread


@contextlib.asynccontextmanager
async def executor_reader(path: Path) -> AsyncIterator[Read]:
    """Read blocks in the threads of the loop's executor, as on a loop without files."""
    loop = asyncio.get_running_loop()
    fd = os.open(path, os.O_RDONLY)

    async def read(size: int, offset: int) -> bytes:
        return await loop.run_in_executor(None, os.pread, fd, size, offset)

    try:
        yield read
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def cached_file(file: Path) -> AsyncIterator[Program]:
    """Blocks at random places of a file in the page cache, read in the loop's usual way."""
    module = type(asyncio.get_running_loop()).__module__
    reader = own_reader if module.partition(".")[0] == "uringloop" else executor_reader
    # The same places for every loop.
    chance = random.Random(1)
    blocks = os.stat(file).st_size // BLOCK
    offsets = [chance.randrange(blocks) * BLOCK for _ in range(READS_BEFORE_A_TURN)]
    # An object of its own, for the same reason as the messages.
    size = int(str(BLOCK))
    async with reader(file) as read:

        async def reads(count: int) -> None:
            for _ in range(count // READS_BEFORE_A_TURN):
                for offset in offsets:
                    if len(await read(size, offset)) != size:
                        raise RuntimeError("a short read")
                await asyncio.sleep(0)

        yield Program(reads, 10_000, READS_BEFORE_A_TURN)


# By name, each with the file that is read; the echoes ignore it.
PAIRS: dict[str, Callable[[Path], AbstractAsyncContextManager[Program]]] = {
    "pair-protocol": protocol_echo,
    "pair-streams": streams_echo,
    "read-4k": cached_file,
}
