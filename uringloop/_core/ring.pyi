"""The pair of queues."""

from typing_extensions import disjoint_base

SQ_ENTRIES: int
CQ_ENTRIES: int
RETRIES_MAX: int
SETTLE_MAX: int

@disjoint_base
class Ring:
    count: int
    enters: int
    submissions: int
    completions: int

    def __init__(self) -> None: ...
