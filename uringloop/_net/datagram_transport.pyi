"""A datagram endpoint."""

import asyncio
import socket
from collections.abc import Iterable
from typing import TypeVar

from typing_extensions import Buffer, disjoint_base

from uringloop._transport.flow_control import FlowControl
from uringloop._turn.turn import LoopCore

_T = TypeVar("_T", bound=DatagramTransport)

class DatagramClass(asyncio.Transport, asyncio.DatagramTransport): ...

@disjoint_base
class DatagramTransport(FlowControl):
    def sendto(self, data: bytes | bytearray | memoryview, addr: object = None) -> None: ...
    def sendmsg(
        self,
        buffers: Iterable[Buffer],
        ancdata: Iterable[tuple[int, int, Buffer]] = (),
        addr: object = None,
    ) -> None: ...
    def send_segments(
        self,
        data: bytes | bytearray | memoryview,
        segment_size: int,
        addr: object = None,
        ancdata: Iterable[tuple[int, int, Buffer]] = (),
    ) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def close(self) -> None: ...
    def write(self, data: object) -> None: ...
    def writelines(self, list_of_data: object) -> None: ...
    def write_eof(self) -> None: ...
    def can_write_eof(self) -> bool: ...
    def _send_again(self) -> None: ...
    def _receive_errors(self) -> None: ...
    def _receive(
        self, data: bytes, address: object, ancillary: list[tuple[int, int, bytes]] | None = None
    ) -> None: ...

def checked_message(
    buffers: Iterable[Buffer], ancdata: Iterable[tuple[int, int, Buffer]]
) -> tuple[bytes, list[tuple[int, int, bytes]]]: ...
def make_datagram(
    loop: LoopCore,
    sock: socket.socket,
    protocol: asyncio.BaseProtocol,
    address: object,
    waiter: asyncio.Future[None],
    kind: type[_T] = ...,
) -> _T: ...
