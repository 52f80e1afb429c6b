"""anyio's Lock: a cancelled task keeps its place in the lock's queue until the task runs.

anyio #1145: 4.13.0 has the bug, 4.14.0 does not. Three things happen at one instant: a waiting task
is cancelled; the lock is released, and the cancelled task is passed over; another task queues
behind the cancelled task, and waits for ever for a lock that no task holds.
"""

from __future__ import annotations

import asyncio

import anyio

from ..common import overdue


async def hold(lock: anyio.Lock) -> None:
    async with lock:
        await asyncio.sleep(0.02)


async def lock_in_time(lock: anyio.Lock) -> None:
    with anyio.move_on_after(0.02):
        async with lock:
            pass


async def lock_later(lock: anyio.Lock, delay: float) -> None:
    await asyncio.sleep(delay)
    async with lock:
        pass


async def main() -> None:
    for _ in range(5):
        lock = anyio.Lock()
        stuck = await overdue(
            asyncio.create_task(hold(lock)),
            asyncio.create_task(lock_in_time(lock)),
            asyncio.create_task(lock_later(lock, 0.02)),
            asyncio.create_task(lock_later(lock, 0.02)),
        )
        assert not stuck, f"{len(stuck)} tasks wait for a lock that nobody holds"


async def forced() -> None:
    lock = anyio.Lock()
    await lock.acquire()
    waiting = asyncio.create_task(lock_later(lock, 0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    lock.release()
    try:
        async with asyncio.timeout(0.3):
            await lock.acquire()
    except TimeoutError:
        raise AssertionError("a task waits for a lock that nobody holds") from None
