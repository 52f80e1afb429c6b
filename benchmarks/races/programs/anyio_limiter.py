"""anyio's CapacityLimiter: a token that is given to a cancelled task wakes no other task.

anyio #947: 4.9.0 has the bug, 4.10.0 does not. Of two tasks that wait for the only token, one has a
timeout, which ends at the instant at which the token is returned. The other task is not woken.
"""

from __future__ import annotations

import asyncio

import anyio

from ..common import overdue


async def use(limiter: anyio.CapacityLimiter, seconds: float) -> None:
    async with limiter:
        await asyncio.sleep(seconds)


async def use_in_time(limiter: anyio.CapacityLimiter) -> None:
    with anyio.move_on_after(0.02):
        await use(limiter, 0.01)


async def main() -> None:
    for _ in range(5):
        limiter = anyio.CapacityLimiter(1)
        stuck = await overdue(
            asyncio.create_task(use(limiter, 0.02)),
            asyncio.create_task(use_in_time(limiter)),
            asyncio.create_task(use(limiter, 0.01)),
        )
        assert not stuck, "a task waits, and the token is free"


async def forced() -> None:
    limiter = anyio.CapacityLimiter(1)
    await limiter.acquire()
    scope = anyio.CancelScope()

    async def use_in_scope() -> None:
        with scope:
            await use(limiter, 0)

    asyncio.create_task(use_in_scope())
    await asyncio.sleep(0.01)
    other = asyncio.create_task(use(limiter, 0))
    await asyncio.sleep(0.01)
    # The first task is cancelled and then given the token, before it runs.
    scope.cancel()
    limiter.release()
    assert not await overdue(other), "a task waits, and the token is free"
