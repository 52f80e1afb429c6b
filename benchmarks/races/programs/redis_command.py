"""redis-py: the answer to a cancelled command is taken for the answer to the next command.

redis-py #2624 and #2665: 4.5.3 has the bug, 4.5.5 does not. Each command has a timeout, which must
end after the command is sent and before its answer is read.
"""

from __future__ import annotations

import asyncio
import contextlib

import redis.asyncio as redis
from redis.exceptions import RedisError

from ..common import read_command, serving


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        name, *words = await read_command(reader)
        if name == b"GET":
            value = b"value of " + words[0]
            writer.write(b"$%d\r\n%s\r\n" % (len(value), value))
        else:
            writer.write(b"+OK\r\n")


def new_client(port: int) -> redis.Redis:
    return redis.Redis(port=port, decode_responses=True, single_connection_client=True)


async def get(client: redis.Redis, key: str, delay: float, timeout: float) -> None:
    value = None
    with contextlib.suppress(RedisError, OSError):
        async with asyncio.timeout(timeout):
            await asyncio.sleep(delay)
            value = await client.get(key)
    assert value in (None, f"value of {key}"), f"the value of {key} is {value!r}"


async def main() -> None:
    async with serving(answer) as port:
        client = new_client(port)
        for number in range(10):
            results = await asyncio.gather(
                get(client, f"a{number}", 0.02, 0.02),
                get(client, f"b{number}", 0.01, 0.05),
                get(client, f"c{number}", 0, 0.05),
                return_exceptions=True,
            )
            for error in filter(None, results):
                raise error
        await client.connection_pool.disconnect()


async def forced() -> None:
    asked = asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked.wait()
        await answer(reader, writer)

    async with serving(answer_late) as port:
        client = new_client(port)
        asyncio.get_running_loop().call_later(0.1, asked.set)
        cancelled = asyncio.create_task(client.get("first"))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await get(client, "second", 0, 1)
        await client.connection_pool.disconnect()
