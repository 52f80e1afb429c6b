"""readuntil() with several separators, for Pythons whose asyncio does not have it (before 3.13)."""

from __future__ import annotations

import asyncio
from typing import Any

# The words of asyncio's exceptions.
FOUND_BEHIND = "Separator is found, but chunk is longer than limit"
NOT_FOUND = "Separator is not found, and chunk exceed the limit"


async def read_until_any(reader: Any, separators: tuple[bytes, ...]) -> bytes:
    """Read up to the first of several separators, as asyncio's readuntil() does since 3.13."""
    if not separators:
        raise ValueError("Separator should contain at least one element")
    if not all(separators):
        raise ValueError("Separator should be at least one-byte string")
    if reader._exception is not None:
        raise reader._exception
    longest = max(map(len, separators))
    searched = 0
    while True:
        buffer = reader._buffer
        found = [(buffer.find(separator, searched), len(separator)) for separator in separators]
        # Of two separators that end at the same place, take the shorter one.
        ends = [(start + width, -start) for start, width in found if start >= 0]
        if ends:
            break
        searched = max(0, len(buffer) + 1 - longest)
        if searched > reader._limit:
            raise asyncio.LimitOverrunError(NOT_FOUND, searched)
        if reader._eof:
            data = bytes(buffer)
            buffer.clear()
            raise asyncio.IncompleteReadError(data, None)
        await reader._wait_for_data("readuntil")
    end, start = min(ends)
    if -start > reader._limit:
        raise asyncio.LimitOverrunError(FOUND_BEHIND, -start)
    data = bytes(buffer[:end])
    del buffer[:end]
    reader._maybe_resume_transport()
    return data
