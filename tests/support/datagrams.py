"""Helpers of the tests of datagrams: a protocol that records datagrams, endpoints, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

from support.roles import PATIENCE, Loop, released, until

Mail = tuple[bytes, Any]


class Mailbox(asyncio.DatagramProtocol):
    """Record every datagram, every error and the name of every other callback."""

    transport: asyncio.DatagramTransport

    def __init__(self) -> None:
        self.mail: list[Mail] = []
        self.errors: list[Exception] = []
        self.calls: list[str] = []
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.calls.append("connection_made")

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.mail.append((data, addr))

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")
        self.lost.append(exc)

    @property
    def data(self) -> list[bytes]:
        return [data for data, _ in self.mail]

    async def received(self, count: int = 1) -> list[Mail]:
        """Wait until *count* datagrams or more are received, and return all of them."""
        await until(lambda: len(self.mail) >= count)
        return self.mail

    async def failed(self, count: int = 1) -> list[Exception]:
        """Wait for *count* calls of error_received() or more, and return all errors."""
        await until(lambda: len(self.errors) >= count)
        return self.errors


async def abort_and_wait(transport: asyncio.DatagramTransport) -> None:
    """Abort *transport* unless it has closed its socket, and wait until it has."""
    if transport.get_extra_info("socket").fileno() != -1:
        transport.abort()
        await released(transport)


@contextlib.asynccontextmanager
async def endpoint(
    loop: Loop, protocol: asyncio.DatagramProtocol | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Open an endpoint of *protocol*, by default a `Mailbox`, and abort it at the end.

    The transport's type is Any, since the stubs lack some methods of datagram transports.
    """
    made = protocol or Mailbox()
    transport, _ = await loop.create_datagram_endpoint(lambda: made, **options)
    try:
        yield transport, made
    finally:
        await abort_and_wait(transport)


@contextlib.contextmanager
def udp(host: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    """Yield a bound, non-blocking UDP socket."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((host, port))
        s.setblocking(False)
        yield s


def unix_pair(directory: Any, *, send_buffer: int = 0) -> tuple[socket.socket, socket.socket]:
    """Return two UNIX datagram sockets with names, connected to each other."""
    pair = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for number, sock in enumerate(pair):
        sock.bind(str(directory / f"end{number}"))
        sock.setblocking(False)
        if send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    for sock, peer in zip(pair, reversed(pair), strict=True):
        sock.connect(peer.getsockname())
    return pair[0], pair[1]


def unsent(transport: asyncio.DatagramTransport) -> int:
    """Return the size of the transport's write buffer."""
    # Every loop has the method; the stubs lack it.
    size: int = transport.get_write_buffer_size()  # type: ignore[attr-defined]
    return size


def drained(sock: socket.socket, count: int = 0) -> list[bytes]:
    """Receive all datagrams that a non-blocking socket has; wait for the first *count* of them.

    On a busy machine, the loopback interface may deliver a datagram after its send has returned.
    """
    found: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            if len(found) < count:
                select.select([sock], [], [], PATIENCE)
            found.append(sock.recv(1 << 20))
    return found


def fill_receiver(sock: socket.socket, data: bytes = b"stuffing") -> int:
    """Send *data* until the receiver is full; return the number of datagrams."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(data)
            count += 1
    return count
