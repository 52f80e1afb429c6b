"""Text files: characters out of the bytes of a BufferedFile, and into them.

Decoders, encoders and the translation of line ends are the standard library's. A position is a
number as of plain files, opaque where a decoder has state: where to begin to decode, the state to
begin with, and how far to go from there.
"""

from __future__ import annotations

import codecs
import io
import os
from operator import index
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from uringloop.filebase import AsyncFile, Fact, in_turn, limit_of
from uringloop.filebinary import BufferedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

# As much as plain text files decode at once: in a file that is read and written it shows.
CHUNK_BYTES = 8192
# Where the parts of a position are, as in a plain file's: the byte to begin at, the flags of the
# decoder, bytes to feed it with, characters to skip, and whether the file ends there.
SHIFTS = (0, 64, 96, 128, 160)
POSITION_MASK = (1 << 64) - 1
PART_MASK = (1 << 32) - 1
# All zero at the beginning of a file, where a decoder has no state.
START_MASK = POSITION_MASK | PART_MASK << SHIFTS[1]


class Chunk(NamedTuple):
    """Bytes that were decoded at once: whoever has read some of their characters may ask where."""

    flags: int
    data: bytes  # with those that the decoder held back before
    bytes_read: int
    chars: int


class TextFile(AsyncFile[str]):
    """A text file over a binary one, in `buffer`."""

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
        self.buffer = buffer
        self.mode = mode
        self.encoding = encoding
        self.errors = errors
        self.line_buffering = line_buffering
        self._turns = buffer._turns
        self._newline = newline
        # Both universal newlines and their translation for None, no translation for "".
        self._line_end = None if newline is None or newline == "" else newline
        self._written_newline = newline if newline not in (None, "", "\n") else None
        self._decoder: Any = None
        self._encoder: Any = None
        self._chars = ""
        self._used = 0
        self._chunks: list[Chunk] = []
        self._bytes_per_char = 0.0
        # A mark of the byte order belongs to the beginning of a file.
        self._past_start = bool(buffer._writable and buffer._seekable and buffer._where())

    def __repr__(self) -> str:
        return (
            f"<uringloop.{type(self).__name__} name={self.name!r} mode={self.mode!r} "
            f"encoding={self.encoding!r}>"
        )

    # ── what the binary file knows ───────────────────────────────────────────────────────────

    @property
    def name(self) -> object:
        return self.buffer.name

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        return getattr(self._decoder, "newlines", None)

    def fileno(self) -> int:
        return self.buffer.fileno()

    def isatty(self) -> Fact:
        return self.buffer.isatty()

    def readable(self) -> Fact:
        return self.buffer.readable()

    def writable(self) -> Fact:
        return self.buffer.writable()

    def seekable(self) -> Fact:
        return self.buffer.seekable()

    async def flush(self) -> None:
        await self.buffer.flush()

    async def close(self) -> None:
        if self._detached:
            raise ValueError(self._DETACHED)
        await self.buffer.close()

    def detach(self) -> IO[bytes]:
        """Return a plain binary file that has the descriptor from now on."""
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
            decoder: Any = codecs.getincrementaldecoder(self.encoding)(self.errors)
            if self._line_end is None:
                decoder = io.IncrementalNewlineDecoder(decoder, self._newline is None)
            self._decoder = decoder
        return self._decoder

    def _forget_chars(self) -> None:
        self._chars, self._used = "", 0
        self._chunks.clear()

    async def _fetch(self, chars: int = 0) -> bool:
        """Decode the next bytes behind what is unread; False at the end of the file.

        As plain files do, it asks for as many bytes as *chars* may need.
        """
        decoder = self._get_decoder()
        # More where a lot is unread already, so that a long line is not copied over and over.
        unread = len(self._chars) - self._used
        wanted = max(CHUNK_BYTES, unread, int(max(self._bytes_per_char, 1.0) * chars))
        held, flags = decoder.getstate()
        data = await self.buffer._read1(wanted)
        text = decoder.decode(data, not data)
        while self._chunks and self._used >= self._chunks[0].chars:
            self._drop(self._chunks.pop(0).chars)
        if not self.buffer._seekable:
            self._drop(self._used)
        elif data or text or not self._chunks:
            self._chunks.append(Chunk(flags, held + data, len(data), len(text)))
        self._chars += text
        self._bytes_per_char = len(data) / len(text) if text else 0.0
        return bool(data or text)

    def _drop(self, chars: int) -> None:
        self._chars = self._chars[chars:]
        self._used -= chars

    def _take(self, end: int) -> str:
        text = self._chars[self._used : end]
        self._used += len(text)
        return text

    @in_turn
    async def read(self, size: int | None = -1) -> str:
        self._check_readable()
        limit = limit_of(size)
        if limit < 0:
            decoder = self._get_decoder()
            data = await self.buffer._read(-1)
            text: str = self._chars[self._used :] + decoder.decode(data, True)
            self._forget_chars()
            return text
        more = True
        try:
            while more and (missing := limit - len(self._chars) + self._used) > 0:
                more = await self._fetch(missing)
        except UnicodeError:
            # What could be decoded counts as read, as of plain files.
            self._used = len(self._chars)
            raise
        return self._take(self._used + limit)

    @in_turn
    async def readline(self, size: int | None = -1) -> str:
        self._check_readable()
        limit = -1 if size is None else max(index(size), -1)
        searched = 0
        more = True
        while True:
            unread = len(self._chars) - self._used
            end = self._end_of_line(self._chars, self._used + searched)
            if not end and not more:
                # At the end of the file a plain one knows where it is by the bytes alone.
                line = self._chars[self._used :]
                self._forget_chars()
                return line
            if limit >= 0 and (unread >= limit or end):
                end = min(end or self._used + limit, self._used + limit)
            if end or not limit:
                return self._take(end)
            try:
                more = await self._fetch()
            except UnicodeError:
                # Plain files forget the line, and stand where they last began to decode.
                last = self._chunks[-1:]
                self._forget_chars()
                self._chunks += [chunk._replace(chars=0) for chunk in last]
                raise
            # A line end of two characters may have been split.
            searched = max(unread - 1, 0)

    def _end_of_line(self, text: str, start: int) -> int:
        """Return the index behind the first line end, 0 if there is none."""
        if self._newline is None:
            return text.find("\n", start) + 1
        if self._line_end is not None:
            at = text.find(self._line_end, start)
            return at + len(self._line_end) if at >= 0 else 0
        lf = text.find("\n", start)
        cr = text.find("\r", start, lf if lf >= 0 else len(text))
        if cr >= 0:
            return cr + (2 if text.startswith("\n", cr + 1) else 1)
        return lf + 1

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    @in_turn
    async def write(self, data: str) -> int:
        self._check_open()
        if not isinstance(data, str):
            raise TypeError(f"write() argument must be str, not {type(data).__name__}")
        if not self.buffer._writable:
            raise io.UnsupportedOperation("not writable")
        text = data
        ends = "\n" in text
        if ends and self._written_newline is not None:
            text = text.replace("\n", self._written_newline)
        await self.buffer._write(self._get_encoder().encode(text))
        if self.line_buffering and (ends or "\r" in text):
            await self.buffer._flush()
        self._forget_chars()
        if self._decoder is not None:
            self._decoder.reset()
        return len(data)

    def _get_encoder(self) -> Any:
        if self._encoder is None:
            self._encoder = codecs.getincrementalencoder(self.encoding)(self.errors)
            self._set_encoder(self._past_start)
        return self._encoder

    def _set_encoder(self, position: int) -> None:
        """Have a mark of the byte order be written at the beginning of the file only."""
        self._past_start = bool(position)
        if self._encoder is not None:
            if position:
                self._encoder.setstate(0)
            else:
                self._encoder.reset()

    @in_turn
    async def truncate(self, size: int | None = None) -> int:
        self._check_open()
        await self.buffer._flush()
        return await self.buffer._cut(size)

    # ── positions ────────────────────────────────────────────────────────────────────────────

    @in_turn
    async def tell(self) -> int:
        return await self._position()

    async def _position(self) -> int:
        self._check_open()
        if not self.buffer._seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        await self.buffer._flush()
        position = self.buffer._where()
        if not self._chunks:
            return position
        used = self._used
        position -= sum(chunk.bytes_read for chunk in self._chunks)
        for chunk in self._chunks:
            if used < chunk.chars or chunk is self._chunks[-1]:
                break
            used -= chunk.chars
            position += chunk.bytes_read
        flags, data = chunk.flags, chunk.data
        position -= len(data) - chunk.bytes_read
        if not used:
            return position | flags << SHIFTS[1]
        state = self._decoder.getstate()
        try:
            fed, flags, skip, feed, at_end = self._find(flags, data, used)
        finally:
            self._decoder.setstate(state)
        return (
            position + fed
            | flags << SHIFTS[1]
            | feed << SHIFTS[2]
            | skip << SHIFTS[3]
            | at_end << SHIFTS[4]
        )

    def _find(self, flags: int, data: bytes, chars: int) -> tuple[int, int, int, int, bool]:
        """Find out which of *data* the first *chars* characters are.

        Returns how many bytes to go to a state without bytes in it, its flags, the characters to
        skip from there, out of how many bytes they are, and whether the file ends with them. Of the
        ways to say that it is the one that plain files choose.
        """
        decoder = self._decoder
        # First a guess, by what a character of the chunk took, that is not too far.
        low, back = min(int(self._bytes_per_char * chars), len(data)), 1
        while low > 0:
            decoder.setstate((b"", flags))
            count = len(decoder.decode(data[:low]))
            held, state = decoder.getstate()
            if count > chars:
                low -= back
                back *= 2
            elif held:
                low -= len(held)
                back = 1
            else:
                break
        else:
            low, count, state = 0, 0, flags
            decoder.setstate((b"", flags))
        chars -= count
        feed = count = 0
        if not chars:
            return low, state, 0, 0, False
        # Then byte by byte.
        for at in range(low, len(data)):
            count += len(decoder.decode(data[at : at + 1]))
            feed += 1
            held, now = decoder.getstate()
            if not held and count <= chars:
                low, state, chars = low + feed, now, chars - count
                feed = count = 0
            if count >= chars:
                return low, state, chars, feed, False
        return low, state, chars, feed, True

    @in_turn
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
            position = await self.buffer._go(0, os.SEEK_END)
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
        flags, feed, skip, at_end = (cookie >> shift & PART_MASK for shift in SHIFTS[1:])
        await self.buffer._go(cookie & POSITION_MASK, os.SEEK_SET)
        self._forget_chars()
        if not cookie:
            if self._decoder is not None:
                self._decoder.reset()
        elif self.buffer._readable or flags or skip:
            self._get_decoder().setstate((b"", flags))
            self._chunks.append(Chunk(flags, b"", 0, 0))
        if skip:
            data = await self.buffer._read(feed)
            self._chars = self._decoder.decode(data, bool(at_end))
            self._chunks[:] = [Chunk(flags, data, len(data), len(self._chars))]
            if len(self._chars) < skip:
                raise OSError("can't restore logical file position")
            self._used = skip
