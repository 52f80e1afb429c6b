"""asyncio's streams: their bytes, and the end of their connection."""

from asyncio import BaseProtocol
from collections.abc import Callable

SHAPE: dict[Callable[..., object], set[str]]

def shape_is_known() -> bool: ...
def lose(protocol: BaseProtocol, exc: BaseException | None) -> None: ...
def retrieve_closed(protocol: BaseProtocol) -> None: ...
