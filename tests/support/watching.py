"""Helpers of the tests of watched descriptors: a loop that is busy with two of them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from support.roles import Loop
from support.sockets import unix_pair

# More turns with nothing but events than a loop needs to change to epoll_wait(2).
MANY = 100

# A sleep that nothing ends is longer than this.
SOON = 5.0


class Game:
    """Two readers that send a message to and fro, one event in each turn."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.left, self.right = unix_pair()
        self.hits = 0
        for end in (self.left, self.right):
            loop.add_reader(end, self.hit, end)

    def hit(self, end: socket.socket) -> None:
        end.send(end.recv(100))
        self.hits += 1

    async def play(self, hits: int = MANY) -> None:
        """Return after so many more events, with the message under way no more."""
        last = self.hits + hits
        self.left.send(b"ball")
        ended = self.loop.create_future()

        def count(end: socket.socket) -> None:
            if self.hits < last:
                self.hit(end)
            elif not ended.done():
                end.recv(100)
                ended.set_result(None)

        for end in (self.left, self.right):
            self.loop.add_reader(end, count, end)
        await ended

    def forget(self) -> None:
        """Watch the two descriptors no more, which stay open."""
        for end in (self.left, self.right):
            self.loop.remove_reader(end)

    def close(self) -> None:
        self.forget()
        self.left.close()
        self.right.close()


def eventfds() -> int:
    """Return how many eventfds this process has."""
    return sum("eventfd" in name for name in open_files().values())


def open_files() -> dict[int, str]:
    """Return the open descriptors of this process, and what they are."""
    files = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            files[int(link.name)] = os.readlink(link)
    return files


def after(seconds: float, call: object, *args: object) -> threading.Timer:
    timer = threading.Timer(seconds, call, args)  # type: ignore[arg-type]
    timer.start()
    return timer


def is_at_epoll(fd: int | None = None) -> bool:
    """Return whether a loop sleeps in epoll_wait(2) at *fd*, by default at any of this process.

    Its epoll instance then has descriptors that are not watched: an event without a number.
    """
    if fd is None:
        return any(is_at_epoll(each) for each, name in open_files().items() if "eventpoll" in name)
    return "data: ffffffffffffffff" in Path(f"/proc/self/fdinfo/{fd}").read_text()
