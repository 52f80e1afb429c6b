"""Protocols that most tests of connections use: Echo, and Collector, which records."""

from __future__ import annotations

import asyncio


class Echo(asyncio.Protocol):
    """Write received data back."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Collector(asyncio.Protocol):
    """Record all received bytes and the names of the callbacks, and resolve a future for each."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.data = bytearray()
        self.calls: list[str] = []
        self.made: asyncio.Future[None] = loop.create_future()
        self.eof: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self._wanted: list[tuple[int, asyncio.Future[None]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.append("connection_made")
        self.made.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.calls[-1] != "data_received":
            self.calls.append("data_received")
        for count, future in self._wanted:
            if len(self.data) >= count and not future.done():
                future.set_result(None)

    def eof_received(self) -> bool | None:
        self.calls.append("eof_received")
        self.eof.set_result(None)
        return None

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")
        self.lost.set_result(exc)

    async def received(self, count: int) -> bytes:
        """Wait until *count* bytes or more are received, and return all of them."""
        if len(self.data) < count:
            future = self.loop.create_future()
            self._wanted.append((count, future))
            await future
        return bytes(self.data)
