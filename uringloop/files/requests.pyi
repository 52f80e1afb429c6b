"""Reads and writes of an open file: from and to the page cache at once, else on the ring."""

from typing import Final

from typing_extensions import disjoint_base

from uringloop.files.operation import Descriptor, FileOperation

REQUEST_MAX: int

@disjoint_base
class FileRequests(Descriptor):
    name: object
    _appending: Final[bool]
    _seekable: Final[bool]
    _regular: Final[bool]

    async def _complete_read(self, operation: FileOperation) -> None: ...
    async def _next_turn(self) -> None: ...
