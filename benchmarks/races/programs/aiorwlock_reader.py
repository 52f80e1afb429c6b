"""aiorwlock: a reader that is cancelled before it is woken is counted out, but was not counted in.

aiorwlock #514: 1.5.0 has the bug, 1.5.1 does not. A waiting reader is cancelled at the instant at
which the writer releases the lock. From then on no task can take the lock.
"""

from __future__ import annotations

import asyncio

from aiorwlock import RWLock

from ..common import overdue


async def write(lock: RWLock, delay: float, seconds: float) -> None:
    await asyncio.sleep(delay)
    async with lock.writer_lock:
        await asyncio.sleep(seconds)


async def read(lock: RWLock, delay: float) -> None:
    await asyncio.sleep(delay)
    async with lock.reader_lock:
        await asyncio.sleep(0.01)


async def leave(gone: asyncio.Event) -> None:
    await asyncio.sleep(0.02)
    gone.set()


async def cancel_when(gone: asyncio.Event, task: asyncio.Task[None]) -> None:
    await gone.wait()
    task.cancel()


async def main() -> None:
    for _ in range(5):
        lock, gone = RWLock(), asyncio.Event()
        writer = asyncio.create_task(write(lock, 0, 0.02))
        reader = asyncio.create_task(read(lock, 0))
        others = (
            leave(gone),
            cancel_when(gone, reader),
            read(lock, 0),
            write(lock, 0.03, 0.01),
            read(lock, 0.04),
        )
        stuck = await overdue(writer, reader, *map(asyncio.create_task, others))
        assert not stuck, f"{len(stuck)} tasks wait for {lock}"


async def forced() -> None:
    lock = RWLock()
    asyncio.create_task(write(lock, 0, 0.05))
    cancelled = asyncio.create_task(read(lock, 0))
    other = asyncio.create_task(read(lock, 0))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    assert not await overdue(other), f"a reader waits for {lock}"
