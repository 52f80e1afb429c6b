"""psycopg_pool: a connection that is given to a cancelled task is lost.

psycopg #509: psycopg_pool 3.1.6 has the bug, 3.1.7 does not. A task that waits for a connection is
cancelled at the instant at which another task gives one back, but stays in the queue and gets it.
"""

from __future__ import annotations

import asyncio

from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ..psycopg_pools import open_pool, use


async def leave(gone: asyncio.Event) -> None:
    await asyncio.sleep(0.02)
    gone.set()


async def cancel_when(gone: asyncio.Event, task: asyncio.Task[None]) -> None:
    await gone.wait()
    await asyncio.sleep(0)
    task.cancel()


async def check(pool: AsyncConnectionPool) -> None:
    try:
        await pool.putconn(await pool.getconn(timeout=1))
    except PoolTimeout:
        raise AssertionError("nobody uses the pool, and it has no connection") from None
    finally:
        await pool.close(timeout=1)


async def main() -> None:
    for _ in range(5):
        pool, gone = await open_pool(), asyncio.Event()
        using = asyncio.create_task(use(pool, 0.02))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(use(pool, 0.01))
        leaving = asyncio.create_task(leave(gone))
        await asyncio.wait(
            [using, waiting, leaving, asyncio.create_task(cancel_when(gone, waiting))]
        )
        await asyncio.sleep(0.1)
        await check(pool)


async def forced() -> None:
    pool = await open_pool()
    connection = await pool.getconn()
    waiting = asyncio.create_task(use(pool, 0.01))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    await pool.putconn(connection)
    await asyncio.sleep(0.05)
    await check(pool)
