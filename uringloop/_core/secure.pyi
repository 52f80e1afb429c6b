"""TLS: asyncio's SSLProtocol, with what happens for every message compiled."""

from asyncio import sslproto
from collections.abc import Callable, Iterable
from typing import ClassVar

from typing_extensions import disjoint_base

from uringloop._core.writer import WriteSource

SHAPE: dict[Callable[..., object], set[str]]
OTHER_NAMES: set[str]
RECORD_MAX: int
HELD_MAX: int
SCRATCH_MIN: int
SCRATCH_MAX: int

@disjoint_base
class TLSCore(WriteSource):
    def buffer_updated(self, nbytes: int) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def take_ahead(self, data: bytes) -> None: ...

class TLSProtocol(TLSCore, sslproto.SSLProtocol):
    max_size: ClassVar[int]

class TransportCore:
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...

class SSLTransport(TransportCore, sslproto._SSLProtocolTransport): ...

def shape_is_known() -> bool: ...
def new_protocol(*args: object, **options: object) -> sslproto.SSLProtocol: ...
