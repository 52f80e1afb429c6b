"""Bytes objects that nobody holds any more, for the next messages of their size."""

SPARE_SIZE_MIN: int
SPARE_SIZE_MAX: int
