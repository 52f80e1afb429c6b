"""Pairs of connected sockets, calls on them, and the ends of pipes."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking TCP sockets on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def unix_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking UNIX stream sockets."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel *task* and wait for it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def pipe_with(data: bytes) -> int:
    """Return the end of a pipe from which *data* can be read."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def content(fd: int, size: int = 100) -> bytes:
    """Return what can be read from the end of a pipe, and close it."""
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)
