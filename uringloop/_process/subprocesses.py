"""Child processes: started by subprocess.Popen, with pipe transports, their end noticed by a poll.

The checks of arguments and most of the transport are asyncio's own, those of the Python that runs.
Ours is how the end of a child is noticed: by a one-shot poll of its pidfd on the ring, or, where
none is to be had, by a thread that waits. No child watcher and no SIGCHLD is involved, so the loop
may run in any thread. Every child is reaped, whatever becomes of its transport and its loop: by the
loop while that is open, by `close` if it was killed, and by a thread if it outlives the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.log import logger
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from uringloop._turn import fd_watch

if TYPE_CHECKING:
    from uringloop.loop import Loop

P = TypeVar("P", bound=asyncio.BaseProtocol)

# What asyncio reports as the exit code of a child that somebody else has reaped.
UNKNOWN_EXIT_CODE = 255
# Seconds that closing a loop waits for the children that were killed: only one that hangs in the
# kernel takes longer, and is left to a thread.
KILLED_PATIENCE = 1.0


# ── the end of a child ───────────────────────────────────────────────────────────────────────


class Child:
    """A child process from its start until it is reaped."""

    def __init__(self, loop: Loop, transport: SubprocessTransport) -> None:
        self.loop = loop
        # Told of the end; None once the loop is closed, for the transport may go before the child.
        self.transport: SubprocessTransport | None = transport
        self.process = transport._proc
        # Ours, closed when the child is reaped; -1 if there is none.
        self.pidfd = -1
        self._watched = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Have the loop reap the child once it has ended, and tell the transport."""
        self.loop._children.add(self)
        try:
            self.pidfd = os.pidfd_open(self.process.pid)
        except (OSError, AttributeError):
            # No descriptor is free, a sandbox forbids it, SIGCHLD is ignored and the child gone, or
            # this Python was built with older headers.
            self._watch_in_thread()
            return
        self.loop._signals.before[signal.SIGCHLD] = take_ended
        self.loop._watchers.watch(self.pidfd, fd_watch.READ, self._ended, ())
        self._watched = True

    def _watch_in_thread(self) -> None:
        name = f"uringloop-child-{self.process.pid}"
        threading.Thread(target=self._wait_in_thread, name=name, daemon=True).start()

    def _wait_in_thread(self) -> None:
        # The thread waits and the loop reaps: Popen.poll() there must not find the child gone.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        try:
            self.loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            # The loop is closed: there is nobody to tell.
            self.reap()

    def _ended(self) -> None:
        if self._watched:
            self.loop._watchers.remove(self.pidfd, fd_watch.READ)
            self._watched = False
        self.loop._children.discard(self)
        assert self.transport is not None
        # In the turn after this one: what the child wrote before its end is read by then.
        self.loop.call_soon(self.transport._process_exited, self.reap())

    def reap(self) -> int:
        """Return the exit code of a child that has ended, taken from the kernel only once."""
        with self._lock:
            try:
                # Popen.poll() may have been first.
                if self.process.returncode is None:
                    self.process.returncode = self._take_exit_code()
            finally:
                self._close_pidfd()
        return self.process.returncode

    def _take_exit_code(self) -> int:
        pid = self.process.pid
        # Through the pidfd it cannot be another process with the same number.
        kind, number = (os.P_PID, pid) if self.pidfd < 0 else (os.P_PIDFD, self.pidfd)
        try:
            result = os.waitid(kind, number, os.WEXITED)
        except ChildProcessError:
            logger.warning(
                "child process pid %d exit status already read:  will report returncode %d",
                pid,
                UNKNOWN_EXIT_CODE,
            )
            return UNKNOWN_EXIT_CODE
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _close_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def leave(self, deadline: float) -> None:
        """Reap the child of a loop that is closed; a thread does it if the child lives on."""
        assert self.transport is not None
        patience = max(deadline - time.monotonic(), 0) if self.transport.is_closing() else 0
        self.transport = None
        if self.pidfd < 0:
            # A thread waits for it already, or has just told the loop.
            if self._has_ended():
                self.reap()
            return
        question = select.poll()
        question.register(self.pidfd, select.POLLIN)
        if question.poll(patience * 1000):
            self.reap()
            return
        self._close_pidfd()
        self._watch_in_thread()

    def take_if_ended(self) -> None:
        # One that a thread waits for is the thread's to tell about.
        if self._watched and self._has_ended():
            self._ended()

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.process.pid, options) is not None
        except ChildProcessError:
            return True


def take_ended(loop: Any) -> None:
    """Reap our children before a handler of SIGCHLD runs: it may reap every child there is."""
    for child in list(loop._children):
        child.take_if_ended()


def close(loop: Loop) -> None:
    """Let go of the children of a loop that is closed."""
    deadline = time.monotonic() + KILLED_PATIENCE
    while loop._children:
        loop._children.pop().leave(deadline)


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
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        Child(self._loop, self).watch()

    async def _connect_pipes(self, waiter: asyncio.Future[None] | None) -> None:
        self._connecting = connecting = self._loop.create_future()
        try:
            await super()._connect_pipes(waiter)
        finally:
            if self._closed or self._pending_calls is not None:
                # Closed meanwhile, or failed: the other ends may be held open for ever.
                self._close_pipes()
            # Who waited may have been cancelled again, and the future with it.
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
        # A transport closes its file itself, when the kernel has let go of it.
        return file.closed or self._loop._transport_of(file.fileno()) is not None

    def _process_exited(self, returncode: int) -> None:
        try:
            super()._process_exited(returncode)
        finally:
            # Even if the protocol is none that could be told. Who waited may have been cancelled
            # again, and the future with it.
            if not self._reaped.done():
                self._reaped.set_result(None)

    async def wait_for_end(self) -> None:
        """Wait until the child is reaped and its pipes are closing, whatever its start came to."""
        await self._reaped
        if self._connecting is None:
            # The task was cancelled before its first step.
            self._close_pipes()
        else:
            await self._connecting

    def send_signal(self, signal: int) -> None:
        # Some versions of asyncio signal the number alone, which may be another process by now.
        self._check_proc()
        self._proc.send_signal(signal)

    def close(self) -> None:
        if self._loop is None or not self._loop.is_closed():
            super().close()
            return
        # The pipes' transports can not end any more: they close their files when they go.
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
    """Start a child and wait until its pipes are connected; asyncio's checks come before."""
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


async def subprocess_exec(
    loop: Loop, protocol_factory: Callable[[], P], program: Any, *args: Any, **options: Any
) -> tuple[asyncio.SubprocessTransport, P]:
    return await asyncio.BaseEventLoop.subprocess_exec(
        loop,  # type: ignore[arg-type]
        protocol_factory,
        program,
        *args,
        **options,
    )


async def subprocess_shell(
    loop: Loop, protocol_factory: Callable[[], P], cmd: bytes | str, **options: Any
) -> tuple[asyncio.SubprocessTransport, P]:
    return await asyncio.BaseEventLoop.subprocess_shell(
        loop,  # type: ignore[arg-type]
        protocol_factory,
        cmd,
        **options,
    )
