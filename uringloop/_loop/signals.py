"""Signal handlers: Python writes the numbers of signals to a pipe that the loop polls.

The wake-up descriptor is set for every run in the main thread, even without handlers. Otherwise a
signal that arrives between Python's last check and the loop's sleep would be noticed only at the
next event, and Ctrl-C would not end an idle program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import signal
import socket
import sys
import threading
import warnings
import weakref
from asyncio.log import logger
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from uringloop._cpython import stdlib
from uringloop._ring import backends

if TYPE_CHECKING:
    from uringloop._loop.base_loop import BaseLoop


# Bytes, one for each signal, that one read() takes from the pipe.
READ_MAX = 4096

# The ends of the loops' pipes that Python writes to.
_wakeup_fds: set[int] = set()


class SignalState:
    """The signal handlers of one loop, and its wake-up pipe."""

    def __init__(self, loop: BaseLoop) -> None:
        self._loop = weakref.ref(loop)
        self.handlers: dict[int, asyncio.Handle] = {}
        # Functions of the loop's own that run before the program's handler is scheduled.
        self.before: dict[int, Callable[[BaseLoop], None]] = {}
        # Descriptors, not file objects, which the garbage collector could close before the loop.
        self._pair: tuple[int, int] | None = None
        # The process that has made the pipe. A forked child must not read it.
        self._process = 0
        # The wake-up descriptor that the program had set, -1 for none; None while the loop's is not
        # set. Signals without a handler of the loop are passed on to it, and it is restored when
        # the loop does not need the wake-up descriptor any more.
        self._previous_fd: int | None = None

    # ── the wake-up descriptor ───────────────────────────────────────────────────────────────

    def install_wakeup_fd(self) -> None:
        """Set the loop's pipe as Python's wake-up descriptor.

        Raises ValueError in a thread other than the main thread.
        """
        if self._pair is None:
            self._pair = _make_pair()
            self._process = os.getpid()
            _wakeup_fds.add(self._pair[1])
        if self._previous_fd is None:
            # KeyboardInterrupt may discard the result of set_wakeup_fd(). The previous descriptor
            # is lost then, but restore_wakeup_fd() still removes the loop's.
            self._previous_fd = -1
        previous = signal.set_wakeup_fd(self._pair[1], warn_on_full_buffer=False)
        if previous != self._pair[1]:
            self._previous_fd = previous

    def watch(self, loop: BaseLoop) -> None:
        """Poll the pipe. The poll outlives the run; it has only a weak reference to the loop."""
        if self._pair is not None:
            loop._watch_signals(self._pair[0], self._read)

    def restore_wakeup_fd(self) -> None:
        """Restore the previous wake-up descriptor, unless handlers still need the loop's."""
        if self._previous_fd is None or self.handlers:
            return
        previous, self._previous_fd = self._previous_fd, None
        try:
            self._restore(previous)
        except (ValueError, OSError) as exc:
            # ValueError: another thread closes the loop. OSError: the previous descriptor is
            # closed.
            logger.info("set_wakeup_fd(%d) failed: %s", previous, exc)
            with contextlib.suppress(ValueError):
                # The loop's descriptor must not stay set: another file will get its number.
                self._restore(-1)
            return
        if previous >= 0:
            # Pass on the signals that arrived after the loop's last read.
            self._pass_on(previous, self._take())

    def _restore(self, fd: int) -> None:
        """Replace the loop's wake-up descriptor by *fd*, unless the program has set another."""
        current = signal.set_wakeup_fd(fd)
        if self._pair is not None and current not in (self._pair[1], fd):
            signal.set_wakeup_fd(current)

    def is_placeholder(self, handler: object) -> bool:
        """Return whether *handler*, one of the signal module's, was set by add_signal_handler()."""
        return handler is _ignore

    def close(self) -> None:
        if self._pair is not None:
            _wakeup_fds.discard(self._pair[1])
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
        """Read and return the numbers of signals that have arrived, at most READ_MAX."""
        assert self._pair is not None
        if self._process != os.getpid():
            return b""
        try:
            return os.read(self._pair[0], READ_MAX)
        except (BlockingIOError, InterruptedError):
            return b""

    def _pass_on(self, fd: int, numbers: bytes) -> None:
        """Write to *fd*, the program's descriptor, those numbers that the loop does not handle."""
        others = bytes(number for number in numbers if number not in self.handlers)
        if fd >= 0 and others:
            # If it is full or closed, the numbers are lost, as they would be without the loop.
            with contextlib.suppress(OSError):
                os.write(fd, others)

    def _handle(self, loop: BaseLoop, number: int) -> None:
        handle = self.handlers.get(number)
        if handle is None:
            # The signal has a Python-level handler, which runs or has run.
            return
        if handle.cancelled():
            remove_handler(loop, number)
            return
        first = self.before.get(number)
        if first is not None:
            first(loop)
        loop._push_handle(handle)


