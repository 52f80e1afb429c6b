"""The other end of `uringloop.monitor`: find a program's socket, ask it, and compare two answers.

For `uringloop.top`, which shows what this returns. What a program says of itself is not trusted to
be well-formed, and nobody is asked who is another user's.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import socket
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict, TypeGuard

from uringloop._monitor import server
from uringloop._monitor.server import LoopTold, Told

# A program with hundreds of loops says less.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
# For a process to be gone after it has closed its socket: it may have much memory to give back.
END_S = 2.0

HINT = "start it with URINGLOOP_MONITOR=1"
# The counters of stats() whose rates are shown.
RATED = (
    "turns",
    "kernel_entries",
    "completions",
    "batched",
    "received_bytes",
    "sent_bytes",
    "starved",
    "rearms",
    "overflows",
)
# What is shown as it is.
SHOWN = ("operations", "buffers_out", "callbacks_ready", "timers_pending", "lag", "lag_max")

Kinds = Mapping[str, type | types.UnionType]


class CannotWatch(Exception):
    """A program that cannot be watched; the message is for people, and says why."""


class Ended(Exception):
    """A program that could be watched, and cannot any more; the message says why."""


# ── where ────────────────────────────────────────────────────────────────────────────────────


def _environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with, or ours where it hides its own."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            lines = os.fsdecode(file.read()).split("\0")
    except PermissionError:
        return dict(os.environ)
    return dict(line.split("=", 1) for line in lines if "=" in line)


def paths_of(pid: int) -> list[str]:
    """Return where the process *pid* may have its socket.

    Raises CannotWatch if there is no such process, or if it is another user's.
    """
    try:
        user = os.stat(f"/proc/{pid}").st_uid
        if os.geteuid() not in (0, user):
            raise CannotWatch(f"not permitted: process {pid} is another user's")
        variables = _environment_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise CannotWatch(f"no such process: {pid}") from None
    name = server.name_for(pid)
    asked = variables.get("URINGLOOP_MONITOR", "")
    paths = [os.path.join(folder, name) for folder in server.folders(variables, user)]
    if asked not in ("", server.DEFAULT, server.OFF):
        # A relative one is relative to where it was started, and mostly still is.
        asked = os.path.join(f"/proc/{pid}/cwd", asked)
        paths = [os.path.join(asked, name) if os.path.isdir(asked) else asked, *paths]
    return paths


def path_of(target: str) -> str:
    """Return the socket of *target*, a process by its number or a path. Raises CannotWatch."""
    if not target.isdecimal():
        if not os.path.exists(target):
            raise CannotWatch(f"no such file: {target}")
        return target
    for path in paths_of(int(target)):
        if os.path.exists(path):
            return path
    raise CannotWatch(f"process {target} has no monitor: {HINT}, or name the path of its socket")


def _processes() -> Iterator[tuple[int, int]]:
    """Yield the number of each process and that of its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # One may end meanwhile, or be hidden.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program is in brackets, and may have any other in it.
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def descendants_of(pid: int) -> list[int]:
    """Return the children of the process *pid*, theirs, and so on."""
    parents = dict(_processes())
    found = {pid}
    # A child may have a smaller number than its parent.
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


def existing_paths_of(pids: Iterable[int]) -> Iterator[str]:
    """Yield where the sockets of those processes are that have one and may be watched."""
    for pid in pids:
        with contextlib.suppress(CannotWatch):
            yield from [path for path in paths_of(pid) if os.path.exists(path)][:1]


def family_paths(pid: int) -> list[str]:
    """Return the sockets of the process *pid* and its descendants."""
    return list(existing_paths_of([pid, *descendants_of(pid)]))


