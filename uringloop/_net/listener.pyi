"""The kernel's side of a server: a listening socket, from which the loop accepts."""

import asyncio
import socket
from collections.abc import Callable
from typing import Self

from typing_extensions import disjoint_base

from uringloop._net.shared_listeners import ListeningSocket
from uringloop._transport.transport import Connections
from uringloop._turn.turn import LoopCore

@disjoint_base
class Listener(ListeningSocket):
    def __new__(
        cls,
        loop: LoopCore,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        connections: Connections,
        shared: bool = False,
    ) -> Self: ...
    def is_paused(self) -> bool: ...
    def give(self, sock: socket.socket, refuse: Callable[[], object]) -> None: ...
    def accept_given(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def accept_rest(self, most: int) -> None: ...
    def close(self) -> None: ...
    def _retry_accept(self) -> None: ...
