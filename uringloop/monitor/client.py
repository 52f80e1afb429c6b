"""The monitor's client: finds the sockets of programs, sends requests, and computes rates.

`uringloop.top` displays the results. The client checks the form of every answer, and does not talk
to processes of other users, except root's.
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

from uringloop._loop import options
from uringloop.monitor import server, serving, snapshots, socket_paths
from uringloop.monitor.snapshots import LoopSnapshot, Snapshot

# The answer of a program with hundreds of loops is shorter.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
# How long a process may take to exit after its socket was closed: it may free much memory first.
END_S = 2.0
CONNECT_TIMEOUT_S = 1.0

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
# The values of stats() that are shown as they are.
SHOWN = (
    "operations",
    "buffers_out",
    "callbacks_ready",
    "timers_pending",
    "lag",
    "lag_max",
    "executor_threads",
    "executor_queue",
    "executor_wait",
)

Kinds = Mapping[str, type | types.UnionType]


class CannotWatch(Exception):
    """A program cannot be watched; the message, for the user, has the reason."""


class OtherVersion(CannotWatch):
    """A program runs a version of uringloop whose answers this one does not know."""


class Ended(Exception):
    """A watched program can no longer be watched; the message, for the user, has the reason."""


# ── paths of sockets ─────────────────────────────────────────────────────────────────────────


def _environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, or ours if that is not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            lines = os.fsdecode(file.read()).split("\0")
    except PermissionError:
        return dict(os.environ)
    return dict(line.split("=", 1) for line in lines if "=" in line)


def paths_of(pid: int) -> list[str]:
    """Return the paths at which the process *pid* may have its socket, the likeliest first.

    Raises CannotWatch if the process does not exist or belongs to another user.
    """
    try:
        user = os.stat(f"/proc/{pid}").st_uid
        if os.geteuid() not in (0, user):
            raise CannotWatch(f"not permitted: process {pid} belongs to another user")
        variables = _environment_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise CannotWatch(f"no such process: {pid}") from None
    name = socket_paths.name_for(pid)
    try:
        asked = options.MONITOR.value(variables)
    except ValueError:
        # The process makes no loop, but perhaps its children.
        asked = ""
    paths = [os.path.join(folder, name) for folder in socket_paths.folders(variables, user)]
    if asked not in ("", server.DEFAULT):
        # A relative path refers to the directory in which the process was started; most processes
        # have not changed it.
        asked = os.path.join(f"/proc/{pid}/cwd", asked)
        paths = [os.path.join(asked, name) if os.path.isdir(asked) else asked, *paths]
    return paths


def path_of(target: str) -> str:
    """Return the socket of *target*, a process ID or a path.

    Raises CannotWatch if there is none.
    """
    if not target.isdecimal():
        if not os.path.exists(target):
            raise CannotWatch(f"no such file: {target}")
        return target
    for path in paths_of(int(target)):
        if os.path.exists(path):
            return path
    raise CannotWatch(f"process {target} has no monitor: {HINT}, or pass the path of its socket")


def _processes() -> Iterator[tuple[int, int]]:
    """Yield the ID of each process and the ID of its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # The process may have ended, or be hidden.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The program's name is in parentheses, and may contain parentheses itself.
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def descendants_of(pid: int) -> list[int]:
    """Return the IDs of all descendants of the process *pid*."""
    parents = dict(_processes())
    found = {pid}
    # Repeat until nothing is added: a child may have a smaller ID than its parent.
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


def existing_paths_of(pids: Iterable[int]) -> Iterator[str]:
    """Yield the paths of existing sockets of *pids*; skip processes that cannot be watched."""
    for pid in pids:
        with contextlib.suppress(CannotWatch):
            yield from [path for path in paths_of(pid) if os.path.exists(path)][:1]


def family_paths(pid: int) -> list[str]:
    """Return the sockets of the process *pid* and its descendants."""
    return list(existing_paths_of([pid, *descendants_of(pid)]))


