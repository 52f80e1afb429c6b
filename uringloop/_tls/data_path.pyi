"""The data path of TLS."""

from typing_extensions import disjoint_base

from uringloop._transport.write_transport import WriteSource

ALERTS_ARE_SENT: bool
RECORD_MAX: int
HELD_MAX: int
SCRATCH_MIN: int
SCRATCH_MAX: int

@disjoint_base
class TLSCore(WriteSource):
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def take_ahead(self, data: bytes) -> None: ...
