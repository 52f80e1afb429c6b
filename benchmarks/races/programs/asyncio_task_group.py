"""asyncio's TaskGroup loses a cancellation that comes while one of its tasks fails.

CPython gh-116720: 3.11 and 3.12 have the bug, 3.13 does not. A supervisor starts its tasks again
when one has failed. It is cancelled at the instant of a failure, and goes on for ever.
"""

from __future__ import annotations

import asyncio

from ..common import overdue


async def serve() -> None:
    await asyncio.sleep(3600)


async def fail() -> None:
    await asyncio.sleep(0.02)
    raise ValueError("connection lost")


async def supervise(failing: list[asyncio.Task[None]]) -> None:
    while True:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(serve())
                failing.append(group.create_task(fail()))
        except* ValueError:
            # The tasks start again.
            pass
        await asyncio.sleep(0.02)


async def main() -> None:
    for _ in range(5):
        supervisor = asyncio.create_task(supervise([]))
        asyncio.get_running_loop().call_later(0.02, supervisor.cancel)
        assert not await overdue(supervisor), "the supervisor was cancelled, and goes on"


async def forced() -> None:
    failing: list[asyncio.Task[None]] = []
    supervisor = asyncio.create_task(supervise(failing))
    await asyncio.sleep(0.01)
    # The task has failed; the supervisor still waits for the other one.
    await asyncio.wait(failing)
    supervisor.cancel()
    assert not await overdue(supervisor), "the supervisor was cancelled, and goes on"
