"""Work for the end of a turn: the base of what the loop has on its flush list."""

from typing_extensions import disjoint_base

@disjoint_base
class Flushable: ...
