"""Binary files: RawFile without a buffer, BufferedFile with one.

A BufferedFile holds bytes that it has read ahead or bytes that it has yet to write, never both. The
kernel alone keeps the descriptor's position: after the bytes read ahead, before those to write.
"""

from __future__ import annotations

import io
import os
from operator import index
from typing import IO, TYPE_CHECKING

from uringloop.files.base import (
    AsyncFile,
    AwaitableBool,
    limit_of,
    one_at_a_time,
    one_at_a_time_now,
    warn_unclosed,
)
from uringloop.files.lines import LineFile, iterated_directly
from uringloop.files.memory import bytes_of, room_in
from uringloop.files.open_file import OpenFile
from uringloop.files.requests import REQUEST_MAX
from uringloop.files.scheduling import joined

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The largest single read of a file of unknown size; `joined` frees such parts one by one.
CHUNK_BYTES = 1024 * 1024
# Bytes that RawFile.readline() reads at once; it then seeks back to the end of the line.
LINE_BYTES = 1024


class BinaryFile(OpenFile, AsyncFile[bytes]):
    """The methods that RawFile and BufferedFile share."""

    _NOT_READABLE = "File not open for reading"
    _NOT_WRITABLE = "File not open for writing"

    def __init__(self, fd: int, name: object, *, mode: str, closefd: bool = True) -> None:
        super().__init__(
            fd,
            name,
            closefd=closefd,
            readable=mode[0] == "r" or "+" in mode,
            writable=mode[0] != "r" or "+" in mode,
            appending=mode[0] == "a",
        )
        self.mode = mode

    def __repr__(self) -> str:
        return f"<uringloop.{type(self).__name__} name={self.name!r} mode={self.mode!r}>"

    def __del__(self) -> None:
        if not self.closed and self.closefd:
            warn_unclosed(self)
            self._finalize()

    def _finalize(self) -> None:
        self._close_now()

    def readable(self) -> AwaitableBool:
        self._check_open()
        return AwaitableBool(self._readable)

    def writable(self) -> AwaitableBool:
        self._check_open()
        return AwaitableBool(self._writable)

    def seekable(self) -> AwaitableBool:
        self._check_open()
        return AwaitableBool(self._seekable)

    def isatty(self) -> AwaitableBool:
        return AwaitableBool(os.isatty(self.fileno()))

    def _check_readable(self) -> None:
        self._check_open()
        if not self._readable:
            raise io.UnsupportedOperation(self._NOT_READABLE)

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation(self._NOT_WRITABLE)

    async def close(self) -> None:
        if self._detached:
            raise ValueError(self._DETACHED)
        if not self.closed:
            await self._close()

    @one_at_a_time_now
    async def _close(self) -> None:
        await self._close_descriptor()

    async def _read_to_end(self, parts: list[bytes]) -> bytes:
        """Return *parts* and the rest of the file. If cancelled, *parts* has all that was read."""
        size = io.DEFAULT_BUFFER_SIZE
        if self._regular:
            ahead = b"".join(parts)
            # One byte more than the size says, to see the end of the file.
            wanted = min(max(self._size() - self._tell(), 0) + 1, REQUEST_MAX)
            parts[:] = [await self._read_after(ahead, wanted)]
            if len(parts[0]) == len(ahead):
                return ahead
        # A short read need not mean the end of the file: files in /proc report no size.
        while chunk := await self._read_some(size):
            parts.append(chunk)
            size = min(2 * size, CHUNK_BYTES) if len(chunk) == size else io.DEFAULT_BUFFER_SIZE
        return await joined(self._lock, parts) if parts else b""


class RawFile(BinaryFile):
    """A binary file without a buffer: every call goes to the kernel."""

    @one_at_a_time
    async def read(self, size: int | None = -1) -> bytes:
        self._check_readable()
        limit = limit_of(size)
        if limit >= 0:
            return await self._read_some(limit)
        parts: list[bytes] = []
        try:
            return await self._read_to_end(parts)
        except BaseException:
            self._unread(parts)
            raise

    async def readall(self) -> bytes:
        return await self.read()

    @one_at_a_time
    async def readinto(self, buffer: Buffer) -> int:
        self._check_readable()
        view = room_in(buffer)
        return await self._read_some(len(view), view)

    @one_at_a_time
    async def readline(self, size: int | None = -1) -> bytes:
        self._check_readable()
        return await self._line(limit_of(size))

    async def _line(self, limit: int) -> bytes:
        self._check_readable()
        parts: list[bytes] = []
        end = 0
        try:
            while limit and not end:
                wanted = LINE_BYTES if self._seekable else 1
                chunk = await self._read_some(min(wanted, limit) if limit > 0 else wanted)
                if not chunk:
                    break
                end = chunk.find(b"\n") + 1
                if 0 < end < len(chunk):
                    self._unread([chunk[end:]])
                    chunk = chunk[:end]
                parts.append(chunk)
                limit -= len(chunk) if limit > 0 else 0
            return await joined(self._lock, parts) if parts else b""
        except BaseException:
            self._unread(parts)
            raise

    async def _unread_lines(self, lines: list[bytes], mark: object) -> None:
        self._unread(lines)

    @one_at_a_time
    async def write(self, data: Buffer) -> int:
        """Write all of *data*. An OSError has `characters_written`, the number of bytes written."""
        view = bytes_of(data)
        self._check_writable()
        await self._write_all(view)
        return len(view)

    @one_at_a_time
    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        return await self._seek(index(offset), index(whence))

    @one_at_a_time
    async def tell(self) -> int:
        return self._tell()

    @one_at_a_time
    async def truncate(self, size: int | None = None) -> int:
        self._check_writable()
        size = self._tell() if size is None else index(size)
        await self._resize(size)
        return size

    async def flush(self) -> None:
        self._check_open()