def all_paths() -> list[str]:
    """Return the sockets, as far as they are found, of all programs that this user may watch."""
    own = (pid for pid, _ in _processes() if options.MONITOR.variable in _own_environment_of(pid))
    found: dict[tuple[int, int], str] = {}
    for path in [*_default_paths(), *existing_paths_of(own)]:
        # The same socket may be found under two paths.
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def _own_environment_of(pid: int) -> dict[str, str]:
    """Return the environment of a process of this user, or of any process for root; else {}."""
    try:
        return _environment_of(pid) if os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid) else {}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _default_paths() -> Iterator[str]:
    """Yield the sockets in the default directories."""
    user = os.geteuid()
    folders = set(socket_paths.folders(os.environ, user)) | {f"/tmp/uringloop-{user}"}
    if user == 0:
        folders |= {*glob.glob("/run/user/*"), *glob.glob("/tmp/uringloop-*")}
    for folder in sorted(folders):
        yield from sorted(glob.glob(os.path.join(glob.escape(folder), "uringloop-*.sock")))


def all_snapshots() -> Iterator[tuple[str, Snapshot]]:
    """Yield the path and the answer of each program that this user may watch, if it answers."""
    for path in all_paths():
        yield from _try_ask(path)


def _try_ask(path: str) -> Iterator[tuple[str, Snapshot]]:
    """Yield *path* and the answer from there; yield nothing if there is no answer."""
    try:
        with Connection(path) as connection:
            snapshot = connection.ask(END_S)
    except (CannotWatch, Ended):
        return
    if snapshot is not None:
        yield path, snapshot


# ── requests ─────────────────────────────────────────────────────────────────────────────────


