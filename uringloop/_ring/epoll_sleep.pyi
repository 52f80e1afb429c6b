"""The sleep in epoll_wait(2) of a loop that waits for little but watched descriptors."""

from typing import final

from uringloop._ring.ring import Ring

TURNS_MIN: int
TURNS_MAX: int
CREDIT_MAX: int
SLEEP_GAIN: int
RING_COST: int
LOOK_COST: int
SLEEP_MAX_NS: int

@final
class EpollSleep:
    def open(self, ring: Ring, waker_fd: int) -> None: ...
