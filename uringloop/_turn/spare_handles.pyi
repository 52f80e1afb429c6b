"""Handles that are used again."""

from typing import final

@final
class SpareHandles: ...
