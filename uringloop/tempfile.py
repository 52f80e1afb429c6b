"""Temporary files and folders: those of the standard library's `tempfile`, awaited.

Each is for `async with`, or to be awaited. They are made, and folders removed, by a thread of the
loop's executor; what is read and written is done as `uringloop.open` does it.
"""

from __future__ import annotations

import builtins
import codecs
import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

from uringloop._core.fileturns import Turns, joined
from uringloop.filebase import Lines, in_thread, in_turn, limit_of
from uringloop.files import Opening, layered, open
from uringloop.filetext import TextFile
from uringloop.textcodecs import PIECE, encoded
from uringloop.textpositions import POSITION_MASK

__all__ = ["NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile"]


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
    """tempfile.TemporaryFile: a file without a name, gone when it is closed."""

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
    os.unlink(name)
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

    Without *delete_on_close*, which the standard library knows since Python 3.12, it is removed at
    the end of `async with`, and without *delete* never.
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
        return NamedFile(file, name, delete, delete_on_close)

    return Opening(make())


def _unlink(name: Any) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


class NamedFile:
    """A temporary file with a name: all of it is the file's, but for its end."""

    def __init__(self, file: Any, name: Any, delete: bool, delete_on_close: bool) -> None:
        self.file = file
        self.name = name
        self.delete = delete
        self._remains = delete
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
        if self._remains:
            self._remains = False
            await in_thread(_unlink, self.name)

    def __del__(self) -> None:
        if self._remains:
            # That it was forgotten is for the file to say.
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
    """tempfile.SpooledTemporaryFile: in memory up to *max_size* bytes, then a TemporaryFile."""

    def make_now() -> Any:
        fd = _nameless(suffix, prefix, dir)
        try:
            return layered(fd, fd, mode, buffering, encoding, errors, newline, True)
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
        )

    return Opening(make())


def _text_in_memory(encoding: str | None, errors: str | None, newline: str | None) -> Any:
    return io.TextIOWrapper(io.BytesIO(), io.text_encoding(encoding), errors, newline)


