"""Text files, which decode and encode the bytes of a BufferedFile.

Decoders, encoders and the translation of line ends are the standard library's. `tell` returns the
same numbers as built-in files (see positions.py).
"""

from __future__ import annotations

import codecs
import io
import os
from operator import index
from typing import IO, TYPE_CHECKING, Any

from uringloop.files.base import AsyncFile, AwaitableBool, limit_of, one_at_a_time
from uringloop.files.binary import BufferedFile
from uringloop.files.codecs import PIECE, decoded, encoded, new_decoder
from uringloop.files.lines import CHUNK_BYTES, LineText, iterated_directly
from uringloop.files.positions import START_MASK, Chunk, Place, place_after
from uringloop.files.scheduling import free, joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

# An unfinished line or read keeps this many unread characters, or more, as a part (PartialText).
LONG = 256 * 1024


class Mark:
    """The position and state of a text file, to go back there without waiting or decoding."""

    def __init__(self, file: TextFile) -> None:
        self._file = file
        self._state = file._decoder and file._decoder.getstate()
        self._ahead = file._chars, file._used, file._bytes_per_char
        self._chunks = file._chunks[:]
        self._position = file.buffer._position_now() if file.buffer._seekable else 0

    async def go_back(self, parts: list[str]) -> None:
        """Go back to the mark; *parts* is all the text that was taken since then."""
        file = self._file
        if file.closed or not parts:
            return
        if not file.buffer._seekable:
            file._chars = "".join(parts) + file._chars[file._used :]
            file._used = 0
            return
        if file.buffer._position_now() != self._position:
            # This does not wait: as bytes were read since, none are waiting to be written.
            await file.buffer._seek_buffered(self._position, os.SEEK_SET)
        if self._state:
            file._decoder.setstate(self._state)
        elif file._decoder:
            file._decoder.reset()
        file._chars, file._used, file._bytes_per_char = self._ahead
        file._chunks[:] = self._chunks


class PartialText:
    """The text that an unfinished long line or large read has taken so far."""

    def __init__(self, file: TextFile) -> None:
        self.parts: list[str] = []
        self._file = file
        self._mark: Mark | None = None

    def put(self, end: int) -> None:
        """Take the unread characters up to *end*."""
        if self._mark is None:
            self._mark = Mark(self._file)
        self.parts.append(self._file._take(end))

    async def put_back(self) -> None:
        """After a cancel, go back to the file's position before anything was taken."""
        if self._mark is not None:
            await self._mark.go_back(self.parts)


