"""A pool of psycopg_pool with one connection, to no server."""

from __future__ import annotations

import asyncio
from typing import Self

from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool


class PGconn:
    transaction_status = TransactionStatus.IDLE


class Connection:
    """The part of psycopg's AsyncConnection that a pool uses."""

    _pool = None
    closed = False
    autocommit = True

    def __init__(self) -> None:
        self.pgconn = PGconn()

    @classmethod
    async def connect(cls, conninfo: str = "", **options: object) -> Self:
        await asyncio.sleep(0)
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.sleep(0)

    async def execute(self, *query: object) -> None:
        await asyncio.sleep(0)

    async def rollback(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True
        self.pgconn.transaction_status = TransactionStatus.UNKNOWN


async def open_pool() -> AsyncConnectionPool:
    pool = AsyncConnectionPool(
        connection_class=Connection, min_size=1, max_size=1, open=False, num_workers=1
    )
    await pool.open()
    await pool.wait(10)
    return pool


async def use(pool: AsyncConnectionPool, seconds: float) -> None:
    async with pool.connection():
        await asyncio.sleep(seconds)
