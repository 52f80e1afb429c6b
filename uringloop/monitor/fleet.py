"""Watches several processes at once, for `uringloop.top`: a server's workers, or a user's programs.

Processes may start and end between two rounds of requests. A process that does not answer does not
delay the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from uringloop.monitor.client import CannotWatch, Connection, Ended, OtherVersion, Sample


class Member:
    """One process: its connection, its last answer, and for how long it has not answered."""

    def __init__(self, path: str) -> None:
        self.connection = Connection(path)
        self.sample: Sample | None = None
        self.asked_at = 0.0
        self.silent_s = 0.0
        self.has_new_sample = False

    def ask(self, timeout_s: float) -> bool:
        """Wait for an answer; send a request first unless one is pending. Return success."""
        if not self.connection.waiting:
            self.asked_at = time.monotonic()
        snapshot = self.connection.ask(timeout_s)
        self.has_new_sample = snapshot is not None
        if snapshot is None:
            self.silent_s = time.monotonic() - self.asked_at
            return False
        self.sample = Sample(snapshot, self.sample)
        self.silent_s = 0.0
        return True


class Fleet:
    """The processes whose sockets *find* returns; every poll() calls it again."""

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self.find = find
        self.members: dict[str, Member] = {}
        # By path: why the process there cannot be watched by this version.
        self.others: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for path in list(self.members):
            self._drop(path)

    def poll(self, timeout_s: float) -> list[Member]:
        """Request answers; wait at most *timeout_s* in all; return the connected members."""
        paths = self.find()
        self.others = {path: why for path, why in self.others.items() if path in paths}
        for path in paths:
            if path not in self.members and path not in self.others:
                # The socket of a killed process, or of another user's process.
                with contextlib.suppress(CannotWatch):
                    self.members[path] = Member(path)
        deadline = time.monotonic() + timeout_s
        # Send all requests before waiting for the first answer.
        silent = [path for path in list(self.members) if not self._ask(path, 0.0)]
        for path in silent:
            if path in self.members:
                self._ask(path, max(0.0, deadline - time.monotonic()))
        return sorted(self.members.values(), key=lambda member: member.connection.pid)

    def _ask(self, path: str, timeout_s: float) -> bool:
        """Return whether no answer is pending: the process has answered, or cannot be watched."""
        try:
            return self.members[path].ask(timeout_s)
        except OtherVersion as exc:
            self.others[path] = str(exc)
        except (CannotWatch, Ended):
            # The next poll finds it again if it can be watched then.
            pass
        self._drop(path)
        return True

    def _drop(self, path: str) -> None:
        self.members.pop(path).connection.close()
