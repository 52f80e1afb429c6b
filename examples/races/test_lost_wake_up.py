"""A mailbox that loses a wake-up.

pytest examples/races -p uringloop.pytest_plugin --uringloop-seeds=100
"""

import asyncio
from collections import deque

import pytest

pytestmark = pytest.mark.asyncio


class Mailbox:
    """Hands each message to one of the tasks that wait for it."""

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.waiters: deque[asyncio.Future[None]] = deque()

    def put(self, message: str) -> None:
        self.messages.append(message)
        self.wake_one()

    def wake_one(self) -> None:
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        await waiter

    async def get(self) -> str:
        while not self.messages:
            await self.wait()
        return self.messages.popleft()


class MendedMailbox(Mailbox):
    async def get(self) -> str:
        try:
            return await super().get()
        except asyncio.CancelledError:
            # It may have been woken, and is cancelled before it runs: the message is another's.
            if self.messages:
                self.wake_one()
            raise


async def deliver(mailbox: Mailbox) -> None:
    """Send one message to two tasks, of which one gives up after a second."""

    async def impatient() -> str | None:
        try:
            async with asyncio.timeout(1):
                return await mailbox.get()
        except TimeoutError:
            return None

    first = asyncio.create_task(impatient(), name="impatient")
    second = asyncio.create_task(mailbox.get(), name="patient")
    await asyncio.sleep(1)
    mailbox.put("message")
    if await first is None:
        assert await second == "message"
    else:
        second.cancel()


async def test_mailbox() -> None:
    await deliver(Mailbox())


async def test_mended_mailbox() -> None:
    await deliver(MendedMailbox())
