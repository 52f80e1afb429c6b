"""Helpers of the tests of nested runs: a nestable loop, and a coroutine that needs some turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import uringloop
from support.leaks import leak_checked

# How deep runs are nested in one another.
DEPTH = 50


def nestable_loop() -> Iterator[uringloop.Loop]:
    """Yield a new nestable loop, checked for leaks afterwards."""
    for created in leak_checked(lambda: uringloop.Loop(nestable=True)):
        assert isinstance(created, uringloop.Loop)
        yield created
        assert asyncio._get_running_loop() is None
        if not created.is_closed():
            assert created._operations_in_flight == 0


async def give(value: str) -> str:
    """Return *value* after a millisecond."""
    await asyncio.sleep(0.001)
    return value