def _leave_to_parent() -> None:
    """Keep a forked child's signals from the parent's loop, as asyncio does since 3.12."""
    current = signal.set_wakeup_fd(-1)
    if current not in _wakeup_fds:
        signal.set_wakeup_fd(current)


if not stdlib.FORK_KEEPS_SIGNALS:
    os.register_at_fork(after_in_child=_leave_to_parent)


def _make_pair() -> tuple[int, int]:
    """Return the ends of a pipe; of a pair of sockets where a sandbox refuses pipe2(2)."""
    try:
        return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno not in backends.POLICIES:
            raise
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    return reader.detach(), writer.detach()


def begin_run(loop: BaseLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        try:
            loop._signals.install_wakeup_fd()
        except ValueError:
            # This is the main thread of a subinterpreter, which cannot handle signals.
            return
        except OSError as exc:
            # A sandbox refuses fstat(2) or fcntl(2), by which Python checks a wake-up descriptor.
            # Then a signal only ends a sleep that has begun, and add_signal_handler() raises.
            if exc.errno not in backends.POLICIES:
                raise
            return
        loop._signals.watch(loop)


def end_run(loop: BaseLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        loop._signals.restore_wakeup_fd()


def add_handler(
    loop: BaseLoop, sig: int, callback: Callable[..., object], args: tuple[object, ...]
) -> None:
    if asyncio.iscoroutine(callback) or inspect.iscoroutinefunction(callback):
        raise TypeError("coroutines cannot be used with add_signal_handler()")
    _check_signal(sig)
    loop._check_closed()
    try:
        loop._signals.install_wakeup_fd()
    except (ValueError, OSError) as exc:
        raise RuntimeError(str(exc)) from exc
    loop._signals.handlers[sig] = loop._make_handle(callback, args)
    try:
        # Python writes to the wake-up descriptor only for signals with a Python-level handler.
        signal.signal(sig, _ignore)
        # Restart interrupted system calls of other threads and libraries.
        signal.siginterrupt(sig, False)
    except OSError as exc:
        del loop._signals.handlers[sig]
        _restore_if_stopped(loop)
        if exc.errno == errno.EINVAL:
            raise RuntimeError(f"sig {sig} cannot be caught") from exc
        raise


def remove_handler(loop: BaseLoop, sig: int) -> bool:
    """Restore the default action of *sig*; return False if the loop had no handler for it."""
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
    _restore_if_stopped(loop)
    return True


def close(loop: BaseLoop) -> None:
    """Remove all handlers and close the pipe."""
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
        state.restore_wakeup_fd()
    finally:
        state.close()


def _restore_if_stopped(loop: BaseLoop) -> None:
    if not loop.is_running():
        loop._signals.restore_wakeup_fd()


def _ignore(sig: int, frame: FrameType | None) -> None:
    """Do nothing: a placeholder, since the loop's handler runs when the pipe is read."""


def _check_signal(sig: int) -> None:
    if not isinstance(sig, int):
        raise TypeError(f"sig must be an int, not {sig!r}")
    if sig not in signal.valid_signals():
        raise ValueError(f"invalid signal number {sig}")
