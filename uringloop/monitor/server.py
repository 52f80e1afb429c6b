"""The monitor: answers requests for the state of all loops at a UNIX socket.

Off by default; the environment variable URINGLOOP_MONITOR or start() switches it on. It only reads
state. `python -m uringloop.top` is its client; docs/reference/monitor.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from uringloop.monitor.serving import Answer, Server, Service, peer_of
from uringloop.monitor.snapshots import snapshot
from uringloop.monitor.socket_paths import (
    CLIENTS_MAX,
    default_path,
    listen,
    name_for,
    remove_stale,
)
from uringloop.monitor.switch import Plan, Switch

# A request is an empty line.
REQUEST_BYTES_MAX = 64
NOT_EMPTY = "a request must be an empty line"
# How long a client may take to read an answer and send its next request. Longer than top's longest
# interval.
CLIENT_TIMEOUT_S = 60.0

# The value of the variable for the default path.
DEFAULT = "1"


# ── answers ──────────────────────────────────────────────────────────────────────────────────


def line_of(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def answer(request: bytes) -> Answer:
    """Return the line that answers *request*, a line."""
    if request.strip():
        return Answer(line_of({"error": NOT_EMPTY}), last=True)
    try:
        return Answer(line_of(snapshot()), last=False)
    except Exception as exc:
        # The program's own classes of loops and tasks can raise anything, even when they are shown.
        return Answer(line_of({"error": type(exc).__name__}), last=False)


class Snapshots(Service):
    """A line of JSON for each empty line."""

    request_bytes_max = REQUEST_BYTES_MAX
    timeout_s = CLIENT_TIMEOUT_S
    clients_max = CLIENTS_MAX

    def refusal_of(self, sock: socket.socket) -> bytes | None:
        _, user = peer_of(sock)
        if user in (0, os.geteuid()):
            return None
        return line_of({"error": "not permitted: this process belongs to another user"})

    def length_of(self, received: bytes) -> int:
        return received.find(b"\n") + 1

    def answer(self, request: bytes) -> Answer:
        return answer(request)

    def too_long(self) -> Answer:
        return Answer(line_of({"error": NOT_EMPTY}), last=True)

    def too_many(self) -> bytes | None:
        return line_of({"error": f"{CLIENTS_MAX} clients are connected already"})


class Monitor(Server):
    """The socket at *path* and the thread that serves it."""

    def __init__(self, path: str) -> None:
        super().__init__("uringloop-monitor")
        self.path = path
        self.listeners[listen(path)] = Snapshots()
        self.file = os.lstat(path)

    def close(self) -> None:
        """End the thread, and remove the socket file unless it was replaced by another."""
        super().close()
        # The file, its directory or the permission to remove it may be gone.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), self.file):
                os.unlink(self.path)


# ── start and stop ───────────────────────────────────────────────────────────────────────────


SWITCH: Switch[Monitor] = Switch("the monitor")


def start(path: str | os.PathLike[str] | None = None) -> str | None:
    """Start the monitor of this process at the socket *path*, and return the path.

    If *path* is a directory, the socket is `uringloop-PID.sock` in that directory. By default it is
    the socket of that name in `$XDG_RUNTIME_DIR` or, if that is not a private directory of this
    user, in a directory of this user below `$TMPDIR` or `/tmp`. A monitor that runs at another path
    is stopped. Only this user and root can connect.

    Returns None if the monitor cannot start; the logger `uringloop` then warns of the reason.
    """
    monitor = SWITCH.on(lambda: _plan(path))
    return monitor.path if monitor is not None else None


def stop() -> None:
    """Stop the monitor, whether start() or the environment variable started it.

    The socket is closed and its file removed. Later loops and forked children do not start the
    monitor again.
    """
    SWITCH.off()


def start_from_variable(place: str) -> None:
    """Start the monitor at the *place* that the variable names; once in a process."""
    SWITCH.obey(lambda: _plan(None if place == DEFAULT else place))


def _plan(path: str | os.PathLike[str] | None) -> Plan[Monitor]:
    if path is None:
        where = default_path()
    else:
        where = os.path.abspath(os.fsdecode(path))
        if os.path.isdir(where):
            where = os.path.join(where, name_for(os.getpid()))

    def make() -> Monitor:
        if path is None:
            remove_stale(os.path.dirname(where))
        return Monitor(where)

    return Plan(where, make)
