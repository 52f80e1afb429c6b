"""The monitor's thread, which answers requests for the state of all loops at a UNIX socket.

Off by default; the environment variable URINGLOOP_MONITOR or start() switches it on. The thread is
independent of the loops, so it answers while a loop is blocked. It only reads state, and sleeps
while there are no requests. `python -m uringloop.top` is its client; docs/monitoring.md describes
the protocol.

If the monitor cannot start (for lack of a directory, a thread or a descriptor), one warning is
logged and the program continues.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import json
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from uringloop._turn.stats import stop_timing_turns, time_turns
from uringloop.monitor.snapshots import snapshot
from uringloop.monitor.socket_paths import (
    CLIENTS_MAX,
    default_path,
    listen,
    name_for,
    remove_stale,
)

# A request is an empty line: a client that sends more than this without one is disconnected.
REQUEST_BYTES_MAX = 64
# How long a client may take to read an answer and send its next request. Longer than top's longest
# interval.
CLIENT_TIMEOUT_S = 60.0
# The pause after each round of answers: a client that asks without pause costs only 3 % of a core.
PAUSE_S = 0.005
# Time for the thread to end: it waits only for the GIL.
END_S = 5.0

# The value of the variable for the default path.
DEFAULT = "1"


# struct ucred of SO_PEERCRED: process, user, group.
PEER = struct.Struct("3i")

logger = logging.getLogger("uringloop")


# ── answers ──────────────────────────────────────────────────────────────────────────────────


def line_of(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def answer(request: bytes) -> bytes:
    """Return the line that answers *request*, a line without its newline."""
    if request.strip():
        return line_of({"error": "a request must be an empty line"})
    try:
        return line_of(snapshot())
    except Exception as exc:
        # The program's own classes of loops and tasks can raise anything.
        return line_of({"error": f"{type(exc).__name__}: {exc}"})


# ── the thread ───────────────────────────────────────────────────────────────────────────────


class Client:
    """One connection: requests not answered yet, and the part of an answer not sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.unsent = b""
        self.deadline = time.monotonic() + CLIENT_TIMEOUT_S

    def serve(self) -> bool:
        """Read or write without blocking. Return whether the connection stays open."""
        try:
            if self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
                return True
            # A client that does not wait for answers may have sent the next request already.
            if b"\n" not in self.received:
                data = self.sock.recv(REQUEST_BYTES_MAX - len(self.received))
                self.received += data
                if not data:
                    return False
            return self.reply()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def reply(self) -> bool:
        """Answer the first pending request. Return whether the connection stays open."""
        request, end, rest = self.received.partition(b"\n")
        if not end:
            return len(request) < REQUEST_BYTES_MAX
        self.received = rest
        self.unsent = answer(request)
        self.deadline = time.monotonic() + CLIENT_TIMEOUT_S
        self.unsent = self.unsent[self.sock.send(self.unsent) :]
        return not request.strip()


