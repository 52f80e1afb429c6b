"""psycopg_pool: a cancellation that comes while a connection is being handed over is swallowed.

psycopg #1275: psycopg_pool 3.3.0 has the bug, 3.3.1 does not. A task that waits for a connection is
cancelled at the instant at which another task gives one back. The program needs Python 3.12 or
later: on earlier versions the bug of asyncio_wait_for also swallows the cancellation.
"""

from __future__ import annotations

import asyncio

from ..psycopg_pools import open_pool, use


async def main() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(20):
        pool = await open_pool()
        end = loop.time() + 0.02
        using = asyncio.create_task(use(pool, 0.02))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(use(pool, 0.05))
        loop.call_at(end, waiting.cancel)
        await asyncio.wait([using, waiting])
        await pool.close(timeout=1)
        assert waiting.cancelled() or not waiting.cancelling(), (
            "the task was cancelled, and went on"
        )


async def forced() -> None:
    for steps in range(16):
        pool = await open_pool()
        connection = await pool.getconn()
        waiting = asyncio.create_task(use(pool, 0.01))
        await asyncio.sleep(0.01)
        await pool.putconn(connection)
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await pool.close(timeout=1)
        assert waiting.cancelled(), "the task was cancelled, and went on"
