"""The thread that answers those who watch this process, at a UNIX socket.

Off unless asked for, by the environment variable URINGLOOP_MONITOR or by start(). The thread has
nothing to do with the loops: it answers while one of them is blocked, which is when people look.
It reads and changes nothing, and sleeps while nobody asks. `python -m uringloop.top` asks;
docs/monitoring.md has the protocol.

A lack of anything (a folder, a thread, a descriptor) is one warning, and the program goes on.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
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

from uringloop._turn.stats import open_loops, place_of, stats_of, time_turns

if TYPE_CHECKING:
    from uringloop._loop.base import RunningLoop, Stats

# Of the answers. What is added leaves it as it is; what changes its meaning raises it.
PROTOCOL = 1
# More than a few people do not look at once.
CLIENTS_MAX = 8
# Requests are empty lines: who sends more than this without one speaks something else.
REQUEST_BYTES_MAX = 64
# For one request after the other, and for reading an answer. Longer than top's longest interval.
PATIENCE_S = 60.0
# After each round of answers: one who asks without a pause costs the program 3 % of a core.
PAUSE_S = 0.005
# Of the command line: some have all their settings there.
COMMAND_LENGTH_MAX = 500
# For the thread to end: it waits for nothing but the GIL.
END_S = 5.0

# The values of the variable that ask for the default path, and for nothing.
DEFAULT, OFF = "1", "0"

# What Python calls the first thread, until the program gives it a name.
MAIN_THREAD = "MainThread"

# The peer of a socket: process, user, group.
PEER = struct.Struct("3i")
# Where a thread is that runs a loop and nothing of the program's.
RUNNING = os.path.join(os.path.dirname(os.path.dirname(__file__)), "_loop", "base.py")

logger = logging.getLogger("uringloop")


class TaskTold(TypedDict):
    """A task that runs now, by its name and that of its coroutine."""

    name: str
    coroutine: str


class PlaceTold(TypedDict):
    """What a thread executes; a line of 0 is none."""

    function: str
    file: str
    line: int


# The class of a loop is called by a word of Python's.
LoopTold = TypedDict(
    "LoopTold",
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
        "place": PlaceTold | None,
        "task": TaskTold | None,
        "debug": bool,
        "backend": str,
        "backend_reason": str,
        "stats": "Stats",
    },
)


class Told(TypedDict):
    """An answer; times are in seconds."""

    protocol: int
    pid: int
    command: str
    python: str
    uringloop: str
    time: float
    cpu: float
    loops: list[LoopTold]


# ── where ────────────────────────────────────────────────────────────────────────────────────


def is_private(folder: str, user: int) -> bool:
    """Return whether *folder* is one, is *user*'s and nobody else may put anything into it."""
    try:
        # A link is none, wherever it points to: in /tmp anybody may make one.
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o022


def folders(variables: Mapping[str, str], user: int) -> list[str]:
    """Return where a process of *user* with these *variables* has its socket: the first it can."""
    temporary = os.path.join(variables.get("TMPDIR") or "/tmp", f"uringloop-{user}")
    runtime = variables.get("XDG_RUNTIME_DIR")
    # After `su` or `sudo` it may be another user's.
    return [runtime, temporary] if runtime and is_private(runtime, user) else [temporary]


def name_for(pid: int) -> str:
    return f"uringloop-{pid}.sock"


def default_path() -> str:
    """Return the path for this process, in a folder that is there and nobody else's."""
    user = os.geteuid()
    folder = folders(os.environ, user)[0]
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        # An earlier process of this user has made it, or somebody else something else.
        if not is_private(folder, user):
            raise PermissionError(f"{folder} is not a folder of this user's alone") from None
    return os.path.join(folder, name_for(os.getpid()))


