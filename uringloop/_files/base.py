"""What files of every kind share: their turns, their iteration, and their end."""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from operator import index
from types import TracebackType
from typing import Any, Generic, Self, SupportsIndex, TypeVar

from uringloop._files.scheduling import Turns

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])
T = TypeVar("T")
Line = TypeVar("Line", bytes, str)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call what may wait in a thread of the loop's executor."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def limit_of(size: SupportsIndex | None) -> int:
    """Return how much is asked for at most, -1 without a limit; refuse in plain files' words."""
    if size is None:
        return -1
    if not hasattr(type(size), "__index__"):
        raise TypeError(f"argument should be integer or None, not '{type(size).__name__}'")
    return index(size)


def in_turn(method: M) -> M:
    """Have calls of one file wait for each other, in the order in which they were begun.

    They also wait for the next turn when this one has no time left for files.
    """

    @functools.wraps(method)
    async def call(self: AsyncFile[Any], *args: Any, **kwargs: Any) -> Any:
        turns = self._turns
        if not turns.start():
            await turns.take()
        try:
            return await method(self, *args, **kwargs)
        finally:
            turns.give()

    return call  # type: ignore[return-value]


def in_order(method: M) -> M:
    """The same, whatever the time: a close must be begun even if its caller is cancelled."""

    @functools.wraps(method)
    async def call(self: AsyncFile[Any], *args: Any, **kwargs: Any) -> Any:
        await self._turns.wait()
        try:
            return await method(self, *args, **kwargs)
        finally:
            self._turns.give()

    return call  # type: ignore[return-value]


class Fact(int):
    """A truth that may be awaited too, as aiofiles would have it."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, bool]:
        return bool(self)
        yield

    def __repr__(self) -> str:
        return repr(bool(self))


class Closing:
    """What is closed at the end of `async with`."""

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
    """What is read line by line with `async for`."""

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
    """The methods that need only those of the file itself."""

    _turns: Turns
    _detached = False
    # A call that goes to the end of the file, and may read ahead as much as it likes.
    _reads_all = False
    _DETACHED = "raw stream has been detached"

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    @property
    def _file(self) -> Self:
        """Where aiofiles keeps the plain file, whose `fileno()` and `closed` programs ask for."""
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
        """Read a line, which may have to be read ahead, of at most *limit* unless that is -1."""
        raise NotImplementedError

    def _cut_lines(self, lines: list[Line], length: int, limit: int) -> int:
        """Append whole lines that are there; return the *length* of all."""
        return length

    def _mark(self) -> object:
        """Return what `_return` needs to know of where the file stands."""
        return None

    async def _return(self, lines: list[Line], mark: object) -> None:
        """Have the *lines* that a cancelled call has read since *mark* be read again."""
        raise NotImplementedError

    @in_turn
    async def readlines(self, hint: int | None = -1) -> list[Line]:
        """Read to the end, or until the lines have more than *hint* characters."""
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
                if self._turns.spent():
                    await self._turns.pause()
        except UnicodeError:
            # Plain files forget the lines.
            raise
        except BaseException:
            await self._return(lines, mark)
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
    """Say that a file was forgotten, as plain files do."""
    if not sys.is_finalizing():
        warnings.warn(f"unclosed file {file!r}", ResourceWarning, stacklevel=3, source=file)
