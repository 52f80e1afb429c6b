"""run_threads(): an async function in several threads, each with a loop of its own.

The calling thread only supervises. It sleeps in read(2) on a pipe. A thread writes to the pipe when
it ends, and Python's signal handler writes to it when a signal arrives: a signal acts at once even
if the threads keep the interpreter busy. Nothing here touches a loop, except through
call_soon_threadsafe().

Any thread may call run_threads(); only a call in the main thread handles signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import operator
import os
import signal
import sys
import threading
import warnings
from asyncio.log import logger
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Generic, TypeVar

from uringloop._cpython import gil
from uringloop.policy import new_event_loop

T = TypeVar("T")

# What a thread writes to the pipe when it ends; no signal has this number.
ENDED = b"\0"
# Bytes, one for each signal and each thread that has ended, that one read() takes from the pipe.
READ_MAX = 4096
# The signals that end the threads, each with the handler that the signal has if the program does
# not handle it itself.
UNHANDLED: dict[int, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
# Shells report this exit status plus the signal's number for a process that a signal has ended.
SIGNALLED = 128

# Whether this process has been told that its threads take turns.
_warned = False


def run_threads(
    main: Callable[[], Coroutine[Any, Any, T]],
    threads: int | None = None,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = new_event_loop,
    debug: bool | None = None,
) -> list[T]:
    """Run the async function *main* in several threads, and return the results in their order.

    The default of *threads* is the number of processors that the process may use. Each thread calls
    *main* once, in a copy of the caller's context and on a loop of its own, which ends as the loop
    of asyncio.run() does. The calling thread waits for all these threads.

    The threads end together, as the tasks of an asyncio.TaskGroup do. The first exception cancels
    *main* in the other threads, and the exceptions are raised as an ExceptionGroup. If *main*
    raises KeyboardInterrupt or SystemExit, that exception is raised without a group, and all others
    are logged.

    If this function is called in the main thread, and SIGINT has no handler, Ctrl-C cancels *main*
    in all threads, and KeyboardInterrupt is raised after the threads have ended. A second Ctrl-C
    raises KeyboardInterrupt in every loop, which then cancels all its tasks and ends. A third ends
    the process at once, because nothing else ends a thread that is blocked. SIGTERM, if it has no
    handler, also cancels *main* in all threads; exceptions are logged, and the process ends after
    the threads have ended. A signal that has a handler is left to that handler; if the handler
    raises an exception, *main* is cancelled in all threads before the exception is passed on.

    Warns with a RuntimeWarning, once in a process, if the threads take turns because of the GIL.

    Raises ValueError for fewer than one thread. Raises RuntimeError if a loop runs in the calling
    thread, or if a thread cannot be started; *main* is then cancelled in the threads that have been
    started.
    """
    if asyncio.iscoroutine(main):
        raise TypeError("coroutines cannot be used with run_threads(): pass the async function")
    if not callable(main):
        raise TypeError(f"a callable object was expected by run_threads(), got {main!r}")
    count = _processor_count() if threads is None else operator.index(threads)
    if count < 1:
        raise ValueError(f"threads must be at least 1, not {count}")
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("run_threads() cannot be called from a running event loop")
    if count > 1:
        _warn_of_gil()
    group = Group([Worker(number, main, loop_factory, debug=debug) for number in range(count)])
    group.run()
    return group.results()


def _processor_count() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0))


def _warn_of_gil() -> None:
    """Warn the caller of run_threads(), once in a process, if Python runs one thread at a time."""
    global _warned
    if _warned or not gil.enabled():
        return
    _warned = True
    warnings.warn(
        "the threads of run_threads() take turns because of the GIL; "
        "on a free-threaded Python they run at the same time",
        RuntimeWarning,
        stacklevel=3,
    )


class Worker(Generic[T]):
    """One thread, its loop and its main. Public methods are the supervisor's."""

    def __init__(
        self,
        number: int,
        main: Callable[[], Coroutine[Any, Any, T]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
        *,
        debug: bool | None,
    ) -> None:
        # The result of main, if it has returned one.
        self.results: list[T] = []
        # Whether the loop is closed; set before ENDED is written.
        self.ended = False
        self.cancelled = False
        self.interrupted = False
        self._exception: BaseException | None = None
        self._main = main
        self._loop_factory = loop_factory
        self._debug = debug
        self._task: asyncio.Task[Any] | None = None
        # Orders the beginning of main and its cancellation.
        self._lock = threading.Lock()
        context = contextvars.copy_context()
        self.thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"uringloop-{number}"
        )

    def start(self, fd: int) -> None:
        """Start the thread, which writes ENDED to *fd* at its end."""
        self._fd = fd
        self.thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(debug=self._debug, loop_factory=self._loop_factory) as runner:
                # If this fails, there must be no coroutine yet: it would never be awaited.
                runner.get_loop()
                self.results.append(runner.run(self._call_main()))
        except BaseException as exc:
            self._exception = exc
        finally:
            self.ended = True
            os.write(self._fd, ENDED)

    async def _call_main(self) -> T:
        with self._lock:
            if self.cancelled:
                raise asyncio.CancelledError
            self._task = asyncio.current_task()
        return await self._main()

    def cancel(self) -> None:
        """Cancel main; if it has not begun, it never will."""
        with self._lock:
            self.cancelled = True
        if self._task is not None:
            self._call_soon(self._task.cancel)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the loop, even while it runs what *main* has left behind."""
        self.interrupted = True
        self._call_soon(_raise_interrupt)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if self._task is not None:
            # RuntimeError: the loop is closed.
            with contextlib.suppress(RuntimeError):
                self._task.get_loop().call_soon_threadsafe(callback)

    def failure(self) -> BaseException | None:
        """Return the exception of the thread, unless the supervisor has caused it."""
        caused = isinstance(self._exception, asyncio.CancelledError) and self.cancelled
        caused |= isinstance(self._exception, KeyboardInterrupt) and self.interrupted
        return None if caused else self._exception


class Group(Generic[T]):
    """The threads of one call. The calling thread supervises them in run()."""

    def __init__(self, workers: list[Worker[T]]) -> None:
        self._workers = workers
        # The threads that have been started and not yet joined.
        self._running: list[Worker[T]] = []
        # The signals that end the threads, in the order of their arrival.
        self._signals: list[int] = []
        # The first exception that was raised in the calling thread.
        self._exception: BaseException | None = None

    def run(self) -> None:
        """Start the threads, and wait until all have ended."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            # Python's signal handler writes to it.
            os.set_blocking(writer, False)
            handlers = SignalHandlers(writer)
            try:
                self._start(writer)
                self._supervise(reader, handlers)
            finally:
                handlers.restore()
            # Take the signals that have arrived since the last read.
            os.set_blocking(reader, False)
            with contextlib.suppress(BlockingIOError):
                self._signals += handlers.take(os.read(reader, READ_MAX))
        finally:
            os.close(reader)
            os.close(writer)

    def _start(self, fd: int) -> None:
        try:
            for worker in self._workers:
                self._running.append(worker)
                worker.start(fd)
        except BaseException as exc:
            # No thread can be started, or a signal handler of the program raises an exception.
            self._exception = exc
            self._running = [worker for worker in self._running if worker.thread.ident is not None]

    def _supervise(self, reader: int, handlers: SignalHandlers) -> None:
        while True:
            try:
                if self._exception is not None:
                    self._cancel()
                # Join before read(): an exception may have discarded what the last one returned.
                self._join_ended()
                if not self._running:
                    return
                for number in handlers.take(os.read(reader, READ_MAX)):
                    self._on_signal(number)
            except BaseException as exc:
                # Only note the exception, because the handler may raise another.
                self._exception = self._exception or exc

    def _join_ended(self) -> None:
        """Join the threads that have ended; if one of them has failed, cancel the others."""
        for worker in list(self._running):
            if worker.ended:
                worker.thread.join()
                self._running.remove(worker)
                if worker.failure() is not None:
                    self._cancel()

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        interrupts = self._signals.count(signal.SIGINT)
        if number != signal.SIGINT or interrupts == 1:
            self._cancel()
        elif interrupts == 2:
            for worker in self._running:
                worker.interrupt()
        else:
            _die_of(number)
            # The first process of a container survives the default action.
            os._exit(SIGNALLED + number)

    def _cancel(self) -> None:
        for worker in self._running:
            # Cancel main only once, as a TaskGroup does: it may await while it ends.
            if not worker.cancelled:
                worker.cancel()

    def results(self) -> list[T]:
        """Return the results, or raise what has ended the threads before they had results."""
        failures = {worker.thread.name: worker.failure() for worker in self._workers}
        errors = {name: exc for name, exc in failures.items() if exc is not None}
        leaving = self._reason_to_leave(list(errors.values()))
        if leaving is not None:
            for name, exc in errors.items():
                if exc is not leaving:
                    logger.error("main of thread %s failed", name, exc_info=exc)
            if signal.SIGTERM in self._signals:
                _die_of(signal.SIGTERM)
            raise leaving
        if errors:
            raise BaseExceptionGroup("unhandled errors in run_threads()", list(errors.values()))
        return [result for worker in self._workers for result in worker.results]

    def _reason_to_leave(self, errors: list[BaseException]) -> BaseException | None:
        """Return the exception that is raised without a group; None if there is none."""
        if signal.SIGTERM in self._signals:
            # For the first process of a container, which survives the default action.
            return SystemExit(SIGNALLED + signal.SIGTERM)
        if self._signals:
            return KeyboardInterrupt()
        if self._exception is not None:
            return self._exception
        return next((e for e in errors if isinstance(e, (KeyboardInterrupt, SystemExit))), None)


