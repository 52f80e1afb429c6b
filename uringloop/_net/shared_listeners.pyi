"""Listening sockets that other processes accept from, too."""

from typing import Self

from typing_extensions import disjoint_base

from uringloop._turn.flushable import Flushable
from uringloop._turn.turn import LoopCore

ACCEPTS_MAX: int
OTHERS_EVERY_NS: int
LOOK_EVERY_NS: int
SEARCH_EVERY_NS: int
SHORT_SLEEPS_MAX: int
SINGLES_MAX: int
YIELD_EVERY_NS: int

@disjoint_base
class ListeningSocket(Flushable):
    def start(self) -> None: ...

@disjoint_base
class SharedListeners(Flushable):
    def __new__(cls, loop: LoopCore) -> Self: ...
