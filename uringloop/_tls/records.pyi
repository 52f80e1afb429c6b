"""TLS records, to and from OpenSSL by the `ssl` module's objects."""

from typing import final

HEADER_SIZE: int
LENGTH_MAX: int

@final
class RecordFramer: ...

@final
class Window: ...

@final
class Scratch: ...

@final
class Records: ...

def framed(*pieces: bytes) -> tuple[list[int], int, bool]: ...
