"""Positions of text files: the numbers that `tell` returns and `seek` takes.

They are those of plain files, opaque where a decoder has state: where to begin to decode, the state
to begin with, and how far to go from there.
"""

from __future__ import annotations

from typing import Any, Self

from uringloop._files.codecs import decoded
from uringloop._files.scheduling import Turns

# Where the parts of a position are, as in a plain file's.
SHIFTS = (0, 64, 96, 128, 160)
POSITION_MASK = (1 << 64) - 1
PART_MASK = (1 << 32) - 1
# All zero at the beginning of a file, where a decoder has no state.
START_MASK = POSITION_MASK | PART_MASK << SHIFTS[1]
# Bytes that are decoded one by one between two looks at the clock: 10 to 30 us.
BYTES = 64


# Both classes are written out: making two named tuples took a twentieth of the package's import.
class Place:
    """A position in its parts.

    Decoding begins at the byte *position*, with the decoder's *flags*. It is fed *feed* bytes, and
    *skip* characters of what they are come before the position; *at_end* is whether the file ends
    with them.
    """

    __slots__ = ("at_end", "feed", "flags", "position", "skip")

    def __init__(
        self, position: int, flags: int, feed: int = 0, skip: int = 0, at_end: bool = False
    ) -> None:
        self.position = position
        self.flags = flags
        self.feed = feed
        self.skip = skip
        self.at_end = at_end

    def cookie(self) -> int:
        """Return the position as a number."""
        # Flags may have more bits than there is room for, as of plain files.
        parts = (self.position, self.flags, self.feed, self.skip, self.at_end)
        number = 0
        for part, shift in zip(parts, SHIFTS, strict=True):
            number |= part << shift
        return number

    @classmethod
    def of(cls, cookie: int) -> Self:
        flags, feed, skip, at_end = (cookie >> shift & PART_MASK for shift in SHIFTS[1:])
        return cls(cookie & POSITION_MASK, flags, feed, skip, bool(at_end))


class Chunk:
    """Bytes that were decoded at once: whoever has read some of their characters may ask where."""

    __slots__ = ("bytes_read", "chars", "data", "flags")

    def __init__(self, flags: int, data: bytes, bytes_read: int, chars: int) -> None:
        self.flags = flags
        self.data = data  # with those that the decoder held back before
        self.bytes_read = bytes_read
        self.chars = chars


async def found(turns: Turns, decoder: Any, chunk: Chunk, chars: int, guess: int) -> Place:
    """Find out which bytes of *chunk* the first *chars* characters are, in many turns.

    The position is relative to the chunk. Of the ways to say it, this is the one that plain files
    choose. *guess* is about how many bytes they are. The decoder is left as it was.
    """
    before = decoder.getstate()
    try:
        return await _found(turns, decoder, chunk, chars, guess)
    finally:
        decoder.setstate(before)


async def _found(turns: Turns, decoder: Any, chunk: Chunk, chars: int, guess: int) -> Place:
    flags, data = chunk.flags, chunk.data
    # First the guess, or less until that is not too far.
    low, back = min(guess, len(data)), 1
    while low > 0:
        decoder.setstate((b"", flags))
        count = sum(map(len, await decoded(turns, decoder, data[:low], False)))
        held, state = decoder.getstate()
        if count > chars:
            low -= back
            back *= 2
        elif held:
            low -= len(held)
            back = 1
        else:
            break
        if turns.spent():
            await turns.pause()
    else:
        low, count, state = 0, 0, flags
        decoder.setstate((b"", flags))
    chars -= count
    feed = count = 0
    if not chars:
        return Place(low, state)
    # Then byte by byte.
    for at in range(low, len(data)):
        count += len(decoder.decode(data[at : at + 1]))
        feed += 1
        held, now = decoder.getstate()
        if not held and count <= chars:
            low, state, chars = low + feed, now, chars - count
            feed = count = 0
        if count >= chars:
            return Place(low, state, feed, chars)
        if at % BYTES == 0 and turns.spent():
            await turns.pause()
    return Place(low, state, feed, chars, True)
