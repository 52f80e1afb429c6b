"""Bytes that wait to be sent."""

from typing import final

CAPACITY_AT_START: int
VECTOR_MAX: int
SEND_MAX: int
BYTES_LIKE: str

@final
class WriteQueue: ...
