"""Nesting: a loop that may be run again within its own callbacks, as nest_asyncio makes asyncio's.

A nested run is turns of the same loop further up the same stack. Each run ends by a stop() of its
own: while a nested run goes on, what ends an outer one is noted and takes effect when the outer
one goes on. asyncio's tasks stay as they are: the current task is left for the time of the nested
run, by the functions that asyncio has for other implementations of tasks.

asyncio.run() and asyncio.Runner refuse to work in a thread that runs a loop. They are replaced in
this process when the first nestable loop is made, and ask asyncio's own unless a nestable loop
runs in their thread. Everything here is called in the thread that runs the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from asyncio import events, runners, tasks
from asyncio.base_events import _run_until_complete_cb  # type: ignore[attr-defined]
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from uringloop._loop import nested_run
from uringloop._turn.turn import LoopCore

if TYPE_CHECKING:
    from uringloop._loop.base import RunningLoop

T = TypeVar("T")

# Where a loop is made with this set, and not told otherwise, it may be run again while it runs.
VARIABLE = "URINGLOOP_NESTABLE"
# Not set, by these values.
OFF = ("", "0", "no", "false", "off")

# What nest_asyncio marks with: the module asyncio, and loops that it leaves alone then.
NEST_ASYNCIO = "_nest_patched"


def is_wanted() -> bool:
    """Return what the environment says."""
    return os.environ.get(VARIABLE, "").strip().lower() not in OFF


def gives_way(loop: object) -> bool:
    """Return whether *loop*, which runs in this thread, lets other loops run meanwhile."""
    return isinstance(loop, LoopCore) and hasattr(loop, NEST_ASYNCIO)


class Runs:
    """The runs of one nestable loop that are in progress."""

    def __init__(self, loop: RunningLoop) -> None:
        # For each run that waits for a nested one, whether it is to end when it goes on.
        self.waiting: list[bool] = []
        nested_run.allow_nesting(loop)
        setattr(loop, NEST_ASYNCIO, True)
        _replace_runners()

    def run(self, loop: RunningLoop) -> None:
        """Run *loop* within one of its callbacks."""
        self.waiting.append(nested_run.swap_stopping(loop, False))
        try:
            loop._run_nested()
        finally:
            nested_run.swap_stopping(loop, self.waiting.pop())

    def end_with(self, loop: RunningLoop, future: asyncio.Future[Any]) -> RunEnd:
        """Have the run that is about to begin end when *future* is done."""
        # Its place in `waiting`, if another run is nested in it.
        place = len(self.waiting) + loop.is_running()
        return RunEnd(loop, self, future, place)


class RunEnd:
    """What ends a run with its future.

    asyncio's callback is what anyio looks for, and stops whichever run is the innermost. Of the
    two callbacks around it the first notes whether that one was to end already, and the second
    passes the stop on to the run that it belongs to. The three are scheduled together, so that no
    other callback comes between them.
    """

    def __init__(
        self, loop: RunningLoop, runs: Runs, future: asyncio.Future[Any], place: int
    ) -> None:
        self._loop = loop
        self._runs = runs
        self._future = future
        self._place = place
        self._stopping = False
        self._over = False
        for callback in self._callbacks():
            future.add_done_callback(callback)

    def forget(self) -> None:
        """Take note that the run has ended, for whatever reason."""
        self._over = True
        for callback in self._callbacks():
            self._future.remove_done_callback(callback)

    def _callbacks(self) -> tuple[Any, ...]:
        return self._before, _run_until_complete_cb, self._after

    def _before(self, future: asyncio.Future[Any]) -> None:
        self._stopping = nested_run.swap_stopping(self._loop, False)

    def _after(self, future: asyncio.Future[Any]) -> None:
        nested_run.swap_stopping(self._loop, self._stopping)
        if self._over:
            # Scheduled before the run ended, and called by the next.
            return
        # After KeyboardInterrupt, too: asyncio's callback takes it for granted that this has left
        # the run, but it may have left a nested one.
        if self._place < len(self._runs.waiting):
            self._runs.waiting[self._place] = True
        else:
            self._loop.stop()


class Interlude:
    """The time in which the running loop and its task give way to another run in this thread.

    Until it ends no loop runs here, as far as asyncio can tell.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None
    # Of the tasks written in Python, which have a table of their own from 3.14 on.
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


def running() -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread that a nested asyncio.run() uses, if there is one."""
    loop = events._get_running_loop()
    # Or one of asyncio's that nest_asyncio has changed.
    return loop if hasattr(loop, NEST_ASYNCIO) else None


def run(loop: asyncio.AbstractEventLoop, main: Awaitable[T], debug: bool | None) -> T:
    """Do what asyncio.run() does, on *loop*, which runs, and leave its other tasks alone.

    A future of *loop*, as gather() returns one, is waited for as well, as with nest_asyncio.
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
    """Return what the asyncio of this Python says of a *main* that can not be run."""
    if sys.version_info < (3, 14):
        return ValueError(f"a coroutine was expected, got {main!r}")
    return TypeError("An asyncio.Future, a coroutine or an awaitable is required")


class _Interrupts:
    """Ctrl-C during a nested asyncio.run(): the first cancels its task, as asyncio.Runner does.

    A handler that is not Python's own stays: asyncio.run() has set one if it runs the loop.
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
            # In the main thread of a subinterpreter there are no signals.
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
        # A future that is no task counts no cancellations.
        uncancel = getattr(self._task, "uncancel", int)
        if isinstance(exc, asyncio.CancelledError) and self._count and uncancel() == 0:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 or self._task.done():
            raise KeyboardInterrupt
        self._task.cancel()
        # The loop may sleep.
        self._loop.call_soon_threadsafe(lambda: None)


def _nestable_run(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def run_anywhere(main: Any, *, debug: bool | None = None, **options: Any) -> Any:
        loop = running()
        if loop is None:
            return stock(main, debug=debug, **options)
        return run(loop, main, debug)

    return run_anywhere


def _nestable_method(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def call_anywhere(self: asyncio.Runner, *args: Any, **options: Any) -> Any:
        if not gives_way(events._get_running_loop()):
            return stock(self, *args, **options)
        with Interlude():
            return stock(self, *args, **options)

    return call_anywhere


_replaced = False


def _replace_runners() -> None:
    """Let asyncio.run() and asyncio.Runner be used while a nestable loop runs."""
    global _replaced
    if _replaced:
        return
    _replaced = True
    if not hasattr(asyncio, NEST_ASYNCIO):
        asyncio.run = runners.run = _nestable_run(asyncio.run)
        # nest_asyncio has nothing left to do: it would replace asyncio's tasks by its tasks in
        # Python, for the whole process, before it looks at any loop.
        setattr(asyncio, NEST_ASYNCIO, True)
    for name in ("run", "close"):
        setattr(asyncio.Runner, name, _nestable_method(getattr(asyncio.Runner, name)))
