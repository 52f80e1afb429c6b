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


async def serve_datagrams(listener: socket.socket) -> None:
    """Serve with create_datagram_endpoint, on the address of a listening socket."""
    loop = asyncio.get_running_loop()
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.setblocking(False)
    endpoint.bind(listener.getsockname())
    await loop.create_datagram_endpoint(DatagramEcho, sock=endpoint)
