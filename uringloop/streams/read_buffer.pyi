"""The unread bytes of a stream."""

from typing_extensions import disjoint_base

@disjoint_base
class ReadBuffer: ...
