"""Clients of databases: one connection, one small request after the other.

Each connects to the given address and yields the program that makes a number of requests. The
packages are imported where they are used.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from .programs import Program

# The benchmark's user on its own PostgreSQL server, which trusts every local connection.
POSTGRESQL_USER = "bench"

# The request to redis.
_KEY = "key"
_VALUE = b"v" * 100

# The requests of one measurement.
COUNT = 10_000


@contextlib.asynccontextmanager
async def redis_get(host: str, port: int) -> AsyncIterator[Program]:
    """GET of 100 bytes with redis-py's asyncio client."""
    import redis.asyncio

    client = redis.asyncio.Redis(host=host, port=port)

    async def requests(count: int) -> None:
        for _ in range(count):
            if await client.get(_KEY) != _VALUE:
                raise RuntimeError("redis returned another value")

    try:
        await client.set(_KEY, _VALUE)
        yield Program(requests, COUNT)
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def asyncpg_select(host: str, port: int) -> AsyncIterator[Program]:
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
        yield Program(requests, COUNT)
    finally:
        await connection.close()


CLIENTS: dict[str, Callable[[str, int], AbstractAsyncContextManager[Program]]] = {
    "redis-get": redis_get,
    "asyncpg-select": asyncpg_select,
}
