"""The compiled half of the protocol between a transport and a StreamReader."""

from typing_extensions import disjoint_base

@disjoint_base
class ProtocolCore:
    def data_received(self, data: bytes) -> None: ...
