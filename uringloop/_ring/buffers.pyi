"""The receive buffers that the kernel picks from."""

from typing import Self, final

from uringloop._ring.ring import Ring

BUFFERS_MAX: int
BUFFERS_AT_START: int
BUFFER_SIZE: int
DATAGRAM_BUFFER_SIZE: int
DATAGRAM_BUFFERS_AT_START: int
MEMORY_PARTS: int
FILL_TO_GROW: int
FILL_WEIGHT: float

@final
class BufferPool:
    out: int

    def __new__(cls, ring: Ring, group: int, size: int, at_start: int) -> Self: ...