class SignalHandlers:
    """The signal handlers of a call in the main thread. In other threads it does nothing.

    The signals' numbers arrive in the pipe; the handlers themselves do nothing, and so never
    interrupt the supervisor halfway.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._handled: list[int] = []
        # The wake-up descriptor that the program had set, -1 for none.
        self._previous_fd = -1
        try:
            self._previous_fd = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        except ValueError:
            # Not the main thread.
            return
        for number, unhandled in UNHANDLED.items():
            if signal.getsignal(number) == unhandled:
                signal.signal(number, _ignore)
                self._handled.append(number)

    def take(self, numbers: bytes) -> list[int]:
        """Return the signals of *numbers* that are handled here, and pass on the others."""
        others = bytes(n for n in numbers if n not in (*ENDED, *self._handled))
        if others and self._previous_fd >= 0:
            # If it is full or closed, the numbers are lost, as they would be without this call.
            with contextlib.suppress(OSError):
                os.write(self._previous_fd, others)
        return [n for n in numbers if n in self._handled]

    def restore(self) -> None:
        """Restore the handlers and the wake-up descriptor, unless the program has replaced them."""
        for number in self._handled:
            if signal.getsignal(number) is _ignore:
                signal.signal(number, UNHANDLED[number])
        # ValueError: not the main thread. OSError: the previous descriptor is closed.
        with contextlib.suppress(ValueError, OSError):
            current = signal.set_wakeup_fd(-1)
            wanted = self._previous_fd if current == self._fd else current
            if wanted >= 0:
                signal.set_wakeup_fd(wanted)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number of the signal is read from the pipe."""


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _die_of(number: int) -> None:
    """End this process with a signal, so that its parent sees which signal it was."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
