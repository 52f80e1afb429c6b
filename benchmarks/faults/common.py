"""Code that the faults share: counters, cells of the table, servers in threads, echoes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Factory = Callable[[], Any]
Fault = Callable[[Factory], str]

LOCALHOST = "127.0.0.1"
MB = 1 << 20


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def judged(ok: bool, outcome: str) -> str:
    """Return the outcome, bold if it is not *ok*."""
    return outcome if ok else f"**{outcome}**"


def fds_left(before: int) -> str:
    """Return how many more descriptors are open than *before*, which is a violation if not 0."""
    more = open_fds() - before
    return judged(more == 0, f"{more} fds left")


@contextlib.contextmanager
def threads_refused() -> Iterator[None]:
    """Let this process start no thread; it must not run as root, which has no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def become_nobody() -> None:
    """Change to the user `nobody`, with that user's rights and limits."""
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def reset(sock: socket.socket) -> None:
    """Close a connection with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Counts:
    """Counts connections made and lost, exceptions passed to connection_lost, and reports."""

    def __init__(self) -> None:
        self.made = self.lost = self.errors = self.reported = 0
        self.received = 0

    def handler(self, loop: Any, context: dict[str, Any]) -> None:
        self.reported += 1


class Counted(asyncio.Protocol):
    """Echoes and counts; a subclass may do something else with the data."""

    transport: Any

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.counts.made += 1

    def data_received(self, data: bytes) -> None:
        self.counts.received += len(data)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.counts.lost += 1
        self.counts.errors += exc is not None


@contextlib.contextmanager
def serving(
    factory: Factory, counts: Counts, protocol: type[Counted] = Counted, **options: Any
) -> Iterator[tuple[str, int]]:
    """Run a server on a new loop in a thread of its own; yield its address."""
    loop = factory()
    loop.set_exception_handler(counts.handler)
    server = loop.run_until_complete(
        loop.create_server(lambda: protocol(counts), LOCALHOST, 0, **options)
    )
    address = server.sockets[0].getsockname()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.call_later, 0.05, loop.stop)
        thread.join(30)
        if thread.is_alive():
            raise TimeoutError("the loop does not stop")
        loop.close()


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> float:
    """Wait until a condition is true; return how many milliseconds that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.0005)
    return (time.monotonic() - began) * 1e3


def echoes(address: tuple[str, int], data: bytes = b"well?") -> float:
    """Return the milliseconds of a connect and an echo on the new connection."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(data)
        got = b""
        while len(got) < len(data):
            got += sock.recv(65536) or (_ for _ in ()).throw(EOFError)
    assert got == data
    return (time.monotonic() - began) * 1e3


async def echo_pair(loop: Any, counts: Counts) -> tuple[Any, socket.socket]:
    """Return a transport that echoes, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(lambda: Counted(counts), sock=ours)
    return transport, theirs


async def still_echoes(loop: Any, counts: Counts | None = None) -> bool:
    """Return whether a new connection of the loop echoes."""
    transport, peer = await echo_pair(loop, counts or Counts())
    await loop.sock_sendall(peer, b"hello")
    got = await asyncio.wait_for(loop.sock_recv(peer, 100), 5)
    transport.close()
    peer.close()
    return bool(got == b"hello")
