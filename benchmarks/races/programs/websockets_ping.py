"""websockets: the pong of a cancelled ping breaks the connection.

websockets #1566: 14.1 has the bug, 14.2 does not. The pong comes after the timeout of its ping,
and data_received() raises InvalidStateError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import WebSocketException


async def read(connection: ServerConnection) -> None:
    async for _ in connection:
        pass


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[ClientConnection]:
    errors = []

    def note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(note_error)
    with contextlib.suppress(WebSocketException, OSError):
        async with serve(read, "127.0.0.1", 0, ping_interval=None) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}", ping_interval=None) as connection:
                yield connection
    broken = any(isinstance(error, asyncio.InvalidStateError) for error in errors)
    assert not broken, "data_received() raised InvalidStateError"


async def main() -> None:
    async with connected() as connection:
        for _ in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await (await connection.ping())
            await asyncio.sleep(0.05)
        # The last pongs may be late.
        await asyncio.sleep(2)


async def forced() -> None:
    async with connected() as connection:
        pong = await connection.ping()
        pong.cancel()
        await asyncio.sleep(0.1)
