"""What a loop has done so far."""

from typing import Any

from uringloop._core.loop import LoopCore

def stats_of(loop: LoopCore) -> Any: ...
