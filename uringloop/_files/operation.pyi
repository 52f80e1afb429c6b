"""One request of a file, in flight on the loop's ring or in a thread of its executor."""

import asyncio
from typing import Final

from typing_extensions import disjoint_base

@disjoint_base
class Descriptor:
    operations_in_flight: Final[int]

    async def _become_idle(self) -> None: ...

@disjoint_base
class FileOperation:
    async def end(self) -> None: ...
    def _perform(self) -> int: ...
    def _performed(self, performed: asyncio.Future[int]) -> None: ...

def is_cached(fd: int, offset: int, size: int) -> bool: ...
async def read_ahead(fd: int, offset: int, size: int) -> None: ...
