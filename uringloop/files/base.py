"""The base of all files: the order of their calls, iteration by lines, `async with`."""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from operator import index
from types import TracebackType
from typing import Any, Generic, Self, SupportsIndex, TypeVar

from uringloop.files.scheduling import CallLock

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])
T = TypeVar("T")
Line = TypeVar("Line", bytes, str)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call *function*, which may block, in a thread of the loop's executor."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def limit_of(size: SupportsIndex | None) -> int:
    """Return *size* as an int, -1 for None. A TypeError has the message of built-in files."""
    if size is None:
        return -1
    if not hasattr(type(size), "__index__"):
        raise TypeError(f"argument should be integer or None, not '{type(size).__name__}'")
    return index(size)


def one_at_a_time(method: M) -> M:
    """Run the calls on one file one after the other, in the order in which they were made.

    A call also waits for the next turn of the loop if this one has no time left for files.
    """

    @functools.wraps(method)
    async def call(self: AsyncFile[Any], *args: Any, **kwargs: Any) -> Any:
        lock = self._lock
        if not lock.try_acquire():
            await lock.acquire()
        try:
            return await method(self, *args, **kwargs)
        finally:
            lock.release()

    return call  # type: ignore[return-value]


def one_at_a_time_now(method: M) -> M:
    """Like `one_at_a_time`, but do not wait for a turn with time for files.

    It is for close(): a cancel during that wait would leave the file open.
    """

    @functools.wraps(method)
    async def call(self: AsyncFile[Any], *args: Any, **kwargs: Any) -> Any:
        await self._lock.acquire_in_any_turn()
        try:
            return await method(self, *args, **kwargs)
        finally:
            self._lock.release()

    return call  # type: ignore[return-value]


class AwaitableBool(int):
    """A bool that can also be awaited: in aiofiles, `readable()` and others are coroutines."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, bool]:
        return bool(self)
        yield

    def __repr__(self) -> str:
        return repr(bool(self))


class Closing:
    """The base of objects that `async with` closes."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Lines(Closing, Generic[Line]):
    """The base of objects that `async for` reads line by line."""

    async def readline(self, size: int = -1) -> Line:
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Line]:
        return self._next_line()

    async def _next_line(self) -> Line:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


class AsyncFile(Lines[Line]):
    """Methods that are the same for all files, in terms of the file's other methods."""

    _lock: CallLock
    _detached = False
    # True during a readlines() without a limit, which may read ahead any amount.
    _reads_all = False
    _DETACHED = "raw stream has been detached"

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    @property
    def _file(self) -> Self:
        """The file itself. In aiofiles it is the built-in file, whose `fileno()` programs call."""
        return self

    async def write(self, data: Line) -> int | None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._detached:
            raise ValueError(self._DETACHED)
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def __aiter__(self) -> Self:
        self._check_open()
        return self

    async def _line(self, limit: int) -> Line:
        """Read a line, of at most *limit* bytes or characters unless that is -1."""
        raise NotImplementedError

    def _cut_lines(self, lines: list[Line], length: int, limit: int) -> int:
        """Append whole lines that were read ahead; return *length* plus their length."""
        return length

    def _mark(self) -> object:
        """Return the position and state of the file, for `_unread_lines`."""
        return None

    async def _unread_lines(self, lines: list[Line], mark: object) -> None:
        """Unread the *lines* that a cancelled call has read since *mark*."""
        raise NotImplementedError

    @one_at_a_time
    async def readlines(self, hint: int | None = -1) -> list[Line]:
        """Read lines to the end, or until they have more than *hint* characters or bytes."""
        limit = limit_of(hint)
        lines: list[Line] = []
        length = 0
        mark = self._mark()
        self._reads_all = limit <= 0
        try:
            while line := await self._line(-1):
                lines.append(line)
                length = self._cut_lines(lines, length + len(line), limit)
                if 0 < limit < length:
                    break
                if self._lock.spent():
                    await self._lock.pause()
        except UnicodeError:
            # Built-in files also lose the lines.
            raise
        except BaseException:
            await self._unread_lines(lines, mark)
            raise
        finally:
            self._reads_all = False
        return lines

    async def writelines(self, lines: Iterable[Line]) -> None:
        self._check_open()
        for line in lines:
            await self.write(line)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self


def warn_unclosed(file: object) -> None:
    """Warn that *file* was not closed, as built-in files do."""
    if not sys.is_finalizing():
        warnings.warn(f"unclosed file {file!r}", ResourceWarning, stacklevel=3, source=file)
