"""A compiled StreamReader, and the objects that its methods return to be awaited."""

import asyncio
from collections.abc import Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Self, SupportsIndex, final

from typing_extensions import disjoint_base

from uringloop.streams.read_buffer import ReadBuffer

@final
class Read(Coroutine[Any, Any, bytes]):
    __name__: str
    __qualname__: str

    def __await__(self) -> Generator[Any, Any, bytes]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: object) -> Any: ...
    def throw(
        self,
        exc: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """End the read with an exception; the bytes that it has received are unread again."""

    def close(self) -> None: ...

@disjoint_base
class ReaderCore(ReadBuffer):
    def feed_data(self, data: Iterable[SupportsIndex]) -> None: ...
    def feed_eof(self) -> None: ...
    def set_exception(self, exc: Exception) -> None: ...
    def exception(self) -> Exception | None: ...
    def at_eof(self) -> bool: ...
    def read(self, n: int = -1) -> Coroutine[Any, Any, bytes]:
        """Return an awaitable of at most *n* bytes, or of all to the end if *n* is negative."""

    def readexactly(self, n: int) -> Coroutine[Any, Any, bytes]:
        """Return an awaitable of exactly *n* bytes. Awaiting it raises asyncio's exceptions."""

    def readuntil(self, separator: bytes | tuple[bytes, ...] = b"\n") -> Coroutine[Any, Any, bytes]:
        """Return an awaitable of the bytes up to *separator*, or to the first one of a tuple."""

    def readline(self) -> Coroutine[Any, Any, bytes]:
        """Return an awaitable of the bytes up to a newline, or up to the end."""

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, bytes]: ...

# typeshed: readuntil() takes anything that has a length.
class StreamReader(ReaderCore, asyncio.StreamReader):  # type: ignore[misc]
    """asyncio's StreamReader, compiled. Its methods return awaitables that are not coroutines."""
