"""TLS: asyncio's SSLProtocol, with what happens for every message compiled."""

from asyncio import sslproto
from collections.abc import Callable, Iterable
from typing import ClassVar

SHAPE: dict[Callable[..., object], set[str]]

class SSLTransport(sslproto._SSLProtocolTransport):
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...

class TLSProtocol(sslproto.SSLProtocol):
    max_size: ClassVar[int]

def shape_is_known() -> bool: ...
def new_protocol(*args: object, **options: object) -> sslproto.SSLProtocol: ...
