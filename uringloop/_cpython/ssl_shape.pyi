"""The parts of the standard library's TLS that the compiled way of the bytes stands in for."""

from collections.abc import Callable

SHAPE: dict[Callable[..., object], set[str]]
OTHER_NAMES: set[str]

def shape_is_known() -> bool: ...
