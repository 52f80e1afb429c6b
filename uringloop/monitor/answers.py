"""What a process says about its own loops for health over HTTP. Any thread may call this."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import TypedDict

from uringloop import prometheus
from uringloop._turn.stats import open_loops
from uringloop.monitor.snapshots import LoopSnapshot, loop_snapshots

# More tasks of a loop are counted, not shown: the loops wait for this thread meanwhile.
TASKS_MAX = 1000
# How many frames of a stack are shown, the innermost ones.
FRAMES_MAX = 50


class Report(TypedDict):
    """One loop: whether a thread runs it, and since when it is in its present turn."""

    pid: int
    loop: str
    running: bool
    busy: float  # seconds; 0 while the loop sleeps
    doing: str  # the task and the place, for a person


def reports() -> list[Report]:
    """Return a report of each open loop of this process."""
    found = loop_snapshots()
    names = names_of(found)
    pid = os.getpid()
    return [
        {
            "pid": pid,
            "loop": names[loop["id"]],
            "running": loop["running"],
            "busy": loop["blocked"],
            "doing": _doing(loop),
        }
        for loop in found
    ]


def reports_text() -> str:
    """Return the reports for another process, which parses them."""
    return json.dumps(reports())


def parsed(text: str) -> list[Report]:
    """Return the reports of another process; none if they are not understood.

    Its version may be another, and a long answer is cut.
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
    except (ValueError, TypeError, LookupError, RecursionError):
        return []


def names_of(found: list[LoopSnapshot]) -> dict[int, str]:
    """Return a name for each loop, by its identity; loops of the same name get a number."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for loop in found:
        name = loop["name"]
        taken[name] = taken.get(name, 0) + 1
        names[loop["id"]] = name if taken[name] == 1 else f"{name} {taken[name]}"
    return names


def _doing(loop: LoopSnapshot) -> str:
    task, place = loop["task"], loop["place"]
    parts = []
    if task is not None:
        parts.append(f"{task['name']} ({task['coroutine']})")
    if place is not None:
        parts.append(f"in {place['function']}, {place['file']}:{place['line']}")
    return " ".join(parts) or "in compiled code"


def metrics() -> str:
    """Return the metrics of all loops of this process in Prometheus' format."""
    names = names_of(loop_snapshots())
    return prometheus.merged(
        prometheus.text(loop, labels={"pid": str(os.getpid()), "loop": names[id(loop)]})
        for loop in open_loops()
        # A loop that was made since then has no name yet.
        if id(loop) in names
    )


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
    loop_names = names_of(loop_snapshots())
    for loop in open_loops():
        tasks = asyncio.all_tasks(loop)
        lines.append(f"\nloop {loop_names.get(id(loop), '')}: {len(tasks)} tasks\n")
        for task in list(tasks)[:TASKS_MAX]:
            lines.append(f"\ntask {task.get_name()}\n")
            lines += traceback.format_list(list(_places_of(task)))
    return "".join(lines)


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