@iterated_directly
class TextFile(LineText, AsyncFile[str]):
    """A text file on top of the binary file `buffer`."""

    buffer: BufferedFile
    _DETACHED = "underlying buffer has been detached"

    def __init__(
        self,
        buffer: BufferedFile,
        *,
        mode: str,
        encoding: str,
        errors: str,
        newline: str | None,
        line_buffering: bool,
    ) -> None:
        super().__init__(buffer, newline)
        self.mode = mode
        self.encoding = encoding
        self.errors = errors
        self.line_buffering = line_buffering
        self._newline = newline
        self._written_newline = newline if newline not in (None, "", "\n") else None
        self._encoder: Any = None
        # A byte order mark is written at the beginning of a file only.
        self._past_start = bool(buffer._writable and buffer._seekable and buffer._position_now())

    def __repr__(self) -> str:
        return (
            f"<uringloop.{type(self).__name__} name={self.name!r} mode={self.mode!r} "
            f"encoding={self.encoding!r}>"
        )

    # ── attributes of the binary file ────────────────────────────────────────────────────────

    @property
    def name(self) -> object:
        return self.buffer.name

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        # Without a GIL the decoder may not be read while another thread decodes with it.
        self._lock.begin()
        try:
            return getattr(self._decoder, "newlines", None)
        finally:
            self._lock.end()

    def fileno(self) -> int:
        return self.buffer.fileno()

    def isatty(self) -> AwaitableBool:
        return self.buffer.isatty()

    def readable(self) -> AwaitableBool:
        return self.buffer.readable()

    def writable(self) -> AwaitableBool:
        return self.buffer.writable()

    def seekable(self) -> AwaitableBool:
        return self.buffer.seekable()

    async def flush(self) -> None:
        await self.buffer.flush()

    async def close(self) -> None:
        if self._detached:
            raise ValueError(self._DETACHED)
        await self.buffer.close()

    def detach(self) -> IO[bytes]:
        """Return a built-in binary file that takes over the descriptor."""
        self._check_open()
        plain = self.buffer.detach()
        self._detached = True
        return plain

    # ── positional calls, on bytes ───────────────────────────────────────────────────────────

    async def pread(self, n: int, offset: int) -> bytes:
        return await self.buffer.pread(n, offset)

    async def pread_into(self, buffer: Buffer, offset: int) -> int:
        return await self.buffer.pread_into(buffer, offset)

    async def preadv(self, buffers: Iterable[Buffer], offset: int) -> int:
        return await self.buffer.preadv(buffers, offset)

    async def pwrite(self, data: Buffer, offset: int) -> int:
        return await self.buffer.pwrite(data, offset)

    async def pwritev(self, buffers: Iterable[Buffer], offset: int) -> int:
        return await self.buffer.pwritev(buffers, offset)

    async def fsync(self) -> None:
        await self.buffer.fsync()

    async def fdatasync(self) -> None:
        await self.buffer.fdatasync()

    async def fallocate(self, offset: int, size: int, *, mode: int = 0) -> None:
        await self.buffer.fallocate(offset, size, mode=mode)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def _check_readable(self) -> None:
        self._check_open()
        if not self.buffer._readable:
            raise io.UnsupportedOperation("not readable")

    def _get_decoder(self) -> Any:
        if self._decoder is None:
            self._decoder = new_decoder(self.encoding, self.errors, self._newline)
        return self._decoder

    def _forget_chars(self) -> None:
        self._chars, self._used = "", 0
        self._chunks.clear()

    async def _fetch(self, chars: int = 0) -> bool:
        """Decode the bytes after the unread text; return False at the end of the file.

        As built-in files do, it reads as many bytes as *chars* may need.
        """
        if self._lock.spent():
            await self._lock.pause()
        decoder = self._get_decoder()
        state = decoder.getstate()
        wanted = self._bytes_wanted(PIECE if self._reads_all else CHUNK_BYTES, chars)
        data = await self.buffer._read1(min(wanted, LONG))
        try:
            text = "".join(await decoded(self._lock, decoder, data, final=not data))
        except UnicodeError:
            raise
        except BaseException:
            self.buffer._unread_buffered([data])
            raise
        return self._add_chunk(state, data, text)

    def _take(self, end: int) -> str:
        text = self._chars[self._used : end]
        self._used += len(text)
        return text

    async def _read_checked(self, size: int | None) -> str:
        self._check_readable()
        limit = limit_of(size)
        return await (self._read_to_end() if limit < 0 else self._read(limit))

    async def _read_to_end(self) -> str:
        decoder = self._get_decoder()
        state = decoder.getstate()
        data = await self.buffer._read(-1)
        try:
            texts = await decoded(self._lock, decoder, data, final=True)
            text = await joined(self._lock, [self._chars[self._used :], *texts])
        except UnicodeError:
            raise
        except BaseException:
            decoder.setstate(state)
            self.buffer._unread_buffered([data])
            raise
        self._forget_chars()
        held = [data]
        del data
        free(held)
        return text

    async def _read(self, missing: int) -> str:
        more = True
        partial = PartialText(self)
        try:
            while more and missing > (unread := len(self._chars) - self._used):
                if unread >= LONG:
                    partial.put(len(self._chars))
                    missing -= unread
                    unread = 0
                more = await self._fetch(missing - unread)
            partial.parts.append(self._take(self._used + missing))
            return await joined(self._lock, partial.parts)
        except UnicodeError:
            # As in built-in files, the text that could be decoded counts as read.
            self._used = len(self._chars)
            raise
        except BaseException:
            await partial.put_back()
            raise

    async def _next_line(self) -> str:
        line = await self._line(-1)
        if not line:
            raise StopAsyncIteration
        return line

    async def _readline(self, size: int | None) -> str:
        self._check_readable()
        return await self._line(-1 if size is None else max(index(size), -1))

    async def _line(self, limit: int) -> str:
        self._check_readable()
        searched = 0
        more = True
        partial = PartialText(self)
        try:
            while True:
                unread = len(self._chars) - self._used
                end = self._end_of_line(self._used + searched)
                if not end and not more:
                    # At the end built-in files derive their position from the bytes alone.
                    partial.parts.append(self._chars[self._used :])
                    self._forget_chars()
                    break
                if limit >= 0 and (unread >= limit or end):
                    end = min(end or self._used + limit, self._used + limit)
                if end or not limit:
                    partial.parts.append(self._take(end))
                    break
                if unread >= LONG:
                    # The last character may be the first half of a line end.
                    partial.put(len(self._chars) - 1)
                    limit -= unread - 1 if limit > 0 else 0
                    unread = 1
                more = await self._fetch()
                searched = max(unread - 1, 0)
            return await joined(self._lock, partial.parts)
        except UnicodeError:
            # Built-in files drop the line, and go back to where they last began to decode.
            last = self._chunks[-1:]
            self._forget_chars()
            self._chunks += [Chunk(one.flags, one.data, one.bytes_read, 0) for one in last]
            raise
        except BaseException:
            await partial.put_back()
            raise

    def _mark(self) -> Mark:
        self._check_readable()
        return Mark(self)

    async def _unread_lines(self, lines: list[str], mark: Any) -> None:
        await mark.go_back(lines)

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    async def write(self, data: str) -> int:
        # Do what `one_at_a_time` does, but without its coroutine: programs call write() for each
        # piece of a line.
        lock = self._lock
        if not lock.try_acquire():
            await lock.acquire()
        try:
            self._check_open()
            if not isinstance(data, str):
                raise TypeError(f"write() argument must be str, not {type(data).__name__}")
            if not self.buffer._writable:
                raise io.UnsupportedOperation("not writable")
            await self._write(data)
            self._forget_chars()
            if self._decoder is not None:
                self._decoder.reset()
            return len(data)
        finally:
            lock.release()

    async def _write(self, data: str) -> None:
        encoder = self._get_encoder()
        newline = self._written_newline
        if len(data) <= PIECE:
            raw = encoder.encode(data if newline is None else data.replace("\n", newline))
            if not self.buffer._try_to_buffer(raw):
                await self.buffer._write(raw)
        else:
            held = [await encoded(self._lock, self.encoding, encoder, data, newline)]
            await self.buffer._write(held[0])
            free(held)
        if self.line_buffering and ("\n" in data or "\r" in data):
            await self.buffer._flush()

    def _get_encoder(self) -> Any:
        if self._encoder is None:
            self._encoder = codecs.getincrementalencoder(self.encoding)(self.errors)
            self._set_encoder(self._past_start)
        return self._encoder

    def _set_encoder(self, position: int) -> None:
        """Have the encoder write a byte order mark only if *position* is 0."""
        self._past_start = bool(position)
        if self._encoder is not None:
            if position:
                self._encoder.setstate(0)
            else:
                self._encoder.reset()

    @one_at_a_time
    async def truncate(self, size: int | None = None) -> int:
        self._check_open()
        await self.buffer._flush()
        return await self.buffer._truncate(size)

    # ── positions ────────────────────────────────────────────────────────────────────────────

    @one_at_a_time
    async def tell(self) -> int:
        return await self._position()

    async def _position(self) -> int:
        self._check_open()
        if not self.buffer._seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        await self.buffer._flush()
        position = self.buffer._position_now()
        if not self._chunks:
            return position
        used = self._used
        position -= sum(chunk.bytes_read for chunk in self._chunks)
        for chunk in self._chunks:
            if used < chunk.chars or chunk is self._chunks[-1]:
                break
            used -= chunk.chars
            position += chunk.bytes_read
        position -= len(chunk.data) - chunk.bytes_read
        if not used:
            return Place(position, chunk.flags).cookie()
        guess = int(self._bytes_per_char * used)
        place = await place_after(self._lock, self._decoder, chunk, used, guess)
        place.position += position
        return place.cookie()

    @one_at_a_time
    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        if not self.buffer._seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        offset, whence = index(offset), index(whence)
        if whence == os.SEEK_CUR:
            if offset:
                raise io.UnsupportedOperation("can't do nonzero cur-relative seeks")
            offset = await self._position()
        elif whence == os.SEEK_END:
            if offset:
                raise io.UnsupportedOperation("can't do nonzero end-relative seeks")
            position = await self.buffer._seek_buffered(0, os.SEEK_END)
            self._forget_chars()
            if self._decoder is not None:
                self._decoder.reset()
            self._set_encoder(position)
            return position
        elif whence != os.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be {0}, {1} or {2})")
        if offset < 0:
            raise ValueError(f"negative seek position {offset}")
        await self._restore(offset)
        self._set_encoder(offset & START_MASK)
        return offset

    async def _restore(self, cookie: int) -> None:
        place = Place.of(cookie)
        await self.buffer._seek_buffered(place.position, os.SEEK_SET)
        self._forget_chars()
        if not cookie:
            if self._decoder is not None:
                self._decoder.reset()
        elif self.buffer._readable or place.flags or place.skip:
            self._get_decoder().setstate((b"", place.flags))
            self._chunks.append(Chunk(place.flags, b"", 0, 0))
        if place.skip:
            data = await self.buffer._read(place.feed)
            texts = await decoded(self._lock, self._decoder, data, final=place.at_end)
            self._chars = "".join(texts)
            self._chunks[:] = [Chunk(place.flags, data, len(data), len(self._chars))]
            if len(self._chars) < place.skip:
                raise OSError("can't restore logical file position")
            self._used = place.skip
