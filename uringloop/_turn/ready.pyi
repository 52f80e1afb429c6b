"""Handles that are ready to run, in the order of their scheduling."""

from typing import final

@final
class ReadyQueue: ...
