"""The echo servers that are measured: the ways in which asyncio programs serve TCP.

Each server is written as a user would write it, and not tuned for one loop: `protocol` and
`buffered` use the callback APIs, `streams` the coroutine API, `compiled-streams` the same API from
uringloop.streams, and `sockets` the plain sock_* methods. A server runs in its loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

# Starts a server: returns as soon as it accepts connections; it serves as long as its loop runs.
Serve = Callable[[socket.socket], Awaitable[None]]

# More than any burst of connections that the load generator opens at once.
BACKLOG = 4096

# asyncio's default limit of a stream, and the largest receive of the other modes.
CHUNK = 64 * 1024


class EchoProtocol(asyncio.Protocol):
    """Writes received data back."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # not every loop's is a subclass

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class BufferedEchoProtocol(asyncio.BufferedProtocol):
    """Receives into one buffer and writes a copy of the data back."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # not every loop's is a subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        # A copy, because asyncio and uvloop may still send from the buffer when it is reused.
        self.transport.write(bytes(self.buffer[:nbytes]))


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo one connection with the streams API."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        # The load generator closes its connections when it has measured enough.
        return
    finally:
        writer.close()


async def echo_socket(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Echo one connection with sock_recv and sock_sendall."""
    with connection:
        if connection.family != socket.AF_UNIX:
            # The transports of every loop set this themselves.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := await loop.sock_recv(connection, CHUNK):
                await loop.sock_sendall(connection, data)
        except ConnectionError:
            return


async def accept_sockets(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
    """Accept for ever, one task per connection."""
    tasks: set[asyncio.Task[None]] = set()
    while True:
        connection, _ = await loop.sock_accept(listener)
        connection.setblocking(False)
        task = loop.create_task(echo_socket(loop, connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _serve_protocol(listener: socket.socket, protocol: type[asyncio.BaseProtocol]) -> None:
    loop = asyncio.get_running_loop()
    if listener.family == socket.AF_UNIX:
        await loop.create_unix_server(protocol, sock=listener, backlog=BACKLOG)
    else:
        await loop.create_server(protocol, sock=listener, backlog=BACKLOG)


async def serve_protocol(listener: socket.socket) -> None:
    """Serve with asyncio.Protocol."""
    await _serve_protocol(listener, EchoProtocol)


async def serve_buffered(listener: socket.socket) -> None:
    """Serve with asyncio.BufferedProtocol."""
    await _serve_protocol(listener, BufferedEchoProtocol)


async def serve_streams(listener: socket.socket) -> None:
    """Serve with asyncio.start_server."""
    if listener.family == socket.AF_UNIX:
        await asyncio.start_unix_server(echo_stream, sock=listener, backlog=BACKLOG)
    else:
        await asyncio.start_server(echo_stream, sock=listener, backlog=BACKLOG)


async def serve_compiled_streams(listener: socket.socket) -> None:
    """Serve with uringloop.streams, which are asyncio's streams on other loops."""
    # Imported here: other loops are measured in processes without uringloop.
    from uringloop import streams

    if listener.family == socket.AF_UNIX:
        await streams.start_unix_server(echo_stream, sock=listener, backlog=BACKLOG)
    else:
        await streams.start_server(echo_stream, sock=listener, backlog=BACKLOG)


async def serve_sockets(listener: socket.socket) -> None:
    """Serve with loop.sock_accept, sock_recv and sock_sendall."""
    loop = asyncio.get_running_loop()
    listener.listen(BACKLOG)
    task = loop.create_task(accept_sockets(loop, listener))
    # An accept that fails is reported like any other task's exception; the server goes on.
    await asyncio.sleep(0)
    if task.done():
        task.result()


# The modes of the benchmark.
SERVERS: dict[str, Serve] = {
    "protocol": serve_protocol,
    "buffered": serve_buffered,
    "streams": serve_streams,
    "compiled-streams": serve_compiled_streams,
    "sockets": serve_sockets,
}
