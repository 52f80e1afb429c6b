"""connect_file(): like connect_read_pipe(), but for any kind of file.

A selector cannot wait for a regular file, which is always ready, so asyncio refuses a redirected
standard input. Here blocks are read on the ring, or by threads under other event loops, and
delivered to the protocol; at most one is read ahead.
"""

from __future__ import annotations

import asyncio
import os
import stat
import warnings
from asyncio.log import logger
from collections.abc import Callable
from typing import Any, TypeVar

from uringloop._transport.asyncio_reader import call_connection_lost
from uringloop.files.open_file import OpenFile

P = TypeVar("P", bound=asyncio.BaseProtocol)

# The size of a read of asyncio's pipe transports.
BLOCK_BYTES = 256 * 1024

# The life of a transport, as repr() shows it. Creating an enum would take 0.1 ms of the import.
OPEN = "open"
CLOSING = "closing"  # nothing more is delivered
CLOSED = "closed"  # connection_lost() has been called


async def connect_file(
    protocol_factory: Callable[[], P], file: Any
) -> tuple[asyncio.ReadTransport, P]:
    """Read *file* as a stream; return a transport and its protocol.

    *file* must have `fileno()` and `close()`, and belongs to the transport from now on. Reading
    begins at the position of its descriptor. Pipes, sockets and terminals are passed to the loop's
    `connect_read_pipe`, so standard input can be of any kind::

        reader = asyncio.StreamReader()
        await uringloop.connect_file(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    """
    loop = asyncio.get_running_loop()
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(file.fileno()):
        transport, connected = await loop.connect_read_pipe(protocol_factory, file)
        return transport, connected
    # Raises IsADirectoryError for a directory, as open() does.
    source = OpenFile(file.fileno(), getattr(file, "name", file), closefd=False, readable=True)
    protocol = protocol_factory()
    made = FileReadTransport(loop, file, source, protocol)
    loop.call_soon(protocol.connection_made, made)
    loop.call_soon(made._start)
    # Return after connection_made(), as connect_read_pipe() does.
    await asyncio.sleep(0)
    if loop.get_debug():
        logger.debug("File %r connected: (%r, %r)", file, made, protocol)
    return made, protocol


class FileReadTransport(asyncio.ReadTransport):
    """Reads a file block by block, unless reading is paused.

    OPEN ──_end()──> CLOSING ──_lose(), after the end of the reading task──> CLOSED
    """

    _life = OPEN
    _paused = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        file: Any,
        source: OpenFile,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        super().__init__({"file": file})
        self._loop = loop
        self._file = file
        self._source = source
        # It has the methods of asyncio.Protocol, whatever its class.
        self._protocol: Any = protocol
        self._held = b""
        self._reason: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = self._life
        if state is OPEN:
            state = "paused" if self._paused else "reading"
        return f"<{type(self).__name__} {state} file={self._file!r}>"

    def __del__(self) -> None:
        if self._life is not CLOSED:
            warnings.warn(f"unclosed transport {self!r}", ResourceWarning, 2, self)
            self._file.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._life is not OPEN

    def is_reading(self) -> bool:
        return self._life is OPEN and not self._paused

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused = True

    def resume_reading(self) -> None:
        if self._life is OPEN and self._paused:
            self._paused = False
            self._start()

    def close(self) -> None:
        if self._life is OPEN:
            self._end(None)

    def _start(self) -> None:
        """Start the reading task, unless it runs or reading is paused."""
        if self.is_reading() and self._task is None:
            self._task = self._loop.create_task(self._read())
            self._task.add_done_callback(self._stopped)

    async def _read(self) -> None:
        try:
            while self.is_reading():
                data = self._held or await self._source._read_some(BLOCK_BYTES)
                self._held = b""
                if not self.is_reading():
                    self._held = data
                elif data:
                    # An exception of data_received() is reported like that of any callback.
                    self._loop.call_soon(self._protocol.data_received, data)
                    await asyncio.sleep(0)
                else:
                    self._loop.call_soon(self._protocol.eof_received)
                    self._end(None)
        except OSError as exc:
            if self._life is OPEN:
                self._end(exc)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the reading task, which may have been cancelled before it began."""
        self._task = None
        if self._life is not OPEN:
            self._lose()
        elif task.cancelled():
            # asyncio.run() cancels all tasks at its end: a new one would stay pending.
            self._end(None)
        elif (exc := task.exception()) is not None:
            self._end(exc if isinstance(exc, Exception) else None)
        else:
            # Reading may have been resumed before the paused task ended.
            self._start()

    def _end(self, exc: Exception | None) -> None:
        assert self._life is OPEN
        self._life = CLOSING
        self._reason = exc
        if self._task is None:
            self._loop.call_soon(self._lose)
        elif self._task is not asyncio.current_task(self._loop):
            self._task.cancel()

    def _lose(self) -> None:
        assert self._life is CLOSING
        self._life = CLOSED
        try:
            call_connection_lost(self._protocol, self._reason)
        finally:
            self._file.close()