def all_paths() -> list[str]:
    """Return the sockets of all programs that this user may watch, as far as they can be found."""
    own = (pid for pid, _ in _processes() if "URINGLOOP_MONITOR" in _own_environment_of(pid))
    found: dict[tuple[int, int], str] = {}
    for path in [*_default_paths(), *existing_paths_of(own)]:
        # The same socket may be found by two names.
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def _own_environment_of(pid: int) -> dict[str, str]:
    """Return the variables of a process if it is this user's, or this user is root."""
    try:
        return _environment_of(pid) if os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid) else {}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _default_paths() -> Iterator[str]:
    """Yield the sockets in the folders where they are by default."""
    user = os.geteuid()
    folders = set(server.folders(os.environ, user)) | {f"/tmp/uringloop-{user}"}
    if user == 0:
        folders |= {*glob.glob("/run/user/*"), *glob.glob("/tmp/uringloop-*")}
    for folder in sorted(folders):
        yield from sorted(glob.glob(os.path.join(glob.escape(folder), "uringloop-*.sock")))


def listed() -> Iterator[tuple[str, Told]]:
    """Yield the path and one answer of each program that this user may watch, if it answers."""
    for path in all_paths():
        yield from _answered(path)


def _answered(path: str) -> Iterator[tuple[str, Told]]:
    """Yield *path* and what is said there, or nothing."""
    try:
        with Connection(path) as connection:
            told = connection.ask(END_S)
    except (CannotWatch, Ended):
        return
    if told is not None:
        yield path, told


# ── asking ───────────────────────────────────────────────────────────────────────────────────


# What is looked at of an answer, and of each loop in it.
NUMBER = int | float
TOLD_KINDS: Kinds = {
    "protocol": int,
    "pid": int,
    "command": str,
    "python": str,
    "uringloop": str,
    "time": NUMBER,
    "cpu": NUMBER,
    "loops": list,
}
LOOP_KINDS: Kinds = {
    "id": int,
    "name": str,
    "thread": str | None,
    "thread_id": int | None,
    "thread_cpu": NUMBER,
    "running": bool,
    "sleeping": bool,
    "blocked": NUMBER,
    "place": dict | None,
    "task": dict | None,
    "debug": bool,
    "backend": str,
    "stats": dict,
}
STATS_KINDS: Kinds = dict.fromkeys((*RATED, *SHOWN), NUMBER)
PLACE_KINDS: Kinds = {"function": str, "file": str, "line": int}
TASK_KINDS: Kinds = {"name": str, "coroutine": str}


def _has(value: object, kinds: Kinds) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), kind) for key, kind in kinds.items()
    )


def _is_told(answer: object) -> TypeGuard[Told]:
    if not isinstance(answer, dict) or answer.get("protocol") != server.PROTOCOL:
        return False
    return _has(answer, TOLD_KINDS) and all(
        _has(loop, LOOP_KINDS)
        and _has(loop["stats"], STATS_KINDS)
        and (loop["place"] is None or _has(loop["place"], PLACE_KINDS))
        and (loop["task"] is None or _has(loop["task"], TASK_KINDS))
        for loop in answer["loops"]
    )


