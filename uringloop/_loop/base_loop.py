"""class BaseLoop: the compiled core plus the loop methods that do no I/O.

This module has the code that runs once for a loop, a task or a call into a thread: running and
stopping, debug mode, tasks, exception handlers, executors, signals. Class Loop adds the I/O.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import importlib
import inspect
import sys
import threading
import types
import warnings
import weakref
from asyncio import events, tasks
from asyncio.base_events import _run_until_complete_cb  # type: ignore[attr-defined]
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from uringloop._loop import exception_handling, executors, nested_run, nesting, options, signals
from uringloop._loop.task_set import choose_methods
from uringloop._ring import backends
from uringloop._turn import introspection, tracing
from uringloop._turn.stats import fallback_of, register, set_fallback_callback, stats_of
from uringloop._turn.turn import LoopCore

if TYPE_CHECKING:
    import traceback

    from uringloop._loop.stats import Stats
else:
    # Making the type would take a twentieth of the import.
    Stats = dict

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")
# A factory may return any future, although asyncio's annotations promise a task.
TaskFactory = Callable[..., Any]

# How long the loop has been blocked in seconds, the stack of its thread, the task that runs.
StallCallback = Callable[[float, "traceback.StackSummary", asyncio.Task[Any] | None], object]

# The depth of coroutine origin tracking in debug mode; asyncio's value.
ORIGIN_DEPTH = 10

# By name, functions that are called with each new loop and its `stall_ms`. Packages above this one
# add theirs.
when_created: dict[str, Callable[[BaseLoop, int], None]] = {}
# The same for on_stall(): functions that see to it that the callbacks are called.
when_stalls_are_watched: dict[str, Callable[[BaseLoop], None]] = {}

# Even bug-fix releases have changed which options create_task() takes and passes to a factory.
TASK_OPTIONS = inspect.signature(asyncio.BaseEventLoop.create_task).parameters
FACTORY_TAKES_NAME = "name" not in TASK_OPTIONS
TAKES_ANY_OPTION = "kwargs" in TASK_OPTIONS


class BaseLoop(LoopCore, asyncio.AbstractEventLoop):
    """An asyncio event loop on io_uring, without the methods that do I/O.

    Raises OSError, with the cause in its message, if the selected ring cannot be opened.
    """

    # The ring that the loop was created on, and the reason. The property `backend` takes into
    # account that a running loop may have changed to the software ring.
    _backend: backends.Backend
    _backend_reason: str

    # Defaults, which few loops change.
    _task_factory: TaskFactory | None = None
    _exception_handler: exception_handling.ExceptionHandler | None = None
    # Made when the first generator runs; `_asyncgens` returns it.
    _generators: weakref.WeakSet[AsyncGenerator[Any, Any]] | None = None
    _asyncgens_shutdown_called = False
    _origin_tracking_depth = 0

    # The runs in progress of a nestable loop; None if the loop is not nestable.
    _runs: nesting.Runs | None = None
    # The address of the loop's first server; `uringloop.top` shows it as the name of the loop.
    _first_server: object = None

    def __init__(
        self,
        *,
        backend: backends.Choice | None = None,
        warn_fallback: bool | None = None,
        busy_poll_us: int = 0,
        batch_wait_us: int = 0,
        sqpoll: int = 0,
        sqpoll_cpu: int | None = None,
        ring_files: bool | None = None,
        nestable: bool | None = None,
        stall_ms: int | None = None,
    ) -> None:
        wanted = options.BACKEND.value(backend)
        self._backend_reason = options.BACKEND.reason(backend)
        warn_fallback = options.WARN_FALLBACK.value(warn_fallback)
        busy_poll_us = options.BUSY_POLL_US.value(busy_poll_us)
        batch_wait_us = options.BATCH_WAIT_US.value(batch_wait_us)
        sqpoll = options.SQPOLL.value(sqpoll)
        cpu = options.SQPOLL_CPU.value(sqpoll_cpu)
        ring_files = options.RING_FILES.value(ring_files)
        nestable = options.NESTABLE.value(nestable)
        stall_ms = options.STALL_MS.value(stall_ms)
        if cpu >= 0 and not sqpoll:
            raise ValueError("sqpoll_cpu is only meaningful with sqpoll")
        if sqpoll or not ring_files:
            # Operations on paths, or on all files, run in an executor. Import it now: later the
            # process may have given up the right to read the standard library.
            importlib.import_module("concurrent.futures.thread")
        trace_fd = tracing.output(options.TRACE.value())
        refusal = self._open(wanted, busy_poll_us, batch_wait_us, sqpoll, cpu, ring_files)
        if refusal is not None and warn_fallback:
            backends.warn_fallback_at_start(refusal)
        choose_methods()
        set_fallback_callback(
            self,
            backends.warn_fallback_while_running if warn_fallback else backends.ignore_fallback,
        )
        tracing.trace(self, trace_fd)
        self._del_closes = type(self).__del__ is BaseLoop.__del__
        self._signals = signals.SignalState(self)
        # By a key for each call of on_stall(). Other threads use it.
        self._stall_callbacks: dict[object, StallCallback] = {}
        self._executor = executors.DefaultExecutor()
        if nestable:
            self._runs = nesting.Runs(self)
        register(self)
        try:
            # Another thread may add one.
            for function in tuple(when_created.values()):
                function(self, stall_ms)
        except BaseException:
            # A variable of the monitor has a wrong value. What a derived class adds to close() may
            # need what its __init__() has not made yet.
            BaseLoop.close(self)
            raise

    def _open(
        self,
        wanted: backends.Choice,
        busy_poll_us: int,
        batch_wait_us: int,
        sqpoll: int,
        cpu: int,
        ring_files: bool,
    ) -> str | None:
        """Open the selected ring; with "auto", the software ring if the kernel refuses io_uring.

        Returns why the kernel refuses io_uring, if that was the reason.
        """
        backends.disable_features()
        refusal = backends.known_refusal() if wanted == backends.AUTO else None
        if wanted != backends.SOFT and refusal is None:
            try:
                super().__init__(
                    backends.IO_URING, busy_poll_us, batch_wait_us, sqpoll, cpu, ring_files
                )
            except OSError as exc:
                if wanted == backends.IO_URING or not backends.is_refusal(exc):
                    raise backends.with_cause(exc) from None
                # A refusal with a kernel thread concerns this loop only: others may do without one.
                refusal = backends.reason_of(exc) if sqpoll else backends.record_refusal(exc)
            else:
                self._backend = backends.IO_URING
                if wanted == backends.AUTO:
                    self._backend_reason = "the kernel has it"
                return None
        self._backend = backends.SOFT
        self._backend_reason = refusal or self._backend_reason
        try:
            super().__init__(backends.SOFT, busy_poll_us, batch_wait_us)
        except OSError as exc:
            raise backends.with_cause(exc) from None
        return refusal

    @property
    def backend(self) -> backends.Backend:
        """The ring in use: "io_uring", or "soft" for the software ring."""
        return self._backend if fallback_of(self) is None else backends.SOFT

    @property
    def backend_reason(self) -> str:
        """The reason why the loop uses that ring, as a sentence without a full stop."""
        fall = fallback_of(self)
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
            # Module globals, of this module and of others, may be cleared by now.
            if self._begin_close():
                self._close()
            return
        try:
            self.close()
        finally:
            # A subclass may override close() and fail; the ring must be closed in any case, or the
            # kernel would still work for it.
            BaseLoop.close(self)

    def stats(self) -> Stats:
        """Return counters of the loop's work, and its current state. Any thread may call this."""
        stats: Stats = stats_of(self) | self._executor.load()
        return stats

    def on_stall(self, callback: StallCallback) -> Callable[[], object]:
        """Have *callback* called when the loop is blocked, that is, when a turn lasts too long.

        A turn lasts too long after `stall_ms`, or after 100 ms if that option is 0. *callback* gets
        three arguments: the seconds that the turn has lasted so far; the stack of the loop's
        thread, as a `traceback.StackSummary` that begins with the callback that blocks the loop;
        and the task that is running, or None. A thread of the monitor calls *callback* while the
        loop is still blocked. If that thread could not run during the stall, for example because C
        code held the GIL, it calls *callback* after the stall, with an empty stack and None.

        Returns a function that withdraws *callback*. Any thread may call both functions.
        """
        if not callable(callback):
            raise TypeError(f"a callable object was expected by on_stall(), got {callback!r}")
        self._check_closed()

        key = object()
        self._stall_callbacks[key] = callback
        for function in tuple(when_stalls_are_watched.values()):
            function(self)
        return lambda: self._stall_callbacks.pop(key, None)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run_forever(self) -> None:
        self._check_closed()
        self._check_running()
        if events._get_running_loop() is not None:
            # A nestable loop runs in this thread, possibly this loop: suspend it for this run.
            with nesting.SuspendedLoop():
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
            # This call is first because KeyboardInterrupt may be raised after any call, and
            # without this one no loop could run again in this thread.
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
            # The caller gets an exception if the task is left pending; do not report it as well.
            waited._log_destroy_pending = False  # type: ignore[attr-defined]
        end = None
        if self._runs is not None:
            end = self._runs.end_with(self, waited)
        else:
            # asyncio's own function: anyio recognizes the root task by this callback, and stops its
            # worker threads when that task is done.
            waited.add_done_callback(_run_until_complete_cb)
        try:
            self.run_forever()
        except BaseException:
            if ours and waited.done() and not waited.cancelled():
                # The caller has no reference to the task: mark its exception as retrieved.
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
        # Several threads may close a loop; one of them does it.
        if not self._begin_close():
            return
        try:
            self._close()
            # Raises ValueError in a thread other than the main thread.
            signals.close(self)
        finally:
            try:
                self._executor.close()
            finally:
                self._release()

    def _release(self) -> None:
        """Release what a derived class owns; called once, when the loop is closed."""

    def _check_running(self) -> None:
        if self.is_running() and (self._runs is None or self._thread_id != threading.get_ident()):
            raise RuntimeError("This event loop is already running")
        running = events._get_running_loop()
        if running is not None and not nesting.allows_nested_runs(running):
            raise RuntimeError("Cannot run the event loop while another loop is running")

    # ── debug mode ───────────────────────────────────────────────────────────────────────────

    @property
    def _debug(self) -> bool:
        """Debug mode, as the methods that class Loop takes from asyncio read it."""
        return self.get_debug()

    def set_debug(self, enabled: bool) -> None:
        self._set_debug(enabled)
        if self.is_running():
            self.call_soon_threadsafe(self._track_origins, enabled)

    def _track_origins(self, enabled: bool) -> None:
        """Switch coroutine origin tracking of this thread on or off, as debug mode requires."""
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

    # create_task() is compiled (task_creation.pyx); it calls this method for what is unusual.

    def _create_task_slowly(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[T]:
        if kwargs and not TAKES_ANY_OPTION:
            raise TypeError(
                f"{BaseLoop.__name__}.create_task() got an unexpected keyword argument "
                f"{next(iter(kwargs))!r}"
            )
        self._check_closed()
        factory = self._task_factory
        if factory is None:
            # asyncio.Task refuses a generator-based coroutine; some type stubs do so as well.
            task = tasks.Task(coro, loop=self, name=name, context=context, **kwargs)  # type: ignore[arg-type, unused-ignore]
            traceback = getattr(task, "_source_traceback", None)
            if traceback:
                # Drop this frame: the task was created by the caller.
                del traceback[-1]
            return task
        # Factories that accept only the loop and the coroutine are valid: pass only options that
        # the caller has given.
        if context is not None:
            kwargs["context"] = context
        if name is not None and FACTORY_TAKES_NAME:
            kwargs["name"] = name
        made: asyncio.Task[T] = factory(self, coro, **kwargs)
        if name is not None and not FACTORY_TAKES_NAME:
            self._set_name(made, name)
        return made

    @staticmethod
    def _set_name(task: Any, name: str) -> None:
        """Name a future that a factory has returned; before 3.13 it need not have set_name()."""
        set_task_name = getattr(asyncio.tasks, "_set_task_name", None)
        if set_task_name is None:
            task.set_name(name)
        else:
            set_task_name(task, name)

    def set_task_factory(self, factory: TaskFactory | None) -> None:
        if factory is not None and not callable(factory):
            raise TypeError("task factory must be a callable or None")
        self._task_factory = factory
        self._note_task_factory(factory is not None)

    def get_task_factory(self) -> TaskFactory | None:
        return self._task_factory

    @property
    def _asyncgens(self) -> weakref.WeakSet[AsyncGenerator[Any, Any]]:
        if self._generators is None:
            self._generators = weakref.WeakSet()
        return self._generators

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
        if type(executor) is executors.ThreadPool:
            return executor.call(self, func, args)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

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
    # Snapshots and views, but for `_default_executor`, which programs may set; each docstring names
    # the readers. docs/reference/differences.md lists the private names that are missing. The loop
    # itself uses `_debug`, `_asyncgens`, `_exception_handler` and `_task_factory`, which other
    # programs read as well.

    @property
    def _closed(self) -> bool:
        """Read by test suites; uvloop also has this attribute."""
        return self.is_closed()

    @property
    def _thread_id(self) -> int | None:
        """Read by tools that list loops by thread, and by guards against blocking calls."""
        return introspection.thread_of(self)

    @property
    def _ready(self) -> tuple[asyncio.Handle, ...]:
        """Read by load meters, and by asynctest and other test suites, which expect it empty."""
        return introspection.ready_of(self)

    @property
    def _scheduled(self) -> list[asyncio.TimerHandle]:
        """Read by Home Assistant and the tests of zeroconf and asynctest to find their timers."""
        return introspection.scheduled_of(self)

    @property
    def _default_executor(self) -> concurrent.futures.ThreadPoolExecutor | None:
        """Read by anyio on old Pythons, asgiref, Home Assistant; some programs set it to None."""
        return self._executor.pool

    @_default_executor.setter
    def _default_executor(self, executor: concurrent.futures.ThreadPoolExecutor | None) -> None:
        self._executor.pool = executor

    @property
    def _signal_handlers(self) -> Mapping[int, asyncio.Handle]:
        """Read by prompt_toolkit and by programs on arq, which restore a handler they replace."""
        return types.MappingProxyType(self._signals.handlers)
