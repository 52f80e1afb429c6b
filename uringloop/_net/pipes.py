"""connect_read_pipe and connect_write_pipe."""

from __future__ import annotations

import asyncio
import os
import stat
from asyncio.log import logger
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from uringloop._net.pipe import make_read_pipe, make_write_pipe

if TYPE_CHECKING:
    from uringloop.loop import Loop

P = TypeVar("P", bound=asyncio.BaseProtocol)
# An object with fileno() and close(): a file, a socket, an object of a program's class.
Pipe = IO[bytes] | Any


async def connect_read_pipe(
    loop: Loop, protocol_factory: Callable[[], P], pipe: Pipe
) -> tuple[asyncio.ReadTransport, P]:
    protocol = protocol_factory()
    _begin(pipe, "Pipe transport is for pipes/sockets only.")
    waiter: asyncio.Future[None] = loop.create_future()
    transport = make_read_pipe(loop, pipe, protocol, waiter)
    await _connected(waiter, transport)
    if loop.get_debug():
        logger.debug("Read pipe %r connected: (%r, %r)", pipe.fileno(), transport, protocol)
    return transport, protocol


async def connect_write_pipe(
    loop: Loop, protocol_factory: Callable[[], P], pipe: Pipe
) -> tuple[asyncio.WriteTransport, P]:
    protocol = protocol_factory()
    mode = _begin(pipe, "Pipe transport is only for pipes, sockets and character devices")
    waiter: asyncio.Future[None] = loop.create_future()
    transport = make_write_pipe(
        loop,
        pipe,
        protocol,
        waiter,
        watchable=not stat.S_ISCHR(mode),
        is_socket=stat.S_ISSOCK(mode),
    )
    await _connected(waiter, transport)
    if loop.get_debug():
        logger.debug("Write pipe %r connected: (%r, %r)", pipe.fileno(), transport, protocol)
    return transport, protocol


def _begin(pipe: Pipe, refusal: str) -> int:
    """Make *pipe* non-blocking, and return its mode. Raises ValueError with *refusal*."""
    mode = os.fstat(pipe.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        raise ValueError(refusal)
    os.set_blocking(pipe.fileno(), False)
    return mode


async def _connected(
    waiter: asyncio.Future[None], transport: asyncio.ReadTransport | asyncio.WriteTransport
) -> None:
    """Wait until connection_made() has run; if the wait is cancelled, close the pipe."""
    try:
        await waiter
    except BaseException:
        transport.close()
        raise