class Connection:
    """One program that is watched."""

    def __init__(self, path: str) -> None:
        """Connect. Raises CannotWatch with the reason if that fails."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.received = b""
        self.waiting = False
        try:
            self.sock.connect(path)
        except PermissionError:
            self.sock.close()
            raise CannotWatch(f"not permitted: {path}") from None
        except ConnectionRefusedError:
            self.sock.close()
            raise CannotWatch(f"nobody listens at {path}: that program has ended") from None
        except OSError as exc:
            self.sock.close()
            raise CannotWatch(f"{path}: {exc.strerror or exc}") from None
        peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, server.PEER.size)
        self.pid, user, _ = server.PEER.unpack(peer)
        if os.geteuid() not in (0, user) and user != 0:
            self.sock.close()
            raise CannotWatch(f"not permitted: {path} is another user's")
        try:
            # 0 is a process of another namespace.
            self.process = os.pidfd_open(self.pid) if self.pid else -1
        except OSError:
            self.process = -1

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()
        if self.process >= 0:
            os.close(self.process)

    def ask(self, patience: float) -> Told | None:
        """Return what the program says now, or None if it has not said it in *patience* seconds.

        The next call goes on waiting. Raises Ended, and CannotWatch for what is no answer.
        """
        deadline = time.monotonic() + patience
        try:
            if not self.waiting:
                self.sock.sendall(b"\n")
                self.waiting = True
            while b"\n" not in self.received:
                self.sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = self.sock.recv(65536)
                if not data or len(self.received) > ANSWER_BYTES_MAX:
                    raise Ended(self._end())
                self.received += data
        except TimeoutError:
            return None
        except (BrokenPipeError, ConnectionResetError):
            if b"\n" not in self._rest():
                raise Ended(self._end()) from None
        line, _, self.received = self.received.partition(b"\n")
        self.waiting = False
        return self._understood(line)

    def rest(self, seconds: float) -> None:
        """Wait that long. Raises Ended as soon as the program has gone."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        # Nothing is asked: whatever comes is the end.
        if poll.poll(seconds * 1000):
            raise Ended(self._end())

    def _rest(self) -> bytes:
        """Return what was said before the program closed the connection: why, perhaps."""
        self.sock.settimeout(0)
        try:
            self.received += self.sock.recv(65536)
        except OSError:
            return b""
        return self.received

    def _understood(self, line: bytes) -> Told:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if _is_told(answer):
            return answer
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise CannotWatch(answer["error"])
        raise CannotWatch("what listens there is no uringloop, or one of another version")

    def _end(self) -> str:
        """Return what has become of the program."""
        name = f"process {self.pid}" if self.pid else "the program"
        if self.process >= 0:
            poll = select.poll()
            poll.register(self.process, select.POLLIN)
            if not poll.poll(END_S * 1000):
                return f"{name} goes on, but cannot be watched any more"
        return f"{name} has ended"


# ── comparing ────────────────────────────────────────────────────────────────────────────────


class Rates(TypedDict):
    """What a loop did between two answers, in a second; *cpu* of its thread is 1 for a core."""

    cpu: float
    turns: float
    kernel_entries: float
    completions: float
    completions_per_turn: float
    received_bytes: float
    sent_bytes: float
    starved: float
    rearms: float
    overflows: float


class Watched(TypedDict):
    """One loop at one moment: what it says, and its rates."""

    told: LoopTold
    rates: Rates | None


class Look:
    """One answer, and what it says beside the one before."""

    def __init__(self, told: Told, before: Look | None = None) -> None:
        self.told = told
        self.seconds = told["time"] - before.told["time"] if before is not None else 0.0
        self.cpu: float | None = None
        earlier: dict[int, LoopTold] = {}
        if before is not None and self.seconds > 0:
            self.cpu = (told["cpu"] - before.told["cpu"]) / self.seconds
            earlier = {loop["id"]: loop for loop in before.told["loops"]}
        self.loops = [self._watched(loop, earlier.get(loop["id"])) for loop in told["loops"]]

    def _watched(self, loop: LoopTold, earlier: LoopTold | None) -> Watched:
        if earlier is not None and earlier["stats"]["turns"] > loop["stats"]["turns"]:
            # Another one, in the memory of the first.
            earlier = None
        rates = self._rates(loop, earlier) if self.seconds > 0 else None
        return {"told": loop, "rates": rates}

    def _rates(self, loop: LoopTold, earlier: LoopTold | None) -> Rates:
        """Return the rates of *loop*; one that was not there *earlier* began at nothing."""
        now = loop["stats"]

        def rate(key: str) -> float:
            first = earlier["stats"][key] if earlier is not None else 0  # type: ignore[literal-required]
            return (now[key] - first) / self.seconds  # type: ignore[literal-required, no-any-return]

        turns, batched = rate("turns"), rate("batched")
        same = earlier is not None and earlier["thread_id"] == loop["thread_id"]
        # What the thread did before it ran this loop is not the loop's.
        used = loop["thread_cpu"] - earlier["thread_cpu"] if same and earlier is not None else 0.0
        return {
            "cpu": used / self.seconds,
            "turns": turns,
            "kernel_entries": rate("kernel_entries"),
            "completions": rate("completions"),
            "completions_per_turn": batched / turns if turns else 0.0,
            "received_bytes": rate("received_bytes"),
            "sent_bytes": rate("sent_bytes"),
            "starved": rate("starved"),
            "rearms": rate("rearms"),
            "overflows": rate("overflows"),
        }
