"""The loops under test, the backend of this run, and functions that run a loop for some turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

import uringloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def backend() -> str:
    """Return the backend of new loops in this run; the suite runs once on each."""
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        return loop.backend


on_io_uring = pytest.mark.skipif(backend() != "io_uring", reason="only on io_uring")
each_ring = pytest.mark.parametrize(
    "backend", [pytest.param("io_uring", marks=on_io_uring), "soft"]
)

FACTORIES: dict[str, LoopFactory] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uringloop": uringloop.new_event_loop,
}


def run_until(loop: asyncio.AbstractEventLoop, when: float) -> None:
    """Run *loop* until the turn in which a timer for *when* fires."""
    loop.call_at(when, loop.stop)
    loop.run_forever()


def run_turns(loop: asyncio.AbstractEventLoop, count: int = 1) -> None:
    """Run exactly *count* turns of *loop*."""
    for _ in range(count):
        loop.call_soon(loop.stop)
        loop.run_forever()


def drain_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Shut down asynchronous generators and the default executor, as `asyncio.run` does."""
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
