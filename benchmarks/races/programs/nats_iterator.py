"""nats-py: a cancelled wait for a message swallows the next message.

nats.py #804: 2.14.0 has the bug, 2.15.0 does not. A consumer polls with a timeout; the next
message must come after it. (2.15.0 still loses a message that comes at the instant of the timeout.)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools

import nats

from ..common import serving

COUNT = 10


async def answer(
    first: float, gap: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send ten messages to the subscriber, *gap* apart, after a pause of *first*."""

    async def publish(subscriber: bytes) -> None:
        await asyncio.sleep(first)
        for number in range(COUNT):
            await asyncio.sleep(gap)
            writer.write(b"MSG news %s 1\r\n%d\r\n" % (subscriber, number))

    writer.write(b'INFO {"server_id":"x","version":"2.10.0","proto":1,"max_payload":1048576}\r\n')
    while words := (await reader.readline()).split():
        if words[0] == b"PING":
            writer.write(b"PONG\r\n")
        elif words[0] == b"SUB":
            asyncio.create_task(publish(words[-1]))


async def consume(port: int, timeout: float, seconds: float) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    messages = (await client.subscribe("news")).messages
    received: list[int] = []
    end = asyncio.get_running_loop().time() + seconds
    while len(received) < COUNT and asyncio.get_running_loop().time() < end:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                received.append(int((await anext(messages)).data))
    await client.close()
    assert received == list(range(COUNT)), f"0 to {COUNT - 1} were sent, {received} received"


async def main() -> None:
    async with serving(functools.partial(answer, 0, 0.02)) as port:
        # A timeout that does not end at the instant of a message.
        await consume(port, 0.0613, 10)


async def forced() -> None:
    async with serving(functools.partial(answer, 0.1, 0.01)) as port:
        await consume(port, 0.07, 0.6)
