"""Child processes: started by subprocess.Popen, with pipe transports, reaped after a pidfd poll.

The checks of arguments and most of the transport are those of the running Python's asyncio. This
module notices the exit of a child: by a one-shot poll of its pidfd on the ring or, without a pidfd,
by a thread that waits. It uses neither a child watcher nor SIGCHLD, so the loop may run in any
thread. Every child is reaped, whatever happens to its transport and its loop: by the loop while
that is open, by `close` if the child was killed, and by a thread if the child outlives the loop.
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

# asyncio's exit code for a child that other code in the process has reaped.
UNKNOWN_EXIT_CODE = 255
# Seconds for which closing a loop waits for killed children. A child that is stuck in the kernel
# takes longer, and is left to a thread.
KILLED_TIMEOUT = 1.0


# ── the child ────────────────────────────────────────────────────────────────────────────────


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
        self._watched = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Have the loop reap the child when it exits, and notify the transport."""
        self.loop._children.add(self)
        try:
            self.pidfd = os.pidfd_open(self.process.pid)
        except (OSError, AttributeError):
            # No descriptor is free, a sandbox forbids the call, SIGCHLD is ignored and the child
            # gone, or Python was built with headers that lack pidfd_open.
            self._watch_in_thread()
            return
        self.loop._signals.before[signal.SIGCHLD] = reap_ended
        self.loop._watchers.watch(self.pidfd, fd_watch.READ, self._ended, ())
        self._watched = True

    def _watch_in_thread(self) -> None:
        name = f"uringloop-child-{self.process.pid}"
        threading.Thread(target=self._wait_in_thread, name=name, daemon=True).start()

    def _wait_in_thread(self) -> None:
        # Only the loop's thread reaps (WNOWAIT), so that Popen.poll() there still finds the child.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        try:
            self.loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            # The loop is closed: no transport waits for the exit code.
            self.reap()

    def _ended(self) -> None:
        if self._watched:
            self.loop._watchers.remove(self.pidfd, fd_watch.READ)
            self._watched = False
        self.loop._children.discard(self)
        assert self.transport is not None
        # In the next turn: by then what the child wrote before its exit has been read.
        self.loop.call_soon(self.transport._process_exited, self.reap())

    def reap(self) -> int:
        """Reap a child that has exited, if that is still to be done; return its exit code."""
        with self._lock:
            try:
                # Popen.poll() may have reaped it.
                if self.process.returncode is None:
                    self.process.returncode = self._wait_for_exit_code()
            finally:
                self._close_pidfd()
        return self.process.returncode

    def _wait_for_exit_code(self) -> int:
        pid = self.process.pid
        # Unlike the PID, the pidfd cannot refer to another process by now.
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

    def reap_or_leave(self, deadline: float) -> None:
        """Reap the child of a loop that is closed; a thread does it if the child still runs."""
        assert self.transport is not None
        if self._parent != os.getpid():
            # A forked child: the process is its parent's child.
            self._close_pidfd()
            return
        timeout_s = max(deadline - time.monotonic(), 0) if self.transport.is_closing() else 0
        self.transport = None
        if self.pidfd < 0:
            # A thread waits for the exit already, or has just scheduled _ended().
            if self._has_ended():
                self.reap()
            return
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            self.reap()
            return
        self._close_pidfd()
        self._watch_in_thread()

    def reap_if_ended(self) -> None:
        # Without a pidfd the thread that waits schedules _ended().
        if self._watched and self._has_ended():
            self._ended()

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.process.pid, options) is not None
        except ChildProcessError:
            return True


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
                # The transport was closed meanwhile, or connecting has failed. Other processes may
                # hold the other ends open for ever.
                self._close_pipes()
            # A cancel of wait_for_end() has cancelled the future, too.
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
        return file.closed or fd_watch.transport_of(self._loop, file.fileno()) is not None

    def _process_exited(self, returncode: int) -> None:
        try:
            super()._process_exited(returncode)
        finally:
            # Also if the protocol has no process_exited(). A cancel of wait_for_end() has cancelled
            # the future.
            if not self._reaped.done():
                self._reaped.set_result(None)

    async def wait_for_end(self) -> None:
        """Wait until the child is reaped and its pipes are closing, also if its start failed."""
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
            # A pipe's transport would refuse to close, after this one is marked as closed.
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
