"""The sleep in epoll_wait(2) of a loop that waits for little but watched descriptors."""

from typing import final

from uringloop._ring.ring import Ring

@final
class EpollSleep:
    def open(self, ring: Ring, waker_fd: int) -> None: ...
