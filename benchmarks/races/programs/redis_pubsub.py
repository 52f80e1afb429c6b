"""redis-py: a timeout of get_message() throws away the part of the message that has been read.

redis-py #2510: 4.4.0 has the bug, 4.4.1 does not. The next bytes are then taken for the start of a
message. The timeout must end in the middle of a message.
"""

from __future__ import annotations

import asyncio

import redis.asyncio as redis

from ..common import Handler, read_command, serving

COUNT = 12


def encoded(number: int) -> bytes:
    return b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$40\r\n%-40d\r\n" % number


async def subscription(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (await read_command(reader))[0] != b"SUBSCRIBE":
        writer.write(b"+OK\r\n")
    writer.write(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")


async def subscribe(publish: Handler, timeout: float, polls: int) -> list[int]:
    """Return the numbers of the messages that a subscriber gets."""
    received: list[int] = []
    async with serving(publish) as port:
        client = redis.Redis(port=port)
        pubsub = client.pubsub()
        await pubsub.subscribe("news")
        for _ in range(polls):
            try:
                message = await pubsub.get_message(True, timeout)
            except Exception as error:
                raise AssertionError(f"out of step after {received}") from error
            if message:
                received.append(int(message["data"]))
            if len(received) == COUNT:
                break
        await client.connection_pool.disconnect()
    return received


async def main() -> None:
    async def publish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscription(reader, writer)
        for number in range(COUNT):
            await asyncio.sleep(0.02)
            writer.write(encoded(number))
        await reader.read()

    received = await subscribe(publish, 0.03, 2000)
    assert received == list(range(COUNT)), f"out of step: {received}"


async def forced() -> None:
    async def publish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscription(reader, writer)
        writer.write(encoded(0)[:15])
        await asyncio.sleep(0.12)
        writer.write(encoded(0)[15:])
        await reader.read()

    received = await subscribe(publish, 0.05, 6)
    assert received == [0], f"out of step: {received}"
