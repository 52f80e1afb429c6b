"""Deadlines, nearest first."""

from typing_extensions import disjoint_base

COMPACT_ABOVE: int

@disjoint_base
class TimerHeap: ...
