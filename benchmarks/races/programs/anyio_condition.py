"""anyio's Condition.notify() is lost if the task that it wakes is cancelled.

anyio #1075: 4.12.1 has the bug, 4.13.0 does not. It is the same bug as in asyncio_condition.
"""

from __future__ import annotations

import asyncio

import anyio

from ..common import overdue


class Box:
    def __init__(self) -> None:
        self.condition = anyio.Condition()
        self.items: list[str] = []

    async def put(self, item: str) -> None:
        async with self.condition:
            self.items.append(item)
            self.condition.notify(1)

    async def get(self) -> str:
        async with self.condition:
            while not self.items:
                await self.condition.wait()
            return self.items.pop()


async def get_in_time(box: Box) -> str | None:
    with anyio.move_on_after(0.02):
        return await box.get()
    return None


async def put_later(box: Box) -> None:
    await asyncio.sleep(0.02)
    await box.put("first")


async def main() -> None:
    for _ in range(5):
        box = Box()
        impatient = asyncio.create_task(get_in_time(box))
        patient = asyncio.create_task(box.get())
        await asyncio.gather(impatient, put_later(box))
        if impatient.result():
            await box.put("second")
        assert not await overdue(patient), f"a consumer sleeps beside {box.items}"


async def forced() -> None:
    box = Box()
    woken = asyncio.create_task(box.get())
    other = asyncio.create_task(box.get())
    await asyncio.sleep(0.01)
    await box.put("item")
    woken.cancel()
    assert not await overdue(other), f"a consumer sleeps beside {box.items}"
