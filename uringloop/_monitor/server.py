"""The monitor's thread, which answers requests for the state of all loops at a UNIX socket.

Off by default; the environment variable URINGLOOP_MONITOR or start() switches it on. The thread is
independent of the loops, so it answers while a loop is blocked. It only reads state, and sleeps
while there are no requests. `python -m uringloop.top` is its client; docs/monitoring.md describes
the protocol.

If the monitor cannot start (for lack of a directory, a thread or a descriptor), one warning is
logged and the program continues.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import enum
import errno
import json
import logging
import os
import platform
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypedDict

from uringloop._turn.stats import open_loops, stats_of, thread_state_of, time_turns

if TYPE_CHECKING:
    from uringloop._loop.base import RunningLoop, Stats

# The version of the answers: a new key does not change it, a changed meaning increments it.
PROTOCOL = 1
# Clients that are connected at once; few people watch a process at the same time.
CLIENTS_MAX = 8
# A request is an empty line: a client that sends more than this without one is closed.
REQUEST_BYTES_MAX = 64
# Time for the next request, and for reading an answer. Longer than top's longest interval.
CLIENT_TIMEOUT_S = 60.0
# Pause after each round of answers: a client that asks without pause costs 3 % of a core.
PAUSE_S = 0.005
# Characters of the command line in an answer; some programs take all settings there.
COMMAND_LENGTH_MAX = 500
# Time for the thread to end: it waits only for the GIL.
END_S = 5.0

# Values of the variable: the default path, and no monitor.
DEFAULT, OFF = "1", "0"

# Python's name for the first thread, unless the program renames it.
MAIN_THREAD = "MainThread"

# struct ucred of SO_PEERCRED: process, user, group.
PEER = struct.Struct("3i")
# The file of run_forever(): a thread whose innermost frame is there runs no code of the program.
RUN_FOREVER_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "_loop", "base.py")

logger = logging.getLogger("uringloop")


class TaskInfo(TypedDict):
    """The name of the running task, and of its coroutine function."""

    name: str
    coroutine: str


class Place(TypedDict):
    """The place that a thread executes; *line* is 0 if it is unknown."""

    function: str
    file: str
    line: int


# In functional form because the key "class" is a keyword.
LoopSnapshot = TypedDict(
    "LoopSnapshot",
    {
        "id": int,
        "class": str,
        "name": str,
        "thread": str | None,
        "thread_id": int | None,
        "thread_cpu": float,
        "running": bool,
        "sleeping": bool,
        "blocked": float,
        "place": Place | None,
        "task": TaskInfo | None,
        "debug": bool,
        "backend": str,
        "backend_reason": str,
        "stats": "Stats",
    },
)


class Snapshot(TypedDict):
    """One answer; times are in seconds."""

    protocol: int
    pid: int
    command: str
    python: str
    uringloop: str
    time: float
    cpu: float
    loops: list[LoopSnapshot]


# ── paths of sockets ─────────────────────────────────────────────────────────────────────────


def is_private(folder: str, user: int) -> bool:
    """Return whether *folder* is a directory of *user* that no other user may write to."""
    try:
        # lstat(): a symbolic link does not count, because any user can create one in /tmp.
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o022


def folders(variables: Mapping[str, str], user: int) -> list[str]:
    """Return the directories for the socket of a *user*'s process, the preferred one first.

    *variables* is the environment of that process.
    """
    temporary = os.path.join(variables.get("TMPDIR") or "/tmp", f"uringloop-{user}")
    runtime = variables.get("XDG_RUNTIME_DIR")
    # After `su` or `sudo` the variable may name another user's directory.
    return [runtime, temporary] if runtime and is_private(runtime, user) else [temporary]


def name_for(pid: int) -> str:
    return f"uringloop-{pid}.sock"


def default_path() -> str:
    """Return the path for this process, in a private directory, which is created if needed.

    Raises PermissionError if the directory exists and is not private.
    """
    user = os.geteuid()
    folder = folders(os.environ, user)[0]
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        # Made by an earlier process of this user, or by another user.
        if not is_private(folder, user):
            raise PermissionError(
                f"{folder} must be a directory of this user that no other user may write to"
            ) from None
    return os.path.join(folder, name_for(os.getpid()))


def has_listener(path: str) -> bool:
    """Return whether a process listens at the socket *path*."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        # Any other error, such as EAGAIN of a full backlog, means that a process listens.
        return sock.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def remove_stale(folder: str) -> None:
    """Remove the sockets of processes that were killed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        number = name.removeprefix("uringloop-").removesuffix(".sock")
        # A live process listens before its socket gets this name: see listen().
        if number.isdigit() and name == name_for(int(number)) and not has_listener(path):
            # Another starting process may have removed it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def listen(path: str) -> socket.socket:
    """Return a socket that listens at *path*; a stale socket file there is replaced.

    Raises FileExistsError if *path* is another kind of file, or if a process listens there.
    """
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        if has_listener(path):
            raise FileExistsError(f"another process listens at {path}")
    temporary = f"{path}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        # bind() gives the file the mode of the socket, so it never has another mode.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(temporary)
        try:
            os.chmod(temporary, 0o600)
            sock.listen(CLIENTS_MAX)
            sock.setblocking(False)
            # Rename when the socket listens: a client that finds *path* can connect. This also
            # replaces a stale file atomically.
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError:
        sock.close()
        raise
    return sock


# ── answers ──────────────────────────────────────────────────────────────────────────────────


def task_of(loop: asyncio.AbstractEventLoop) -> TaskInfo | None:
    """Return the task that *loop* runs now, or None."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return {"name": task.get_name(), "coroutine": name}


