"""Snapshots: the monitor's answers about the loops of this process.

Any thread may call this: it only reads state. docs/reference/monitor.md describes the keys.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, TypedDict

from uringloop._loop.base_loop import BaseLoop
from uringloop._turn.stats import open_loops, thread_state_of
from uringloop.monitor.commands import own_command

if TYPE_CHECKING:
    from uringloop._loop.stats import Stats

# The version of the answers: a new key does not change it, a changed meaning increments it.
PROTOCOL = 1

# Python's name for the first thread, unless the program renames it.
MAIN_THREAD = "MainThread"
# The file of run_forever(): a thread whose innermost frame is there runs no code of the program.
RUN_FOREVER_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "_loop", "base_loop.py")


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


def task_of(loop: asyncio.AbstractEventLoop) -> TaskInfo | None:
    """Return the task that *loop* runs now, or None."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return {"name": task.get_name(), "coroutine": name}


def is_run_forever(frame: FrameType) -> bool:
    """Return whether *frame* is the loop's own: those within it are the program's."""
    code = frame.f_code
    return code.co_name == "run_forever" and code.co_filename == RUN_FOREVER_FILE


def _place(frame: FrameType | None) -> Place | None:
    """Return the place that *frame* executes; None if it is the loop's own code."""
    if frame is None or is_run_forever(frame):
        return None
    code = frame.f_code
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


def name_of(loop: BaseLoop, thread: str | None) -> str:
    """Return a name for *loop*: its thread's or, in the main thread, its first server's address."""
    if thread is not None and thread != MAIN_THREAD:
        return thread
    if loop._first_server is not None:
        return address_text(loop._first_server)
    return thread or "no thread"


def _loop_snapshot(
    loop: BaseLoop, frames: dict[int, FrameType], names: dict[int | None, str]
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
        # A program may have overridden the method.
        "stats": BaseLoop.stats(loop),
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
        "command": own_command(),
        "python": platform.python_version(),
        # Do not import it: a private module may not import the package itself.
        "uringloop": sys.modules["uringloop"].__version__,
        "time": time.monotonic(),
        "cpu": time.process_time(),
        "loops": sorted(loops, key=lambda loop: (loop["thread"] or "", loop["id"])),
    }
