"""A datagram endpoint."""

import asyncio
import socket
from typing import final

from uringloop._core.flow import FlowControl
from uringloop._core.loop import LoopCore

RECEIVED_MAX: int
RECEIVE_SIZE: int
RETRY_DELAY: float
HEADER_SIZE: int
SENDS_EMPTY: bool

class DatagramClass(asyncio.Transport, asyncio.DatagramTransport): ...

@final
class DatagramTransport(FlowControl):
    def sendto(self, data: bytes | bytearray | memoryview, addr: object = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def close(self) -> None: ...
    def _start(self, waiter: asyncio.Future[None]) -> None: ...
    def _recv_again(self) -> None: ...
    def _send_again(self) -> None: ...

def make_datagram(
    loop: LoopCore,
    sock: socket.socket,
    protocol: asyncio.BaseProtocol,
    address: object,
    waiter: asyncio.Future[None],
) -> asyncio.DatagramTransport: ...
