"""Clients of databases: one connection, one small request after the other.

Each connects to the given address and yields a function that makes a number of requests. The
packages are imported where they are used.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

# The benchmark's user on its own PostgreSQL server, which trusts every local connection.
POSTGRESQL_USER = "bench"

# The request to redis.
_KEY = "key"
_VALUE = b"v" * 100

Requests = Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class Client:
    """A client's context manager, and the number of requests of one measurement."""

    connected: Callable[[str, int], contextlib.AbstractAsyncContextManager[Requests]]
    count: int


@contextlib.asynccontextmanager
async def redis_get(host: str, port: int) -> AsyncIterator[Requests]:
    """GET of 100 bytes with redis-py's asyncio client."""
    import redis.asyncio

    client = redis.asyncio.Redis(host=host, port=port)

    async def requests(count: int) -> None:
        for _ in range(count):
            if await client.get(_KEY) != _VALUE:
                raise RuntimeError("redis returned another value")

    try:
        await client.set(_KEY, _VALUE)
        yield requests
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def asyncpg_select(host: str, port: int) -> AsyncIterator[Requests]:
    """SELECT of one number with asyncpg."""
    import asyncpg

    connection = await asyncpg.connect(
        host=host, port=port, user=POSTGRESQL_USER, database="postgres", ssl=False
    )

    async def requests(count: int) -> None:
        for number in range(count):
            if await connection.fetchval("SELECT $1::int", number) != number:
                raise RuntimeError("PostgreSQL returned another value")

    try:
        yield requests
    finally:
        await connection.close()


CLIENTS = {
    "redis-get": Client(redis_get, 10_000),
    "asyncpg-select": Client(asyncpg_select, 10_000),
}
