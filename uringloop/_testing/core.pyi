"""The compiled part of a loop for tests."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import disjoint_base

from uringloop._turn.turn import LoopCore

FAULTS: tuple[str, ...]
STALL_MIN_S: float
STALL_DOUBLINGS: int
SPIN_TURNS: int
SAME_NS: int

@disjoint_base
class TestingCore(LoopCore):
    def _simulate(
        self,
        seed: int,
        start: float,
        shuffles: bool,
        outside: Any,
        trace_fd: int,
    ) -> None: ...
    def _set_chances(self, chances: Sequence[float], stall: float) -> None: ...
    def _reseed(self, seed: int) -> None: ...
    def _random(self) -> float: ...
    def _waits(self) -> list[tuple[int, int]]: ...
    def _has_file_work(self) -> bool: ...
    def _faults_happened(self) -> dict[str, int]: ...
