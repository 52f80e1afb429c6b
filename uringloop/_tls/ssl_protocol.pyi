"""TLS: asyncio's SSLProtocol on this loop's transports."""

from asyncio import sslproto
from collections.abc import Iterable
from typing import ClassVar

from uringloop._tls.data_path import TLSCore

class TLSProtocol(TLSCore, sslproto.SSLProtocol):
    max_size: ClassVar[int]

class TransportCore:
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...

class SSLTransport(TransportCore, sslproto._SSLProtocolTransport): ...

def go_on(protocol: sslproto.SSLProtocol) -> None: ...
def new_protocol(*args: object, **options: object) -> sslproto.SSLProtocol: ...
