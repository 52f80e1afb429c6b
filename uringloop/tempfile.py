"""The temporary files and directories of the standard library's `tempfile`, for `async with`.

The files can also be awaited. Threads of the loop's executor create files, and remove directories;
reads and writes are those of files that `uringloop.open` returns.
"""

from __future__ import annotations

import builtins
import codecs
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from uringloop.files.base import Lines, in_thread, limit_of, one_at_a_time
from uringloop.files.codecs import PIECE, encoded
from uringloop.files.memory import bytes_of, room_in
from uringloop.files.open import Opening, make_file, open
from uringloop.files.positions import POSITION_MASK
from uringloop.files.scheduling import CallLock, free, joined
from uringloop.files.text import TextFile

__all__ = ["NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile"]

T = TypeVar("T")

# Lines that are read or written in memory between two looks at the clock.
LINES = 64


def TemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: Any = None,
    prefix: Any = None,
    dir: Any = None,
    *,
    errors: str | None = None,
) -> Opening[Any]:
    """tempfile.TemporaryFile: a file without a name, which no longer exists once it is closed."""

    async def make() -> Any:
        def opener(_path: str, _flags: int) -> int:
            return _nameless(suffix, prefix, dir)

        file = await open(
            "", mode, buffering, encoding=encoding, errors=errors, newline=newline, opener=opener
        )
        binary = getattr(file, "buffer", file)
        binary.name = binary.fileno()
        return file

    return Opening(make())


def _nameless(suffix: Any, prefix: Any, dir: Any) -> int:
    fd: int
    fd, name = tempfile.mkstemp(suffix, prefix, dir)
    try:
        os.unlink(name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def NamedTemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: Any = None,
    prefix: Any = None,
    dir: Any = None,
    delete: bool = True,
    *,
    errors: str | None = None,
    delete_on_close: bool = True,
) -> Opening[Any]:
    """tempfile.NamedTemporaryFile: a file with a name, removed when it is closed.

    If *delete_on_close* is false (an argument that the standard library has had since Python 3.12),
    the file is removed at the end of `async with`. If *delete* is false, it is never removed.
    """

    async def make() -> NamedFile:
        names: list[Any] = []
        wanted = True

        def named(_path: str, _flags: int) -> int:
            fd: int
            fd, name = tempfile.mkstemp(suffix, prefix, dir)
            names.append(name)
            if not wanted:
                _unlink(name)
            return fd

        try:
            file = await open(
                "", mode, buffering, encoding=encoding, errors=errors, newline=newline, opener=named
            )
        except BaseException:
            wanted = False
            for name in names:
                _unlink(name)
            raise
        (name,) = names
        getattr(file, "buffer", file).name = name
        return NamedFile(file, name, delete=delete, delete_on_close=delete_on_close)

    return Opening(make())


def _unlink(name: Any) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


class NamedFile:
    """A temporary file with a name: everything but its removal is forwarded to `file`."""

    def __init__(self, file: Any, name: Any, *, delete: bool, delete_on_close: bool) -> None:
        self.file = file
        self.name = name
        self.delete = delete
        self._to_remove = delete
        self._delete_on_close = delete_on_close

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __repr__(self) -> str:
        return f"<uringloop.tempfile.{type(self).__name__} {self.file!r}>"

    def __aiter__(self) -> Any:
        return self.file.__aiter__()

    async def __aenter__(self) -> Self:
        await self.file.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        finally:
            await self._remove()

    async def close(self) -> None:
        try:
            await self.file.close()
        finally:
            if self._delete_on_close:
                await self._remove()

    async def _remove(self) -> None:
        if self._to_remove:
            self._to_remove = False
            await in_thread(_unlink, self.name)

    def __del__(self) -> None:
        if self._to_remove:
            # The file itself emits the ResourceWarning.
            with contextlib.suppress(OSError):
                os.unlink(self.name)