@iterated_directly
class BufferedFile(LineFile, BinaryFile):
    """A binary file that reads ahead and buffers writes."""

    _NOT_READABLE = "read"
    _NOT_WRITABLE = "write"

    def __init__(
        self,
        fd: int,
        name: object,
        *,
        mode: str,
        closefd: bool = True,
        buffer_size: int = -1,
    ) -> None:
        super().__init__(fd, name, mode=mode, closefd=closefd)
        if buffer_size < 0:
            buffer_size = max(io.DEFAULT_BUFFER_SIZE, self._block_size)
        self._buffer_size = buffer_size

    def _finalize(self) -> None:
        """Write the buffered bytes, as the finalizer of built-in files does."""
        try:
            while self._pending:
                del self._pending[: os.write(self.fileno(), self._pending)]
        finally:
            super()._finalize()

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    async def _prepare_to_read(self) -> None:
        self._check_readable()
        if self._pending:
            await self._write_out()

    def _take(self, size: int) -> bytes:
        start = self._start
        self._start = start + size
        return self._ahead[start : self._start]

    async def _fetch(self) -> bool:
        """Read ahead when no bytes are left; return False at the end of the file."""
        self._ahead, self._start = await self._read_some(self._buffer_size), 0
        return bool(self._ahead)

    def _unread_buffered(self, parts: list[bytes]) -> None:
        """Unread *parts*, which a cancelled read has taken."""
        self._ahead = b"".join(parts) + self._ahead[self._start :]
        self._start = 0

    async def _read_checked(self, size: int | None) -> bytes:
        limit = limit_of(size)
        if limit < -1:
            raise ValueError("read length must be non-negative or -1")
        return await self._read(limit)

    async def _read(self, size: int) -> bytes:
        await self._prepare_to_read()
        have = len(self._ahead) - self._start
        if 0 <= size <= have:
            return self._take(size)
        parts = [self._take(have)] if have else []
        try:
            if size < 0:
                return await self._read_to_end(parts)
            missing = size - have
            if missing >= self._buffer_size and self._regular:
                return await self._read_after(b"".join(parts), missing)
            while missing:
                if missing >= self._buffer_size:
                    chunk = await self._read_some(missing)
                else:
                    await self._fetch()
                    chunk = self._take(min(missing, len(self._ahead)))
                if not chunk:
                    break
                parts.append(chunk)
                missing -= len(chunk)
            return await joined(self._lock, parts) if parts else b""
        except BaseException:
            self._unread_buffered(parts)
            raise

    @one_at_a_time
    async def read1(self, size: int = -1) -> bytes:
        return await self._read1(index(size))

    async def _read1(self, size: int) -> bytes:
        await self._prepare_to_read()
        if size < 0:
            size = self._buffer_size
        have = len(self._ahead) - self._start
        if have or not size:
            return self._take(min(size, have))
        return await self._read_some(size)

    @one_at_a_time
    async def readinto(self, buffer: Buffer) -> int:
        return await self._read_into(buffer, to_the_end=True)

    @one_at_a_time
    async def readinto1(self, buffer: Buffer) -> int:
        return await self._read_into(buffer, to_the_end=False)

    async def _read_into(self, buffer: Buffer, *, to_the_end: bool) -> int:
        await self._prepare_to_read()
        view = room_in(buffer)
        done = min(len(view), len(self._ahead) - self._start)
        view[:done] = self._take(done)
        try:
            while done < len(view) and (to_the_end or not done):
                missing = len(view) - done
                if missing >= self._buffer_size:
                    count = await self._read_some(missing, view[done:])
                else:
                    await self._fetch()
                    count = min(missing, len(self._ahead))
                    view[done : done + count] = self._take(count)
                if not count:
                    break
                done += count
        except BaseException:
            self._unread_buffered([bytes(view[:done])])
            raise
        return done

    @one_at_a_time
    async def peek(self, size: int = 0) -> bytes:
        """Return bytes without moving the position; this reads from the file once at most."""
        index(size)
        await self._prepare_to_read()
        if self._start == len(self._ahead):
            await self._fetch()
        return self._ahead[self._start :]

    async def _readline(self, size: int | None) -> bytes:
        await self._prepare_to_read()
        return await self._line(limit_of(size))

    async def _line(self, limit: int) -> bytes:
        await self._prepare_to_read()
        parts: list[bytes] = []
        try:
            while limit:
                start = self._start
                end = self._ahead.find(b"\n", start) + 1
                stop = end or len(self._ahead)
                if 0 < limit < stop - start:
                    stop = start + limit
                    end = stop
                self._start = stop
                part = self._ahead[start:stop]
                if end and not parts:
                    return part
                if part:
                    parts.append(part)
                    limit -= len(part) if limit > 0 else 0
                if end or not limit or not await self._fetch():
                    break
            return await joined(self._lock, parts) if parts else b""
        except BaseException:
            self._unread_buffered(parts)
            raise

    async def _next_line(self) -> bytes:
        line = await self._line(-1)
        if not line:
            raise StopAsyncIteration
        return line

    async def _unread_lines(self, lines: list[bytes], mark: object) -> None:
        self._unread_buffered(lines)

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    async def _write(self, data: Buffer) -> int:
        self._check_writable()
        view = bytes_of(data)
        if self._ahead:
            await self._drop_read_ahead()
        if len(self._pending) + len(view) > self._buffer_size:
            await self._write_out()
        if len(view) > self._buffer_size:
            await self._write_all(view)
        else:
            self._pending += view
        return len(view)

    async def _write_out(self) -> None:
        """Write the buffered bytes; those that an error or a cancel leaves stay buffered."""
        if self._pending:
            try:
                await self._write_all(bytes(self._pending))
            finally:
                del self._pending[: self._written]

    async def _drop_read_ahead(self) -> None:
        """Drop the bytes read ahead and seek back to the first unread one, if the file can seek."""
        unread = len(self._ahead) - self._start
        if unread and self._seekable:
            await self._seek(-unread, os.SEEK_CUR)
        if self._seekable:
            self._ahead, self._start = b"", 0

    @one_at_a_time
    async def flush(self) -> None:
        await self._flush()

    async def _flush(self) -> None:
        self._check_open()
        await self._write_out()
        if self._writable and self._ahead:
            await self._drop_read_ahead()

    @one_at_a_time
    async def _write_and_sync(self, flags: int) -> None:
        self._check_open()
        synced = False
        if self._pending:
            try:
                synced = await self._write_all_and_sync(bytes(self._pending), flags)
            finally:
                del self._pending[: self._written]
        await self._flush()
        if not synced:
            await self._sync(flags)

    # ── position, end ────────────────────────────────────────────────────────────────────────

    async def _seek_buffered(self, offset: int, whence: int) -> int:
        self._check_open()
        offset, whence = index(offset), index(whence)
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, os.SEEK_DATA, os.SEEK_HOLE):
            raise ValueError(f"whence value {whence} unsupported")
        self._check_seekable()
        await self._write_out()
        unread = len(self._ahead) - self._start
        if unread and whence in (os.SEEK_SET, os.SEEK_CUR):
            here = self._tell() - unread
            target = offset if whence == os.SEEK_SET else here + offset
            if -self._start <= target - here <= unread:
                self._start += target - here
                return target
        if whence == os.SEEK_CUR:
            offset -= unread
        position = await self._seek(offset, whence)
        self._ahead, self._start = b"", 0
        return position

    def _check_seekable(self) -> None:
        if not self._seekable:
            raise io.UnsupportedOperation("File or stream is not seekable.")

    async def _tell_buffered(self) -> int:
        return self._position_now()

    def _position_now(self) -> int:
        self._check_open()
        return self._tell() - (len(self._ahead) - self._start) + len(self._pending)

    @one_at_a_time
    async def truncate(self, size: int | None = None) -> int:
        return await self._truncate(size)

    async def _truncate(self, size: int | None) -> int:
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("truncate")
        await self._flush()
        size = self._tell() if size is None else index(size)
        await self._resize(size)
        return size

    def detach(self) -> IO[bytes]:
        """Return a built-in file that takes over the descriptor and the buffered writes."""
        self._lock.begin()
        try:
            return self._detach()
        finally:
            self._lock.end()

    def _detach(self) -> IO[bytes]:
        self._check_open()
        unread = len(self._ahead) - self._start
        if unread:
            os.lseek(self.fileno(), -unread, os.SEEK_CUR)
        pending = bytes(self._pending)
        plain = open(self._give_up_descriptor(), self.mode, closefd=self.closefd)  # noqa: SIM115
        if pending:
            plain.write(pending)
        self._detached = True
        return plain

    @one_at_a_time_now
    async def _close(self) -> None:
        if self.closed:
            return
        try:
            await self._flush()
        except GeneratorExit:
            # The coroutine is destroyed, perhaps with its loop: the file's finalizer does the rest.
            raise
        except BaseException:
            await self._close_descriptor()
            raise
        await self._close_descriptor()
