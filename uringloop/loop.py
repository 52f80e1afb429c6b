"""class Loop: asyncio's loop methods that do I/O, each a call into the packages below this one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import select
import socket
import ssl as ssl_module
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Literal, TypeVar, TypeVarTuple

from uringloop._cpython import stdlib
from uringloop._loop.base_loop import BaseLoop
from uringloop._net import (
    adopting,
    argument_checks,
    clients,
    datagram_endpoints,
    names,
    pipes,
    resolver,
    sendfile,
    servers,
    sock_calls,
)
from uringloop._net.datagram_transport import make_datagram
from uringloop._net.resolver import AddressInfo
from uringloop._net.socket_events import Event, found_now, mask_of
from uringloop._net.socket_messages import (
    Ancillary,
    ReceivedFds,
    mask_for,
    message_of,
    received_fds,
    repeatable,
    space_for,
)
from uringloop._net.stream_transport import StreamTransport
from uringloop._process import subprocesses
from uringloop._tls import upgrade
from uringloop._turn import watchers

_Ts = TypeVarTuple("_Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)
D = TypeVar("D", bound=asyncio.DatagramProtocol)
SSLArgument = bool | ssl_module.SSLContext | None
FileLike = int | Any


class Loop(BaseLoop):
    """An asyncio event loop on io_uring.

    *backend*: "io_uring", "soft" or "auto". "soft" is the software ring, which does the same work
    with epoll and a few threads. "auto" is io_uring if the kernel allows this process to use it,
    and the software ring otherwise. None stands for the value of the environment variable
    URINGLOOP_BACKEND or, if that is not set, for "auto". The attribute `backend` names the ring in
    use, and `backend_reason` says why the loop uses it.

    *warn_fallback*: log a warning, once in a process, when "auto" selects the software ring, or
    when a security policy takes io_uring from a running loop, which then continues on the software
    ring. None stands for the value of the environment variable URINGLOOP_WARN_FALLBACK or, if that
    is not set, for True.

    Few programs need the other options; the page "Configuration" of the manual describes the effect
    and the cost of each.

    *busy_poll_us*: poll for work for this many microseconds before each sleep. A sleep and the
    wake-up after it take some 10 us, which is most of the latency if there are few connections. The
    cost is a busy core: while events come at shorter intervals than this, the loop does not sleep.

    *batch_wait_us*: while the loop sleeps, let completions gather for this many microseconds. Many
    quiet connections then cost less CPU time, because fewer turns serve them. Wake-ups other than
    those for timers may be late by this time. On io_uring, this option needs Linux 6.12 and has no
    effect on older kernels.

    *sqpoll*: let a kernel thread on another core send and receive. The thread is busy while it has
    work, and sleeps after this many milliseconds without work; True means 1. Submitted operations
    are carried out a little later with this option, and not within the same turn. *sqpoll_cpu* is
    the processor on which the thread runs; this process need not be allowed to run there. The
    software ring ignores both options.

    *ring_files*: perform operations on files on the ring. With False, threads of the executor
    perform them, and the kernel refuses them to the ring. None stands for the value of the
    environment variable URINGLOOP_RING_FILES or, if that is not set, for True.

    *nestable*: allow `run_until_complete`, `run_forever`, `asyncio.run` and `asyncio.Runner` in a
    callback or a task while this loop runs in the same thread. None stands for the value of the
    environment variable URINGLOOP_NESTABLE or, if that is not set, for False.

    *stall_ms*: when a turn lasts this many milliseconds, have another thread log the stack of the
    loop's thread. 0 switches this off. None stands for the value of the environment variable
    URINGLOOP_STALL_MS or, if that is not set, for 0.

    Raises ValueError for an unknown backend, a time that is out of range, or a processor that does
    not exist, whether an argument or a variable has the value. Raises OSError, with the cause in
    its message, if no ring can be created, or if *backend* is "io_uring" and the kernel refuses
    io_uring.
    """

    def __init__(
        self,
        *,
        backend: Literal["auto", "io_uring", "soft"] | None = None,
        warn_fallback: bool | None = None,
        busy_poll_us: int = 0,
        batch_wait_us: int = 0,
        sqpoll: int = 0,
        sqpoll_cpu: int | None = None,
        ring_files: bool | None = None,
        nestable: bool | None = None,
        stall_ms: int | None = None,
    ) -> None:
        self._watchers = watchers.Watchers(self)
        self._names = names.Names()
        self._children: set[subprocesses.Child] = set()
        super().__init__(
            backend=backend,
            warn_fallback=warn_fallback,
            busy_poll_us=busy_poll_us,
            batch_wait_us=batch_wait_us,
            sqpoll=sqpoll,
            sqpoll_cpu=sqpoll_cpu,
            ring_files=ring_files,
            nestable=nestable,
            stall_ms=stall_ms,
        )

    def _release(self) -> None:
        self._names.close()
        self._watchers.close()
        subprocesses.close(self)

    def _run_nested(self) -> None:
        self._watchers.resume()
        super()._run_nested()

    # ── name resolution ──────────────────────────────────────────────────────────────────────

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
        self._check_owner()
        return await resolver.getaddrinfo(
            self, self._usual_names(), host, port, family, type, proto, flags
        )

    async def getnameinfo(
        self,
        sockaddr: resolver.SocketAddress,
        flags: int = 0,
    ) -> tuple[str, str]:
        self._check_owner()
        return await resolver.getnameinfo(self, self._usual_names(), sockaddr, flags)

    def _usual_names(self) -> names.Names | None:
        """Return what resolves names; None for an executor of a class of the program's own."""
        self._check_closed()
        return self._names if self._executor.is_plain() else None

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
        self._check_owner()
        argument_checks.check_server_hostname(ssl, server_hostname, host)
        argument_checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        if sock is not None:
            argument_checks.check_socket(sock)
        return await clients.create_connection(
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
            tls_options=upgrade.options(
                ssl,
                server_side=False,
                server_hostname=host if server_hostname is None else server_hostname,
                handshake_timeout=ssl_handshake_timeout,
                shutdown_timeout=ssl_shutdown_timeout,
            ),
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
        self._check_owner()
        if ssl and server_hostname is None:
            raise ValueError("you have to pass server_hostname when using ssl")
        argument_checks.check_server_hostname(ssl, server_hostname, None)
        argument_checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        return await clients.create_unix_connection(
            self,
            protocol_factory,
            path,
            sock=sock,
            tls_options=upgrade.options(
                ssl,
                server_side=False,
                server_hostname=server_hostname,
                handshake_timeout=ssl_handshake_timeout,
                shutdown_timeout=ssl_shutdown_timeout,
            ),
        )

    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], P],
        sock: socket.socket,
        *,
        ssl: SSLArgument = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> tuple[asyncio.Transport, P]:
        self._check_owner()
        tls_options = _options_for_accepted(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        return await clients.connect_accepted_socket(self, protocol_factory, sock, tls_options)

    def adopt(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], P],
        *,
        ssl: SSLArgument = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> concurrent.futures.Future[tuple[asyncio.Transport, P]]:
        """Hand a connected socket to this loop; any thread may call this.

        Use this in a program that accepts connections in one loop and distributes them to others.
        The loop treats the socket as connect_accepted_socket() does. Returns a
        concurrent.futures.Future; the loop's thread sets its result, which is the transport and the
        protocol.

        When this method has returned, the socket belongs to the loop. The loop closes the socket if
        *protocol_factory* or the handshake fails, or if the future is cancelled or the loop is
        closed before the loop has reached the socket; the future then has the exception. If this
        method raises an exception itself, as it does for wrong arguments or a closed loop, the
        socket still belongs to the caller.
        """
        tls_options = _options_for_accepted(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        return adopting.adopt(self, protocol_factory, sock, tls_options)

    # ── datagrams ────────────────────────────────────────────────────────────────────────────

    async def create_datagram_endpoint(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], D],
        local_addr: datagram_endpoints.Address = None,
        remote_addr: datagram_endpoints.Address = None,
        *,
        family: int = 0,
        proto: int = 0,
        flags: int = 0,
        # An option of uvloop, and of asyncio until 3.10.
        reuse_address: bool | None = None,
        reuse_port: bool | None = None,
        allow_broadcast: bool | None = None,
        sock: socket.socket | None = None,
        gro: bool = False,
    ) -> tuple[asyncio.DatagramTransport, D]:
        """Open a datagram endpoint as asyncio does.

        A protocol that has `message_received(data, ancdata, flags, addr)` also gets ancillary data.
        With *gro*, the kernel may hand over several datagrams of one sender at once, which is
        cheaper; the protocol still gets each datagram by itself. Raises OSError if *gro* is true
        and the socket does not support it.
        """
        self._check_owner()
        datagram_endpoints.check_reuse_address(reuse_address)
        return await datagram_endpoints.create_datagram_endpoint(
            self,
            protocol_factory,
            local_addr,
            remote_addr,
            family=family,
            proto=proto,
            flags=flags,
            reuse_port=reuse_port,
            allow_broadcast=allow_broadcast,
            sock=sock,
            gro=gro,
        )

    def _make_datagram(
        self, sock: socket.socket, protocol: Any, address: Any, waiter: asyncio.Future[None]
    ) -> Any:
        return make_datagram(self, sock, protocol, address, waiter)

    # ── servers ──────────────────────────────────────────────────────────────────────────────

    async def create_server(
        self,
        protocol_factory: servers.ProtocolFactory,
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
        max_connections: int | None = None,
    ) -> servers.Server:
        """Create a server as asyncio does.

        At most *max_connections* are served at a time; further ones wait in the backlog, in order.
        Raises TypeError or ValueError if *max_connections* is not a positive integer or None.
        """
        self._check_owner()
        tls_options = upgrade.server_options(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        argument_checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        return await servers.create_server(
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
            max_connections=max_connections,
            tls_options=tls_options,
        )

    async def create_unix_server(
        self,
        protocol_factory: servers.ProtocolFactory,
        path: str | bytes | os.PathLike[str] | None = None,
        *,
        sock: socket.socket | None = None,
        backlog: int = 100,
        ssl: SSLArgument = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
        cleanup_socket: bool | None = stdlib.CLOSE_REMOVES_FILE,
        mode: int | None = None,
        max_connections: int | None = None,
    ) -> servers.Server:
        """Create a server as asyncio does.

        At most *max_connections* are served at a time; further ones wait in the backlog, in order.
        Raises TypeError or ValueError if *max_connections* is not a positive integer or None.
        """
        self._check_owner()
        tls_options = upgrade.server_options(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        argument_checks.check_ssl_timeouts(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
        return await servers.create_unix_server(
            self,
            protocol_factory,
            path,
            sock=sock,
            backlog=backlog,
            start_serving=start_serving,
            cleanup_socket=bool(cleanup_socket),
            mode=mode,
            max_connections=max_connections,
            tls_options=tls_options,
        )

    # ── start_tls ────────────────────────────────────────────────────────────────────────────

    async def start_tls(
        self,
        transport: asyncio.BaseTransport,
        protocol: asyncio.BaseProtocol,
        sslcontext: ssl_module.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> asyncio.Transport | None:
        self._check_owner()
        return await upgrade.start(
            self,
            transport,
            protocol,
            upgrade.Options(
                sslcontext,
                server_side,
                server_hostname,
                ssl_handshake_timeout,
                ssl_shutdown_timeout,
            ),
        )

    # ── sendfile ─────────────────────────────────────────────────────────────────────────────

    # These call the methods of the installed asyncio, which check the arguments, fall back and
    # call the hooks _sendfile_native() and _sock_sendfile_native().

    async def sendfile(
        self,
        transport: asyncio.WriteTransport,
        file: IO[bytes],
        offset: int = 0,
        count: int | None = None,
        *,
        fallback: bool = True,
    ) -> int:
        self._check_owner()
        return await asyncio.BaseEventLoop.sendfile(
            self,  # type: ignore[arg-type]
            transport,
            file,
            offset,
            count,
            fallback=fallback,
        )

    async def sock_sendfile(
        self,
        sock: socket.socket,
        file: IO[bytes],
        offset: int = 0,
        count: int | None = None,
        *,
        fallback: bool | None = True,
    ) -> int:
        self._check_owner()
        return await asyncio.BaseEventLoop.sock_sendfile(
            self,  # type: ignore[arg-type]
            sock,
            file,
            offset,
            count,
            fallback=fallback,
        )

    _check_sendfile_params = asyncio.BaseEventLoop._check_sendfile_params  # type: ignore[attr-defined]
    _sendfile_fallback = asyncio.BaseEventLoop._sendfile_fallback  # type: ignore[attr-defined]
    _sock_sendfile_fallback = asyncio.BaseEventLoop._sock_sendfile_fallback  # type: ignore[attr-defined]

    async def _sendfile_native(
        self, transport: StreamTransport, file: IO[bytes], offset: int, count: int | None
    ) -> int:
        return await sendfile.to_transport(self, transport, file, offset, count)

    async def _sock_sendfile_native(
        self, sock: socket.socket, file: IO[bytes], offset: int, count: int | None
    ) -> int:
        return await sendfile.to_socket(self, sock, file, offset, count)

    # ── pipes and processes ──────────────────────────────────────────────────────────────────

    async def connect_read_pipe(
        self, protocol_factory: Callable[[], P], pipe: Any
    ) -> tuple[asyncio.ReadTransport, P]:
        self._check_owner()
        return await pipes.connect_read_pipe(self, protocol_factory, pipe)

    async def connect_write_pipe(
        self, protocol_factory: Callable[[], P], pipe: Any
    ) -> tuple[asyncio.WriteTransport, P]:
        self._check_owner()
        return await pipes.connect_write_pipe(self, protocol_factory, pipe)

    async def subprocess_exec(
        self, protocol_factory: Callable[[], P], program: Any, *args: Any, **options: Any
    ) -> tuple[asyncio.SubprocessTransport, P]:
        self._check_owner()
        return await asyncio.BaseEventLoop.subprocess_exec(
            self,  # type: ignore[arg-type]
            protocol_factory,
            program,
            *args,
            **options,
        )

    async def subprocess_shell(
        self, protocol_factory: Callable[[], P], cmd: bytes | str, **options: Any
    ) -> tuple[asyncio.SubprocessTransport, P]:
        self._check_owner()
        return await asyncio.BaseEventLoop.subprocess_shell(
            self,  # type: ignore[arg-type]
            protocol_factory,
            cmd,
            **options,
        )

    # Loop methods that asyncio's own subprocess_exec and subprocess_shell call.
    _log_subprocess = asyncio.BaseEventLoop._log_subprocess  # type: ignore[attr-defined]
    _make_subprocess_transport = subprocesses.make_transport

    # ── the program's own sockets ────────────────────────────────────────────────────────────

    def _check_sock(self, sock: socket.socket) -> None:
        self._check_owner()
        argument_checks.check_socket(sock)
        if self.get_debug():
            argument_checks.check_nonblocking(sock)

    sock_recv = sock_calls.sock_recv  # type: ignore[assignment]  # its stub has another name for n
    sock_recv_into = sock_calls.sock_recv_into
    sock_sendall = sock_calls.sock_sendall
    sock_connect = sock_calls.sock_connect

    async def sock_recvfrom(self, sock: socket.socket, bufsize: int) -> tuple[bytes, Any]:
        self._check_sock(sock)
        result: tuple[bytes, Any] = await sock_calls.when_readable(self, sock, "recvfrom", bufsize)
        return result

    async def sock_recvfrom_into(
        self, sock: socket.socket, buf: Any, nbytes: int = 0
    ) -> tuple[int, Any]:
        self._check_sock(sock)
        size = nbytes or len(buf)
        result: tuple[int, Any] = await sock_calls.when_readable(
            self, sock, "recvfrom_into", buf, size
        )
        return result

    async def sock_sendto(self, sock: socket.socket, data: Any, address: Any) -> int:
        self._check_sock(sock)
        result: int = await sock_calls.when_writable(self, sock, "sendto", data, address)
        return result

    async def sock_recvmsg(
        self, sock: socket.socket, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, list[Ancillary], int, Any]:
        """Receive as `socket.recvmsg` does. A call that is cancelled has received nothing."""
        self._check_sock(sock)
        result: tuple[bytes, list[Ancillary], int, Any] = await sock_calls.attempt(
            self, sock, mask_for(flags), "recvmsg", (bufsize, ancbufsize, flags)
        )
        return result

    async def sock_recvmsg_into(
        self, sock: socket.socket, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Ancillary], int, Any]:
        """Receive as `socket.recvmsg_into` does. A call that is cancelled has received nothing."""
        self._check_sock(sock)
        arguments = (repeatable(buffers), ancbufsize, flags)
        result: tuple[int, list[Ancillary], int, Any] = await sock_calls.attempt(
            self, sock, mask_for(flags), "recvmsg_into", arguments
        )
        return result

    async def sock_sendmsg(
        self,
        sock: socket.socket,
        buffers: Iterable[Any],
        ancdata: Iterable[Ancillary] = (),
        flags: int = 0,
        address: Any = None,
    ) -> int:
        """Send as `socket.sendmsg` does; return how many bytes were sent, which may be a part."""
        self._check_sock(sock)
        arguments = (repeatable(buffers), repeatable(ancdata), flags, address)
        sent: int = await sock_calls.when_writable(self, sock, "sendmsg", *arguments)
        return sent

    async def sock_send_fds(
        self,
        sock: socket.socket,
        buffers: Iterable[Any],
        fds: Sequence[int],
        flags: int = 0,
        address: Any = None,
    ) -> int:
        """Send descriptors as `socket.send_fds` does. They must stay open until this returns."""
        return await self.sock_sendmsg(sock, buffers, message_of(fds), flags, address)

    async def sock_recv_fds(
        self, sock: socket.socket, bufsize: int, maxfds: int, flags: int = 0
    ) -> ReceivedFds:
        """Receive descriptors as `socket.recv_fds` does. A cancelled call has received nothing."""
        data, ancdata, told, address = await self.sock_recvmsg(
            sock, bufsize, space_for(maxfds), flags
        )
        return data, received_fds(ancdata), told, address

    async def sock_wait(self, sock: socket.socket, events: int) -> Event:
        """Wait until *sock* is in one of the states *events*; return the states that it is in.

        *events* are members of `uringloop.sockets.Event`. HANGUP and ERROR are returned even if
        *events* does not have them. Raises ValueError if *events* is empty or has an unknown bit.
        """
        mask = mask_of(events)
        self._check_sock(sock)
        found: Event = await sock_calls.when_found(self, sock, mask, found_now)
        return found

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        self._check_sock(sock)
        return await sock_calls.sock_accept(self, sock)

    # ── readers and writers ──────────────────────────────────────────────────────────────────

    def add_reader(self, fd: FileLike, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        self._add_watcher(fd, select.EPOLLIN, callback, args)

    def remove_reader(self, fd: FileLike) -> bool:
        return self._remove_watcher(fd, select.EPOLLIN)

    def add_writer(self, fd: FileLike, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        self._add_watcher(fd, select.EPOLLOUT, callback, args)

    def remove_writer(self, fd: FileLike) -> bool:
        return self._remove_watcher(fd, select.EPOLLOUT)

    def _add_watcher(
        self, fd: FileLike, event: int, callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        number = argument_checks.descriptor(fd)
        self._check_no_transport(number)
        self._check_closed()
        argument_checks.check_descriptor(number)
        argument_checks.check_is_c_int(number)
        self._watchers.watch(number, event, callback, args, fd)

    def _remove_watcher(self, fd: FileLike, event: int) -> bool:
        number = argument_checks.descriptor(fd)
        self._check_no_transport(number)
        if self.is_closed():
            return False
        if number < 0:
            # *fd* is a closed file object: look up the number under which it was registered.
            number = self._watchers.descriptor_of(fd)
        argument_checks.check_descriptor(number)
        return self._watchers.remove(number, event)

    def _check_no_transport(self, fd: int) -> None:
        transport = watchers.transport_of(self, fd)
        if transport is not None and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")


def _options_for_accepted(
    ssl: SSLArgument, handshake_timeout: float | None, shutdown_timeout: float | None
) -> upgrade.Options | None:
    """Check the TLS arguments of a connection that a listening socket has accepted."""
    argument_checks.check_ssl_timeouts(ssl, handshake_timeout, shutdown_timeout)
    return upgrade.options(
        ssl,
        server_side=True,
        server_hostname="",
        handshake_timeout=handshake_timeout,
        shutdown_timeout=shutdown_timeout,
    )
