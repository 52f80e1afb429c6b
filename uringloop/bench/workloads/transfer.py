"""One way only: a server that takes all that comes, and one that sends as much as it is asked for.

The number of bytes is told in eight, big-endian: by the sink at the end of the file, to the source
at the beginning. Content repeats PATTERN, so that a load can check what it receives.
"""

from __future__ import annotations

import asyncio
import socket

from .echo import BACKLOG

# How a number of bytes is told.
NUMBER_BYTES = 8

# What a program that sends a file writes at once: between asyncio's high-water mark and 256 KiB.
CHUNK = 128 * 1024

# No divisor of any buffer's size, so that a lost or repeated buffer changes what follows.
PATTERN_BYTES = 251
PATTERN = bytes(range(PATTERN_BYTES))


class Sink(asyncio.Protocol):
    """Counts what it is given and answers with the number when there is no more."""

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


class Source(asyncio.Protocol):
    """Writes as many bytes as it is told to, and pauses when it is told to pause."""

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
