"""The writing half of a connection."""

from collections.abc import Iterable

from typing_extensions import disjoint_base

from uringloop._core.flow import FlowControl

SEND_ALONE_MAX: int

@disjoint_base
class WriteTransport(FlowControl):
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...
    def write_eof(self) -> None: ...
    def can_write_eof(self) -> bool: ...
    def close(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
