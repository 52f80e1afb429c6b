"""Flow control: when the protocol is paused, and when it is resumed."""

from typing_extensions import disjoint_base

from uringloop._transport.read_transport import ReadTransport

HIGH_WATER: int

@disjoint_base
class FlowControl(ReadTransport):
    @property
    def _protocol_paused(self) -> bool: ...
    def get_write_buffer_limits(self) -> tuple[int, int]: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
