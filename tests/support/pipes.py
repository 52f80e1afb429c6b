"""Helpers of the tests of pipes: a protocol for each end, and pipes of several kinds.

The other end of a pipe is a plain file object, so that a test controls which bytes go through the
pipe, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import tty
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import pytest

from support.protocols import Collector
from support.roles import Loop, until

Ends = tuple[IO[bytes], IO[bytes]]

# The capacity of a pipe, and much more than that.
CAPACITY = 64 * 1024
PLENTY = 4 * 1024 * 1024


class Reader(Collector):
    """Record all bytes of a pipe."""

    pipe: asyncio.ReadTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self.pipe = transport
        self.calls.append("connection_made")
        self.made.set_result(None)


class Writer(Collector):
    """Record the callbacks of a pipe's writing end."""

    pipe: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.pipe = transport
        self.calls.append("connection_made")
        self.made.set_result(None)


def opened(reader: int, writer: int) -> Ends:
    return os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)


def a_pipe() -> Ends:
    return opened(*os.pipe())


def a_fifo() -> Ends:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fifo")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return opened(reader, os.open(path, os.O_WRONLY))


def a_socket_pair() -> Ends:
    left, right = socket.socketpair()
    return opened(left.detach(), right.detach())


KINDS = pytest.mark.parametrize("make", [a_pipe, a_fifo, a_socket_pair])


def terminal() -> Ends:
    """Return both sides of a raw pseudo-terminal, the master first."""
    master, slave = os.openpty()
    tty.setraw(slave)
    return os.fdopen(master, "r+b", 0), os.fdopen(slave, "r+b", 0)


def device(path: Path | str) -> IO[bytes]:
    return open(path, "r+b", 0)


def is_closed(transport: asyncio.BaseTransport) -> bool:
    file = transport.get_extra_info("pipe")
    assert hasattr(file, "closed")
    return bool(file.closed)


@contextlib.asynccontextmanager
async def reading(loop: Loop, file: IO[bytes]) -> AsyncIterator[Reader]:
    transport, reader = await loop.connect_read_pipe(lambda: Reader(loop), file)
    try:
        yield reader
    finally:
        transport.close()
        await until(lambda: is_closed(transport))


@contextlib.asynccontextmanager
async def writing(loop: Loop, file: IO[bytes]) -> AsyncIterator[Writer]:
    transport, writer = await loop.connect_write_pipe(lambda: Writer(loop), file)
    try:
        yield writer
    finally:
        if not writer.lost.done():
            transport.abort()
        await until(lambda: is_closed(transport))


def peek(file: IO[bytes]) -> bytes | None:
    """Read without blocking: return None if there are no bytes, b"" at EOF."""
    os.set_blocking(file.fileno(), False)
    try:
        return os.read(file.fileno(), 1 << 20)
    except BlockingIOError:
        return None


async def drain(file: IO[bytes]) -> bytes:
    """Read to EOF while the loop runs."""
    data = bytearray()
    while (piece := peek(file)) != b"":
        data += piece or b""
        await asyncio.sleep(0)
    return bytes(data)
