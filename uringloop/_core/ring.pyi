"""The pair of queues."""

from typing import final

SQ_ENTRIES: int
CQ_ENTRIES: int
RETRIES_MAX: int
SETTLE_MAX: int

@final
class Ring:
    count: int
    enters: int
    submissions: int
    completions: int

    def __init__(self) -> None: ...