def _place(frame: FrameType | None) -> Place | None:
    """Return the place that *frame* executes; None if it is the loop's own code."""
    if frame is None:
        return None
    code = frame.f_code
    if code.co_name == "run_forever" and code.co_filename == RUN_FOREVER_FILE:
        return None
    return {
        "function": code.co_qualname,
        "file": code.co_filename,
        "line": frame.f_lineno or 0,
    }


def address_text(address: object) -> str:
    """Return the address of a socket as text: `host:port`, `[host]:port` or a path."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(address, bytes):
        # The name of an abstract UNIX socket begins with a null byte.
        return os.fsdecode(address).replace("\0", "@", 1)
    return str(address)


def name_of(loop: RunningLoop, thread: str | None) -> str:
    """Return a name for *loop*: its thread's name, or the first server's for the main thread."""
    if thread is not None and thread != MAIN_THREAD:
        return thread
    if loop._first_server is not None:
        return address_text(loop._first_server)
    return thread or "no thread"


def _loop_snapshot(
    loop: RunningLoop, frames: dict[int, FrameType], names: dict[int | None, str]
) -> LoopSnapshot:
    thread, cpu, sleeping, blocked = thread_state_of(loop)
    working = thread != 0 and not sleeping
    return {
        "id": id(loop),
        "class": type(loop).__qualname__,
        "name": name_of(loop, names.get(thread)),
        "thread": names.get(thread),
        "thread_id": thread or None,
        "thread_cpu": cpu,
        "running": thread != 0,
        "sleeping": sleeping,
        "blocked": blocked,
        "place": _place(frames.get(thread)) if working else None,
        "task": task_of(loop) if working else None,
        "debug": loop.get_debug(),
        "backend": loop.backend,
        "backend_reason": loop.backend_reason,
        "stats": stats_of(loop),
    }


def snapshot() -> Snapshot:
    """Return the state of this process and its loops."""
    # Taken first and cleared below: frames that are kept would keep their variables alive.
    frames = sys._current_frames()
    names: dict[int | None, str] = {thread.ident: thread.name for thread in threading.enumerate()}
    loops = [_loop_snapshot(loop, frames, names) for loop in open_loops()]
    frames.clear()
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "command": " ".join(sys.orig_argv)[:COMMAND_LENGTH_MAX],
        "python": platform.python_version(),
        # Not imported: a private module may not import the package itself.
        "uringloop": sys.modules["uringloop"].__version__,
        "time": time.monotonic(),
        "cpu": time.process_time(),
        "loops": sorted(loops, key=lambda loop: (loop["thread"] or "", loop["id"])),
    }


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
        # Last: a new client may get the descriptor number of a client that was closed above.
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


def start_from_variable(wanted: str) -> None:
    """Start the monitor as *wanted*, the value of the variable, says; once in a process."""
    # Checked without the lock first, for all loops but the first.
    if _State.variable is not Variable.PENDING:
        return
    with _State.lock:
        if _State.variable is Variable.PENDING:
            _State.variable = Variable.HANDLED
            if wanted != OFF:
                _start(None if wanted == DEFAULT else wanted)


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
        time_turns(True)
    except (OSError, RuntimeError, ValueError) as exc:
        logger.warning("the monitor of this process cannot start: %s", exc)
        return None
    return where


def _stop() -> None:
    monitor, _State.monitor = _State.monitor, None
    time_turns(False)
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
    time_turns(False)
    if monitor is not None:
        monitor.close_descriptors()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
