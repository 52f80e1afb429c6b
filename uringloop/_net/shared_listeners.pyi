"""Listening sockets that other processes accept from, too."""

from typing import Self

from typing_extensions import disjoint_base

from uringloop._turn.turn import LoopCore, TurnUser

@disjoint_base
class ListeningSocket(TurnUser):
    def start(self) -> None: ...

@disjoint_base
class SharedListeners:
    def __new__(cls, loop: LoopCore) -> Self: ...
