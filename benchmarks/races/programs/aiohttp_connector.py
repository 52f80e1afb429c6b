"""aiohttp's TCPConnector: a free connection slot that is given to a cancelled request wakes no
other request.

aiohttp #9670: 3.10.10 has the bug, 3.10.11 does not. Of two requests that wait for the only slot,
one has a timeout, which ends when the slot becomes free. The other request and all later ones wait
for ever. (In 3.10.11 the other request waits until the next one ends.)
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from ..common import overdue, serving


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def new_session(port: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=1)
    )


async def stream(session: aiohttp.ClientSession, started: asyncio.Event) -> None:
    async with session.get("/stream") as response:
        started.set()
        await asyncio.sleep(0.05)
        response.close()


async def fetch(session: aiohttp.ClientSession, timeout: float | None = None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout), session.get("/") as response:
            await response.read()


async def race(session: aiohttp.ClientSession) -> None:
    started = asyncio.Event()
    streaming = asyncio.create_task(stream(session, started))
    await started.wait()
    await asyncio.sleep(0.01)
    impatient = asyncio.create_task(fetch(session, 0.04))
    patient = asyncio.create_task(fetch(session))
    await asyncio.wait([streaming, impatient])
    stuck = await overdue(patient, asyncio.create_task(fetch(session)))
    assert not stuck, f"{len(stuck)} requests wait, and the place is free"


async def main() -> None:
    async with serving(answer) as port:
        for _ in range(5):
            async with new_session(port) as session:
                await race(session)


async def forced() -> None:
    async with serving(answer) as port, new_session(port) as session:
        response = await session.get("/stream")
        woken = asyncio.create_task(fetch(session))
        await asyncio.sleep(0.01)
        other = asyncio.create_task(fetch(session))
        await asyncio.sleep(0.01)
        response.close()
        woken.cancel()
        await asyncio.sleep(0.01)
        stuck = await overdue(other, asyncio.create_task(fetch(session)))
        assert not stuck, f"{len(stuck)} requests wait, and the place is free"
