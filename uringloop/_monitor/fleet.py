"""Several processes that are watched at once: a server's workers, or all programs of a user.

For `uringloop.top`. Processes come and go between two looks; one that does not answer holds up
nobody.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from uringloop._monitor.client import CannotWatch, Connection, Ended, Look


class Member:
    """One process: its connection, what it has said last, and since when it says nothing."""

    def __init__(self, path: str) -> None:
        self.connection = Connection(path)
        self.look: Look | None = None
        self.asked_at = 0.0
        self.silent_s = 0.0
        self.is_new = False

    def ask(self, patience: float) -> bool:
        """Ask unless that has been done, and return whether there is an answer."""
        if not self.connection.waiting:
            self.asked_at = time.monotonic()
        told = self.connection.ask(patience)
        self.is_new = told is not None
        if told is None:
            self.silent_s = time.monotonic() - self.asked_at
            return False
        self.look = Look(told, self.look)
        self.silent_s = 0.0
        return True


class Fleet:
    """The processes whose sockets *find* returns, as they are at each look."""

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self.find = find
        self.members: dict[str, Member] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for path in list(self.members):
            self._drop(path)

    def look(self, patience: float) -> list[Member]:
        """Ask every process, wait *patience* seconds for all of them, and return who is there."""
        for path in self.find():
            if path not in self.members:
                # What a killed process has left, or one of another version.
                with contextlib.suppress(CannotWatch):
                    self.members[path] = Member(path)
        deadline = time.monotonic() + patience
        # All are asked before the first is waited for.
        silent = [path for path in list(self.members) if not self._ask(path, 0.0)]
        for path in silent:
            if path in self.members:
                self._ask(path, max(0.0, deadline - time.monotonic()))
        return sorted(self.members.values(), key=lambda member: member.connection.pid)

    def _ask(self, path: str, patience: float) -> bool:
        """Return whether a process has nothing more to say, because it has answered or ended."""
        try:
            return self.members[path].ask(patience)
        except (CannotWatch, Ended):
            self._drop(path)
            return True

    def _drop(self, path: str) -> None:
        self.members.pop(path).connection.close()
