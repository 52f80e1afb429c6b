"""The echo server of datagrams."""

from __future__ import annotations

import asyncio
import socket


class DatagramEcho(asyncio.DatagramProtocol):
    """Sends each datagram back to its sender."""

    transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # as in echo

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


async def serve_datagrams(endpoint: socket.socket) -> None:
    """Serve with create_datagram_endpoint on a bound socket."""
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(DatagramEcho, sock=endpoint)
