"""Deadlines, nearest first."""

from typing_extensions import disjoint_base

COMPACT_ABOVE: int
CAPACITY_AT_START: int

@disjoint_base
class TimerHeap: ...
