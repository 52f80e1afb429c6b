"""Reading a file into the page cache, before sendfile(2) sends it from there."""

from typing import final

from uringloop._turn.turn import LoopCore

@final
class ReadAhead:
    def _finish(self) -> None: ...

def has(fd: int, offset: int, size: int) -> bool: ...
async def read_ahead(loop: LoopCore, fd: int, offset: int, size: int) -> None: ...
