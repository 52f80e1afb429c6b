"""Bytes straight into the buffer of asyncio's StreamReader."""

from collections.abc import Callable

SHAPE: dict[Callable[..., object], set[str]]

def shape_is_known() -> bool: ...
