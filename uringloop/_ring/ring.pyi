"""A pair of queues."""

from typing import final

SQ_ENTRIES: int
CQ_ENTRIES: int
SQ_ENTRIES_OF_THREAD: int
RETRIES_MAX: int
LINGER_NS: int
BOUNDED_WORKERS_MAX: int
UNBOUNDED_WORKERS_MAX: int

@final
class Ring:
    count: int
    submissions: int
    completions: int

    def __init__(
        self, thread_idle_ms: int = 0, thread_cpu: int = -1, soft: bool = False
    ) -> None: ...