class SpooledFile(Lines[Any]):
    """A file that is in memory until it is too large for that, or `fileno()` or `rollover` ask."""

    def __init__(
        self,
        max_size: int,
        memory: Any,
        make: Callable[[], Opening[Any]],
        make_now: Callable[[], Any],
        mode: str,
    ) -> None:
        self._max_size = max_size
        self._memory = memory
        self._make = make
        self._make_now = make_now
        self._mode = mode
        # Where a text was left by `fileno()`: to go on there its next call may have to read.
        self._left_at = 0
        # The one that is used.
        self._file = memory
        self._turns = Turns()

    @property
    def _rolled(self) -> bool:
        return self._file is not self._memory

    def __getattr__(self, name: str) -> Any:
        # closed, encoding, errors, newlines.
        return getattr(self._file, name)

    @property
    def name(self) -> Any:
        """What a TemporaryFile has; None in memory."""
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

    async def _do(self, method: str, *args: Any) -> Any:
        """Call a method of the file that is used."""
        if self._left_at:
            await self._file.seek(self._left_at)
            self._left_at = 0
        result = getattr(self._file, method)(*args)
        return await result if self._rolled else result

    async def _in_pieces(self, read: Callable[[int], Any], add: Callable[[Any], None]) -> None:
        """Have *add* take all that *read* gives of what is in memory, in many turns."""
        start = self._memory.tell()
        try:
            while piece := read(PIECE):
                add(piece)
                if self._turns.spent():
                    await self._turns.pause()
        except BaseException:
            self._memory.seek(start)
            raise

    @in_turn
    async def read(self, *args: Any) -> Any:
        if self._rolled or limit_of(*args or (-1,)) >= 0:
            return await self._do("read", *args)
        pieces: list[Any] = []
        await self._in_pieces(self._memory.read, pieces.append)
        return await joined(self._turns, pieces) if pieces else self._memory.read()

    @in_turn
    async def read1(self, *args: Any) -> Any:
        return await self._do("read1", *args)

    @in_turn
    async def readline(self, *args: Any) -> Any:
        return await self._do("readline", *args)

    @in_turn
    async def readlines(self, *args: Any) -> Any:
        if self._rolled or limit_of(*args or (-1,)) > 0:
            return await self._do("readlines", *args)
        lines: list[Any] = []
        await self._in_pieces(self._memory.readlines, lines.extend)
        return lines

    @in_turn
    async def readinto(self, buffer: Any) -> Any:
        return await self._do("readinto", buffer)

    @in_turn
    async def readinto1(self, buffer: Any) -> Any:
        return await self._do("readinto1", buffer)

    @in_turn
    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> Any:
        return await self._do("seek", offset, whence)

    @in_turn
    async def tell(self) -> Any:
        return await self._do("tell")

    @in_turn
    async def flush(self) -> None:
        await self._do("flush")

    @in_turn
    async def close(self) -> None:
        self._left_at = 0
        await self._do("close")

    @in_turn
    async def write(self, data: Any) -> Any:
        # What is too large for memory is not put there first.
        known = self._max_size > 0 and isinstance(data, (str, bytes, bytearray))
        return await self._changed(self._write(data), len(data) if known else -1)

    async def _write(self, data: Any) -> Any:
        large = isinstance(data, (str, bytes, bytearray)) and len(data) > PIECE
        if self._rolled or not large:
            return await self._do("write", data)
        memory = self._memory
        if isinstance(data, str):
            # What can not be encoded leaves the file as it was.
            encoder = codecs.getincrementalencoder(memory.encoding)(memory.errors)
            await encoded(self._turns, memory.encoding, encoder, data, None)
        for at in range(0, len(data), PIECE):
            memory.write(data[at : at + PIECE])
            if self._turns.spent():
                await self._turns.pause()
        return len(data)

    @in_turn
    async def writelines(self, lines: Iterable[Any]) -> None:
        await self._changed(self._do("writelines", lines))

    @in_turn
    async def truncate(self, size: int | None = None) -> Any:
        if size is None:
            return await self._do("truncate")
        return await self._changed(self._do("truncate", size), size)

    async def _changed(self, change: Coroutine[Any, Any, Any], size: int = -1) -> Any:
        """Make the change, and roll over if the file has become too large for memory."""
        if size > self._max_size:
            await self._roll_over()
        result = await change
        if not self._rolled and self._file.tell() > self._max_size > 0:
            await self._roll_over()
        return result

    @in_turn
    async def rollover(self) -> None:
        """Have it be a file on disk from now on."""
        await self._roll_over()

    async def _roll_over(self) -> None:
        if self._rolled:
            return
        file = await self._make()
        memory = self._memory
        try:
            if not self._rolled:
                position = memory.tell()
                await getattr(file, "buffer", file).write(self._content())
                await file.seek(position)
        except BaseException:
            await file.close()
            raise
        if self._rolled:
            # fileno() did not wait for it.
            await file.close()
            return
        self._file = file
        memory.close()

    def _content(self) -> bytes:
        memory = self._memory
        memory.flush()
        content: bytes = getattr(memory, "buffer", memory).getvalue()
        return content

    def fileno(self) -> Any:
        """Return the descriptor, after a `rollover` that the loop waits for if it is in memory."""
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
                self._left_at = position
            os.lseek(fd, position & POSITION_MASK, os.SEEK_SET)
        except BaseException:
            os.close(getattr(file, "buffer", file)._give_up_descriptor())
            raise
        self._file = file
        self._memory.close()


class TemporaryDirectory:
    """tempfile.TemporaryDirectory: a folder that is removed with all that is in it."""

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
        """The path, once it has been made."""
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
        """Remove it now."""
        if self._made is not None:
            await in_thread(self._made.cleanup)
