"""Bytes that wait to be sent."""

from typing import final

CAPACITY_OF_MANY: int
SEND_MAX: int
BYTES_LIKE: str
WRITE_TAKES_BYTES_LIKE: bool

@final
class WriteQueue: ...