def SpooledTemporaryFile(
    max_size: int = 0,
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: Any = None,
    prefix: Any = None,
    dir: Any = None,
    *,
    errors: str | None = None,
) -> Opening[Any]:
    """tempfile.SpooledTemporaryFile: a file in memory up to *max_size* bytes, then on disk."""

    def make_now() -> Any:
        fd = _nameless(suffix, prefix, dir)
        try:
            return make_file(fd, fd, mode, buffering, encoding, errors, newline, closefd=True)
        except BaseException:
            os.close(fd)
            raise

    async def make() -> SpooledFile:
        return SpooledFile(
            max_size,
            io.BytesIO() if "b" in mode else _text_in_memory(encoding, errors, newline),
            lambda: TemporaryFile(
                mode, buffering, encoding, newline, suffix, prefix, dir, errors=errors
            ),
            make_now,
            mode,
            newline,
        )

    return Opening(make())


def _text_in_memory(encoding: str | None, errors: str | None, newline: str | None) -> Any:
    return io.TextIOWrapper(io.BytesIO(), io.text_encoding(encoding), errors, newline)


class SpooledFile(Lines[Any]):
    """A file in memory until it exceeds *max_size*, or `fileno()` or `rollover()` is called."""

    def __init__(
        self,
        max_size: int,
        memory: Any,
        make: Callable[[], Opening[Any]],
        make_now: Callable[[], Any],
        mode: str,
        newline: str | None,
    ) -> None:
        self._newline = newline
        self._max_size = max_size
        self._memory = memory
        self._make = make
        self._make_now = make_now
        self._mode = mode
        # The position of a text file that `fileno()` has moved to disk: the next call seeks there,
        # and that may have to read.
        self._resume_at = 0
        # The file in use: `memory`, or the one on disk.
        self._file = memory
        self._lock = CallLock()

    @property
    def _rolled(self) -> bool:
        return self._file is not self._memory

    def __getattr__(self, name: str) -> Any:
        # For closed, encoding, errors and newlines.
        return getattr(self._file, name)

    @property
    def name(self) -> Any:
        """The name of the file on disk; None while the file is in memory."""
        return getattr(self._file, "name", None)

    @property
    def mode(self) -> str:
        return getattr(self._file, "mode", self._mode)

    def __repr__(self) -> str:
        return f"<uringloop.tempfile.{type(self).__name__} {self._file!r}>"

    async def __aenter__(self) -> Self:
        if self._file.closed:
            raise ValueError("Cannot enter context with closed file")
        return self

    async def _call(self, method: str, *args: Any) -> Any:
        """Call *method* of the file in use."""
        if self._resume_at:
            await self._file.seek(self._resume_at)
            self._resume_at = 0
        result = getattr(self._file, method)(*args)
        return await result if self._rolled else result

    async def _pause_if_spent(self) -> None:
        """Wait for the next turn if this one has no time left for files."""
        if self._lock.spent():
            await self._lock.pause()

    async def _in_pieces(self, read: Callable[[], Awaitable[T]]) -> T:
        """Await *read*, which reads from memory over several turns.

        If it is cancelled or raises anything but UnicodeError, seek back to where it began.
        """
        start = self._memory.tell()
        try:
            return await read()
        except UnicodeError:
            raise
        except BaseException:
            await self._call("seek", start)
            raise

    @one_at_a_time
    async def read(self, *args: Any) -> Any:
        limit = limit_of(*args or (-1,))
        if self._rolled or 0 <= limit <= PIECE:
            return await self._call("read", *args)
        return await self._in_pieces(lambda: self._read(limit))

    async def _read(self, limit: int) -> Any:
        pieces: list[Any] = []
        while piece := await self._call("read", PIECE if limit < 0 else min(PIECE, limit)):
            pieces.append(piece)
            limit -= len(piece) if limit > 0 else 0
            if not limit:
                break
            await self._pause_if_spent()
        return await joined(self._lock, pieces) if pieces else await self._call("read", 0)

    @one_at_a_time
    async def read1(self, *args: Any) -> Any:
        return await self._call("read1", *args)

    @one_at_a_time
    async def readline(self, *args: Any) -> Any:
        limit = limit_of(*args or (-1,))
        if self._rolled or 0 <= limit <= PIECE:
            return await self._call("readline", *args)
        return await self._in_pieces(lambda: self._readline(limit, []))

    async def _readline(self, limit: int, parts: list[Any]) -> Any:
        """Return a line; *parts* is empty, or has its first PIECE characters or bytes."""
        while True:
            if parts:
                end = await self._end_behind(parts[-1])
                if end is not None:
                    parts += [end] if end else []
                    break
                await self._pause_if_spent()
            size = PIECE if limit < 0 else min(PIECE, limit)
            part = await self._call("readline", size)
            parts.append(part)
            limit -= len(part) if limit > 0 else 0
            if len(part) < size or not limit:
                break
        return await joined(self._lock, parts)

    async def _end_behind(self, part: Any) -> Any:
        """Read the rest of a line end that *part* ends with; return None if no line ends there."""
        if isinstance(part, bytes):
            return b"" if part.endswith(b"\n") else None
        if part.endswith("\r") and self._newline in ("", "\r\n"):
            here = await self._call("tell")
            if await self._call("read", 1) == "\n":
                return "\n"
            await self._call("seek", here)
            return "" if not self._newline else None
        return "" if part.endswith(self._newline or "\n") else None

    @one_at_a_time
    async def readlines(self, *args: Any) -> Any:
        if self._rolled:
            return await self._call("readlines", *args)
        limit = limit_of(*args or (-1,))
        return await self._in_pieces(lambda: self._readlines(limit))

    async def _readlines(self, limit: int) -> list[Any]:
        # As in the standard library, BytesIO stops at *limit* bytes, text only beyond *limit*.
        exact = isinstance(self._memory, io.BytesIO)
        enough = (limit if exact else limit + 1) if limit > 0 else sys.maxsize
        lines: list[Any] = []
        length = 0
        while length < enough:
            await self._pause_if_spent()
            if self._rolled:
                line = await self._call("readline")
                if not line:
                    break
                lines.append(line)
                length += len(line)
                continue
            readline = self._memory.readline
            budget = LINES
            while budget > 0 and length < enough:
                line = readline(PIECE)
                size = len(line)
                if size == PIECE:
                    line = await self._readline(-1, [line])
                    size = len(line)
                if not size:
                    return lines
                lines.append(line)
                length += size
                # A longer line takes more time, and so more of the budget.
                budget -= 1 + (size >> 8)
        return lines

    @one_at_a_time
    async def readinto(self, buffer: Any) -> Any:
        if self._rolled or not isinstance(self._memory, io.BytesIO):
            return await self._call("readinto", buffer)
        view = room_in(buffer)
        return await self._in_pieces(lambda: self._read_into(view))

    async def _read_into(self, view: memoryview) -> int:
        done = 0
        while count := await self._call("readinto", view[done : done + PIECE]):
            done += count
            await self._pause_if_spent()
        return done

    @one_at_a_time
    async def readinto1(self, buffer: Any) -> Any:
        return await self._call("readinto1", buffer)

    @one_at_a_time
    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> Any:
        return await self._call("seek", offset, whence)

    @one_at_a_time
    async def tell(self) -> Any:
        return await self._call("tell")

    @one_at_a_time
    async def flush(self) -> None:
        await self._call("flush")

    @one_at_a_time
    async def close(self) -> None:
        self._resume_at = 0
        if self._rolled or self._memory.closed:
            await self._call("close")
        else:
            self._free_memory([self._content()])

    @one_at_a_time
    async def write(self, data: Any) -> Any:
        # Data that is too large for memory goes to disk directly.
        known = self._max_size > 0 and isinstance(data, (str, bytes, bytearray))
        return await self._changed(len(data) if known else -1, self._write, data)

    async def _write(self, data: Any) -> Any:
        is_text = isinstance(data, str)
        if self._rolled or is_text is isinstance(self._memory, io.BytesIO):
            return await self._call("write", data)
        if not is_text:
            view = memoryview(data)
            if not view.c_contiguous or not view.nbytes:
                return await self._call("write", data)
            data = bytes_of(data)
        if len(data) <= PIECE:
            return await self._call("write", data)
        if is_text:
            # Text that cannot be encoded must leave the file as it was.
            memory = self._memory
            encoder = codecs.getincrementalencoder(memory.encoding)(memory.errors)
            await encoded(self._lock, memory.encoding, encoder, data, None)
        for at in range(0, len(data), PIECE):
            await self._call("write", data[at : at + PIECE])
            await self._pause_if_spent()
        return len(data)

    @one_at_a_time
    async def writelines(self, lines: Iterable[Any]) -> None:
        await self._changed(-1, self._write_lines, lines)

    async def _write_lines(self, lines: Iterable[Any]) -> None:
        if self._rolled:
            await self._call("writelines", lines)
            return
        # Raises ValueError if the file is closed.
        self._memory.writelines(())
        some: list[Any] = []
        try:
            for line in lines:
                some.append(line)
                if len(some) == LINES:
                    await self._write_some(some)
        finally:
            # Write the last lines even if the iterable has raised an exception.
            await self._write_some(some)

    async def _write_some(self, lines: list[Any]) -> None:
        """Write *lines*, and clear the list."""
        some = lines[:]
        lines.clear()
        try:
            size = sum(map(len, some))
        except TypeError:
            # One of the lines is neither text nor bytes: writing it raises the error.
            size = 0
        if size <= PIECE:
            await self._call("writelines", some)
        else:
            for line in some:
                await self._write(line)
        await self._pause_if_spent()

    @one_at_a_time
    async def truncate(self, size: int | None = None) -> Any:
        if size is None:
            return await self._call("truncate")
        return await self._changed(size, self._call, "truncate", size)

    async def _changed(
        self, size: int, change: Callable[..., Coroutine[Any, Any, Any]], *args: Any
    ) -> Any:
        """Await *change* with *args*; roll over before or after it if the file becomes too large.

        *size* is the size that the file will have at least, or -1 if it is not known.
        """
        if size > self._max_size:
            await self._roll_over()
        result = await change(*args)
        if not self._rolled and self._file.tell() > self._max_size > 0:
            await self._roll_over()
        return result

    @one_at_a_time
    async def rollover(self) -> None:
        """Move the file from memory to disk."""
        await self._roll_over()

    async def _roll_over(self) -> None:
        if self._rolled:
            return
        file = await self._make()
        memory = self._memory
        content: list[bytes] = []
        try:
            if not self._rolled:
                position = memory.tell()
                content.append(self._content())
                await getattr(file, "buffer", file).write(content[0])
                await file.seek(position)
        except BaseException:
            await file.close()
            raise
        if self._rolled:
            # fileno() has rolled over meanwhile.
            await file.close()
            return
        self._file = file
        self._free_memory(content)

    def _free_memory(self, content: list[bytes]) -> None:
        """Close the file in memory, and free its *content*, over several turns if it is large."""
        self._memory.close()
        free(content)

    def _content(self) -> bytes:
        memory = self._memory
        memory.flush()
        content: bytes = getattr(memory, "buffer", memory).getvalue()
        return content

    def fileno(self) -> Any:
        """Return the descriptor. A file in memory is rolled over first, which blocks the loop."""
        if not self._rolled:
            self._roll_over_now()
        return self._file.fileno()

    def _roll_over_now(self) -> None:
        position = self._memory.tell()
        content = self._content()
        file = self._make_now()
        try:
            fd = file.fileno()
            with builtins.open(fd, "wb", closefd=False) as plain:
                plain.write(content)
            if isinstance(file, TextFile):
                self._resume_at = position
            os.lseek(fd, position & POSITION_MASK, os.SEEK_SET)
        except BaseException:
            os.close(getattr(file, "buffer", file)._give_up_descriptor())
            raise
        self._file = file
        self._memory.close()


class TemporaryDirectory:
    """tempfile.TemporaryDirectory: a directory that is removed with everything in it."""

    def __init__(
        self,
        suffix: Any = None,
        prefix: Any = None,
        dir: Any = None,
        ignore_cleanup_errors: bool = False,
    ) -> None:
        def make() -> tempfile.TemporaryDirectory[Any]:
            return tempfile.TemporaryDirectory(suffix, prefix, dir, ignore_cleanup_errors)

        self._make = make
        self._made: tempfile.TemporaryDirectory[Any] | None = None

    @property
    def name(self) -> Any:
        """The path; None before the directory is created."""
        return None if self._made is None else self._made.name

    async def __aenter__(self) -> Any:
        self._made = await in_thread(self._make)
        return self._made.name

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cleanup()

    async def cleanup(self) -> None:
        """Remove the directory now."""
        if self._made is not None:
            await in_thread(self._made.cleanup)
