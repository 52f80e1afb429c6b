"""Addresses of IPv4 and IPv6, as the kernel has them and as Python has them."""

from typing import Self, final

@final
class LocalEnd:
    def __new__(cls, family: int, type: int, proto: int) -> Self: ...

@final
class SenderCache: ...
