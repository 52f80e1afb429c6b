"""Listening sockets that other processes accept from, too."""

from typing import Self

from typing_extensions import disjoint_base

from uringloop._turn.flushable import Flushable
from uringloop._turn.turn import LoopCore

@disjoint_base
class ListeningSocket(Flushable):
    def start(self) -> None: ...

@disjoint_base
class SharedListeners(Flushable):
    def __new__(cls, loop: LoopCore) -> Self: ...
