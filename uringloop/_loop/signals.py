"""Signals: Python writes each one's number to a pipe that the loop polls.

The wake-up descriptor is set for every run in the main thread, handlers or not: without it a
signal that lands between the last check and the wait would be noticed only when something else
happens, and Ctrl-C would hang an idle program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import signal
import sys
import threading
import warnings
import weakref
from asyncio.log import logger
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uringloop._loop.base import RunningLoop


# Numbers of signals that are read at a time.
READ_MAX = 4096


class SignalState:
    """The handlers of one loop, and the pipe that tells of signals."""

    def __init__(self, loop: RunningLoop) -> None:
        self._loop = weakref.ref(loop)
        self.handlers: dict[int, asyncio.Handle] = {}
        # What the loop itself does before the program's handler is scheduled.
        self.before: dict[int, Callable[[RunningLoop], None]] = {}
        # Descriptors, not objects: the collector must not end them before their loop.
        self._pair: tuple[int, int] | None = None
        # What was there before, -1 for nothing: it is passed on what the loop has no handler for,
        # and given back when the loop needs the descriptor no more.
        self._previous_fd: int | None = None

    # ── the wake-up descriptor ───────────────────────────────────────────────────────────────

    def claim(self) -> None:
        """Have Python write signal numbers to the loop. Raises ValueError in other threads."""
        if self._pair is None:
            self._pair = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._previous_fd is None:
            # A KeyboardInterrupt may keep the answer: then it is given up, and not kept for ever.
            self._previous_fd = -1
        previous = signal.set_wakeup_fd(self._pair[1], warn_on_full_buffer=False)
        if previous != self._pair[1]:
            self._previous_fd = previous

    def watch(self, loop: RunningLoop) -> None:
        """Poll the pipe; the poll outlives the run, and holds the loop weakly."""
        if self._pair is not None:
            loop._watch_signals(self._pair[0], self._read)

    def yield_back(self) -> None:
        """Restore the descriptor that was there before, unless handlers need the loop's."""
        if self._previous_fd is None or self.handlers:
            return
        previous, self._previous_fd = self._previous_fd, None
        try:
            self._restore(previous)
        except (ValueError, OSError) as exc:
            # Another thread closes the loop, or the old descriptor has gone.
            logger.info("set_wakeup_fd(%d) failed: %s", previous, exc)
            with contextlib.suppress(ValueError):
                # Ours may not stay: its number will be another file's.
                self._restore(-1)
            return
        if previous >= 0:
            # What came after the loop had looked for the last time.
            self._pass_on(previous, self._take())

    def _restore(self, fd: int) -> None:
        """Put *fd* in the place of ours; what the program has put there meanwhile stays."""
        current = signal.set_wakeup_fd(fd)
        if self._pair is not None and current not in (self._pair[1], fd):
            signal.set_wakeup_fd(current)

    def close(self) -> None:
        if self._pair is not None:
            for end in self._pair:
                os.close(end)
            self._pair = None

    def _read(self) -> None:
        loop = self._loop()
        if self._pair is None or loop is None:
            return
        numbers = self._take()
        while numbers:
            if self._previous_fd is not None:
                self._pass_on(self._previous_fd, numbers)
            for number in numbers:
                self._handle(loop, number)
            numbers = self._take() if len(numbers) == READ_MAX else b""

    def _take(self) -> bytes:
        """Return the numbers of signals that have come, up to a limit."""
        assert self._pair is not None
        try:
            return os.read(self._pair[0], READ_MAX)
        except (BlockingIOError, InterruptedError):
            return b""

    def _pass_on(self, fd: int, numbers: bytes) -> None:
        """Write what the loop does not handle to the descriptor that the program has set."""
        others = bytes(number for number in numbers if number not in self.handlers)
        if fd >= 0 and others:
            # Full or closed: Python itself could not do better.
            with contextlib.suppress(OSError):
                os.write(fd, others)

    def _handle(self, loop: RunningLoop, number: int) -> None:
        handle = self.handlers.get(number)
        if handle is None:
            # Python's own handler runs, or has run, for this one.
            return
        if handle.cancelled():
            remove_handler(loop, number)
            return
        first = self.before.get(number)
        if first is not None:
            first(loop)
        loop._push_handle(handle)


def begin_run(loop: RunningLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        try:
            loop._signals.claim()
        except ValueError:
            # The main thread of a subinterpreter: signals are not its business.
            return
        loop._signals.watch(loop)


def end_run(loop: RunningLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        loop._signals.yield_back()


def add_handler(
    loop: RunningLoop, sig: int, callback: Callable[..., object], args: tuple[object, ...]
) -> None:
    if asyncio.iscoroutine(callback) or inspect.iscoroutinefunction(callback):
        raise TypeError("coroutines cannot be used with add_signal_handler()")
    _check_signal(sig)
    loop._check_closed()
    try:
        loop._signals.claim()
    except (ValueError, OSError) as exc:
        raise RuntimeError(str(exc)) from exc
    loop._signals.handlers[sig] = loop._make_handle(callback, args)
    try:
        # Any Python-level handler makes Python write the number to the wake-up descriptor.
        signal.signal(sig, _ignore)
        # Restart interrupted system calls of other threads and libraries.
        signal.siginterrupt(sig, False)
    except OSError as exc:
        del loop._signals.handlers[sig]
        _yield_if_idle(loop)
        if exc.errno == errno.EINVAL:
            raise RuntimeError(f"sig {sig} cannot be caught") from exc
        raise


def remove_handler(loop: RunningLoop, sig: int) -> bool:
    """Give *sig* its default handling back; False if the loop had no handler for it."""
    _check_signal(sig)
    if loop._signals.handlers.pop(sig, None) is None:
        return False
    default = signal.default_int_handler if sig == signal.SIGINT else signal.SIG_DFL
    try:
        signal.signal(sig, default)
    except OSError as exc:
        if exc.errno == errno.EINVAL:
            raise RuntimeError(f"sig {sig} cannot be caught") from exc
        raise
    _yield_if_idle(loop)
    return True


def close(loop: RunningLoop) -> None:
    """Remove every handler, and close the sockets."""
    state = loop._signals
    if sys.is_finalizing():
        if state.handlers:
            warnings.warn(
                f"Closing the loop {loop!r} on interpreter shutdown stage, "
                "skipping signal handlers removal",
                ResourceWarning,
                source=loop,
                stacklevel=3,
            )
            state.handlers.clear()
        state.close()
        return
    try:
        for sig in list(state.handlers):
            remove_handler(loop, sig)
        state.yield_back()
    finally:
        state.close()


def _yield_if_idle(loop: RunningLoop) -> None:
    if not loop.is_running():
        loop._signals.yield_back()


def _ignore(sig: int, frame: FrameType | None) -> None:
    """Stand in as a handler; the loop's runs from the wake-up descriptor."""


def _check_signal(sig: int) -> None:
    if not isinstance(sig, int):
        raise TypeError(f"sig must be an int, not {sig!r}")
    if sig not in signal.valid_signals():
        raise ValueError(f"invalid signal number {sig}")