def is_answered(path: str) -> bool:
    """Return whether somebody listens at the socket *path*."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        # Who has all the clients there may be, and accepts no more, is somebody.
        return sock.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def remove_stale(folder: str) -> None:
    """Remove the sockets of processes that were killed before they could."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        number = name.removeprefix("uringloop-").removesuffix(".sock")
        # They listen before they have their name: see listen().
        if number.isdigit() and name == name_for(int(number)) and not is_answered(path):
            # Another process that starts may have been faster.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def listen(path: str) -> socket.socket:
    """Return a socket that listens at *path*, in the place of one where nobody does any more."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is there and is no socket")
        if is_answered(path):
            raise FileExistsError(f"another process listens at {path}")
    made = f"{path}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        # The file that bind() makes has the mode of the socket: there is no moment with another.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(made)
        try:
            os.chmod(made, 0o600)
            sock.listen(CLIENTS_MAX)
            sock.setblocking(False)
            # Whoever finds the file can connect; a stale one vanishes in the same step.
            os.rename(made, path)
        except OSError:
            os.unlink(made)
            raise
    except OSError:
        sock.close()
        raise
    return sock


# ── what is told ─────────────────────────────────────────────────────────────────────────────


def task_of(loop: asyncio.AbstractEventLoop) -> TaskTold | None:
    """Return what task *loop* runs."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return {"name": task.get_name(), "coroutine": name}


def _place(frame: FrameType | None) -> PlaceTold | None:
    """Return where a thread is; None if that is the loop's own code."""
    if frame is None:
        return None
    code = frame.f_code
    if code.co_name == "run_forever" and code.co_filename == RUNNING:
        return None
    return {
        "function": code.co_qualname,
        "file": code.co_filename,
        "line": frame.f_lineno or 0,
    }


def address_text(address: object) -> str:
    """Return the address of a socket as people write it."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(address, bytes):
        # Linux has UNIX sockets without a file, whose names begin with a zero.
        return os.fsdecode(address).replace("\0", "@", 1)
    return str(address)


def name_of(loop: RunningLoop, thread: str | None) -> str:
    """Return what people know *loop* by: its thread's own name, or else its first server."""
    if thread is not None and thread != MAIN_THREAD:
        return thread
    if loop._first_server is not None:
        return address_text(loop._first_server)
    return thread or "no thread"


def _loop(
    loop: RunningLoop, frames: dict[int, FrameType], names: dict[int | None, str]
) -> LoopTold:
    thread, cpu, sleeping, blocked = place_of(loop)
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


def snapshot() -> Told:
    """Return what is told of this process and its loops."""
    # First, and soon left: what runs meanwhile must not find its variables held by this.
    frames = sys._current_frames()
    names: dict[int | None, str] = {thread.ident: thread.name for thread in threading.enumerate()}
    loops = [_loop(loop, frames, names) for loop in open_loops()]
    frames.clear()
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "command": " ".join(sys.orig_argv)[:COMMAND_LENGTH_MAX],
        "python": platform.python_version(),
        # A module below the package's own may not import it.
        "uringloop": sys.modules["uringloop"].__version__,
        "time": time.monotonic(),
        "cpu": time.process_time(),
        "loops": sorted(loops, key=lambda loop: (loop["thread"] or "", loop["id"])),
    }


