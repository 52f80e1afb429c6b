"""One wait for the readiness of a descriptor that belongs to the user."""

from typing_extensions import disjoint_base

HALF_CLOSED_RETRY: float

@disjoint_base
class PollOnce:
    def _arm_again(self) -> None: ...
