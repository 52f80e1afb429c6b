"""Clients of each kind, which send requests all the time and count what becomes of them.

A request is lost if the client can neither have an answer nor know that it was not processed. After
an answer with `Connection: close` a client sends again what it has pipelined, as HTTP prescribes.
It does not send on a connection that is closed, or that it has not used for STALE_S, as the pools
of HTTP clients do. A websocket must be closed with a close frame.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

Address = tuple[str, int] | str

# The workers wait for half a second for a last request.
STALE_S = 0.3
LAG_EVERY_S = 0.01
# A request without an answer.
SILENT_S = 15.0
PAUSE_MAX_S = 0.02
PIPELINED = 3
UPLOAD = [bytes(32 * 1024)] * 16
DOWNLOADED = 32 * 64 * 1024
READ_PAUSE_S = 0.005
PIECES = 20
LONGER = 3
ANSWERED = "answered"

# How many clients of each kind there are.
KINDS = {
    "new": 3,
    "kept": 4,
    "pipelined": 2,
    "slow": 2,
    "slow_new": 2,
    "stream": 2,
    "long_stream": 2,
    "download": 1,
    "upload": 2,
    "websocket": 2,
}


class WrongAnswer(Exception):
    """The message says in what way an answer is wrong."""


class Traffic:
    """Clients of *kinds*, and the results of their requests; *slow_s* is a slow request's time."""

    def __init__(self, address: Address, kinds: dict[str, int], slow_s: float) -> None:
        self.address = address
        self.slow_s = slow_s
        self.results = {kind: collections.Counter[str]() for kind in kinds}
        # How many answers came from each loop and version.
        self.loops: collections.Counter[str] = collections.Counter()
        self.is_stopping = False
        # The longest time for which other programs or tasks have kept the clients from running.
        self.lag_s = 0.0
        self.watching = asyncio.create_task(self._watch_lag())
        self.clients = [
            asyncio.create_task(self._send(kind))
            for kind, count in kinds.items()
            for _ in range(count)
        ]

    async def stop(self) -> None:
        self.is_stopping = True
        await asyncio.gather(*self.clients)
        await self.watching

    async def _watch_lag(self) -> None:
        while not self.is_stopping:
            began = time.monotonic()
            await asyncio.sleep(LAG_EVERY_S)
            self.lag_s = max(self.lag_s, time.monotonic() - began - LAG_EVERY_S)

    async def _send(self, kind: str) -> None:
        results = self.results[kind]
        client = Client(self)
        request: Callable[[], Awaitable[int]] = getattr(client, kind)
        while not self.is_stopping:
            try:
                async with asyncio.timeout(SILENT_S):
                    answered = await request()
            except TimeoutError:
                results["silent"] += 1
            except (ConnectionRefusedError, FileNotFoundError):
                results["refused"] += 1
            except ConnectionError:
                results["reset"] += 1
            except asyncio.IncompleteReadError:
                results["closed"] += 1
            except WrongAnswer as exc:
                results[f"wrong: {exc}"] += 1
            else:
                results[ANSWERED] += answered
                await asyncio.sleep(random.uniform(0, PAUSE_MAX_S))
                continue
            client.close()
        client.close()


