"""Which transport owns which descriptor."""

from typing import final

ROOM: int

@final
class FdTable: ...
