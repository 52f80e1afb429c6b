"""Timers, nearest deadline first."""

from typing import final

COMPACT_ABOVE: int
CAPACITY_AT_START: int
CACHE_LINE: int

@final
class TimerHeap: ...
