"""Decoding and encoding of text that may be long, by the standard library's codecs."""

from __future__ import annotations

import codecs
import io
from typing import Any

from uringloop._files.scheduling import Turns, joined

# Characters or bytes that are decoded, encoded or taken at once, however slow their codec is: 30 to
# 300 us.
PIECE = 64 * 1024
# Encodings in which text that is encoded in pieces becomes other bytes.
WHOLE = frozenset(("utf-7", "punycode", "idna"))


def new_decoder(encoding: str, errors: str, newline: str | None) -> Any:
    """Return a decoder that makes of line ends what open() does with this *newline*."""
    decoder: Any = codecs.getincrementaldecoder(encoding)(errors)
    if newline is None or newline == "":
        # Both find all of them; only for None they are translated.
        decoder = io.IncrementalNewlineDecoder(decoder, newline is None)
    return decoder


async def decoded(turns: Turns, decoder: Any, data: bytes, final: bool) -> list[str]:
    """Decode *data* in as many turns as that takes. If it fails the decoder is as it was before."""
    if len(data) <= PIECE:
        return [decoder.decode(data, final)]
    state = decoder.getstate()
    texts = []
    try:
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            texts.append(decoder.decode(piece, final and at + PIECE >= len(data)))
            if turns.spent():
                await turns.pause()
    except BaseException as exc:
        decoder.setstate(state)
        if isinstance(exc, UnicodeDecodeError):
            # As if it had been one piece, with what the decoder held back before.
            move(exc, state[0] + data, len(state[0]) + at + len(piece) - len(exc.object))
        raise
    return texts


def move(exc: Any, whole: bytes | str, skipped: int) -> None:
    """Have *exc* tell of *whole*, of which it was told without what was *skipped*."""
    exc.object = whole
    exc.start += skipped
    exc.end += skipped
    exc.args = (exc.encoding, exc.object, exc.start, exc.end, exc.reason)


def with_line_ends(text: str, newline: str | None) -> str:
    return text if newline is None else text.replace("\n", newline)


async def encoded(
    turns: Turns, encoding: str, encoder: Any, text: str, newline: str | None
) -> bytes:
    """Encode *text* in as many turns as that takes, with *newline* in place of its line ends.

    If it fails the encoder is as it was before.
    """
    size = PIECE
    if len(text) <= PIECE or codecs.lookup(encoding).name in WHOLE:
        size = len(text) or 1
    state = encoder.getstate()
    parts: list[bytes] = []
    try:
        for at in range(0, len(text) or 1, size):
            parts.append(encoder.encode(with_line_ends(text[at : at + size], newline)))
            if turns.spent():
                await turns.pause()
        return await joined(turns, parts)
    except BaseException as exc:
        encoder.setstate(state)
        if isinstance(exc, UnicodeEncodeError):
            skipped = len(with_line_ends(text[:at], newline))
            move(exc, with_line_ends(text, newline), skipped)
        raise
