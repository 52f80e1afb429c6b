"""TLS records, to and from OpenSSL by the `ssl` module's objects."""

from ssl import MemoryBIO
from typing import Self, final

SHORT_TAG: str

@final
class RecordFramer: ...

@final
class Window: ...

@final
class BIOMemory:
    def __new__(cls, bio: MemoryBIO) -> Self: ...

@final
class Scratch: ...

@final
class Records: ...

def framed(*pieces: bytes) -> tuple[list[int], int, bool]: ...
