"""The receive buffers that the kernel picks from."""

from typing import Self, final

from uringloop._ring.ring import Ring

@final
class BufferPool:
    out: int

    def __new__(cls, ring: Ring, group: int, size: int, at_start: int) -> Self: ...
