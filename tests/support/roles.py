"""Helpers of the tests of connections: running a test on its loop, raw peers, transports, servers.

A peer is a plain non-blocking socket driven by ``loop.sock_*``, so that a test controls which bytes
go over the wire, and when. Every context manager here closes what it opened, and waits until the
loop has released it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import random
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, ParamSpec, Protocol, TypeVar, runtime_checkable

import pytest

import uringloop
from support.leaks import open_fds
from support.protocols import Collector
from support.sockets import tcp_pair
from support.virtual_time import has_virtual_time

Loop = asyncio.AbstractEventLoop
HandlerCall = dict[str, object]
P = ParamSpec("P")
T = TypeVar("T")

# A test that hangs fails after this many seconds; no test waits as long on purpose.
TIME_LIMIT = 30.0

# The fixtures of which a test has one.
LOOP_FIXTURES = ("each_loop", "loop", "each_virtual_loop", "virtual_loop")

# Seconds after which an expected event on loopback counts as missing.
PATIENCE = 10.0

# Rounds of `converse` after which a process counts as busy.
BUSY_ROUNDS = 100


class Token:
    """An object that a weak reference can refer to."""


# ── running ───────────────────────────────────────────────────────────────────────────────


def run_script(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in a new interpreter."""
    command = [sys.executable, *options, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def in_thread(function: Callable[[], T]) -> T:
    """Run *function* in a new thread, and return its result or raise its exception."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(2 * PATIENCE)


def refuse_thread(thread: threading.Thread) -> None:
    """Take the place of Thread.start() where no thread can be started."""
    raise RuntimeError("can't start new thread")


@contextlib.contextmanager
def running_in_thread(loop: Loop) -> Iterator[threading.Thread]:
    """Run *loop* in another thread for the duration of the block."""
    started = threading.Event()

    def run() -> None:
        loop.call_soon(started.set)
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(2 * PATIENCE)
    try:
        yield thread
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, without a loop, until *condition* holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE} s"
        time.sleep(0.001)


def kernel_version() -> tuple[int, ...]:
    """Return major and minor version of the running kernel."""
    return tuple(map(int, os.uname().release.split(".")[:2]))


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def record_handler_calls(loop: Loop) -> list[HandlerCall]:
    """Return a list of the contexts with which *loop* calls its exception handler from now on."""
    handler_calls: list[HandlerCall] = []
    loop.set_exception_handler(lambda _, context: handler_calls.append(context))
    return handler_calls


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on the loop of its fixture; a call of the exception handler fails it.

    A test that expects such calls records them by `record_handler_calls`.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        (loop,) = (kwargs[name] for name in LOOP_FIXTURES if name in kwargs)
        assert isinstance(loop, asyncio.AbstractEventLoop)
        handler_calls = record_handler_calls(loop)

        async def limited() -> None:
            # In virtual time a test that hangs is a deadlock, and the time may be any.
            limit = None if has_virtual_time(loop) else TIME_LIMIT
            await asyncio.wait_for(test(*args, **kwargs), limit)

        loop.run_until_complete(limited())
        assert handler_calls == []

    return run


async def turns(count: int = 1) -> None:
    """Run *count* turns of the running loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Run turns until *condition* holds, and fail if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE} s"
        await asyncio.sleep(0)


async def nothing_comes(loop: Loop) -> None:
    """Return when *loop* has received all that its sockets had before the call, if it reads them.

    A byte that was sent later is received, several times.
    """
    left, right = socket.socketpair()
    with left, right:
        right.setblocking(False)
        for _ in range(3):
            receiving = asyncio.ensure_future(loop.sock_recv(right, 1))
            # It waits in the selector or the ring before the byte is sent.
            await turns(2)
            left.send(b"x")
            assert await receiving == b"x"


async def released(transport: asyncio.BaseTransport) -> None:
    """Wait until *transport* has closed its socket."""
    sock = transport.get_extra_info("socket")
    await until(lambda: sock.fileno() == -1)


