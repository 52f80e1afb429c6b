"""The oracle: the callbacks and bytes that a connection may get, given what its peer has done."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Any

# Errors with which a simulated kernel may end a connection, and errors that follow from those.
FAILURES = {errno.ECONNRESET, errno.ENOMEM, errno.EPIPE, errno.ENOTCONN, errno.ECONNABORTED}

# Small messages that come one in each turn: the first of a connection, and the first after a pause.
FIRST = 4
# A connection of larger messages may deliver several in a turn.
SMALL = 2048

# Probability that a protocol pauses reading while data is delivered.
NAPS = 0.2


class End:
    """One end of a connection: its bytes sent and received, and the callbacks that have run."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.transport: Any = None
        self.peer: End | None = None
        self.sent = bytearray()
        self.received = bytearray()
        self.reads = True
        # Actions of the program.
        self.reading_paused = False
        self.resumes = 0
        self.ended = False
        # The transport of this end closes when the peer's transport closes.
        self.ends_with_peer = False
        self.closed = False
        self.aborted = False
        # Reports of the loop.
        self.writing_paused = False
        self.eof = False
        self.lost = False
        # The result of eof_received().
        self.stays_open = False
        # An end has failed, aborted, or closed with bytes in transit: these may be lost.
        self.lossy = False
        # Callbacks that data_received() and resume_reading() have scheduled, and that have not run.
        self.scheduled = 0
        self.resuming = 0
        # Messages since the start or the last pause, and whether all messages have been small.
        self.messages = 0
        self.small = True
        # TLS has its own order: a record may bring both bytes and the end.
        self.secure = False
        # The argument of connection_lost().
        self.error: Exception | None = None
        # What the program does within a callback, once, by the callback's name.
        self.within: dict[str, Callable[[], None]] = {}

    def _claim(self, holds: bool, claim: str) -> None:
        if not holds:
            self.model.differs(f"{claim}: {self}")

    def __repr__(self) -> str:
        states = ("reading_paused", "writing_paused", "ended", "closed", "aborted", "eof", "lost")
        held = [name for name in (*states, "lossy") if getattr(self, name)]
        return (
            f"<{type(self).__name__} sent={len(self.sent)} received={len(self.received)} "
            f"{' '.join(held)}>"
        )

    @property
    def usable(self) -> bool:
        """Whether the program may still use the transport."""
        return not (self.closed or self.aborted or self.lost)

    @property
    def writable(self) -> bool:
        return self.usable and not self.ended

    @property
    def complete(self) -> bool:
        """Whether all bytes that the peer has sent have arrived."""
        return self.peer is None or len(self.received) == len(self.peer.sent)

    @property
    def told(self) -> bool:
        """Whether the peer has not ended, or this end has been told."""
        peer = self.peer
        if peer is None or not (self.reads and self.usable):
            return True
        return self.eof or (peer.usable and not peer.ended)

    @property
    def _has_just_resumed(self) -> bool:
        """Whether bytes come for the first time after a pause.

        What the ring had taken before the pause and what came to the socket during it are delivered
        in one turn: asyncio takes them by one receive.
        """
        return self.resumes > 0 and self.scheduled == self.messages

    def _act(self, callback: str) -> None:
        act = self.within.pop(callback, None)
        if act is not None:
            act()

    # Callbacks of the loop.

    def connection_made(self, transport: Any) -> None:
        self._claim(self.transport is None, "connection_made twice")
        self.transport = transport
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._act("connection_made")

    def take(self, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        self._claim(size > 0, "no bytes received")
        self._claim(self.transport is not None, "bytes before connection_made")
        self._claim(not self.lost, "bytes after connection_lost")
        self._claim(not self.eof, "bytes after eof_received")
        self._claim(not self.reading_paused, "bytes while reading is paused")
        self._claim(self.usable, "bytes after close or abort")
        if not self.secure:
            self._claim(not self.resuming, "bytes in the turn of resume_reading")
            self.small &= size <= SMALL
            if self.small and self.messages < FIRST:
                self._claim(
                    not self.scheduled or self._has_just_resumed,
                    "bytes before what the last ones have scheduled",
                )
        self.messages += 1
        self.scheduled += 1
        self.model.loop.call_soon(self._ran)
        self.add(data)
        if self.model.rng.random() < NAPS:
            self.nap()
        elif self.model.napping and self.model.rng.random() < NAPS:
            self.model.napping.pop(0).wake()
        self._act("data_received")

    def add(self, data: bytes | bytearray | memoryview) -> None:
        begin = len(self.received)
        self.received += data
        if self.peer is not None:
            self._claim(
                self.peer.sent[begin : len(self.received)] == data, "other bytes than were sent"
            )

    def _ran(self) -> None:
        self.scheduled -= 1

    def resume(self) -> None:
        self.reading_paused = False
        self.resumes += 1
        self.messages = 0
        self.resuming += 1
        self.model.loop.call_soon(self._resumed)
        self.transport.resume_reading()

    def _resumed(self) -> None:
        self.resuming -= 1

    def nap(self) -> None:
        """Pause from within a callback; a scheduled callback or another end resumes."""
        if self.usable and not self.transport.is_closing():
            self.reading_paused = True
            self.transport.pause_reading()
            self.model.napping.append(self)
            if self.model.rng.random() < 0.5:
                self.model.loop.call_soon(self.wake)
            else:
                self.model.loop.call_later(0.001, self.wake)

    def wake(self) -> None:
        if self.usable and self.reading_paused:
            self.resume()

    def eof_received(self) -> bool:
        self._claim(not self.eof, "eof_received twice")
        self._claim(not self.lost, "eof_received after connection_lost")
        if not self.secure:
            self._claim(not self.scheduled, "eof_received before what the bytes have scheduled")
        self.eof = True
        if not self.complete and not self.lossy:
            self._claim(self.model.harmful, "eof_received before all bytes")
            # The peer's connection has failed, and its connection_lost() has not run yet.
            self.leave(failed=True)
        self._act("eof_received")
        return self.stays_open

    def pause_writing(self) -> None:
        self._claim(not self.writing_paused, "pause_writing twice")
        self._claim(not self.lost, "pause_writing after connection_lost")
        self.writing_paused = True
        self._act("pause_writing")

    def resume_writing(self) -> None:
        self._claim(self.writing_paused, "resume_writing without pause_writing")
        self._claim(not self.lost, "resume_writing after connection_lost")
        self.writing_paused = False
        self._act("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self._claim(self.transport is not None, "connection_lost before connection_made")
        self._claim(not self.lost, "connection_lost twice")
        self.lost = True
        self.error = exc
        if exc is not None and not self.lossy:
            self._claim(self.model.harmful, f"connection_lost with {exc!r}")
            known = isinstance(exc, OSError) and exc.errno in FAILURES
            self._claim(known or isinstance(exc, ssl.SSLError), f"connection_lost with {exc!r}")
        if exc is not None:
            self.leave(failed=True)

    def leave(self, failed: bool) -> None:
        """Receive nothing more; bytes that this end has sent may be lost, too."""
        self.lossy = True
        if self.peer is not None and (failed or not self.complete):
            # Unread bytes cause a reset, which overtakes bytes that were sent before.
            self.peer.lossy = True

    def send(self, data: bytes) -> None:
        """Note data that the program is about to write."""
        self.sent += data
        if self.peer is not None and not self.peer.usable:
            # The peer will not read the data, and the kernel answers with a reset.
            self.lossy = True


class Plain(End, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.take(data)


class Buffered(End, asyncio.BufferedProtocol):
    SIZE = 4096

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.buffer = bytearray(self.SIZE)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.take(self.buffer[:nbytes])
        # The loop must not rely on earlier content of the buffer.
        self.buffer[:nbytes] = bytes(nbytes)
