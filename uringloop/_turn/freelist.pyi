"""A free list of bytes objects, by size."""

from typing import final

@final
class FreeList: ...