class Monitor:
    """The socket at *path* and the thread that serves it, in the process that creates them."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.pid = os.getpid()
        self.sock = listen(self.path)
        self.file = os.lstat(self.path)
        self.clients: dict[int, Client] = {}
        self.ending = False
        self.thread = threading.Thread(target=self._serve, name="uringloop-monitor", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """End the thread, and remove the socket file unless it was replaced by another."""
        self.ending = True
        # Wakes the thread from poll().
        self.sock.shutdown(socket.SHUT_RDWR)
        if self.thread.ident is not None:
            self.thread.join(END_S)
        self.close_descriptors()
        # The file, its directory or the permission to remove it may be gone.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), self.file):
                os.unlink(self.path)

    def close_descriptors(self) -> None:
        """Close the descriptors. A forked child does only this, for the rest is its parent's."""
        self.sock.close()
        for client in list(self.clients.values()):
            client.sock.close()
        self.clients.clear()

    def _serve(self) -> None:
        # The kernel must deliver the program's signals to the program's own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self.ending:
            self._round()
            time.sleep(PAUSE_S)

    def _round(self) -> None:
        """Wait for a connection, a request or a timeout, and serve all clients once."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        for fd, client in self.clients.items():
            waits = client.unsent or b"\n" in client.received
            poll.register(fd, select.POLLOUT if waits else select.POLLIN)
        now = time.monotonic()
        first = min((client.deadline for client in self.clients.values()), default=None)
        ready = poll.poll(None if first is None else max(0.0, first - now) * 1000)
        for fd, _ in ready:
            if fd in self.clients and not self.clients[fd].serve():
                self.clients.pop(fd).sock.close()
        now = time.monotonic()
        for fd, client in list(self.clients.items()):
            if client.deadline <= now:
                self.clients.pop(fd).sock.close()
        # Accept last: a new client may get the descriptor number of one that was closed above.
        if any(fd == self.sock.fileno() for fd, _ in ready) and not self.ending:
            self._accept()

    def _accept(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:
            # The client has disconnected, or no descriptor is left; the next round tries again.
            return
        sock.setblocking(False)
        _, user, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        refusal = None
        if user not in (0, os.geteuid()):
            refusal = "not permitted: this process belongs to another user"
        elif len(self.clients) >= CLIENTS_MAX:
            refusal = f"{CLIENTS_MAX} clients are connected already"
        if refusal is None:
            self.clients[sock.fileno()] = Client(sock)
            return
        # The client may have disconnected.
        with sock, contextlib.suppress(OSError):
            sock.send(line_of({"error": refusal}))


# ── start and stop ───────────────────────────────────────────────────────────────────────────


class Variable(enum.Enum):
    """What this process does with the environment variable.

    PENDING ──the first loop, or start()──> HANDLED ──stop()──> STOPPED ──start()──> HANDLED

    stop() leads from PENDING to STOPPED, too. A fork leads from HANDLED to PENDING in the child,
    whose first loop may start a monitor of its own.
    """

    PENDING = 1  # the next loop obeys it
    HANDLED = 2  # it was obeyed or start() was called: it is ignored from now on
    STOPPED = 3  # stop() was called: it is ignored, in forked children too


class _State:
    """The monitor of this process."""

    monitor: Monitor | None = None
    variable = Variable.PENDING
    lock = threading.Lock()


def start(path: str | os.PathLike[str] | None = None) -> str | None:
    """Start the monitor of this process at the socket *path*, and return the path.

    If *path* is a directory, the socket is `uringloop-PID.sock` in it. The default is that name in
    `$XDG_RUNTIME_DIR`, or else in a directory of this user in `$TMPDIR` or `/tmp`. A monitor at
    another path is stopped first. Only this user and root can connect.

    Returns None if the monitor cannot start; the logger `uringloop` has a warning with the reason.
    """
    with _State.lock:
        _State.variable = Variable.HANDLED
        return _start(path)


def stop() -> None:
    """Stop the monitor, whether start() or the environment variable started it.

    Closes the socket and removes its file. Later loops and forked children do not start it again.
    """
    with _State.lock:
        _State.variable = Variable.STOPPED
        _stop()


def start_from_variable(place: str) -> None:
    """Start the monitor at the *place* that the variable names; once in a process."""
    # Check without the lock first: all loops but the first return here.
    if _State.variable is not Variable.PENDING:
        return
    with _State.lock:
        if _State.variable is Variable.PENDING:
            _State.variable = Variable.HANDLED
            _start(None if place == DEFAULT else place)


def _start(path: str | os.PathLike[str] | None) -> str | None:
    try:
        if path is None:
            where = default_path()
        else:
            where = os.path.abspath(os.fsdecode(path))
            if os.path.isdir(where):
                where = os.path.join(where, name_for(os.getpid()))
        if _State.monitor is not None and _State.monitor.path == where:
            return where
        _stop()
        if path is None:
            remove_stale(os.path.dirname(where))
        _State.monitor = Monitor(where)
        time_turns()
    except (OSError, RuntimeError, ValueError) as exc:
        logger.warning("the monitor of this process cannot start: %s", exc)
        return None
    return where


def _stop() -> None:
    monitor, _State.monitor = _State.monitor, None
    stop_timing_turns()
    if monitor is not None:
        if monitor.pid == os.getpid():
            monitor.close()
        else:
            # This is a child of a fork that Python did not make.
            monitor.close_descriptors()


def _after_fork() -> None:
    """Drop the parent's monitor in a child; a loop that the child creates may start its own."""
    monitor, _State.monitor = _State.monitor, None
    _State.lock = threading.Lock()
    if _State.variable is Variable.HANDLED:
        _State.variable = Variable.PENDING
    stop_timing_turns()
    if monitor is not None:
        monitor.close_descriptors()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
