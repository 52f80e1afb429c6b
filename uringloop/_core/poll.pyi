"""Readiness of descriptors that belong to the user."""

import asyncio
from collections.abc import Callable
from typing import Final, Self

from typing_extensions import disjoint_base

from uringloop._core.loop import Flushable, LoopCore

HALF_CLOSED_RETRY: float
READ: int
WRITE: int

@disjoint_base
class PollWatcher(Flushable):
    file: Final[object]

    def __new__(cls, loop: LoopCore, fd: int, mask: int, file: object = None) -> Self: ...
    def watch(
        self, callback: Callable[..., object], args: tuple[object, ...]
    ) -> asyncio.Handle: ...
    def remove(self) -> None: ...
    def _arm_again(self) -> None: ...

@disjoint_base
class PollOnce:
    def _arm_again(self) -> None: ...
