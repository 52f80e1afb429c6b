"""class Loop: the compiled core, and the methods that run once for a connection or a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import socket
import ssl as ssl_module
import sys
import warnings
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar, TypeVarTuple

from uringloop import (
    availability,
    checks,
    connecting,
    executors,
    pipes,
    reporting,
    resolver,
    serving,
    signals,
    subprocesses,
)
from uringloop._core import poll, socketops
from uringloop._core.loop import LoopCore
from uringloop.resolver import AddressInfo

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)
SSLArgument = bool | ssl_module.SSLContext | None
# Any future may come back, though the annotations of asyncio promise a task.
TaskFactory = Callable[..., Any]
FileLike = int | Any


class Loop(LoopCore, asyncio.AbstractEventLoop):
    """An asyncio event loop on io_uring.

    Raises OSError with the cause in its message where the kernel refuses a ring.
    """

    def __init__(self) -> None:
        try:
            super().__init__()
        except OSError as exc:
            raise availability.explained(exc) from None
        self._signals = signals.SignalState(self)
        self._executor = executors.DefaultExecutor()
        self._task_factory: TaskFactory | None = None
        self._exception_handler: reporting.ExceptionHandler | None = None
        self._asyncgens: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._asyncgens_shutdown_called = False
        self._origin_tracking_depth = 0
        self._readers: dict[int, poll.PollWatcher] = {}
        self._writers: dict[int, poll.PollWatcher] = {}
        self._children: set[subprocesses.Child] = set()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} running={self.is_running()} "
            f"closed={self.is_closed()} debug={self.get_debug()}>"
        )

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if self.is_closed():
            return
        _warn(f"unclosed event loop {self!r}", ResourceWarning, source=self)
        if not self.is_running():
            self.close()

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run_forever(self) -> None:
        self._check_closed()
        self._check_running()
        hooks = sys.get_asyncgen_hooks()
        self._track_origins(self.get_debug())
        try:
            sys.set_asyncgen_hooks(
                firstiter=self._asyncgen_started, finalizer=self._asyncgen_finalized
            )
            events._set_running_loop(self)
            signals.begin_run(self)
            self._run()
        finally:
            signals.end_run(self)
            events._set_running_loop(None)
            self._track_origins(False)
            sys.set_asyncgen_hooks(*hooks)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        self._check_closed()
        self._check_running()
        ours = not asyncio.isfuture(future)
        waited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        if ours:
            # The caller sees an exception if the task is left pending: no second report.
            waited._log_destroy_pending = False  # type: ignore[attr-defined]
        waited.add_done_callback(_stop_loop_of)
        try:
            self.run_forever()
        except BaseException:
            if ours and waited.done() and not waited.cancelled():
                # Nobody else can retrieve it: keep it from being reported as never retrieved.
                waited.exception()
            raise
        finally:
            waited.remove_done_callback(_stop_loop_of)
        if not waited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def close(self) -> None:
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        self._readers.clear()
        self._writers.clear()
        self._close()
        subprocesses.close(self)
        signals.close(self)
        self._executor.close()

    def _check_running(self) -> None:
        if self.is_running():
            raise RuntimeError("This event loop is already running")
        if events._get_running_loop() is not None:
            raise RuntimeError("Cannot run the event loop while another loop is running")

    # ── debug mode ───────────────────────────────────────────────────────────────────────────

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

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[T]:
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
        set_name = getattr(made, "set_name", None)
        if set_name is not None and not FACTORY_TAKES_NAME:
            set_name(name)
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

    def set_exception_handler(self, handler: reporting.ExceptionHandler | None) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"A callable object or None is expected, got {handler!r}")
        self._exception_handler = handler

    def get_exception_handler(self) -> reporting.ExceptionHandler | None:
        return self._exception_handler

    def default_exception_handler(self, context: reporting.Context) -> None:
        reporting.log(context, self._current_traceback())

    def call_exception_handler(self, context: reporting.Context) -> None:
        reporting.dispatch(self, self._exception_handler, context)

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
        return executors.run(self, executor or self._executor.get(), func, args)

    @property
    def _default_executor(self) -> concurrent.futures.ThreadPoolExecutor | None:
        """What asyncio's own test-suite and some libraries look at."""
        return self._executor.pool

    def set_default_executor(self, executor: Any) -> None:
        self._executor.set(executor)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await self._executor.shutdown(self, timeout)

    # ── names ────────────────────────────────────────────────────────────────────────────────

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: resolver.Port,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[AddressInfo]:
        return await resolver.getaddrinfo(
            self, host, port, family=family, type=type, proto=proto, flags=flags
        )

    async def getnameinfo(
        self,
        sockaddr: resolver.SocketAddress,
        flags: int = 0,
    ) -> tuple[str, str]:
        return await resolver.getnameinfo(self, sockaddr, flags)

    # ── signals ──────────────────────────────────────────────────────────────────────────────

    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        signals.add_handler(self, sig, callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return signals.remove_handler(self, sig)

    # ── connections ──────────────────────────────────────────────────────────────────────────

    async def create_connection(
        self,
        protocol_factory: Callable[[], P],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: SSLArgument = None,
        family: int = 0,
        proto: int = 0,
        flags: int = 0,
        sock: socket.socket | None = None,
        local_addr: tuple[str, int] | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        happy_eyeballs_delay: float | None = None,
        interleave: int | None = None,
        all_errors: bool = False,
    ) -> tuple[asyncio.Transport, P]:
        checks.check_server_hostname(ssl, server_hostname, host)
        checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        checks.refuse_tls(ssl)
        if sock is not None:
            checks.check_socket(sock)
        return await connecting.create_connection(
            self,
            protocol_factory,
            host,
            port,
            family=family,
            proto=proto,
            flags=flags,
            sock=sock,
            local_addr=local_addr,
            happy_eyeballs_delay=happy_eyeballs_delay,
            interleave=interleave,
            all_errors=all_errors,
        )

    async def create_unix_connection(
        self,
        protocol_factory: Callable[[], P],
        path: str | bytes | os.PathLike[str] | None = None,
        *,
        ssl: SSLArgument = None,
        sock: socket.socket | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> tuple[asyncio.Transport, P]:
        if ssl and server_hostname is None:
            raise ValueError("you have to pass server_hostname when using ssl")
        checks.check_server_hostname(ssl, server_hostname, None)
        checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        checks.refuse_tls(ssl)
        return await connecting.create_unix_connection(self, protocol_factory, path, sock=sock)

    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], P],
        sock: socket.socket,
        *,
        ssl: SSLArgument = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> tuple[asyncio.Transport, P]:
        checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        checks.refuse_tls(ssl)
        return await connecting.connect_accepted_socket(self, protocol_factory, sock)

    # ── servers ──────────────────────────────────────────────────────────────────────────────

    async def create_server(
        self,
        protocol_factory: serving.ProtocolFactory,
        host: str | Sequence[str] | None = None,
        port: int | str | None = None,
        *,
        family: int = socket.AF_UNSPEC,
        flags: int = socket.AI_PASSIVE,
        sock: socket.socket | None = None,
        backlog: int = 100,
        ssl: SSLArgument = None,
        reuse_address: bool | None = None,
        reuse_port: bool | None = None,
        keep_alive: bool | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
    ) -> serving.Server:
        if isinstance(ssl, bool):
            raise TypeError("ssl argument must be an SSLContext or None")
        checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        checks.refuse_tls(ssl)
        return await serving.create_server(
            self,
            protocol_factory,
            host,
            port,
            family=family,
            flags=flags,
            sock=sock,
            backlog=backlog,
            reuse_address=reuse_address,
            reuse_port=reuse_port,
            keep_alive=keep_alive,
            start_serving=start_serving,
        )

    async def create_unix_server(
        self,
        protocol_factory: serving.ProtocolFactory,
        path: str | bytes | os.PathLike[str] | None = None,
        *,
        sock: socket.socket | None = None,
        backlog: int = 100,
        ssl: SSLArgument = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
        cleanup_socket: bool | None = None,
    ) -> serving.Server:
        if isinstance(ssl, bool):
            raise TypeError("ssl argument must be an SSLContext or None")
        checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        checks.refuse_tls(ssl)
        return await serving.create_unix_server(
            self,
            protocol_factory,
            path,
            sock=sock,
            backlog=backlog,
            start_serving=start_serving,
            cleanup_socket=CLEANUP_SOCKET if cleanup_socket is None else cleanup_socket,
        )

    # ── pipes and processes ──────────────────────────────────────────────────────────────────

    async def connect_read_pipe(
        self, protocol_factory: Callable[[], P], pipe: Any
    ) -> tuple[asyncio.ReadTransport, P]:
        return await pipes.connect_read_pipe(self, protocol_factory, pipe)

    async def connect_write_pipe(
        self, protocol_factory: Callable[[], P], pipe: Any
    ) -> tuple[asyncio.WriteTransport, P]:
        return await pipes.connect_write_pipe(self, protocol_factory, pipe)

    async def subprocess_exec(
        self, protocol_factory: Callable[[], P], program: Any, *args: Any, **options: Any
    ) -> tuple[asyncio.SubprocessTransport, P]:
        return await subprocesses.subprocess_exec(self, protocol_factory, program, *args, **options)

    async def subprocess_shell(
        self, protocol_factory: Callable[[], P], cmd: bytes | str, **options: Any
    ) -> tuple[asyncio.SubprocessTransport, P]:
        return await subprocesses.subprocess_shell(self, protocol_factory, cmd, **options)

    # What asyncio's subprocess_exec and subprocess_shell ask of a loop besides.
    @property
    def _debug(self) -> bool:
        return self.get_debug()

    _log_subprocess = asyncio.BaseEventLoop._log_subprocess  # type: ignore[attr-defined]
    _make_subprocess_transport = subprocesses.make_transport

    # ── the user's own sockets ───────────────────────────────────────────────────────────────

    def _check_sock(self, sock: socket.socket) -> None:
        checks.check_socket(sock)
        if self.get_debug():
            checks.check_nonblocking(sock)

    async def sock_recv(self, sock: socket.socket, n: int) -> bytes:
        self._check_sock(sock)
        result: bytes = await socketops.when_readable(self, sock, "recv", n)
        return result

    async def sock_recv_into(self, sock: socket.socket, buf: Any) -> int:
        self._check_sock(sock)
        result: int = await socketops.when_readable(self, sock, "recv_into", buf)
        return result

    async def sock_recvfrom(self, sock: socket.socket, bufsize: int) -> tuple[bytes, Any]:
        self._check_sock(sock)
        result: tuple[bytes, Any] = await socketops.when_readable(self, sock, "recvfrom", bufsize)
        return result

    async def sock_recvfrom_into(
        self, sock: socket.socket, buf: Any, nbytes: int = 0
    ) -> tuple[int, Any]:
        self._check_sock(sock)
        size = nbytes or len(buf)
        result: tuple[int, Any] = await socketops.when_readable(
            self, sock, "recvfrom_into", buf, size
        )
        return result

    async def sock_sendall(self, sock: socket.socket, data: Any) -> None:
        self._check_sock(sock)
        await socketops.sock_sendall(self, sock, data)

    async def sock_sendto(self, sock: socket.socket, data: Any, address: Any) -> int:
        self._check_sock(sock)
        result: int = await socketops.when_writable(self, sock, "sendto", data, address)
        return result

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._check_sock(sock)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            infos = await resolver.ensure_resolved(
                self, address, family=sock.family, type=sock.type, proto=sock.proto
            )
            address = infos[0][4]
        await socketops.sock_connect(self, sock, address)

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        self._check_sock(sock)
        return await socketops.sock_accept(self, sock)

    # ── watchers ─────────────────────────────────────────────────────────────────────────────

    def add_reader(self, fd: FileLike, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        self._add_watcher(self._readers, fd, poll.READ, callback, args)

    def remove_reader(self, fd: FileLike) -> bool:
        return self._remove_watcher(self._readers, fd)

    def add_writer(self, fd: FileLike, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        self._add_watcher(self._writers, fd, poll.WRITE, callback, args)

    def remove_writer(self, fd: FileLike) -> bool:
        return self._remove_watcher(self._writers, fd)

    def _add_watcher(
        self,
        watchers: dict[int, poll.PollWatcher],
        fd: FileLike,
        mask: int,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        self._check_closed()
        number = checks.descriptor(fd)
        self._check_no_transport(number)
        watcher = watchers.get(number)
        if watcher is None:
            checks.check_pollable(number)
            watcher = watchers[number] = poll.PollWatcher(self, number, mask)
        watcher.watch(callback, args)

    def _remove_watcher(self, watchers: dict[int, poll.PollWatcher], fd: FileLike) -> bool:
        number = checks.descriptor(fd)
        self._check_no_transport(number)
        watcher = watchers.pop(number, None)
        if watcher is None:
            return False
        watcher.remove()
        return True

    def _check_no_transport(self, fd: int) -> None:
        transport = self._transport_of(fd)
        if transport is not None and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")

    def _watcher_failed(self, fd: int, writer: bool, exc: OSError) -> None:
        """Forget a descriptor that can not be polled any more, and say so."""
        (self._writers if writer else self._readers).pop(fd, None)
        self.call_exception_handler(
            {
                "message": f"{'add_writer' if writer else 'add_reader'}() can not watch "
                f"file descriptor {fd} any more",
                "exception": exc,
            }
        )


# How many frames of a coroutine's origin debug mode keeps, as asyncio.
ORIGIN_DEPTH = 10

# From 3.14 on asyncio leaves the task's name to the factory.
FACTORY_TAKES_NAME = sys.version_info >= (3, 14)

# From 3.13 on asyncio removes the socket file of a UNIX server that it closes.
CLEANUP_SOCKET = sys.version_info >= (3, 13)


def _stop_loop_of(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and isinstance(future.exception(), (SystemExit, KeyboardInterrupt)):
        # It has left run_forever already.
        return
    future.get_loop().stop()
