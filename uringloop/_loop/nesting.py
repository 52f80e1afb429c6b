"""Nestable loops: a loop can run again within its own callbacks, as with nest_asyncio.

A nested run executes turns of the same loop deeper in the same stack. Each run has its own stop():
a stop of an outer run during a nested run is remembered, and takes effect when the outer run
resumes. asyncio's Task classes are not replaced: the functions that asyncio has for other Task
implementations leave the current task before a nested run, and enter it again afterwards.

asyncio.run() and asyncio.Runner raise RuntimeError in a thread that runs a loop. The first nestable
loop replaces them in this process by functions that call the originals unless a nestable loop runs
in the calling thread. All of this module is called in the thread that runs the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from asyncio import events, runners, tasks
from asyncio.base_events import _run_until_complete_cb  # type: ignore[attr-defined]
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from uringloop._cpython import stdlib
from uringloop._loop import nested_run
from uringloop._turn.turn import LoopCore

if TYPE_CHECKING:
    from uringloop._loop.base_loop import BaseLoop

T = TypeVar("T")

# nest_asyncio sets this attribute on the module asyncio and on the loops that it patches, and skips
# objects that have it.
NEST_ASYNCIO = "_nest_patched"


def allows_nested_runs(loop: object) -> bool:
    """Return whether *loop*, which runs in this thread, allows nested runs."""
    return isinstance(loop, LoopCore) and hasattr(loop, NEST_ASYNCIO)


class Runs:
    """The runs of one nestable loop that are in progress."""

    def __init__(self, loop: BaseLoop) -> None:
        # For each run that waits for a nested one, outermost first: whether to stop on resuming.
        self.waiting: list[bool] = []
        nested_run.allow_nesting(loop)
        setattr(loop, NEST_ASYNCIO, True)
        _replace_runners()

    def run(self, loop: BaseLoop) -> None:
        """Run *loop* within one of its callbacks."""
        self.waiting.append(nested_run.take_stop(loop))
        try:
            loop._run_nested()
        finally:
            nested_run.give_stop_back(loop, self.waiting.pop())

    def end_with(self, loop: BaseLoop, future: asyncio.Future[Any]) -> RunEnd:
        """Make the run that is about to begin end when *future* is done."""
        # The index of this run in `waiting` while another run is nested in it.
        place = len(self.waiting) + loop.is_running()
        return RunEnd(loop, self, future, place)


class RunEnd:
    """Ends a run when its future is done.

    asyncio's callback, by which anyio recognizes the root task, stops the innermost run. Of the two
    callbacks around it, the first saves whether the innermost run was stopping already, and the
    second restores that and stops the run that waits for the future. The future schedules all three
    together, so no other callback runs between them.
    """

    def __init__(self, loop: BaseLoop, runs: Runs, future: asyncio.Future[Any], place: int) -> None:
        self._loop = loop
        self._runs = runs
        self._future = future
        self._place = place
        self._stopping = False
        self._over = False
        for callback in self._callbacks():
            future.add_done_callback(callback)

    def forget(self) -> None:
        """Remove the callbacks: the run has ended, for whatever reason."""
        self._over = True
        for callback in self._callbacks():
            self._future.remove_done_callback(callback)

    def _callbacks(self) -> tuple[Any, ...]:
        return self._before, _run_until_complete_cb, self._after

    def _before(self, future: asyncio.Future[Any]) -> None:
        self._stopping = nested_run.take_stop(self._loop)

    def _after(self, future: asyncio.Future[Any]) -> None:
        nested_run.give_stop_back(self._loop, self._stopping)
        if self._over:
            # The run ended after this callback was scheduled; a later run calls it.
            return
        # Stop after KeyboardInterrupt and SystemExit as well. asyncio's callback does not stop the
        # loop then, because the exception has left run_forever(); but it may have left a nested
        # run only.
        if self._place < len(self._runs.waiting):
            self._runs.waiting[self._place] = True
        else:
            self._loop.stop()


class SuspendedLoop:
    """Suspends the running loop and its current task while another run uses this thread.

    In between, asyncio sees no running loop in this thread.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None
    # The current task of asyncio's Python implementation, which has its own table since 3.14.
    _python_task: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        loop = self._loop = events._get_running_loop()
        if loop is None:
            return
        self._task = asyncio.current_task(loop)
        if self._task is not None:
            tasks._leave_task(loop, self._task)
        self._python_task = _table_of_tasks().pop(loop, None)
        events._set_running_loop(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = self._loop
        if loop is None:
            return
        events._set_running_loop(loop)
        if self._python_task is not None:
            _table_of_tasks()[loop] = self._python_task
        if self._task is not None:
            tasks._enter_task(loop, self._task)


def _table_of_tasks() -> dict[Any, Any]:
    table: dict[Any, Any] = getattr(tasks, "_current_tasks", {})
    return table


# ── asyncio.run() and asyncio.Runner ─────────────────────────────────────────────────────────────


def loop_for_nested_run() -> asyncio.AbstractEventLoop | None:
    """Return the running loop of this thread if a nested asyncio.run() can use it, or None."""
    loop = events._get_running_loop()
    # A nestable loop, or an asyncio loop that nest_asyncio has patched.
    return loop if hasattr(loop, NEST_ASYNCIO) else None


def run(loop: asyncio.AbstractEventLoop, main: Awaitable[T], *, debug: bool | None) -> T:
    """Run *main* like asyncio.run(), but on *loop*, which is running; keep its other tasks.

    *main* may also be a future of *loop*, for example of gather(), as with nest_asyncio.
    """
    if not hasattr(main, "__await__"):
        raise _refusal(main)
    was_debug = loop.get_debug()
    if debug is not None:
        loop.set_debug(debug)
    try:
        task = asyncio.ensure_future(main, loop=loop)
        with _Interrupts(loop, task):
            try:
                return loop.run_until_complete(task)
            finally:
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        loop.run_until_complete(task)
    finally:
        if debug is not None:
            loop.set_debug(was_debug)


def _refusal(main: object) -> Exception:
    """Return the exception that this Python's asyncio.run() raises for an unsuitable *main*."""
    if stdlib.RUN_EXPECTS_COROUTINE:
        return ValueError(f"a coroutine was expected, got {main!r}")
    return TypeError("An asyncio.Future, a coroutine or an awaitable is required")


class _Interrupts:
    """Handles Ctrl-C in a nested asyncio.run(): the first one cancels the task, as in Runner.

    A SIGINT handler other than Python's default stays: the outer asyncio.run() may have set it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any]) -> None:
        self._loop = loop
        self._task = task
        self._count = 0
        self._is_set = False

    def __enter__(self) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            # The main thread of a subinterpreter cannot set signal handlers.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, self._interrupt)
                self._is_set = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_set and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # A future that is not a task has no uncancel(); int() returns 0 instead.
        uncancel = getattr(self._task, "uncancel", int)
        if isinstance(exc, asyncio.CancelledError) and self._count and uncancel() == 0:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 or self._task.done():
            raise KeyboardInterrupt
        self._task.cancel()
        # Wake the loop, which may be asleep.
        self._loop.call_soon_threadsafe(lambda: None)


def _nestable_run(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def run_anywhere(main: Any, *, debug: bool | None = None, **options: Any) -> Any:
        loop = loop_for_nested_run()
        if loop is None:
            return stock(main, debug=debug, **options)
        return run(loop, main, debug=debug)

    return run_anywhere


def _nestable_method(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def call_anywhere(self: asyncio.Runner, *args: Any, **options: Any) -> Any:
        if not allows_nested_runs(events._get_running_loop()):
            return stock(self, *args, **options)
        with SuspendedLoop():
            return stock(self, *args, **options)

    return call_anywhere


_replaced = False


def _replace_runners() -> None:
    """Make asyncio.run() and asyncio.Runner usable while a nestable loop runs."""
    global _replaced
    if _replaced:
        return
    _replaced = True
    if not hasattr(asyncio, NEST_ASYNCIO):
        asyncio.run = runners.run = _nestable_run(asyncio.run)
        # Keep nest_asyncio from patching asyncio: it would replace the C tasks by Python tasks in
        # the whole process, before it looks at any loop.
        setattr(asyncio, NEST_ASYNCIO, True)
    for name in ("run", "close"):
        setattr(asyncio.Runner, name, _nestable_method(getattr(asyncio.Runner, name)))
