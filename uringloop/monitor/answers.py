"""The reports of a process about its own loops, for health over HTTP. Any thread may call this."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, TypedDict

from uringloop import prometheus
from uringloop._turn.stats import open_loops, thread_state_of
from uringloop.monitor.snapshots import name_of, task_of
from uringloop.monitor.stalls import stack_of

if TYPE_CHECKING:
    from uringloop._loop.base_loop import BaseLoop

# What a loop does is told from a turn of so many seconds on: before, it is over when it is read.
SHOWN_S = 0.01
# More tasks of a loop are counted, not shown: the loops wait for this thread meanwhile.
TASKS_MAX = 1000
# How many frames of a stack are shown, the innermost ones.
FRAMES_MAX = 50


class Report(TypedDict):
    """One loop: whether a thread runs it, and how long it has been in its present turn."""

    pid: int
    loop: str
    running: bool
    busy: float  # seconds; 0 while the loop sleeps
    doing: str  # the task and the place, for a person


def reports() -> list[Report]:
    """Return a report of each open loop of this process."""
    pid = os.getpid()
    found: list[Report] = []
    for name, loop in named_loops():
        thread, _, sleeping, blocked = thread_state_of(loop)
        busy = 0.0 if sleeping else blocked
        doing = _doing(loop, thread) if busy >= SHOWN_S else ""
        found.append(
            {"pid": pid, "loop": name, "running": thread != 0, "busy": busy, "doing": doing}
        )
    return found


def reports_text() -> str:
    """Return the reports for another process, which parses them."""
    return json.dumps(reports())


def parsed(text: str) -> list[Report] | None:
    """Return the reports of another process; None if they are not understood.

    That process may have another version of this package, and long answers are cut.
    """
    try:
        return [
            {
                "pid": int(one["pid"]),
                "loop": str(one["loop"]),
                "running": bool(one["running"]),
                "busy": float(one["busy"]),
                "doing": str(one["doing"]),
            }
            for one in json.loads(text)
        ]
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def named_loops() -> list[tuple[str, BaseLoop]]:
    """Return the open loops of this process with their names; equal names get a number."""
    threads: dict[int, str] = {one.ident: one.name for one in threading.enumerate() if one.ident}
    named: dict[str, BaseLoop] = {}
    for loop in sorted(open_loops(), key=id):
        wanted = name = name_of(loop, threads.get(thread_state_of(loop)[0]))
        number = 1
        while name in named:
            number += 1
            name = f"{wanted} {number}"
        named[name] = loop
    return list(named.items())


def _doing(loop: BaseLoop, thread: int) -> str:
    """Return the task that a loop runs, the callback or coroutine, and the place in it."""
    try:
        task = task_of(loop)
        stack = stack_of(thread)
    except BaseException as exc:
        # The program's own classes of tasks can raise anything.
        return f"unknown: {type(exc).__name__}"
    parts = [f"{task['name']} ({task['coroutine']})"] if task is not None else []
    # The outermost one is the callback, or the coroutine of the task.
    places = [*stack[:1], *stack[1:][-1:]]
    parts += [f"in {place.name}, {place.filename}:{place.lineno}" for place in places]
    return ", ".join(parts) or "in compiled code"


def metrics() -> str:
    """Return the metrics of all loops of this process in Prometheus' format."""
    texts = []
    pid = str(os.getpid())
    for name, loop in named_loops():
        # The program's own classes of loops can raise anything.
        with contextlib.suppress(Exception):
            texts.append(prometheus.text(loop, labels={"pid": pid, "loop": name}))
    return prometheus.merged(texts)


# ── stacks ───────────────────────────────────────────────────────────────────────────────────


def stacks() -> str:
    """Return the stacks of all threads, and of the tasks of all loops."""
    pid = os.getpid()
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"process {pid}\n"]
    for ident, frame in frames.items():
        lines.append(f"\nthread {names.get(ident, ident)}\n")
        lines += traceback.format_list(traceback.extract_stack(frame, FRAMES_MAX))
    # Frames that are kept would keep their variables alive.
    frames.clear()
    for name, loop in named_loops():
        tasks = asyncio.all_tasks(loop)
        lines.append(f"\nloop {name}: {len(tasks)} tasks\n")
        for task in list(tasks)[:TASKS_MAX]:
            lines.append(f"\ntask {_name_of_task(task)}\n")
            lines += traceback.format_list(list(_places_of(task)))
    return "".join(lines)


def _name_of_task(task: asyncio.Task[object]) -> str:
    try:
        return task.get_name()
    except BaseException as exc:
        # The program's own classes of tasks can raise anything.
        return f"unknown: {type(exc).__name__}"


def _places_of(task: asyncio.Task[object]) -> Iterator[traceback.FrameSummary]:
    """Yield the places of a task and of the coroutines that it awaits, the innermost last."""
    awaited: object = task.get_coro()
    for _ in range(FRAMES_MAX):
        # A coroutine, a generator or an asynchronous generator; anything else has none of these.
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), "")
        frame: FrameType | None = getattr(awaited, f"{kind}_frame", None)
        if frame is None:
            return
        code = frame.f_code
        yield traceback.FrameSummary(
            code.co_filename, frame.f_lineno, code.co_qualname, lookup_line=False
        )
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
