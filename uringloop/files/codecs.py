"""Decode and encode text of any length over several turns, by the standard library's codecs."""

from __future__ import annotations

import codecs
import io
from typing import Any

from uringloop.files.scheduling import CallLock, joined

# How many characters or bytes are decoded, encoded or copied between two looks at the clock; that
# takes 30 to 300 us, depending on the codec.
PIECE = 64 * 1024
# Encodings whose output depends on how the text is split: their texts are encoded as a whole.
WHOLE = frozenset(("utf-7", "punycode", "idna"))


def new_decoder(encoding: str, errors: str, newline: str | None) -> Any:
    """Return a decoder that translates line ends as open() does with this *newline*."""
    decoder: Any = codecs.getincrementaldecoder(encoding)(errors)
    if newline is None or newline == "":
        # Both recognize every kind of line end; only None translates them.
        decoder = io.IncrementalNewlineDecoder(decoder, newline is None)
    return decoder


async def decoded(lock: CallLock, decoder: Any, data: bytes, *, final: bool) -> list[str]:
    """Decode *data*, over several turns if it is long. A failure restores the decoder's state."""
    if len(data) <= PIECE:
        return [decoder.decode(data, final)]
    state = decoder.getstate()
    texts = []
    try:
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            texts.append(decoder.decode(piece, final and at + PIECE >= len(data)))
            if lock.spent():
                await lock.pause()
    except BaseException as exc:
        decoder.setstate(state)
        if isinstance(exc, UnicodeDecodeError):
            # Count positions in the whole data, which begins with what the decoder had held back.
            move(exc, state[0] + data, len(state[0]) + at + len(piece) - len(exc.object))
        raise
    return texts


def move(exc: Any, whole: bytes | str, skipped: int) -> None:
    """Make *exc* refer to *whole*; its object was the part that begins after *skipped*."""
    exc.object = whole
    exc.start += skipped
    exc.end += skipped
    exc.args = (exc.encoding, exc.object, exc.start, exc.end, exc.reason)


def with_line_ends(text: str, newline: str | None) -> str:
    return text if newline is None else text.replace("\n", newline)


async def encoded(
    lock: CallLock, encoding: str, encoder: Any, text: str, newline: str | None
) -> bytes:
    """Encode *text* with *newline* for its line ends, over several turns if it is long.

    A failure restores the encoder's state.
    """
    size = PIECE
    if len(text) <= PIECE or codecs.lookup(encoding).name in WHOLE:
        size = len(text) or 1
    state = encoder.getstate()
    parts: list[bytes] = []
    try:
        for at in range(0, len(text) or 1, size):
            parts.append(encoder.encode(with_line_ends(text[at : at + size], newline)))
            if lock.spent():
                await lock.pause()
        return await joined(lock, parts)
    except BaseException as exc:
        encoder.setstate(state)
        if isinstance(exc, UnicodeEncodeError):
            skipped = len(with_line_ends(text[:at], newline))
            move(exc, with_line_ends(text, newline), skipped)
        raise
