"""A compiled StreamWriter."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Self, final

from typing_extensions import disjoint_base

@final
class Done(Coroutine[Any, Any, None]):
    __name__: str
    __qualname__: str

    def __await__(self) -> Generator[Any, Any]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: object) -> Any: ...
    def throw(
        self,
        exc: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any: ...
    def close(self) -> None:
        """Do nothing: there is no code that could be interrupted."""

@disjoint_base
class WriterCore:
    def __init__(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.BaseProtocol,
        reader: asyncio.StreamReader | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None: ...
    @property
    def transport(self) -> asyncio.WriteTransport: ...
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue *data*, which is sent at the end of the turn with all that the turn has written."""

    def drain(self) -> Coroutine[Any, Any, None]:
        """Return an awaitable that waits while too much is queued, as in asyncio."""

    def is_closing(self) -> bool: ...

class StreamWriter(WriterCore, asyncio.StreamWriter):
    """asyncio's StreamWriter, compiled. drain() may return an awaitable that is not a coroutine."""
