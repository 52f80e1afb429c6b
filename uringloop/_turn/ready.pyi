"""Handles that are ready to run, in the order of their scheduling."""

from typing import final

READY_AT_START: int

@final
class ReadyQueue: ...
