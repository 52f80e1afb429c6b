"""class RunningLoop: the compiled core, and all that a loop does without any I/O of its own.

What runs once for a loop, a task or a call into a thread: running and stopping, debug mode, tasks,
exception handlers, executors, signals. The I/O is class Loop's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import os
import sys
import threading
import types
import warnings
import weakref
from asyncio import events
from asyncio.base_events import _run_until_complete_cb  # type: ignore[attr-defined]
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, TypedDict, TypeVar, TypeVarTuple

from uringloop._loop import exception_handling, executors, nested_run, nesting, signals
from uringloop._net import argument_checks
from uringloop._ring import backends
from uringloop._turn import introspection, tracing
from uringloop._turn.stats import fall_of, register, stats_of, tell_fall_to
from uringloop._turn.turn import LoopCore

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")
# Any future may come back, though the annotations of asyncio promise a task.
TaskFactory = Callable[..., Any]

# How many frames of a coroutine's origin debug mode keeps, as asyncio.
ORIGIN_DEPTH = 10

# What programs replace for a clock of their own: then the compiled methods go through it.
CLOCK = {"time", "call_at"}

# Where a loop is made with this set, `python -m uringloop.top` can watch the process.
MONITOR_VARIABLE = "URINGLOOP_MONITOR"
# Where a loop is made with this set, what blocks it for so many milliseconds is logged.
STALL_VARIABLE = "URINGLOOP_STALL_MS"
# Where a loop is made with this set, what it asks its ring is told.
TRACE_VARIABLE = "URINGLOOP_TRACE"

# What create_task takes, and what of it goes to a factory, has changed in bug-fix releases too.
TASK_OPTIONS = inspect.signature(asyncio.BaseEventLoop.create_task).parameters
FACTORY_TAKES_NAME = "name" not in TASK_OPTIONS
TAKES_ANY_OPTION = "kwargs" in TASK_OPTIONS


class Stats(TypedDict):
    """What `stats()` tells; times are in seconds."""

    turns: int
    kernel_entries: int
    submissions: int
    completions: int
    batched: int
    batches: dict[int, int]
    overflows: int
    starved: int
    rearms: int
    operations: int
    buffers_out: int
    received_bytes: int
    sent_bytes: int
    callbacks_ready: int
    timers_run: int
    timers_pending: int
    lag: float
    lag_max: float
    stalls: int


class RunningLoop(LoopCore, asyncio.AbstractEventLoop):
    """An asyncio event loop on io_uring, without its I/O.

    Raises OSError with the cause in its message where the kernel refuses a ring.
    """

    # The ring that the loop was made on, and why; `backend` knows whether it still is.
    _backend: backends.Backend
    _backend_reason: str

    # The runs of a nestable loop.
    _runs: nesting.Runs | None = None
    # Where the first server of the loop listens, by which `uringloop.top` calls the loop.
    _first_server: object = None

    def __init__(
        self,
        *,
        backend: backends.Choice | None = None,
        warn_fallback: bool = True,
        busy_poll_us: int = 0,
        batch_wait_us: int = 0,
        sqpoll: int = 0,
        sqpoll_cpu: int | None = None,
        nestable: bool | None = None,
        stall_ms: int | None = None,
    ) -> None:
        argument_checks.check_range("stall_ms", stall_ms or 0, argument_checks.IDLE_MAX_MS)
        argument_checks.check_range("busy_poll_us", busy_poll_us, argument_checks.WAIT_MAX_US)
        argument_checks.check_range("batch_wait_us", batch_wait_us, argument_checks.WAIT_MAX_US)
        argument_checks.check_range("sqpoll", sqpoll, argument_checks.IDLE_MAX_MS)
        if sqpoll_cpu is not None:
            argument_checks.check_processor("sqpoll_cpu", sqpoll_cpu)
            if not sqpoll:
                raise ValueError("sqpoll_cpu is only meaningful with sqpoll")
        cpu = -1 if sqpoll_cpu is None else sqpoll_cpu
        told = tracing.output(os.environ.get(TRACE_VARIABLE, ""))
        self._open(backend, warn_fallback, busy_poll_us, batch_wait_us, sqpoll, cpu)
        tell_fall_to(
            self,
            backends.fallen_over if warn_fallback else backends.fallen_over_quietly,
        )
        tracing.trace(self, told)
        self._closes_itself = type(self).__del__ is RunningLoop.__del__
        self._signals = signals.SignalState(self)
        self._executor = executors.DefaultExecutor()
        self._task_factory: TaskFactory | None = None
        self._exception_handler: exception_handling.ExceptionHandler | None = None
        self._asyncgens: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._asyncgens_shutdown_called = False
        self._origin_tracking_depth = 0
        if nesting.is_wanted() if nestable is None else nestable:
            self._runs = nesting.Runs(self)
        register(self)
        wanted = os.environ.get(MONITOR_VARIABLE)
        if wanted:
            _let_watch(wanted)
        slow = os.environ.get(STALL_VARIABLE) if stall_ms is None else stall_ms
        if slow:
            _watch_stalls(self, slow)

    def _open(
        self,
        backend: str | None,
        warn_fallback: bool,
        busy_poll_us: int,
        batch_wait_us: int,
        sqpoll: int,
        cpu: int,
    ) -> None:
        """Open the ring that is wanted, or else the one that is to be had."""
        wanted, self._backend_reason = backends.wanted(backend)
        backends.disable_features()
        refusal = backends.known_refusal() if wanted == backends.AUTO else None
        if wanted != backends.SOFT and refusal is None:
            try:
                super().__init__(busy_poll_us, batch_wait_us, sqpoll, cpu)
            except OSError as exc:
                if wanted == backends.IO_URING or not backends.is_refusal(exc):
                    raise backends.explained(exc) from None
                refusal = backends.refuse(exc, lasting=not sqpoll)
            else:
                self._backend = backends.IO_URING
                if wanted == backends.AUTO:
                    self._backend_reason = "the kernel has it"
                return
        self._backend = backends.SOFT
        self._backend_reason = refusal or self._backend_reason
        try:
            super().__init__(busy_poll_us, batch_wait_us, soft=True)
        except OSError as exc:
            raise backends.explained(exc) if exc.errno in backends.LACKS else exc from None
        if refusal is not None and warn_fallback:
            backends.fallen_back(refusal)

    @property
    def backend(self) -> backends.Backend:
        """The ring that the loop is on: "io_uring" or "soft", the software ring."""
        return self._backend if fall_of(self) is None else backends.SOFT

    @property
    def backend_reason(self) -> str:
        """Why the loop is on that ring."""
        fall = fall_of(self)
        return self._backend_reason if fall is None else backends.fall(*fall)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} running={self.is_running()} closed={self.is_closed()} "
            f"debug={self.get_debug()} backend={self.backend}>"
        )

    def __del__(
        self,
        _warn: Callable[..., None] = warnings.warn,
        _is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        if self.is_closed():
            return
        _warn(f"unclosed event loop {self!r}", ResourceWarning, source=self)
        if self.is_running():
            return
        if _is_finalizing():
            # The names of this module, and of others, may be gone by now.
            self._close()
            return
        try:
            self.close()
        finally:
            # Whatever a class of the program's own does: the kernel must not be left at work.
            RunningLoop.close(self)

    def stats(self) -> Stats:
        """Return what the loop has done so far, and what it has to do. Any thread may call it."""
        stats: Stats = stats_of(self)
        return stats

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run_forever(self) -> None:
        self._check_closed()
        self._check_running()
        if events._get_running_loop() is not None:
            # A nestable one, maybe this one: it waits for this run.
            with nesting.Interlude():
                return self.run_forever()
        runs = self._runs if self.is_running() else None
        hooks = sys.get_asyncgen_hooks()
        tracking = self._tracking_origins
        self._track_origins(self.get_debug())
        try:
            sys.set_asyncgen_hooks(
                firstiter=self._asyncgen_started, finalizer=self._asyncgen_finalized
            )
            events._set_running_loop(self)
            if runs is not None:
                runs.run(self)
            else:
                signals.begin_run(self)
                self._run()
        finally:
            # Python raises a KeyboardInterrupt after any call. This one decides whether a loop can
            # ever run again in this thread.
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            self._track_origins(tracking)
            if runs is None:
                signals.end_run(self)

    def _run_nested(self) -> None:
        nested_run.run_nested(self)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        self._check_closed()
        self._check_running()
        ours = not asyncio.isfuture(future)
        waited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        if ours:
            # The caller sees an exception if the task is left pending: no second report.
            waited._log_destroy_pending = False  # type: ignore[attr-defined]
        end = None
        if self._runs is not None:
            end = self._runs.end_with(self, waited)
        else:
            # asyncio's own function: anyio finds the root task by it, and ends threads with that.
            waited.add_done_callback(_run_until_complete_cb)
        try:
            self.run_forever()
        except BaseException:
            if ours and waited.done() and not waited.cancelled():
                # Nobody else can retrieve it: keep it from being reported as never retrieved.
                waited.exception()
            raise
        finally:
            if end is not None:
                end.forget()
            else:
                waited.remove_done_callback(_run_until_complete_cb)
        if not waited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def close(self) -> None:
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        self._close()
        try:
            # Raises ValueError in another thread than the main one.
            signals.close(self)
        finally:
            self._executor.close()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in CLOCK:
            self._replace_clock(True)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in CLOCK:
            self._replace_clock(not CLOCK.isdisjoint(vars(self)))

    def _check_running(self) -> None:
        if self.is_running() and (self._runs is None or self._thread_id != threading.get_ident()):
            raise RuntimeError("This event loop is already running")
        running = events._get_running_loop()
        if running is not None and not nesting.gives_way(running):
            raise RuntimeError("Cannot run the event loop while another loop is running")

    # ── debug mode ───────────────────────────────────────────────────────────────────────────

    @property
    def _debug(self) -> bool:
        """What the methods of asyncio that class Loop borrows look at."""
        return self.get_debug()

    def set_debug(self, enabled: bool) -> None:
        self._set_debug(enabled)
        if self.is_running():
            self.call_soon_threadsafe(self._track_origins, enabled)

    def _track_origins(self, enabled: bool) -> None:
        """Have coroutines remember where they were made, while the loop runs in debug mode."""
        if enabled == self._tracking_origins:
            return
        self._tracking_origins = enabled
        if enabled:
            self._origin_tracking_depth = sys.get_coroutine_origin_tracking_depth()
            sys.set_coroutine_origin_tracking_depth(ORIGIN_DEPTH)
        else:
            sys.set_coroutine_origin_tracking_depth(self._origin_tracking_depth)

    _tracking_origins = False

    # ── tasks and futures ────────────────────────────────────────────────────────────────────

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[T]:
        if kwargs and not TAKES_ANY_OPTION:
            raise TypeError(
                f"{RunningLoop.__name__}.create_task() got an unexpected keyword argument "
                f"{next(iter(kwargs))!r}"
            )
        self._check_closed()
        factory = self._task_factory
        if factory is None:
            # A generator-based coroutine is asyncio's to refuse; some stubs refuse it before.
            task = asyncio.Task(coro, loop=self, name=name, context=context, **kwargs)  # type: ignore[arg-type, unused-ignore]
            traceback = getattr(task, "_source_traceback", None)
            if traceback:
                # This frame is not where the task was made.
                del traceback[-1]
            return task
        # A factory of two arguments is still a factory: pass on only what was given.
        if context is not None:
            kwargs["context"] = context
        if name is not None and FACTORY_TAKES_NAME:
            kwargs["name"] = name
        made: asyncio.Task[T] = factory(self, coro, **kwargs)
        if name is not None and not FACTORY_TAKES_NAME:
            _set_name(made, name)
        return made

    def set_task_factory(self, factory: TaskFactory | None) -> None:
        if factory is not None and not callable(factory):
            raise TypeError("task factory must be a callable or None")
        self._task_factory = factory

    def get_task_factory(self) -> TaskFactory | None:
        return self._task_factory

    def _asyncgen_started(self, agen: AsyncGenerator[Any, Any]) -> None:
        if self._asyncgens_shutdown_called:
            warnings.warn(
                f"asynchronous generator {agen!r} was scheduled after "
                f"loop.shutdown_asyncgens() call",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
        self._asyncgens.add(agen)

    def _asyncgen_finalized(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens.discard(agen)
        if not self.is_closed():
            self.call_soon_threadsafe(self.create_task, agen.aclose())

    async def shutdown_asyncgens(self) -> None:
        self._asyncgens_shutdown_called = True
        closing = list(self._asyncgens)
        self._asyncgens.clear()
        results = await asyncio.gather(*(agen.aclose() for agen in closing), return_exceptions=True)
        for result, agen in zip(results, closing, strict=True):
            if isinstance(result, Exception):
                self.call_exception_handler(
                    {
                        "message": "an error occurred during closing of "
                        f"asynchronous generator {agen!r}",
                        "exception": result,
                        "asyncgen": agen,
                    }
                )

    # ── exceptions ───────────────────────────────────────────────────────────────────────────

    def set_exception_handler(self, handler: exception_handling.ExceptionHandler | None) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"A callable object or None is expected, got {handler!r}")
        self._exception_handler = handler

    def get_exception_handler(self) -> exception_handling.ExceptionHandler | None:
        return self._exception_handler

    def default_exception_handler(self, context: exception_handling.Context) -> None:
        exception_handling.log(context, self._current_traceback())

    def call_exception_handler(self, context: exception_handling.Context) -> None:
        exception_handling.dispatch(self, self._exception_handler, context)

    # ── threads ──────────────────────────────────────────────────────────────────────────────

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[[*_Ts], T],
        *args: *_Ts,
    ) -> asyncio.Future[T]:
        self._check_closed()
        if self.get_debug():
            self._check_callback(func, "run_in_executor")
        if executor is None:
            executor = self._executor.get()
        return executors.run(self, executor, func, args)

    def set_default_executor(self, executor: Any) -> None:
        self._executor.set(executor)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await self._executor.shutdown(self, timeout)

    # ── signals ──────────────────────────────────────────────────────────────────────────────

    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        signals.add_handler(self, sig, callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return signals.remove_handler(self, sig)

    # ── private names of asyncio's loops that other programs read ────────────────────────────
    # Read-only, and made when they are asked for. What a loop cannot have is in docs/migration.md.
    # `_debug`, `_asyncgens`, `_exception_handler` and `_task_factory` are the loop's own as well.

    @property
    def _closed(self) -> bool:
        """Test suites; uvloop has it, too."""
        return self.is_closed()

    @property
    def _thread_id(self) -> int | None:
        """Tools that list loops with their threads, and guards against a call that would block."""
        return introspection.thread_of(self)

    @property
    def _ready(self) -> tuple[asyncio.Handle, ...]:
        """Load meters, by its length; asynctest and other test suites, to see it empty."""
        return introspection.ready_of(self)

    @property
    def _scheduled(self) -> list[asyncio.TimerHandle]:
        """Home Assistant and the suites of zeroconf and asynctest, which look for their timers."""
        return introspection.scheduled_of(self)

    @property
    def _default_executor(self) -> concurrent.futures.ThreadPoolExecutor | None:
        """anyio's Runner for old Pythons, and the test suite of asyncio."""
        return self._executor.pool

    @property
    def _signal_handlers(self) -> Mapping[int, asyncio.Handle]:
        """prompt_toolkit and programs on arq, which put a handler back that they replace."""
        return types.MappingProxyType(self._signals.handlers)


def _let_watch(wanted: str) -> None:
    """Start the monitor of this process, unless that has been tried; it harms no program."""
    try:
        from uringloop._monitor import server
    except ImportError as exc:
        # A daemon that has changed its root, say.
        logging.getLogger("uringloop").warning("%s: %s", MONITOR_VARIABLE, exc)
    else:
        server.start_as_asked(wanted)


def _watch_stalls(loop: RunningLoop, wanted: int | str) -> None:
    """Have it logged what blocks *loop*; that harms no program."""
    try:
        from uringloop._monitor import stalls
    except ImportError as exc:
        logging.getLogger("uringloop").warning("%s: %s", STALL_VARIABLE, exc)
    else:
        stalls.watch(loop, wanted)


def _set_name(task: Any, name: str) -> None:
    """Name what a factory has made: before 3.13 it need not be able to have a name."""
    set_task_name = getattr(asyncio.tasks, "_set_task_name", None)
    if set_task_name is None:
        task.set_name(name)
    else:
        set_task_name(task, name)
