"""Connections and servers with compiled streams: asyncio's functions, for loops of this package.

On another loop asyncio's own functions run, with asyncio's classes.
"""

from __future__ import annotations

import asyncio
from asyncio import streams
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from uringloop._cpython.stdlib import PROTOCOL_KEEPS_WRITER, SERVERS_REPORT_CALLBACKS
from uringloop._turn.turn import LoopCore
from uringloop.streams.reader import StreamReader
from uringloop.streams.stream_protocol import ProtocolCore
from uringloop.streams.stream_writer import StreamWriter

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ClientConnected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]

# asyncio's default: 64 KiB.
LIMIT = 2**16

# asyncio's own, bound before `install()` may replace their names in the package and in the module.
STOCK = streams.StreamReaderProtocol
open_stock_connection = streams.open_connection
open_stock_unix_connection = streams.open_unix_connection
start_stock_server = streams.start_server
start_stock_unix_server = streams.start_unix_server


class StreamReaderProtocol(ProtocolCore, STOCK):
    """asyncio's StreamReaderProtocol, compiled where it runs for each message."""

    # Set by asyncio's methods.
    _loop: asyncio.AbstractEventLoop
    _client_connected_cb: ClientConnected | None
    _reject_connection: bool

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connected = self._client_connected_cb
        if connected is None or self._reject_connection:
            STOCK.connection_made(self, transport)
            return
        # Do what asyncio's method does, but with this package's class of the writer.
        self._transport = transport
        reader: StreamReader = self._stream_reader  # type: ignore[attr-defined]
        if reader is not None:
            reader.set_transport(transport)
        self._over_ssl = transport.get_extra_info("sslcontext") is not None
        writer = StreamWriter(transport, self, reader, self._loop)
        if PROTOCOL_KEEPS_WRITER:
            self._stream_writer = writer
        try:
            result = connected(reader, writer)
        except Exception as exc:
            if not SERVERS_REPORT_CALLBACKS:
                raise
            report(self._loop, transport, exc)
            self._strong_reader = None
            return
        if asyncio.iscoroutine(result):
            self._task = self._loop.create_task(result)
            self._task.add_done_callback(partial(handler_ended, self._loop, transport))
        self._strong_reader = None


def handler_ended(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, task: asyncio.Task[None]
) -> None:
    """Close the connection if its handler was cancelled, or has raised an exception."""
    if task.cancelled():
        transport.close()
        return
    exc = task.exception()
    if exc is not None:
        report(loop, transport, exc)


def report(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, exc: BaseException
) -> None:
    """Report an exception of a server's function or coroutine, and close its connection."""
    loop.call_exception_handler(
        {
            "message": "Unhandled exception in client_connected_cb",
            "exception": exc,
            "transport": transport,
        }
    )
    transport.close()


def new_protocol(
    loop: asyncio.AbstractEventLoop, limit: int, connected: ClientConnected | None = None
) -> tuple[StreamReader, StreamReaderProtocol]:
    reader = StreamReader(limit=limit, loop=loop)
    return reader, StreamReaderProtocol(reader, connected, loop=loop)


async def open_connection(
    host: str | None = None, port: int | str | None = None, *, limit: int = LIMIT, **kwds: Any
) -> Connection:
    """Connect over TCP, like asyncio.open_connection()."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, LoopCore):
        return await open_stock_connection(host, port, limit=limit, **kwds)
    reader, protocol = new_protocol(loop, limit)
    transport, _ = await loop.create_connection(
        lambda: protocol,
        host,  # type: ignore[arg-type]  # None with sock=
        port,  # type: ignore[arg-type]  # a name of a service, or None with sock=
        **kwds,
    )
    return reader, StreamWriter(transport, protocol, reader, loop)


async def open_unix_connection(
    path: str | None = None, *, limit: int = LIMIT, **kwds: Any
) -> Connection:
    """Connect to a UNIX socket, like asyncio.open_unix_connection()."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, LoopCore):
        return await open_stock_unix_connection(path, limit=limit, **kwds)
    reader, protocol = new_protocol(loop, limit)
    transport, _ = await loop.create_unix_connection(lambda: protocol, path, **kwds)
    return reader, StreamWriter(transport, protocol, reader, loop)


async def start_server(
    client_connected_cb: ClientConnected,
    host: str | None = None,
    port: int | str | None = None,
    *,
    limit: int = LIMIT,
    **kwds: Any,
) -> asyncio.Server:
    """Start a TCP server, like asyncio.start_server()."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, LoopCore):
        return await start_stock_server(client_connected_cb, host, port, limit=limit, **kwds)

    def factory() -> StreamReaderProtocol:
        return new_protocol(loop, limit, client_connected_cb)[1]

    return await loop.create_server(
        factory,
        host,
        port,  # type: ignore[arg-type]  # a name of a service, or None with sock=
        **kwds,
    )


async def start_unix_server(
    client_connected_cb: ClientConnected,
    path: str | None = None,
    *,
    limit: int = LIMIT,
    **kwds: Any,
) -> asyncio.Server:
    """Start a server on a UNIX socket, like asyncio.start_unix_server()."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, LoopCore):
        return await start_stock_unix_server(client_connected_cb, path, limit=limit, **kwds)

    def factory() -> StreamReaderProtocol:
        return new_protocol(loop, limit, client_connected_cb)[1]

    return await loop.create_unix_server(factory, path, **kwds)
