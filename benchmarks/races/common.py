"""Code that several of the programs need: a server, a wait with a time limit, Redis commands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]

# No program has anything to do for as long as this. The races happen at 0.02 s.
OVERDUE_S = 1.0


async def overdue(*tasks: asyncio.Task[Any]) -> list[asyncio.Task[Any]]:
    """Wait for *tasks*; return those that have not ended after a second, and cancel them."""
    _, pending = await asyncio.wait(tasks, timeout=OVERDUE_S)
    for task in pending:
        task.cancel()
    return list(pending)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """Give each connection to *handler*, until its client closes it; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            await handler(reader, writer)

    with contextlib.closing(await asyncio.start_server(serve, "127.0.0.1", 0)) as server:
        yield server.sockets[0].getsockname()[1]


async def read_command(reader: asyncio.StreamReader) -> list[bytes]:
    """Read one command of a Redis client; raise EOFError at the end."""
    count = (await reader.readuntil(b"\r\n")).strip(b"*\r\n")
    words = []
    for _ in range(int(count)):
        size = (await reader.readuntil(b"\r\n")).strip(b"$\r\n")
        words.append((await reader.readexactly(int(size) + 2))[:-2])
    return words
