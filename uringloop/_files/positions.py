"""Positions of text files: the numbers that `tell` returns and `seek` takes.

They are those of plain files, opaque where a decoder has state: where to begin to decode, the state
to begin with, and how far to go from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

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


class Place(NamedTuple):
    """A position in its parts."""

    position: int  # the byte to begin at
    flags: int  # of the decoder there
    feed: int = 0  # bytes to feed it with
    skip: int = 0  # characters to skip of what they are
    at_end: bool = False  # whether the file ends with them

    def cookie(self) -> int:
        """Return the position as a number."""
        # Flags may have more bits than there is room for, as of plain files.
        number = 0
        for part, shift in zip(self, SHIFTS, strict=True):
            number |= part << shift
        return number

    @classmethod
    def of(cls, cookie: int) -> Self:
        flags, feed, skip, at_end = (cookie >> shift & PART_MASK for shift in SHIFTS[1:])
        return cls(cookie & POSITION_MASK, flags, feed, skip, bool(at_end))


class Chunk(NamedTuple):
    """Bytes that were decoded at once: whoever has read some of their characters may ask where."""

    flags: int
    data: bytes  # with those that the decoder held back before
    bytes_read: int
    chars: int


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