def line_of(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def answer(request: bytes) -> bytes:
    """Return the line that answers *request*, a line without its end."""
    if request.strip():
        return line_of({"error": "a request is an empty line"})
    try:
        return line_of(snapshot())
    except Exception as exc:
        # A class of the program's own, of a loop or a task, can raise anything.
        return line_of({"error": f"{type(exc).__name__}: {exc}"})


# ── the thread ───────────────────────────────────────────────────────────────────────────────


class Client:
    """One connection: what it has sent and not been answered, and what it has not read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked = b""
        self.unread = b""
        self.deadline = time.monotonic() + PATIENCE_S

    def attend(self) -> bool:
        """Read or write what can be without waiting. Return whether the client may stay."""
        try:
            if self.unread:
                self.unread = self.unread[self.sock.send(self.unread) :]
                return True
            # Who does not wait for answers has asked again already.
            if b"\n" not in self.asked:
                data = self.sock.recv(REQUEST_BYTES_MAX - len(self.asked))
                self.asked += data
                if not data:
                    return False
            return self.reply()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def reply(self) -> bool:
        """Answer the first of the requests that are there, if the client reads that at once."""
        request, end, rest = self.asked.partition(b"\n")
        if not end:
            return len(request) < REQUEST_BYTES_MAX
        self.asked = rest
        self.unread = answer(request)
        self.deadline = time.monotonic() + PATIENCE_S
        self.unread = self.unread[self.sock.send(self.unread) :]
        return not request.strip()


class Monitor:
    """The socket at *path* and the thread behind it, of the process that makes it."""

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
        """End the thread, and remove the file if it is still the one that was made."""
        self.ending = True
        # It ends the poll of the thread.
        self.sock.shutdown(socket.SHUT_RDWR)
        if self.thread.ident is not None:
            self.thread.join(END_S)
        self.forget()
        # It may have been removed, or its folder, or our right to.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), self.file):
                os.unlink(self.path)

    def forget(self) -> None:
        """Close the descriptors. A forked child does only this: the rest is its parent's."""
        self.sock.close()
        for client in list(self.clients.values()):
            client.sock.close()
        self.clients.clear()

    def _serve(self) -> None:
        # The program's signals interrupt its own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self.ending:
            self._round()
            time.sleep(PAUSE_S)

    def _round(self) -> None:
        """Wait until somebody comes or asks, and attend to all who did."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        for fd, client in self.clients.items():
            waits = client.unread or b"\n" in client.asked
            poll.register(fd, select.POLLOUT if waits else select.POLLIN)
        now = time.monotonic()
        first = min((client.deadline for client in self.clients.values()), default=None)
        ready = poll.poll(None if first is None else max(0.0, first - now) * 1000)
        for fd, _ in ready:
            if fd in self.clients and not self.clients[fd].attend():
                self.clients.pop(fd).sock.close()
        now = time.monotonic()
        for fd, client in list(self.clients.items()):
            if client.deadline <= now:
                self.clients.pop(fd).sock.close()
        # Last: a new client may get the number of one that has gone.
        if any(fd == self.sock.fileno() for fd, _ in ready) and not self.ending:
            self._accept()

    def _accept(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:
            # It has gone already, or there is no descriptor left: that is tried again.
            return
        sock.setblocking(False)
        _, user, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        refusal = None
        if user not in (0, os.geteuid()):
            refusal = "not permitted: this process is another user's"
        elif len(self.clients) >= CLIENTS_MAX:
            refusal = f"{CLIENTS_MAX} clients are connected already"
        if refusal is None:
            self.clients[sock.fileno()] = Client(sock)
            return
        # It may have gone without an answer.
        with sock, contextlib.suppress(OSError):
            sock.send(line_of({"error": refusal}))


# ── starting and stopping ────────────────────────────────────────────────────────────────────


class _State:
    """What this process has of it."""

    monitor: Monitor | None = None
    # The variable has been followed, or start() or stop() have been called since.
    settled = False
    # stop() has been called, which holds in children too.
    stopped = False
    lock = threading.Lock()


def start(path: str | os.PathLike[str] | None = None) -> str | None:
    """Let others of this user watch this process, at the socket *path*, and return its path.

    A *path* that is a folder gets `uringloop-PID.sock` inside. The default is such a name in
    `$XDG_RUNTIME_DIR`, else in a folder of this user's in `$TMPDIR` or `/tmp`. What listens at
    another path is stopped.

    Returns None where that cannot be; a warning of the logger `uringloop` has the reason.
    """
    with _State.lock:
        _State.settled = True
        _State.stopped = False
        return _start(path)


def stop() -> None:
    """End what start() has begun, or the environment variable: the socket goes, and its file."""
    with _State.lock:
        _State.settled = _State.stopped = True
        _stop()


def start_as_asked(wanted: str) -> None:
    """Start as the environment variable says, *wanted*, unless that has been done."""
    # Most loops are not the first, and need no lock to see it.
    if _State.settled:
        return
    with _State.lock:
        if not _State.settled:
            _State.settled = True
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
        logger.warning("this process cannot be watched: %s", exc)
        return None
    return where


def _stop() -> None:
    monitor, _State.monitor = _State.monitor, None
    time_turns(False)
    if monitor is not None:
        if monitor.pid == os.getpid():
            monitor.close()
        else:
            # A fork that Python does not know of.
            monitor.forget()


def _after_fork() -> None:
    """Leave the parent's socket to the parent: a child that makes a loop has its own."""
    monitor, _State.monitor = _State.monitor, None
    _State.lock = threading.Lock()
    _State.settled = _State.stopped
    time_turns(False)
    if monitor is not None:
        monitor.forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
