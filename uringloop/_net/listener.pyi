"""The kernel's side of a server: its listening sockets."""

import asyncio
import socket
from collections.abc import Callable
from typing import Self

from typing_extensions import disjoint_base

from uringloop._transport.transport import Connections
from uringloop._turn.turn import Flushable, LoopCore

ACCEPTS_MAX: int
COMPANY_EVERY_NS: int
LOOK_EVERY_NS: int
SEARCH_EVERY_NS: int
NAPS_MAX: int
SINGLES_MAX: int
YIELD_EVERY_NS: int

@disjoint_base
class Listener(Flushable):
    def __new__(
        cls,
        loop: LoopCore,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        connections: Connections,
        shared: bool = False,
    ) -> Self: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def _retry_accept(self) -> None: ...

@disjoint_base
class SharedListeners(Flushable):
    def __new__(cls, loop: LoopCore) -> Self: ...
