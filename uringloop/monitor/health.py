"""Health over HTTP: whether the loops of a service are alive and ready, even while they are busy.

Off by default; the environment variable URINGLOOP_HEALTH or serve() switches it on.
docs/reference/monitor.md describes it, and docs/decisions/0028-health.md has the reasons.

Of the processes that want the same address, one has it, and for each request asks the others
(siblings.py). The others try to take the address each second: when the process that has it ends,
one of them takes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from http import HTTPStatus

from uringloop._loop import base_loop
from uringloop.monitor import siblings
from uringloop.monitor.health_pages import OwnPages, ServicePages
from uringloop.monitor.health_settings import (
    DEAD_AFTER_S,
    READY_AFTER_S,
    Limits,
    Place,
    parsed,
)
from uringloop.monitor.serving import Server
from uringloop.monitor.switch import Plan, Switch
from uringloop.monitor.watchdog import Watchdog

# How often a process without the address tries to take it.
TAKE_S = 1.0
NO_WATCHDOG = "systemd is not told, as it has not asked for it: the unit needs WatchdogSec="

logger = logging.getLogger("uringloop")


class Health(Server):
    """The thread of a process, which serves *place* or waits to take it."""

    def __init__(self, place: Place, limits: Limits) -> None:
        watchdog = Watchdog.of(os.environ) if limits.watchdog else None
        super().__init__(
            "uringloop-health", min(TAKE_S, watchdog.interval_s) if watchdog else TAKE_S
        )
        self.place = place
        self.watchdog = watchdog
        # What was warned of.
        self.warnings: set[str] = set()
        if limits.watchdog and watchdog is None:
            self._warn(NO_WATCHDOG)
        # The socket at the place, while this process has it, and its file if it is a path.
        self.public: socket.socket | None = None
        self.file: os.stat_result | None = None
        self.others: siblings.Siblings | None = None
        try:
            self._take_if_free()
            # The number of the port is known now.
            group = siblings.group_of(place.name)
            own = siblings.listen(group)
        except OSError:
            self.close()
            raise
        self.listeners[own] = OwnPages(limits)
        self.others = siblings.Siblings(group, own.getsockname()[1:].decode())
        self.shared = ServicePages(limits, self.others)
        self._serve_public()

    def close(self) -> None:
        """End the thread, and remove the socket file unless it was replaced by another."""
        super().close()
        # The file, its directory or the permission to remove it may be gone.
        with contextlib.suppress(OSError):
            if self._has_file():
                os.unlink(self.place.path)

    def close_descriptors(self) -> None:
        """Close the descriptors. A forked child does only this, for the rest is its parent's."""
        super().close_descriptors()
        if self.public is not None:
            self.public.close()
        if self.others is not None:
            self.others.close()

    def tick(self) -> None:
        """Take the place if it is free, leave it if its file is another's, and notify systemd."""
        if self.file is not None and not self._has_file():
            self._leave()
        alone = False
        if self.public is None:
            reason = "another program has the address"
            try:
                self._take_if_free()
            except OSError as exc:
                reason = str(exc)
            self._serve_public()
            alone = self.public is None and not self._has_siblings()
            if alone:
                self._warn(reason)
        # One process notifies systemd for all: the one that has the place.
        is_due = self.watchdog is not None and self.watchdog.is_due()
        if is_due and (alone or self.public is not None):
            self._tell()

    def _has_siblings(self) -> bool:
        assert self.others is not None
        return bool(self.others.names())

    def _tell(self) -> None:
        assert self.watchdog is not None
        try:
            if self.shared.live().status is HTTPStatus.OK:
                self.watchdog.tell()
        except OSError as exc:
            self._warn(f"systemd cannot be told: {exc}")

    def _take_if_free(self) -> None:
        """Listen at the place unless another process does. Raises OSError."""
        assert self.public is None
        try:
            sock = self.place.listen()
        except OSError as exc:
            if not self.place.is_taken(exc):
                raise
            return
        try:
            self.file = os.lstat(self.place.path) if self.place.path else None
        except OSError:
            # Somebody has removed the file.
            sock.close()
            raise
        self.public = sock

    def _serve_public(self) -> None:
        """Serve clients at the place, if this process has it."""
        if self.public is not None:
            self.listeners[self.public] = self.shared
            if self.file is None and self.watchdog is None:
                # Nobody can take the address from this process, and there is nobody to tell.
                self.tick_s = None
            if self.place.is_public():
                self._warn("other machines can reach it: let only those that should")

    def _leave(self) -> None:
        """Close the socket at the place: two processes have taken it, and this is not the last."""
        assert self.public is not None
        del self.listeners[self.public]
        self.public.close()
        self.public = self.file = None

    def _has_file(self) -> bool:
        if self.file is None:
            return False
        try:
            return os.path.samestat(os.lstat(self.place.path), self.file)
        except OSError:
            return False

    def _warn(self, reason: str) -> None:
        if reason not in self.warnings:
            self.warnings.add(reason)
            logger.warning("health at %s: %s", self.place.name, reason)


# ── start and stop ───────────────────────────────────────────────────────────────────────────

SWITCH: Switch[Health] = Switch("health")


class _Served:
    """The arguments of serve(): forked children serve the same place."""

    plan: Callable[[], Plan[Health]] | None = None


def serve(
    address: str,
    *,
    dead_after: float = DEAD_AFTER_S,
    ready_after: float = READY_AFTER_S,
    stacks: bool = False,
    watchdog: bool = False,
) -> str | None:
    """Answer over HTTP at *address* whether the loops of this service are alive, even if busy.

    *address* is a numeric host with a port, such as "127.0.0.1:9100", or "unix:/path". The answers
    are about all processes of this user that serve the same address. The status of `GET /live` is
    503 if a loop has been in one turn for *dead_after* seconds. That of `GET /ready` is 503 if a
    loop has been in one turn for *ready_after* seconds, or if no loop runs. `GET /metrics` returns
    metrics in Prometheus' format. `GET /stacks` shows threads and tasks, if *stacks* is true. If
    *watchdog* is true, systemd is notified for as long as the status of `/live` is 200. A new call
    replaces an earlier one.

    Returns the address, in which the number of the port replaces a 0. Returns None if serving
    fails; the logger `uringloop` then warns of the reason. If another program has the address, a
    warning says so, and the address is taken when it is free. Raises ValueError for an argument
    that is out of range.
    """
    place = Place(address)
    limits = Limits(dead_after, ready_after, stacks=stacks, watchdog=watchdog)
    _Served.plan = lambda: Plan(None, lambda: Health(place, limits))
    base_loop.when_created["health"] = _serve_in_child
    health = SWITCH.on(_Served.plan)
    return health.place.name if health is not None else None


def stop_serving() -> None:
    """Stop serving, whether serve() or the environment variable URINGLOOP_HEALTH started it.

    Later loops and forked children do not serve again.
    """
    SWITCH.off()


def start_from_variable(text: str) -> None:
    """Serve the address that the variable names; once in a process. Raises ValueError."""
    place, limits = parsed(text)
    SWITCH.obey(_Served.plan or (lambda: Plan(None, lambda: Health(place, limits))))


def _serve_in_child(_: base_loop.BaseLoop, __: int) -> None:
    if _Served.plan is not None:
        SWITCH.obey(_Served.plan)
