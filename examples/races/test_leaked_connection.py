"""A pool that leaks a connection.

pytest examples/races -p uringloop.pytest_plugin --uringloop-seeds=100
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytestmark = pytest.mark.asyncio


class Connection:
    async def reset(self) -> None:
        await asyncio.sleep(0.1)


class Pool:
    """Lends connections, each of them reset before it is used."""

    def __init__(self, size: int) -> None:
        self.free: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(size):
            self.free.put_nowait(Connection())

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        connection = await self.free.get()
        await connection.reset()
        try:
            yield connection
        finally:
            self.free.put_nowait(connection)


class MendedPool(Pool):
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        connection = await self.free.get()
        try:
            # A cancel may come here, too.
            await connection.reset()
            yield connection
        finally:
            self.free.put_nowait(connection)


async def borrow(pool: Pool) -> None:
    """Use the only connection; a second task waits for it, and gives up after a second."""

    async def use(seconds: float) -> None:
        async with pool.connection():
            await asyncio.sleep(seconds)

    async def impatient() -> None:
        try:
            async with asyncio.timeout(1):
                await use(0.1)
        except TimeoutError:
            # It gives up.
            pass

    await asyncio.gather(use(0.9), impatient())
    async with asyncio.timeout(60):
        await use(0.1)


async def test_pool() -> None:
    await borrow(Pool(1))


async def test_mended_pool() -> None:
    await borrow(MendedPool(1))
