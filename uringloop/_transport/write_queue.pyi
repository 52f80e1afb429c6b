"""Bytes that wait to be sent."""

from typing import final

BYTES_LIKE: str
WRITE_TAKES_BYTES_LIKE: bool

@final
class WriteQueue: ...
