"""The two ends of a pipe, FIFO, terminal or socket that the program has opened itself."""

import asyncio
from collections.abc import Iterable
from typing import IO, Any, final

from uringloop._transport.read_transport import ReadTransport
from uringloop._transport.write_transport import WriteTransport
from uringloop._turn.turn import LoopCore

@final
class ReadPipeTransport(ReadTransport):
    def close(self) -> None: ...
    @property
    def _pipe(self) -> IO[bytes] | None: ...
    @_pipe.setter
    def _pipe(self, pipe: IO[bytes] | None) -> None: ...

@final
class WritePipeTransport(WriteTransport):
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...
    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_reading(self) -> bool: ...
    @property
    def _pipe(self) -> IO[bytes] | None: ...
    @_pipe.setter
    def _pipe(self, pipe: IO[bytes] | None) -> None: ...

def make_read_pipe(
    loop: LoopCore,
    pipe: Any,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[None] | None,
) -> asyncio.ReadTransport: ...
def make_write_pipe(
    loop: LoopCore,
    pipe: Any,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[None] | None,
    *,
    watchable: bool,
    is_socket: bool,
) -> asyncio.WriteTransport: ...
