"""One connection of a running program, and the protocols that write its callbacks into the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import uringloop
import uringloop.streams
from order.log import Log
from order.peers import PATTERN, Peer
from order.programs import Connection

Loop = asyncio.AbstractEventLoop

# Longer than any message, so that a receive takes all that has come.
BUFFER = 1 << 18


def said(exc: BaseException | None) -> str:
    """Name an exception for the log, without the words that only describe an object."""
    if exc is None:
        return "None"
    errno = getattr(exc, "errno", None)
    return f"{type(exc).__name__} {errno if errno is not None else exc}"


class Link:
    """A connection: its transport, its peer, and what it has received."""

    def __init__(self, number: int, made_as: Connection, loop: Loop, log: Log) -> None:
        self.number = number
        self.made_as = made_as
        self.loop = loop
        self.log = log
        self.happened: Callable[[str], None] = lambda event: None
        # What the loop has, and the other end.
        self.transport: Any = None
        self.file: Any = None
        self.peer: Peer
        self.received = 0
        self.datagrams = 0
        # What it receives meanwhile is not noted.
        self.warming = False
        self.ended = False
        self.lost = False
        # The socket that was handed over, by its own descriptor.
        self.duplicate: int | None = None
        # Bytes that came with it.
        self.handed_over = 0
        # Bytes may come in any number of pieces.
        self.large = False
        self.has_data = False
        # The turn of the last call that makes the transport send or close.
        self.touched_at = -1000
        # The turn in which the peer has sent last.
        self.sent_at = -1000
        # It was closed before the protocol had got what the loop may have taken.
        self.left_unread = False
        self.tasks: list[asyncio.Task[None]] = []
        self.made: asyncio.Future[None] = loop.create_future()

    def note(self, text: str) -> None:
        self.log.add(f"{self.number} {text}", self.number)

    # ── from the protocol ────────────────────────────────────────────────────────────────

    def attach(self, made: tuple[Any, object]) -> None:
        """Take over what a call that connects has returned; a protocol has told it before."""
        self.begin(made[0])

    def begin(self, transport: Any) -> None:
        if self.file is None:
            self.transport = transport
            self.file = transport.get_extra_info("socket") or transport.get_extra_info("pipe")
        if hasattr(self, "peer"):
            self.peer.other = self.fileno

    def on_made(self, transport: Any) -> None:
        self.begin(transport)
        self.made.set_result(None)
        self.note("made")
        self.happened("made")

    def on_data(self, data: bytes | memoryview, name: str = "") -> None:
        start = self.received % 251
        self.received += len(data)
        if data != PATTERN[start : start + len(data)]:
            self.note("wrong bytes")
        if self.warming:
            return
        if not self.large or not self.has_data:
            size = 0 if self.large else len(data)
            self.log.add_piece(f"{self.number} {name}data", self.number, size)
        self.has_data = True
        self.happened("data")

    def on_datagram(self, data: bytes, name: str) -> None:
        self.received += len(data)
        self.datagrams += 1
        if not self.warming:
            self.note(f"{name}datagram {len(data)}")
            self.happened("data")

    def on_eof(self, name: str = "") -> bool:
        self.ended = True
        self.note(f"{name}eof")
        self.happened("eof")
        return self.made_as.stays_open

    def on_lost(self, exc: Exception | None, name: str = "") -> None:
        self.lost = True
        self.note(f"{name}lost {said(exc)}")
        self.happened("lost")

    # ── what it is connected with ────────────────────────────────────────────────────────

    def protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of a connection that the loop begins."""
        if self.made_as.flavour == "protocol":
            return Recorder(self)
        if self.made_as.flavour == "buffered":
            return Buffered(self)
        streams = self.streams()
        reader = streams.StreamReader(loop=self.loop)
        self.tasks.append(self.loop.create_task(self.read(reader)))
        protocol: asyncio.BaseProtocol = streams.StreamReaderProtocol(reader, loop=self.loop)
        return protocol

    def server_protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of a connection that the loop accepts."""
        if self.made_as.flavour in ("protocol", "buffered"):
            return self.protocol()
        streams = self.streams()
        protocol: asyncio.BaseProtocol = streams.StreamReaderProtocol(
            streams.StreamReader(loop=self.loop), self.serve, loop=self.loop
        )
        return protocol

    def streams(self) -> Any:
        compiled = self.made_as.flavour == "compiled" and isinstance(self.loop, uringloop.Loop)
        return uringloop.streams if compiled else asyncio

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # From Python 3.13 on a writer that nobody has closes its connection.
        self.writer = writer
        self.on_made(writer.transport)
        await self.read(reader)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read from a stream until its end."""
        try:
            while data := await reader.read(BUFFER):
                self.on_data(data, "read ")
        except OSError as exc:
            self.note(f"read fails: {said(exc)}")
        else:
            self.note("read eof")
            self.happened("eof")
        self.lost = True
        self.happened("lost")

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def hand_over(self) -> None:
        """Duplicate the socket, as a program does that gives it to another one."""
        if self.duplicate is None and self.fileno() != -1:
            self.duplicate = os.dup(self.fileno())

    def hand_over_paused(self) -> None:
        """Stop reading, and give the socket to somebody else."""
        if self.transport.is_reading():
            self.transport.pause_reading()
        self.hand_over()

    def detach(self) -> None:
        """Give a socket away whose bytes the loop may have taken, and end the connection here."""
        if hasattr(self.transport, "detach"):
            sock, data = self.transport.detach()
            self.duplicate, self.handed_over = sock.detach(), len(data)
        else:
            self.hand_over_paused()
            self.transport.abort()

    def fileno(self) -> int:
        """Return the descriptor of the transport, or -1 after its end."""
        # A closed pipe has no number.
        with contextlib.suppress(ValueError):
            return -1 if self.file is None else int(self.file.fileno())
        return -1

    def is_paused(self) -> bool:
        """Return whether reading is paused; a datagram endpoint of asyncio cannot pause."""
        return not getattr(self.transport, "is_reading", lambda: True)()

    def is_under_way(self) -> bool:
        """Return whether the peer has sent something that the protocol has not got yet."""
        return self.received != self.peer.sent or (self.peer.sent_eof and not self.ended)

    def rest(self) -> int:
        """Return how many bytes were handed over, with the socket or in it."""
        assert self.duplicate is not None
        total = self.handed_over
        os.set_blocking(self.duplicate, False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while piece := os.read(self.duplicate, 1 << 20):
                total += len(piece)
        os.close(self.duplicate)
        return total


class Recorder(asyncio.Protocol):
    """A protocol for streams, pipes and datagrams."""

    def __init__(self, link: Link, name: str = "") -> None:
        self.link = link
        self.name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.link.on_made(transport)

    def data_received(self, data: bytes) -> None:
        self.link.on_data(data, self.name)

    def datagram_received(self, data: bytes, address: object) -> None:
        self.link.on_datagram(data, self.name)

    def error_received(self, exc: Exception) -> None:
        self.link.note(f"{self.name}error {said(exc)}")

    def eof_received(self) -> bool:
        return self.link.on_eof(self.name)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.on_lost(exc, self.name)

    def pause_writing(self) -> None:
        self.link.note(f"{self.name}pause writing")

    def resume_writing(self) -> None:
        self.link.note(f"{self.name}resume writing")


class Buffered(asyncio.BufferedProtocol):
    """A protocol that gives the loop its own buffer."""

    def __init__(self, link: Link, name: str = "") -> None:
        self.link = link
        self.name = name
        self.buffer = memoryview(bytearray(BUFFER))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.link.on_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.link.on_data(self.buffer[:nbytes], self.name)

    def eof_received(self) -> bool:
        return self.link.on_eof(self.name)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.on_lost(exc, self.name)
