"""anyio's memory object streams: an item is lost if the task that is given the item is cancelled.

anyio #728: 4.3.0 has the bug, 4.4.0 does not. A receiver polls with a timeout, which ends at the
instant of a send.
"""

from __future__ import annotations

import asyncio

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from ..common import overdue


async def receive_all(stream: ObjectReceiveStream, received: list[int]) -> None:
    while True:
        with anyio.move_on_after(0.02):
            async for item in stream:
                # A comprehension would lose what it has when it is cancelled.
                received.append(item)  # noqa: PERF401
            return


async def send_all(stream: ObjectSendStream) -> None:
    async with stream:
        for item in range(3):
            await asyncio.sleep(0.02)
            await stream.send(item)


async def main() -> None:
    for _ in range(5):
        sending, receiving = anyio.create_memory_object_stream(10)
        received: list[int] = []
        with receiving:
            await overdue(
                asyncio.create_task(receive_all(receiving, received)),
                asyncio.create_task(send_all(sending)),
            )
        assert received == [0, 1, 2], f"0, 1, 2 were sent, {received} received"


async def forced() -> None:
    sending, receiving = anyio.create_memory_object_stream(10)
    scope = anyio.CancelScope()
    received = []

    async def receive() -> None:
        with scope:
            received.append(await receiving.receive())

    receiver = asyncio.create_task(receive())
    await asyncio.sleep(0.01)
    scope.cancel()
    sending.send_nowait("item")
    await receiver
    with sending, receiving:
        kept = receiving.statistics().current_buffer_used
    assert len(received) + kept == 1, "the item is neither received nor in the buffer"
