"""Positions of text files: the numbers that `tell` returns and `seek` takes.

They are the same as those of built-in files, and opaque where a decoder has state: they then hold
the byte at which to start decoding, the decoder's state there, and how far to decode.
"""

from __future__ import annotations

from typing import Any, Self

from uringloop.files.codecs import decoded
from uringloop.files.scheduling import CallLock

# The parts of a position begin at these bits, as in those of built-in files.
SHIFTS = (0, 64, 96, 128, 160)
POSITION_MASK = (1 << 64) - 1
PART_MASK = (1 << 32) - 1
# The byte position and the decoder's flags: both are 0 at the beginning of a file.
START_MASK = POSITION_MASK | PART_MASK << SHIFTS[1]
# Bytes that are decoded one by one between two looks at the clock: 10 to 30 us.
BYTES = 64


# These are not named tuples: creating two of them took a twentieth of the package's import time.
class Place:
    """A position in its parts.

    Decoding begins at the byte *position*, with *flags* as the decoder's state. The next *feed*
    bytes are decoded, and *skip* characters of the result come before the position; *at_end* is
    whether the file ends after these bytes.
    """

    __slots__ = ("at_end", "feed", "flags", "position", "skip")

    def __init__(
        self, position: int, flags: int, feed: int = 0, skip: int = 0, *, at_end: bool = False
    ) -> None:
        self.position = position
        self.flags = flags
        self.feed = feed
        self.skip = skip
        self.at_end = at_end

    def cookie(self) -> int:
        """Return the position as a number."""
        # As in built-in files, flags may have more bits than there is room for.
        parts = (self.position, self.flags, self.feed, self.skip, self.at_end)
        number = 0
        for part, shift in zip(parts, SHIFTS, strict=True):
            number |= part << shift
        return number

    @classmethod
    def of(cls, cookie: int) -> Self:
        flags, feed, skip, at_end = (cookie >> shift & PART_MASK for shift in SHIFTS[1:])
        return cls(cookie & POSITION_MASK, flags, feed, skip, at_end=bool(at_end))


class Chunk:
    """Bytes that were decoded at once, from which `tell` computes the byte of a character."""

    __slots__ = ("bytes_read", "chars", "data", "flags")

    def __init__(self, flags: int, data: bytes, bytes_read: int, chars: int) -> None:
        self.flags = flags
        self.data = data  # including the bytes that the decoder had held back
        self.bytes_read = bytes_read
        self.chars = chars


async def place_after(lock: CallLock, decoder: Any, chunk: Chunk, chars: int, guess: int) -> Place:
    """Return the position after the first *chars* characters of *chunk*, over several turns.

    The position is relative to the chunk; of all equivalent positions it is that of built-in files.
    *guess* is the estimated number of bytes. The decoder's state is restored.
    """
    before = decoder.getstate()
    try:
        return await _place_after(lock, decoder, chunk, chars, guess)
    finally:
        decoder.setstate(before)


async def _place_after(lock: CallLock, decoder: Any, chunk: Chunk, chars: int, guess: int) -> Place:
    flags, data = chunk.flags, chunk.data
    # Decode up to the guess, then ever less, until the result does not go beyond the position.
    low, back = min(guess, len(data)), 1
    while low > 0:
        decoder.setstate((b"", flags))
        count = sum(map(len, await decoded(lock, decoder, data[:low], final=False)))
        held, state = decoder.getstate()
        if count > chars:
            low -= back
            back *= 2
        elif held:
            low -= len(held)
            back = 1
        else:
            break
        if lock.spent():
            await lock.pause()
    else:
        low, count, state = 0, 0, flags
        decoder.setstate((b"", flags))
    chars -= count
    feed = count = 0
    if not chars:
        return Place(low, state)
    # Decode the rest byte by byte.
    for at in range(low, len(data)):
        count += len(decoder.decode(data[at : at + 1]))
        feed += 1
        held, now = decoder.getstate()
        if not held and count <= chars:
            low, state, chars = low + feed, now, chars - count
            feed = count = 0
        if count >= chars:
            return Place(low, state, feed, chars)
        if at % BYTES == 0 and lock.spent():
            await lock.pause()
    return Place(low, state, feed, chars, at_end=True)