async def abort_and_wait(transport: asyncio.WriteTransport) -> None:
    """Abort *transport* unless it has closed its socket, and wait until it has."""
    # asyncio's abort() fails on its own state after a close() that has flushed and finished.
    if transport.get_extra_info("socket").fileno() != -1:
        transport.abort()
        await released(transport)


@contextlib.asynccontextmanager
async def nothing_left(loop: uringloop.Loop) -> AsyncIterator[None]:
    """Check that the block leaves no descriptor, no operation in flight and no buffer in use."""
    await turns(3)
    fds = open_fds()
    operations, buffers = loop._operations_in_flight, loop._buffers_out
    assert (operations, buffers) == (0, 0)
    yield
    await until(lambda: open_fds() == fds)
    await until(lambda: loop._operations_in_flight == 0)
    assert loop._buffers_out == 0


def noise(count: int, seed: int = 0) -> bytes:
    """Return *count* bytes that look random and are the same in every run."""
    return random.Random(seed).randbytes(count)


# ── sockets ───────────────────────────────────────────────────────────────────────────────


def narrow_pair(buffer_size: int) -> tuple[socket.socket, socket.socket]:
    """Return two connected TCP sockets that hold only about *buffer_size* bytes in transit."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_size)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        left = socket.socket()
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_size)
        left.connect(listener.getsockname())
        right, _ = listener.accept()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


@contextlib.contextmanager
def pair(buffer_size: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected non-blocking sockets, closed at the end."""
    left, right = narrow_pair(buffer_size) if buffer_size else tcp_pair()
    with left, right:
        yield left, right


def on_disk(folder: Path, data: bytes) -> IO[bytes]:
    """Write a file, and return it open for reading."""
    path = folder / "content"
    path.write_bytes(data)
    return path.open("rb")


def fill(write: Callable[[bytes], int]) -> None:
    """Write until the descriptor's buffer is full."""
    with contextlib.suppress(BlockingIOError):
        while True:
            write(bytes(65_536))


def reset(sock: socket.socket) -> None:
    """Close *sock* with a RST instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def end(peer: socket.socket, how: str) -> None:
    """End a peer's stream by "reset", by "half" (its output only), or by "close"."""
    if how == "reset":
        reset(peer)
    elif how == "half":
        peer.shutdown(socket.SHUT_WR)
    else:
        peer.close()


