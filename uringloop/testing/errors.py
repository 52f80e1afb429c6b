"""The errors of loops for tests, which say where each task waits."""

from __future__ import annotations

import asyncio
import gc
import os
import types
from collections.abc import Iterator
from typing import Any

ASYNCIO = os.path.dirname(asyncio.__file__)

# What is awaited in place of a coroutine or an asynchronous generator, and does not name it.
WRAPPERS = {"anext_awaitable", "async_generator_asend", "async_generator_athrow"}


class DeadlockError(RuntimeError):
    """The program can never go on: no callback, timer or event can wake any of its tasks."""


class TimeLimitError(RuntimeError):
    """The loop's clock has passed the limit of a loop for tests."""


def frames_of(waiting: Any) -> Iterator[types.FrameType]:
    """Yield the frames of a coroutine, and of those that it awaits, the outermost first."""
    while waiting is not None:
        for frame, inner in (
            ("cr_frame", "cr_await"),
            ("gi_frame", "gi_yieldfrom"),
            ("ag_frame", "ag_await"),
        ):
            if hasattr(waiting, frame):
                if (found := getattr(waiting, frame)) is not None:
                    yield found
                waiting = getattr(waiting, inner)
                break
        else:
            is_wrapper = type(waiting).__name__ in WRAPPERS
            held = gc.get_referents(waiting) if is_wrapper else []
            waiting = next((one for one in held if is_awaited(one)), None)


def is_awaited(found: object) -> bool:
    return isinstance(found, types.AsyncGeneratorType) or type(found).__name__ in WRAPPERS


def where(task: asyncio.Task[Any]) -> str:
    """Return the innermost line of the program at which *task* waits, and asyncio's call there."""
    frames = list(frames_of(task.get_coro()))
    if not frames:
        return "at an unknown place"
    within = [frame for frame in frames if os.path.dirname(frame.f_code.co_filename) != ASYNCIO]
    shown = within[-1] if within else frames[-1]
    path = shown.f_code.co_filename
    if path.startswith(os.getcwd() + os.sep):
        path = os.path.relpath(path)
    text = f"at {path}:{shown.f_lineno}, in {shown.f_code.co_qualname}"
    return text if shown is frames[-1] else f"{text}, for {frames[-1].f_code.co_qualname}()"


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return a line for each task of *loop* that has not ended."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    lines = [f"  {task.get_name()} waits {where(task)}" for task in tasks]
    return "\n".join(lines) or "  (no task is left)"
