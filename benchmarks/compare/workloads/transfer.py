"""One-way transfers: a server that receives everything, and one that sends what a client requests.

The number of bytes is an eight-byte big-endian integer: the sink sends it at EOF, the source
receives it first. The content repeats PATTERN, so that a load can check what it receives.
"""

from __future__ import annotations

import asyncio
import socket

from uringloop.bench.echo import BACKLOG

# Size of that integer.
NUMBER_BYTES = 8

# One write of a program that sends a file: between asyncio's high-water mark and 256 KiB.
CHUNK = 128 * 1024

# No divisor of any buffer's size, so that a lost or repeated buffer changes what follows.
PATTERN_BYTES = 251
PATTERN = bytes(range(PATTERN_BYTES))


class Sink(asyncio.Protocol):
    """Counts the received bytes and answers with the number at EOF."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # as in echo

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def eof_received(self) -> bool:
        self.transport.write(self.received.to_bytes(NUMBER_BYTES, "big"))
        self.transport.close()
        return True


class SecureSink(Sink):
    """Learns the number of bytes first, and agrees: in TLS, no answer follows the peer's end."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def data_received(self, data: bytes) -> None:
        if not self.total:
            self.total = int.from_bytes(data, "big")
            self.transport.write(data)
            return
        super().data_received(data)
        if self.received >= self.total:
            self.eof_received()


class Source(asyncio.Protocol):
    """Writes as many bytes as the client requests, and stops while writing is paused."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.asked = b""
        self.left = 0
        self.paused = False
        # As many whole patterns as a chunk holds: each chunk begins where the last one ended.
        self.chunk = PATTERN * (CHUNK // PATTERN_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # as in echo

    def data_received(self, data: bytes) -> None:
        self.asked += data
        if len(self.asked) == NUMBER_BYTES:
            self.left = int.from_bytes(self.asked, "big")
            self.write_on()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.write_on()

    def write_on(self) -> None:
        while self.left and not self.paused:
            chunk = self.chunk if self.left >= len(self.chunk) else self.chunk[: self.left]
            self.left -= len(chunk)
            self.transport.write(chunk)
        if not self.left:
            self.transport.close()


async def serve_sink(listener: socket.socket) -> None:
    """Serve connections that only send."""
    await asyncio.get_running_loop().create_server(Sink, sock=listener, backlog=BACKLOG)


async def serve_source(listener: socket.socket) -> None:
    """Serve connections that only receive."""
    await asyncio.get_running_loop().create_server(Source, sock=listener, backlog=BACKLOG)