@contextlib.contextmanager
def silent_listener(address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Listen with a full backlog: a connection attempt to it is neither accepted nor refused."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)
        host, port = listener.getsockname()[:2]
        for _ in range(3):
            filler = stack.enter_context(socket.socket(family))
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield host, port


def unused_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nothing listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port


def listens(port: int) -> bool:
    """Return whether a process listens on a port of 127.0.0.1."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def has_ipv6() -> bool:
    """Return whether this machine has the IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback on this machine")


async def read_exactly(loop: Loop, sock: socket.socket, count: int) -> bytes:
    """Read *count* bytes from the peer's socket."""
    data = bytearray()
    while len(data) < count:
        piece = await loop.sock_recv(sock, count - len(data))
        assert piece, f"end of stream after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


async def read_to_end(loop: Loop, sock: socket.socket) -> bytes:
    """Read from the peer's socket until EOF."""
    data = bytearray()
    while piece := await loop.sock_recv(sock, 1 << 20):
        data += piece
    return bytes(data)


# ── transports ────────────────────────────────────────────────────────────────────────────


class HalfOpen(Collector):
    """A collector that keeps its side open after the peer's EOF."""

    def eof_received(self) -> bool:
        super().eof_received()
        return True


@contextlib.asynccontextmanager
async def stream(
    loop: Loop, protocol: asyncio.BaseProtocol, *, buffer_size: int = 0
) -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Connect *protocol* to a raw peer; a *buffer_size* narrows the kernel's buffers."""
    ours, peer = narrow_pair(buffer_size) if buffer_size else tcp_pair()
    with peer:
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        try:
            yield transport, peer
        finally:
            await abort_and_wait(transport)


@contextlib.asynccontextmanager
async def link(
    loop: Loop, left: asyncio.BaseProtocol, right: asyncio.BaseProtocol
) -> AsyncIterator[tuple[asyncio.Transport, asyncio.Transport]]:
    """Connect two protocols of one loop to each other."""
    left_sock, right_sock = tcp_pair()
    left_transport, _ = await loop.create_connection(lambda: left, sock=left_sock)
    right_transport, _ = await loop.connect_accepted_socket(lambda: right, right_sock)
    try:
        yield left_transport, right_transport
    finally:
        await abort_and_wait(left_transport)
        await abort_and_wait(right_transport)


class Failing(asyncio.BaseProtocol):
    """A protocol that raises *error* in the method named by *callback*."""

    callback: str
    error: Exception
    lost: asyncio.Future[Exception | None]


async def check_error_loses_connection(loop: Loop, protocol: Failing) -> None:
    """Send a byte and EOF to *protocol*; check that its error is reported and closes the transport.

    The report is asyncio's: one call of the exception handler, with the same message.
    """
    handler_calls = record_handler_calls(loop)
    async with stream(loop, protocol) as (transport, peer):
        peer.send(b"x")
        peer.shutdown(socket.SHUT_WR)
        assert await protocol.lost is protocol.error
        (call,) = handler_calls
        assert call["message"] == f"Fatal error: protocol.{protocol.callback}() call failed."
        assert call["exception"] is protocol.error
        assert call["transport"] is transport
        assert call["protocol"] is protocol


@runtime_checkable
class Connected(Protocol):
    """A protocol that remembers its transport, as Echo and Collector do."""

    transport: asyncio.Transport


@contextlib.asynccontextmanager
async def serving(
    loop: Loop, factory: Callable[[], asyncio.BaseProtocol], *, backlog: int = 1000
) -> AsyncIterator[tuple[str, int]]:
    """Serve *factory* on a free port; at the end wait until every transport is released."""
    accepted: list[asyncio.BaseProtocol] = []

    def remember() -> asyncio.BaseProtocol:
        accepted.append(factory())
        return accepted[-1]

    server = await loop.create_server(remember, "127.0.0.1", 0, backlog=backlog)
    try:
        yield server.sockets[0].getsockname()
    finally:
        await turns(3)
        server.close()
        for protocol in accepted:
            await until(lambda protocol=protocol: isinstance(protocol, Connected))  # type: ignore[misc]
            assert isinstance(protocol, Connected)
            await released(protocol.transport)


# ── servers ──────────────────────────────────────────────────────────────────────────────


class Guests:
    """A protocol factory that remembers the collectors it made."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.seen: list[Collector] = []

    def __call__(self) -> Collector:
        self.seen.append(Collector(self.loop))
        return self.seen[-1]

    async def arrived(self, count: int = 1) -> None:
        """Wait until *count* connections have been made."""
        await until(lambda: sum(guest.made.done() for guest in self.seen) >= count)

    async def end(self) -> None:
        """Abort the connections that are open, and wait until all are released."""
        for guest in self.seen:
            await abort_and_wait(guest.transport)


def connected(address: tuple[str, int]) -> socket.socket:
    """Connect a blocking socket; the kernel completes this without the loop."""
    return socket.create_connection(address[:2], timeout=10)


def converse(client: socket.socket, rounds: int) -> None:
    """Exchange one byte per round, so that the server sleeps only briefly between rounds."""
    for _ in range(rounds):
        client.sendall(b"x")
        assert client.recv(1) == b"x"


async def answers(loop: Loop, address: tuple[str, int]) -> bool:
    """Return whether an echo server listens at *address*."""
    sock = connected(address)
    with sock:
        sock.setblocking(False)
        sock.send(b"ping")
        return await read_exactly(loop, sock, 4) == b"ping"


async def close_server(server: asyncio.AbstractServer) -> None:
    """Close *server* and wait until it is closed."""
    server.close()
    await server.wait_closed()
