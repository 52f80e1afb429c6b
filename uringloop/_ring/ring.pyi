"""A pair of queues."""

from typing import final

@final
class Ring:
    count: int
    submissions: int
    completions: int

    def __init__(
        self, thread_idle_ms: int = 0, thread_cpu: int = -1, soft: bool = False
    ) -> None: ...
