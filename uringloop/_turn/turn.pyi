"""The turn: one round of the loop, and the loop's compiled methods."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from traceback import StackSummary
from typing import Any, Literal, TypeVar, TypeVarTuple

from typing_extensions import disjoint_base

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

@disjoint_base
class TurnUser: ...

@disjoint_base
class LoopCore:
    slow_callback_duration: float
    _del_closes: bool

    def __init__(
        self,
        backend: Literal["io_uring", "soft"],
        busy_poll_us: int = 0,
        batch_wait_us: int = 0,
        sqpoll: int = 0,
        sqpoll_cpu: int = -1,
        ring_files: bool = True,
    ) -> None: ...
    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule *callback* for the next turn."""

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule *callback* from any thread, waking the loop if it sleeps."""

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule *callback* after *delay* seconds."""

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule *callback* for the time *when* on the loop's clock."""

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[_T]: ...
    def time(self) -> float:
        """Return the loop's clock: CLOCK_MONOTONIC in seconds."""

    def create_future(self) -> asyncio.Future[Any]: ...
    def get_debug(self) -> bool: ...
    def is_running(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def stop(self) -> None:
        """Stop after the current turn."""

    def _run(self) -> None: ...
    def _begin_close(self) -> bool: ...
    def _close(self) -> None: ...
    def _watch_signals(self, fd: int, on_wake: Callable[[], None]) -> None: ...
    def _check_closed(self) -> None: ...
    def _check_owner(self) -> None: ...
    def _replace_clock(self, patched: bool) -> None: ...
    def _check_callback(self, callback: object, method: str) -> None: ...
    def _make_handle(
        self, callback: Callable[..., object], args: tuple[object, ...]
    ) -> asyncio.Handle: ...
    def _push_timer(self, timer: asyncio.TimerHandle) -> None: ...
    def _push_handle(self, handle: asyncio.Handle) -> None: ...
    def _set_debug(self, enabled: bool) -> None: ...
    def _note_task_factory(self, exists: bool) -> None: ...
    def _current_traceback(self) -> StackSummary | None: ...
    def _count_sent(self, size: int) -> None: ...
    @property
    def _operations_in_flight(self) -> int: ...
    @property
    def _buffers_out(self) -> int: ...
    @property
    def _kernel_entries(self) -> int: ...
