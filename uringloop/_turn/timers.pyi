"""Timers, nearest deadline first."""

from typing import final

@final
class TimerHeap: ...
