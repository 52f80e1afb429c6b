"""Faults of loops that take bytes before the program wants them; each function is a fault.

On a selector, a byte stays in its socket until the loop passes it to the program. A receive that
completes earlier must have no visible effect: no end is missed, no byte is kept from a socket's
next owner, and what the program has scheduled runs first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .common import LOCALHOST, Counted, Counts, Factory, Fault, fds_left, judged, open_fds, reset

PEERS = 200
# How long a missing end is waited for.
PATIENCE_S = 3.0
# Bytes that a connection has when it is handed over: more than a loop receives at once.
HANDED_OVER = 300_000
HEAD = 100
ENDS = 20


def _run(loop: Any, main: Any) -> str:
    try:
        return str(loop.run_until_complete(main))
    finally:
        loop.close()


async def _until(condition: Callable[[], bool]) -> float:
    """Wait until a condition is true, or PATIENCE_S; return how many milliseconds that took."""
    began = time.monotonic()
    while not condition() and time.monotonic() - began < PATIENCE_S:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return (time.monotonic() - began) * 1e3


async def _connected(address: tuple[str, int], served: Callable[[], int]) -> list[socket.socket]:
    peers = [socket.create_connection(address) for _ in range(PEERS)]
    await _until(lambda: served() == PEERS)
    return peers


def _send_and_reset(peers: list[socket.socket]) -> None:
    for peer in peers:
        peer.sendall(b"last")
        reset(peer)


class Silent(Counted):
    def data_received(self, data: bytes) -> None:
        self.counts.received += len(data)


def resets_with_bytes(factory: Factory) -> str:
    """200 peers send their last bytes and reset, all before the loop looks at the sockets."""
    loop = factory()
    counts = Counts()

    async def main() -> str:
        server = await loop.create_server(lambda: Silent(counts), LOCALHOST, 0, backlog=PEERS)
        fds = open_fds()
        _send_and_reset(await _connected(server.sockets[0].getsockname(), lambda: counts.made))
        took = await _until(lambda: counts.lost == PEERS)
        await asyncio.sleep(0.01)
        outcome = judged(counts.lost == PEERS, f"{counts.lost} ended within {took:.0f} ms")
        left = fds_left(fds)
        server.close()
        return f"{outcome}, {left}"

    return _run(loop, main())


def uploads_reset_at_the_end(factory: Factory) -> str:
    """200 uploads are reset while a server that is shutting down gracefully waits for them."""
    loop = factory()
    uploads: list[asyncio.Task[Any] | None] = []

    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uploads.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(1_000_000)
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(upload, LOCALHOST, 0, backlog=PEERS)
        peers = await _connected(server.sockets[0].getsockname(), lambda: len(uploads))
        server.close()
        _send_and_reset(peers)

        def waiting() -> int:
            return sum(task is not None and not task.done() for task in uploads)

        took = await _until(lambda: not waiting())
        return judged(not waiting(), f"{waiting()} uploads left after {took:.0f} ms")

    return _run(loop, main())


class Head(asyncio.Protocol):
    """Pauses at the first bytes, and duplicates the socket for its next owner."""

    def __init__(self, paused: asyncio.Future[socket.socket]) -> None:
        self.paused = paused
        self.received = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.paused.done():
            self.transport.pause_reading()
            self.paused.set_result(self.transport.get_extra_info("socket").dup())


def _read_all(sock: socket.socket) -> int:
    total = 0
    with sock, contextlib.suppress(TimeoutError):
        sock.settimeout(PATIENCE_S)
        while piece := sock.recv(65536):
            total += len(piece)
    return total


async def _lost_by_handing_over(loop: Any, after_pause: bool) -> int:
    """Hand a connection over at its first bytes; return how many bytes its next owner misses."""
    protocol = Head(loop.create_future())
    server = await loop.create_server(lambda: protocol, LOCALHOST, 0)
    go_on = threading.Event()

    def send() -> None:
        with socket.create_connection(server.sockets[0].getsockname()) as peer:
            if after_pause:
                peer.sendall(bytes(HEAD))
                go_on.wait()
            peer.sendall(bytes(HANDED_OVER - HEAD if after_pause else HANDED_OVER))

    sender = threading.Thread(target=send)
    sender.start()
    sock = await protocol.paused
    go_on.set()
    # The loop runs on, and would take bytes, before the next owner reads.
    await asyncio.sleep(0.2)
    rest = await loop.run_in_executor(None, _read_all, sock)
    await loop.run_in_executor(None, sender.join)
    protocol.transport.abort()
    server.close()
    return HANDED_OVER - protocol.received - int(rest)


def handed_over(factory: Factory) -> str:
    """A protocol pauses reading at the first of 300,000 bytes and hands its socket to other
    code.
    """
    loop = factory()

    async def main() -> str:
        at_once = await _lost_by_handing_over(loop, False)
        later = await _lost_by_handing_over(loop, True)
        return (
            f"{judged(at_once == 0, f'{at_once} bytes lost')} if all were there, "
            f"{judged(later == 0, f'{later} bytes lost')} if they came later"
        )

    return _run(loop, main())


class Tasked(asyncio.Protocol):
    """Starts a task for its bytes, and notes whether the task runs before eof_received()."""

    def __init__(self, ended: asyncio.Future[bool]) -> None:
        self.ended = ended
        self.tasks: list[asyncio.Task[None]] = []

    async def process(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.tasks.append(asyncio.ensure_future(self.process()))

    def eof_received(self) -> None:
        self.ended.set_result(all(task.done() for task in self.tasks))


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((LOCALHOST, 0)) as server:
        peer = socket.create_connection(server.getsockname())
        return server.accept()[0], peer


def ends_with_bytes(factory: Factory) -> str:
    """Bytes and EOF arrive together: the task that is started for the bytes must run before the
    protocol is told of the EOF.
    """
    loop = factory()

    async def main() -> str:
        first = 0
        for _ in range(ENDS):
            for pair in (_tcp_pair, socket.socketpair):
                ours, peer = pair()
                ours.setblocking(False)
                protocol = Tasked(loop.create_future())
                await loop.create_connection(lambda protocol=protocol: protocol, sock=ours)
                await asyncio.sleep(0.005)
                peer.sendall(b"last")
                peer.close()
                first += await protocol.ended
        return judged(first == 2 * ENDS, f"{first} of {2 * ENDS} tasks ran before")

    return _run(loop, main())


def readable_when_connected(factory: Factory) -> str:
    """A pipe is readable when it is connected, and a callback is scheduled at that moment: the
    order of the bytes and the callback.
    """
    loop = factory()

    async def main() -> str:
        events: list[str] = []

        class Recorder(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                events.append("bytes")

        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"early")
        transport, _ = await loop.connect_read_pipe(Recorder, os.fdopen(read_fd, "rb", 0))
        loop.call_soon(events.append, "callback")
        await _until(lambda: len(events) == 2)
        transport.close()
        os.close(write_fd)
        return judged(events == ["bytes", "callback"], " before ".join(events))

    return _run(loop, main())


FAULTS: tuple[Fault, ...] = (
    resets_with_bytes,
    uploads_reset_at_the_end,
    handed_over,
    ends_with_bytes,
    readable_when_connected,
)
