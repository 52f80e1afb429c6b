"""Watched descriptors: add_reader, add_writer, the ends of child processes."""

import asyncio
from collections.abc import Callable
from typing import Self, final

from uringloop._turn.turn import LoopCore

RETRY_DELAY: int

def transport_of(loop: LoopCore, fd: int) -> asyncio.Transport | None: ...

@final
class Watched: ...

@final
class Watchers:
    def __new__(cls, loop: LoopCore) -> Self: ...
    def watch(
        self,
        fd: int,
        event: int,
        callback: Callable[..., object],
        args: tuple[object, ...],
        file: object = None,
    ) -> asyncio.Handle: ...
    def arm_later(self) -> None: ...
    def remove(self, fd: int, event: int) -> bool: ...
    def descriptor_of(self, file: object) -> int: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