class Client:
    """A client with at most one connection. The methods of KINDS return how many were answered."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.used_at = 0.0
        self.is_last = False

    def close(self) -> None:
        if self.ends is not None:
            self.ends[1].close()
        self.ends = None

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection on which a request may be sent."""
        if self.ends is not None:
            reader, writer = self.ends
            is_ended = reader.at_eof() or reader.exception() or writer.is_closing()
            if is_ended or self.is_last or time.monotonic() - self.used_at > STALE_S:
                self.close()
        if self.ends is None:
            address = self.traffic.address
            if isinstance(address, str):
                self.ends = await asyncio.open_unix_connection(address)
            else:
                self.ends = await asyncio.open_connection(*address)
        self.is_last = False
        return self.ends

    # ── kinds ────────────────────────────────────────────────────────────────────────────────

    async def new(self) -> int:
        self.close()
        await self.get("/")
        self.close()
        return 1

    async def kept(self) -> int:
        return await self.get("/")

    async def pipelined(self) -> int:
        reader, writer = await self.connected()
        writer.write(request_of("/") * PIPELINED)
        for number in range(PIPELINED):
            await self.receive(reader, size=5)
            if self.is_last:
                return number + 1
        return PIPELINED

    async def slow(self) -> int:
        return await self.get(f"/slow?{self.traffic.slow_s}")

    async def slow_new(self) -> int:
        self.close()
        return await self.slow()

    async def stream(self) -> int:
        return await self.get(f"/stream?{self.traffic.slow_s}", size=5 * PIECES)

    async def long_stream(self) -> int:
        """Receive an answer that takes longer than a worker waits for last requests."""
        return await self.get(f"/stream?{LONGER * self.traffic.slow_s}", size=5 * PIECES)

    async def download(self) -> int:
        return await self.get("/download", size=DOWNLOADED, pause_s=READ_PAUSE_S)

    async def upload(self) -> int:
        size = sum(map(len, UPLOAD))
        reader, writer = await self.connected()
        writer.write(b"POST /upload HTTP/1.1\r\nHost: service\r\nContent-Length: %d\r\n\r\n" % size)
        for piece in UPLOAD:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self.traffic.slow_s / len(UPLOAD))
        if await self.receive(reader, size=len(str(size))) != b"%d" % size:
            fail("upload")
        return 1

    async def websocket(self) -> int:
        """Exchange messages until the server closes the connection; the client then reconnects."""
        self.close()
        reader, writer = await self.connected()
        writer.write(HANDSHAKE % base64.b64encode(os.urandom(16)))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            fail("handshake")
        count = 0
        while not self.traffic.is_stopping:
            message = b"%d" % count
            writer.write(frame_of(TEXT, message))
            opcode, payload = await receive_frame(reader)
            if opcode == CLOSE:
                writer.write(frame_of(CLOSE, payload[:2]))
                break
            if payload != message:
                fail("message")
            count += 1
            await asyncio.sleep(random.uniform(0, PAUSE_MAX_S))
        else:
            writer.write(frame_of(CLOSE, struct.pack("!H", 1000)))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.close()
        return count

    # ── HTTP ─────────────────────────────────────────────────────────────────────────────────

    async def get(self, target: str, size: int = 5, pause_s: float = 0.0) -> int:
        reader, writer = await self.connected()
        writer.write(request_of(target))
        await self.receive(reader, size, pause_s)
        return 1

    async def receive(self, reader: asyncio.StreamReader, size: int, pause_s: float = 0.0) -> bytes:
        """Return the end of the body of an answer, whose length is *size*."""
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        status = lines[0].split(b" ")[1].decode()
        if status != "200":
            fail(f"status {status}")
        headers = dict(line.split(b": ", 1) for line in lines[1:-2])
        if headers[b"content-length"] != b"%d" % size:
            fail("length")
        part = b""
        while size:
            part = await reader.readexactly(min(size, 64 * 1024))
            size -= len(part)
            await asyncio.sleep(pause_s)
        self.traffic.loops[headers[b"x-loop"].decode()] += 1
        self.is_last = headers.get(b"connection") == b"close"
        self.used_at = time.monotonic()
        return part


def request_of(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: service\r\n\r\n".encode()


def fail(what: str) -> NoReturn:
    raise WrongAnswer(what)


# ── websockets ───────────────────────────────────────────────────────────────────────────────


HANDSHAKE = (
    b"GET /websocket HTTP/1.1\r\nHost: service\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n"
)
TEXT, CLOSE = 1, 8


def frame_of(opcode: int, payload: bytes) -> bytes:
    """Return a client's frame of less than 126 bytes. A mask of zeros leaves it readable."""
    return bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


async def receive_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the opcode and the payload of a server's frame of less than 126 bytes."""
    first, length = await reader.readexactly(2)
    return first & 15, await reader.readexactly(length)
