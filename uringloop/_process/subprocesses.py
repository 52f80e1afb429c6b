"""Child processes: started by subprocess.Popen, with pipe transports, reaped when a pidfd says so.

The checks of arguments and most of the transport are those of the running Python's asyncio. This
module notices the exit of a child: by its pidfd, which the loop watches as `add_reader` does; by a
thread that waits if that fails; and by a timer if no thread can be started. It uses neither a child
watcher nor SIGCHLD, so the loop may run in any thread. Every child is reaped, whatever happens to
its transport and its loop: by the loop while that is open, by `close` if the child was killed, and
by a thread if the child outlives the loop. The loop's thread never waits for a child, because one
that a debugger traces cannot be reaped as soon as it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import os
import select
import signal
import struct
import subprocess
import threading
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.log import logger
from collections.abc import Iterator
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from uringloop._turn import watchers

if TYPE_CHECKING:
    from uringloop.loop import Loop


# asyncio's exit code for a child that other code in the process has reaped.
UNKNOWN_EXIT_CODE = 255
# Seconds for which closing a loop waits for killed children. A child that is stuck in the kernel
# takes longer, and is left to a thread.
KILLED_TIMEOUT = 1.0
# <linux/pidfd.h>: ioctl(2) of a pidfd fills a structure, of which `mask` and `exit_code` are used
# here. The number is that of x86-64 and AArch64; a kernel with another one refuses it.
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO = struct.Struct("=Q52xi")


# ── the child ────────────────────────────────────────────────────────────────────────────────


class Waiter(enum.Enum):
    """Who waits for the end of a child."""

    NOBODY = 1
    LOOP = 2  # by its pidfd
    THREAD = 3
    TIMER = 4  # of the loop


class Child:
    """A child process from its start until it is reaped."""

    def __init__(self, loop: Loop, transport: SubprocessTransport) -> None:
        self.loop = loop
        # Notified of the exit; None once the loop is closed, as the transport may be freed first.
        self.transport: SubprocessTransport | None = transport
        self.process = transport._proc
        self._parent = os.getpid()
        # Owned by this object, closed when the child is reaped; -1 without one.
        self.pidfd = -1
        self._waiter = Waiter.NOBODY
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Have the loop reap the child when it exits, and notify the transport."""
        self.loop._children.add(self)
        try:
            self.pidfd = os.pidfd_open(self.process.pid)
            self.loop._signals.before[signal.SIGCHLD] = reap_ended
            # First, so that close() reaps the child after any other exception.
            self._waiter = Waiter.LOOP
            self.loop._watchers.watch(self.pidfd, select.EPOLLIN, self._ended, ())
        except (OSError, AttributeError, MemoryError):
            # No descriptor is free, a sandbox forbids the call, SIGCHLD is ignored and the child
            # gone, or Python was built with headers that lack pidfd_open. Or epoll has no memory,
            # or watches as many descriptors as the user may have it watch (ENOSPC).
            self._watch_in_thread()

    def _unwatch(self) -> None:
        if self._waiter is Waiter.LOOP:
            self.loop._watchers.remove(self.pidfd, select.EPOLLIN)
        self._waiter = Waiter.NOBODY

    def _watch_in_thread(self) -> None:
        self._waiter = Waiter.THREAD
        name = f"uringloop-child-{self.process.pid}"
        thread = threading.Thread(target=self._wait_in_thread, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There are too many threads, or the interpreter ends. If the loop is closed, too, the
            # subprocess module reaps the child: when it starts another one, after the transport
            # has been freed.
            self._waiter = Waiter.TIMER
            if not self.loop.is_closed():
                self.loop.call_later(watchers.RETRY_DELAY, self._ended)

    def _wait_in_thread(self) -> None:
        # Only the loop's thread reaps (WNOWAIT), so that Popen.poll() there still finds the child.
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # Other code has reaped it.
            pass
        except OSError:
            # A filter refuses waitid(2); only that call leaves the child to the loop's thread.
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(self.process.pid, 0)
                self.process.returncode = os.waitstatus_to_exitcode(status)
        try:
            self.loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            # The loop is closed: no transport waits for the exit code.
            self.reap()
            self._close_pidfd()

    def _ended(self) -> None:
        """Reap the child, or let a thread wait until a debugger that traces it lets go of it.

        Until then the kernel does not give the child to its parent, although the pidfd says that it
        has ended.
        """
        self._unwatch()
        if self.reap() is None:
            self._watch_in_thread()
        else:
            self._notify()

    def _notify(self) -> None:
        """Tell the transport that the child has been reaped, which nobody waits for any more."""
        self._close_pidfd()
        self.loop._children.discard(self)
        assert self.transport is not None
        # Tell it in the next turn, because what the child wrote before its exit is read by then.
        self.loop.call_soon(self.transport._process_exited, self.process.returncode)

    def reap(self) -> int | None:
        """Reap the child if it can be reaped now; return its exit code, else None."""
        with self._lock:
            if self.process.returncode is None:
                self.process.returncode = self._exit_code_now()
            elif self.process.returncode == 0:
                # Popen.poll() has reaped it, or has found it gone and taken that for success.
                self.process.returncode = exit_code_of_reaped(self.pidfd) or 0
            return self.process.returncode

    def _exit_code_now(self) -> int | None:
        pid = self.process.pid
        try:
            return try_to_reap(pid, self.pidfd)
        except ChildProcessError:
            code = exit_code_of_reaped(self.pidfd)
        if code is not None:
            return code
        logger.warning(
            "child process pid %d exit status already read:  will report returncode %d",
            pid,
            UNKNOWN_EXIT_CODE,
        )
        return UNKNOWN_EXIT_CODE

    def _close_pidfd(self) -> None:
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1

    def reap_or_leave(self, deadline: float) -> None:
        """Reap the child of a loop that is closed, or leave it to a thread at the *deadline*."""
        assert self.transport is not None
        timeout_s = max(deadline - time.monotonic(), 0) if self.transport.is_closing() else 0
        self.transport = None
        # After a fork, only the process that has started the child may reap it.
        if self._parent == os.getpid():
            if self._waiter is Waiter.LOOP:
                poll = select.poll()
                poll.register(self.pidfd, select.POLLIN)
                poll.poll(timeout_s * 1000)
            if self.reap() is None and self._waiter is not Waiter.THREAD:
                self._watch_in_thread()
        self._close_pidfd()

    def reap_if_ended(self) -> None:
        # A thread that waits schedules _ended(), and so does a timer.
        if self._waiter is Waiter.LOOP and self.reap() is not None:
            self._unwatch()
            self._notify()


@contextlib.contextmanager
def sigchld_deferred(loop: Loop) -> Iterator[None]:
    """Call the signal module's handler of SIGCHLD after the block, in which a child starts.

    A handler that reaps every child could take one before it has a pidfd: nothing would then know
    its exit code. In a thread other than the main thread the handler cannot be deferred. That of
    add_signal_handler() is not replaced: it runs in a turn, not here, and signal.signal() would
    clear the SA_RESTART of add_signal_handler(). The SA_RESTART that a program has set for a
    handler of its own is lost, as Python cannot read it.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if (
        not callable(handler)
        or loop._signals.is_placeholder(handler)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []

    def defer(number: int, frame: FrameType | None) -> None:
        arrived.append((number, frame))

    try:
        # The main thread of a subinterpreter sees the handlers, but cannot set one.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGCHLD, defer)
        yield
    finally:
        # KeyboardInterrupt may come as soon as the handler is set.
        if signal.getsignal(signal.SIGCHLD) is defer:
            signal.signal(signal.SIGCHLD, handler)
        if arrived:
            handler(*arrived[-1])


def try_to_reap(pid: int, pidfd: int) -> int | None:
    """Reap a child and return its exit code; return None if it cannot be reaped now.

    Raises ChildProcessError if other code has reaped it.
    """
    # Unlike the PID, the pidfd cannot refer to another process by now.
    kind, number = (os.P_PID, pid) if pidfd < 0 else (os.P_PIDFD, pidfd)
    try:
        result = os.waitid(kind, number, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        raise
    except OSError:
        # A filter refuses waitid(2), or the kernel knows no P_PIDFD (before 5.4).
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def exit_code_of_reaped(pidfd: int) -> int | None:
    """Return the exit code of a child that other code has reaped, if the kernel knows it (6.15)."""
    facts = bytearray(PIDFD_INFO.pack(PIDFD_INFO_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, facts)
    except (OSError, ValueError):
        # An older kernel, or no pidfd.
        return None
    mask, status = PIDFD_INFO.unpack(facts)
    return os.waitstatus_to_exitcode(status) if mask & PIDFD_INFO_EXIT else None


def reap_ended(loop: Any) -> None:
    """Reap the loop's children before a SIGCHLD handler runs, which may reap every child."""
    for child in list(loop._children):
        child.reap_if_ended()


def close(loop: Loop) -> None:
    """Reap the children of a loop that is closed, or leave them to threads."""
    deadline = time.monotonic() + KILLED_TIMEOUT
    while loop._children:
        loop._children.pop().reap_or_leave(deadline)


# ── the transport ────────────────────────────────────────────────────────────────────────────


class SubprocessTransport(BaseSubprocessTransport):
    """asyncio's transport of a child process, with pipes on the ring."""

    _loop: Loop
    _proc: subprocess.Popen[bytes]
    # asyncio's protocols of the pipes by number; None while one is not connected.
    _pipes: dict[int, Any]
    # Resolved when the task that connects the pipes has ended; None before its first step.
    _connecting: asyncio.Future[None] | None = None

    def _start(
        self, args: Any, shell: bool, stdin: Any, stdout: Any, stderr: Any, bufsize: int, **kw: Any
    ) -> None:
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        try:
            with sigchld_deferred(self._loop):
                self._proc = subprocess.Popen(
                    args,
                    shell=shell,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    universal_newlines=False,
                    bufsize=bufsize,
                    **kw,
                )
                Child(self._loop, self).watch()
        except BaseException:
            # The deferred handler has raised, or KeyboardInterrupt has come. asyncio kills the
            # child, but knows the pipes only once they are connected.
            if self._proc is not None:
                self._close_pipes()
            raise

    async def _connect_pipes(self, waiter: asyncio.Future[None] | None) -> None:
        self._connecting = connecting = self._loop.create_future()
        try:
            await super()._connect_pipes(waiter)
        finally:
            if self._closed or self._pending_calls is not None:
                # The transport was closed meanwhile, or connecting has failed. Other processes may
                # hold the other ends open for ever.
                self._close_pipes()
            # If wait_for_end() was cancelled, so was this future.
            if not connecting.done():
                connecting.set_result(None)

    def _close_pipes(self) -> None:
        """Close every pipe, connected or not."""
        process = self._proc
        for number, file in enumerate((process.stdin, process.stdout, process.stderr)):
            connected = self._pipes.get(number)
            if connected is not None:
                connected.pipe.close()
            elif file is not None and not self._has_transport(file):
                file.close()

    def _has_transport(self, file: IO[bytes]) -> bool:
        # A transport closes its file itself, once no operation is in flight.
        return file.closed or watchers.transport_of(self._loop, file.fileno()) is not None

    def _process_exited(self, returncode: int) -> None:
        try:
            super()._process_exited(returncode)
        finally:
            # Even if the protocol has no process_exited(). If wait_for_end() was cancelled, so was
            # this future.
            if not self._reaped.done():
                self._reaped.set_result(None)

    async def wait_for_end(self) -> None:
        """Wait until the child is reaped and its pipes are closing, even if its start failed."""
        await self._reaped
        if self._connecting is None:
            # The task was cancelled before its first step.
            self._close_pipes()
        else:
            await self._connecting

    def send_signal(self, signal: int) -> None:
        # Some versions of asyncio send the signal to the PID, which may be reused by now.
        self._check_proc()
        self._proc.send_signal(signal)

    def close(self) -> None:
        if self._loop is not None:
            # Check the thread first: a pipe's transport would refuse to close only after this
            # transport is marked as closed.
            self._loop._check_owner()
        if self._loop is None or not self._loop.is_closed():
            super().close()
            return
        # Without the loop the pipes' transports cannot close their files before they are freed.
        if not self._closed:
            self._closed = True
            if self._returncode is None:
                self._proc.kill()


async def make_transport(
    loop: Loop,
    protocol: Any,
    args: Any,
    shell: bool,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    bufsize: int,
    **options: Any,
) -> SubprocessTransport:
    """Start a child and wait until its pipes are connected; asyncio has checked the arguments."""
    waiter: asyncio.Future[None] = loop.create_future()
    transport = SubprocessTransport(
        loop, protocol, args, shell, stdin, stdout, stderr, bufsize, waiter=waiter, **options
    )
    try:
        await waiter
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await transport.wait_for_end()
        raise
    return transport