# The keys of an answer, and of each loop in it, that the display needs, with their types.
NUMBER = int | float
SNAPSHOT_KINDS: Kinds = {
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


def _is_snapshot(answer: object) -> TypeGuard[Snapshot]:
    if not isinstance(answer, dict) or answer.get("protocol") != snapshots.PROTOCOL:
        return False
    return _has(answer, SNAPSHOT_KINDS) and all(
        _has(loop, LOOP_KINDS)
        and _has(loop["stats"], STATS_KINDS)
        and (loop["place"] is None or _has(loop["place"], PLACE_KINDS))
        and (loop["task"] is None or _has(loop["task"], TASK_KINDS))
        for loop in answer["loops"]
    )


def _refusal(path: str, exc: OSError) -> str:
    """Return why the socket *path* cannot be connected to."""
    if isinstance(exc, (BlockingIOError, TimeoutError)):
        return f"the process that listens at {path} does not answer"
    if isinstance(exc, PermissionError):
        return f"not permitted: {path}"
    if isinstance(exc, ConnectionRefusedError):
        return f"no process listens at {path}: the program has ended"
    return f"{path}: {exc.strerror or exc}"


class Connection:
    """A connection to the monitor of one program."""

    def __init__(self, path: str) -> None:
        """Connect to the socket *path*. Raises CannotWatch, with the reason, if that fails."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.received = b""
        self.waiting = False
        # A socket with a timeout does not wait for a stopped process whose backlog is full.
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            self.sock.connect(path)
        except OSError as exc:
            self.sock.close()
            raise CannotWatch(_refusal(path, exc)) from None
        self.pid, user = serving.peer_of(self.sock)
        if os.geteuid() not in (0, user) and user != 0:
            self.sock.close()
            raise CannotWatch(f"not permitted: {path} belongs to another user")
        try:
            # 0 stands for a process in another PID namespace.
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

    def ask(self, timeout_s: float) -> Snapshot | None:
        """Return the program's answer, or None if it does not arrive within *timeout_s* seconds.

        After None, the next call waits for the same answer. Raises Ended if the connection was
        closed, and CannotWatch for an error or an answer of another form.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if not self.waiting:
                self.sock.sendall(b"\n")
                self.waiting = True
            while b"\n" not in self.received:
                self.sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = self.sock.recv(65536)
                if not data or len(self.received) > ANSWER_BYTES_MAX:
                    raise Ended(self._end_message())
                self.received += data
        except TimeoutError:
            return None
        except (BrokenPipeError, ConnectionResetError):
            if b"\n" not in self._receive_last():
                raise Ended(self._end_message()) from None
        line, _, self.received = self.received.partition(b"\n")
        self.waiting = False
        return self._parse(line)

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*. Raises Ended as soon as the program ends."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        # No request is pending, so the socket becomes readable only at EOF.
        if poll.poll(seconds * 1000):
            raise Ended(self._end_message())

    def _receive_last(self) -> bytes:
        """Return what the program sent before it closed the connection, perhaps an error."""
        self.sock.settimeout(0)
        try:
            self.received += self.sock.recv(65536)
        except OSError:
            return b""
        return self.received

    def _parse(self, line: bytes) -> Snapshot:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if _is_snapshot(answer):
            return answer
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise CannotWatch(answer["error"])
        if isinstance(answer, dict) and isinstance(version := answer.get("uringloop"), str):
            raise OtherVersion(
                f"process {self.pid} runs uringloop {version}, whose answers this version does not "
                "know: use the top of the environment of that process"
            )
        raise CannotWatch("the process at that socket is not a uringloop monitor")

    def _end_message(self) -> str:
        """Return a message that says whether the program has ended."""
        name = f"process {self.pid}" if self.pid else "the program"
        if self.process >= 0:
            poll = select.poll()
            poll.register(self.process, select.POLLIN)
            if not poll.poll(END_S * 1000):
                return f"{name} is still running, but can no longer be watched"
        return f"{name} has ended"


# ── rates ────────────────────────────────────────────────────────────────────────────────────


class Rates(TypedDict):
    """What a loop did per second between two answers; *cpu*, its thread's, is 1 for one core."""

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


class LoopSample(TypedDict):
    """One loop in one answer, with its rates."""

    snapshot: LoopSnapshot
    rates: Rates | None


class Sample:
    """One answer, with rates relative to the answer before."""

    def __init__(self, snapshot: Snapshot, before: Sample | None = None) -> None:
        self.snapshot = snapshot
        self.seconds = snapshot["time"] - before.snapshot["time"] if before is not None else 0.0
        self.cpu: float | None = None
        earlier: dict[int, LoopSnapshot] = {}
        if before is not None and self.seconds > 0:
            self.cpu = (snapshot["cpu"] - before.snapshot["cpu"]) / self.seconds
            earlier = {loop["id"]: loop for loop in before.snapshot["loops"]}
        self.loops = [
            self._loop_sample(loop, earlier.get(loop["id"])) for loop in snapshot["loops"]
        ]

    def _loop_sample(self, loop: LoopSnapshot, earlier: LoopSnapshot | None) -> LoopSample:
        if earlier is not None and earlier["stats"]["turns"] > loop["stats"]["turns"]:
            # A new loop, at the same address as a loop that was freed.
            earlier = None
        rates = self._rates(loop, earlier) if self.seconds > 0 else None
        return {"snapshot": loop, "rates": rates}

    def _rates(self, loop: LoopSnapshot, earlier: LoopSnapshot | None) -> Rates:
        """Return the rates of *loop*; the counters of a new loop started at zero."""
        now = loop["stats"]

        def rate(key: str) -> float:
            first = earlier["stats"][key] if earlier is not None else 0  # type: ignore[literal-required]
            return (now[key] - first) / self.seconds  # type: ignore[literal-required, no-any-return]

        turns, batched = rate("turns"), rate("batched")
        same = earlier is not None and earlier["thread_id"] == loop["thread_id"]
        # Do not count CPU time that the thread used before it ran this loop.
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
