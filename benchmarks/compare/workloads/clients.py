"""Clients of other servers, which send small requests or make connections one after the other.

Each client uses the given address, and yields the program that makes a number of requests. The
packages are imported where they are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from .programs import Program

# The benchmark's user on its own PostgreSQL server, which trusts every local connection.
POSTGRESQL_USER = "bench"

# The request to redis.
_KEY = "key"
_VALUE = b"v" * 100

# The requests of one measurement, and the connections over TLS.
COUNT = 10_000
HANDSHAKES = 1000
UNABLE = "clients of other loops and transports resume no sessions"


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


class _Once(asyncio.Protocol):
    """Has one byte echoed, and closes."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # as in echo
        self.transport.write(b"x")

    def data_received(self, data: bytes) -> None:
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(exc)


def _is_ours(each: object) -> bool:
    return type(each).__module__.partition(".")[0] == "uringloop"


async def _handshakes(host: str, port: int, context: ssl.SSLContext, *, resuming: bool) -> Program:
    loop = asyncio.get_running_loop()

    async def connect() -> asyncio.Transport:
        transport, once = await loop.create_connection(
            _Once, host, port, ssl=context, server_hostname="localhost"
        )
        await once.done
        return transport

    async def connections(count: int) -> None:
        for _ in range(count):
            transport = await connect()
            if transport.get_extra_info("ssl_object").session_reused != resuming:
                raise RuntimeError("the handshake is not of the kind that is measured")

    # Where sessions are resumed, the first connection has none.
    transport = await connect()
    if resuming and not _is_ours(transport):
        raise NotImplementedError(UNABLE)
    return Program(connections, HANDSHAKES)


def _trusting(host: str, port: int) -> ssl.SSLContext:
    """Return a context that checks the certificate of the server."""
    return ssl.create_default_context(cadata=ssl.get_server_certificate((host, port)))


@contextlib.asynccontextmanager
async def full_handshakes(host: str, port: int) -> AsyncIterator[Program]:
    """Connections over TLS without sessions."""
    yield await _handshakes(host, port, _trusting(host, port), resuming=False)


@contextlib.asynccontextmanager
async def resumed_handshakes(host: str, port: int) -> AsyncIterator[Program]:
    """Connections over TLS, each with the session of the one before."""
    loop = asyncio.get_running_loop()
    if not _is_ours(loop):
        raise NotImplementedError(UNABLE)
    from uringloop import tls

    context = _trusting(host, port)
    tls.reuse_sessions(context)
    yield await _handshakes(host, port, context, resuming=True)


CLIENTS: dict[str, Callable[[str, int], AbstractAsyncContextManager[Program]]] = {
    "redis-get": redis_get,
    "asyncpg-select": asyncpg_select,
    "tls-connecting-full": full_handshakes,
    "tls-connecting-resumed": resumed_handshakes,
}
