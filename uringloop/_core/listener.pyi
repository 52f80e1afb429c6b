"""The kernel's side of a server: one listening socket."""

import asyncio
import socket
from collections.abc import Callable
from typing import Self

from typing_extensions import disjoint_base

from uringloop._core.loop import Flushable, LoopCore

@disjoint_base
class Listener(Flushable):
    def __new__(
        cls,
        loop: LoopCore,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        server: asyncio.Server,
    ) -> Self: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def _retry_accept(self) -> None: ...
