"""asyncio.wait_for() swallows a cancellation if the awaited future has just ended.

CPython gh-86296: 3.11 has the bug, 3.12 does not. A worker that polls a queue is cancelled at the
instant of a put. If the put comes first, the worker gets the item, and goes on for ever.
"""

from __future__ import annotations

import asyncio
import contextlib

from ..common import overdue


async def work(queue: asyncio.Queue[int]) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(queue.get(), 5)


async def put(queue: asyncio.Queue[int], delay: float) -> None:
    await asyncio.sleep(delay)
    queue.put_nowait(1)


async def stop(worker: asyncio.Task[None], delay: float) -> None:
    await asyncio.sleep(delay)
    worker.cancel()


async def main() -> None:
    for _ in range(5):
        queue: asyncio.Queue[int] = asyncio.Queue()
        worker = asyncio.create_task(work(queue))
        await asyncio.gather(
            stop(worker, 0.02), put(queue, 0.01), put(queue, 0.02), put(queue, 0.03)
        )
        assert not await overdue(worker), "the worker was cancelled, and goes on"


async def forced() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    worker = asyncio.create_task(work(queue))
    await asyncio.sleep(0.01)
    queue.put_nowait(1)
    # queue.get() ends; the worker has not run yet.
    await asyncio.sleep(0)
    worker.cancel()
    assert not await overdue(worker), "the worker was cancelled, and goes on"
