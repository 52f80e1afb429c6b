"""Servers: create_server, create_unix_server, and the Server object they return."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
import posix
import socket
import stat
import sys
import weakref
from asyncio import constants, trsock
from asyncio.log import logger
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from uringloop._cpython import stdlib
from uringloop._net.argument_checks import bind_failure, check_limit, check_socket
from uringloop._net.listener import Listener
from uringloop._net.resolver import AddressInfo, ensure_resolved
from uringloop._tls import upgrade
from uringloop._tls.ssl_protocol import SSLProtocol
from uringloop._transport.transport import Connections

if TYPE_CHECKING:
    import ssl

    from uringloop.loop import Loop

# These come from posix because tools that detect blocking calls replace os.stat and os.unlink, and
# allow only asyncio's own servers to call them, by file and function name.
_stat, _unlink = posix.stat, posix.unlink

# The most connections that the kernel lets wait (net.core.somaxconn) on any machine.
BACKLOG_MAX = 65536

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
Hosts = str | Iterable[str] | None


class Drained(NamedTuple):
    """The result of `Server.drain`: how many connections have ended in each way."""

    ended: int  # by themselves, before the timeout
    closed: int  # by close(), after the data written to them had been sent
    aborted: int  # by abort(), because sending their data took too long


class Server(asyncio.Server):
    """A server of a uringloop.Loop.

    Unlike in asyncio, close_clients() and abort_clients() exist on every version of Python.
    """

    # asyncio.Server is a base class for isinstance() and annotations; no method of it is called.

    def __init__(
        self,
        loop: Loop,
        sockets: list[socket.socket],
        protocol_factory: ProtocolFactory,
        backlog: int,
        tls_options: upgrade.Options | None,
        *,
        shared: bool,
        max_connections: int | None,
    ) -> None:
        self._loop = loop
        self._sockets: list[socket.socket] | None = sockets
        self._listeners: list[Listener] = []
        # These have the names of asyncio's attributes, because programs read them.
        self._protocol_factory = protocol_factory
        self._backlog = backlog
        self._ssl_context: ssl.SSLContext | None = None
        self._ssl_handshake_timeout: float | None = None
        self._ssl_shutdown_timeout: float | None = None
        # Returns an accepted connection's protocol: the program's, or an SSLProtocol.
        self._accepted_factory = protocol_factory
        if tls_options is not None:
            self._ssl_context = tls_options.context
            self._ssl_handshake_timeout = tls_options.handshake_timeout
            self._ssl_shutdown_timeout = tls_options.shutdown_timeout
            self._accepted_factory = upgrade.server_factory(loop, protocol_factory, tls_options)
        # The socket was passed in: other processes may accept from it, too.
        self._shared = shared
        # The connections of uringloop's transports; an abandoned one detaches itself in __del__.
        self._connections = Connections(loop, self._wake_if_done)
        # pause_accepting() was called, resume_accepting() was not.
        self._paused = False
        self._max_connections: int | None = None
        self._limit_to(max_connections)
        # Transports of other classes, which call _attach() and _detach() as asyncio's do.
        self._foreign_transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        # How often _attach() was called without a transport, less the calls of _detach().
        self._anonymous_count = 0
        self._waiters: list[asyncio.Future[None]] | None = []
        self._serving = False
        self._serving_forever_fut: asyncio.Future[None] | None = None
        # The path and inode of a UNIX socket's file, if close() removes it.
        self._socket_file: tuple[str | bytes, int] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sockets={self.sockets!r}>"

    # ── connections ──────────────────────────────────────────────────────────────────────────

    # Up to 3.12 asyncio's _attach() has no argument: subclasses of its servers call it like that.

    def _attach(self, transport: asyncio.Transport | None = None) -> None:
        if transport is None:
            self._anonymous_count += 1
        else:
            self._foreign_transports.add(transport)

    def _detach(self, transport: asyncio.Transport | None = None) -> None:
        if transport is None:
            self._anonymous_count -= 1
        else:
            self._foreign_transports.discard(transport)
        self._wake_if_done()

    def _wake_if_done(self) -> None:
        """Resolve the waiters of wait_closed() if the server is closed and has no connection."""
        if self._sockets is not None or self._waiters is None or self._active_count:
            return
        waiters, self._waiters = self._waiters, None
        # Drop the reference to this server, so that a closed server is in no reference cycle.
        self._connections.end()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def _active_count(self) -> int:
        return self._connections.count + len(self._foreign_transports) + self._anonymous_count

    def _transports(self) -> list[asyncio.Transport]:
        return [*self._connections.transports(), *self._foreign_transports]

    def close_clients(self) -> None:
        """Close each connection as soon as the data written to it has been sent."""
        for transport in self._transports():
            transport.close()

    def abort_clients(self) -> None:
        """Close all connections at once; unsent data is lost."""
        for transport in self._transports():
            transport.abort()

    # ── limits ───────────────────────────────────────────────────────────────────────────────

    def pause_accepting(self) -> None:
        """Stop accepting: new connections wait in the backlog, or other processes accept them."""
        self._loop._check_owner()
        self._paused = True
        self._hold_or_release()

    def resume_accepting(self) -> None:
        """Accept again, including what waits in the backlog, up to `max_connections`."""
        self._loop._check_owner()
        self._paused = False
        self._hold_or_release()

    @property
    def max_connections(self) -> int | None:
        """The largest number of connections at a time, or None for no limit.

        Setting a limit below the present number of connections closes none of them.
        """
        return self._max_connections

    @max_connections.setter
    def max_connections(self, limit: int | None) -> None:
        self._loop._check_owner()
        check_limit(limit)
        self._limit_to(limit)
        self._hold_or_release()

    def _limit_to(self, limit: int | None) -> None:
        self._max_connections = limit
        if limit is None:
            self._connections.limit_to(None, None)
        else:
            self._connections.limit_to(min(limit, sys.maxsize), self._hold_or_release)

    def _may_accept(self) -> bool:
        return not self._paused and self._connections.has_room()

    def _hold_or_release(self) -> None:
        for listener in self._listeners:
            if self._may_accept():
                listener.release()
            else:
                listener.hold()

    async def drain(self, timeout: float | None = None, close_timeout: float = 1.0) -> Drained:
        """Stop listening, wait until all connections have ended, and return how they ended.

        Connections in the backlog are also served, unless other processes accept from the socket.
        After *timeout* seconds the server closes the connections that remain, and *close_timeout*
        seconds later it aborts those that are still open. serve_forever() ends when this returns.
        """
        self._loop._check_owner()
        # Before anything ends: these raise TypeError.
        deadline = math.inf if timeout is None else self._loop.time() + timeout
        close_timeout = 0.0 + close_timeout
        # What the backlog has would be reset.
        self._limit_to(None)
        try:
            count = await self._accept_rest(deadline)
            self._stop_listening()
            await self._until_ended(deadline - self._loop.time())
            remaining = self._active_count
            for transport in self._transports():
                close_politely(transport)
            await self._until_ended(close_timeout)
            aborted = self._active_count
            self.abort_clients()
            await self._until_ended(close_timeout)
        finally:
            self.close()
        return Drained(count - remaining, remaining - aborted, aborted)

    async def _accept_rest(self, deadline: float) -> int:
        """Accept what waits in the backlog of each socket, and close the socket.

        Returns the number of connections that were there or have come.
        """
        # A client that finds the file after that could only be reset.
        self._remove_file()
        count = self._active_count
        listeners = list(self._listeners)
        while listeners:
            for listener in listeners:
                before = self._active_count
                listener.accept_rest(BACKLOG_MAX)
                count += self._active_count - before
                if not listener.is_paused():
                    # At once: a client that connects from now on would wait to be reset.
                    listener.close()
            listeners = [listener for listener in listeners if listener.is_paused()]
            for listener in listeners:
                # Not to retry on its own.
                listener.hold()
            left = deadline - self._loop.time()
            if left <= 0:
                break
            if listeners:
                # This process has no descriptor. Connections that end free some.
                await asyncio.sleep(min(left, constants.ACCEPT_RETRY_DELAY))
        return count

    async def _until_ended(self, timeout: float) -> None:
        """Wait until no connection is left, for *timeout* seconds at most."""
        if self._active_count and self._waiters is not None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=None if timeout == math.inf else timeout)

    # ── asyncio.Server ───────────────────────────────────────────────────────────────────────

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    @property
    def sockets(self) -> tuple[trsock.TransportSocket, ...]:  # type: ignore[override]
        return tuple(trsock.TransportSocket(sock) for sock in self._sockets or ())

    def _begin(self) -> None:
        if self._serving or self._sockets is None:
            return
        self._serving = True
        for sock in self._sockets:
            # Before listen(): connections inherit the options that the Listener sets.
            listener = Listener(
                self._loop, sock, self._accepted_factory, self._connections, self._shared
            )
            sock.listen(self._backlog)
            self._listeners.append(listener)
            if self._may_accept():
                listener.start()
            else:
                listener.hold()
            if self._loop._first_server is None:
                self._loop._first_server = sock.getsockname()

    async def start_serving(self) -> None:
        self._loop._check_owner()
        if self._sockets is None:
            raise RuntimeError(f"server {self!r} is closed")
        self._begin()
        # After one turn the kernel has the submissions.
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        self._loop._check_owner()
        if self._serving_forever_fut is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        if self._sockets is None:
            raise RuntimeError(f"server {self!r} is closed")
        self._begin()
        self._serving_forever_fut = self._loop.create_future()
        try:
            await self._serving_forever_fut
        except asyncio.CancelledError:
            self.close()
            if stdlib.CANCEL_CLOSES_CLIENTS:
                self.close_clients()
            await self.wait_closed()
            raise
        finally:
            self._serving_forever_fut = None

    def close(self) -> None:
        """Stop listening. The ports are free when this returns; connections stay open."""
        self._loop._check_owner()
        self._stop_listening()
        if self._serving_forever_fut is not None and not self._serving_forever_fut.done():
            self._serving_forever_fut.cancel()
            self._serving_forever_fut = None
        self._wake_if_done()

    def _stop_listening(self) -> None:
        sockets, self._sockets = self._sockets, None
        if sockets is None:
            return
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        # A server that was not started, or not completely, has sockets without listeners.
        for sock in sockets[len(listeners) :]:
            sock.close()
        self._serving = False
        self._remove_file()

    def _remove_file(self) -> None:
        if self._socket_file is not None:
            _remove_socket_file(*self._socket_file)

    async def wait_closed(self) -> None:
        """Wait until the server is closed and its connections have ended.

        Before Python 3.12 this returns at once if the server is closed, as in asyncio.
        """
        self._loop._check_owner()
        if self._waiters is None:
            return
        if self._sockets is None and stdlib.WAIT_CLOSED_IGNORES_CLIENTS:
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter


def close_politely(transport: asyncio.Transport) -> None:
    """Close a connection as its protocol would: over TLS, the peer is told of the end."""
    protocol = transport.get_protocol()
    if isinstance(protocol, SSLProtocol):
        upgrade.app_transport(protocol).close()
    else:
        transport.close()


# ── TCP ──────────────────────────────────────────────────────────────────────────────────────


async def create_server(
    loop: Loop,
    protocol_factory: ProtocolFactory,
    host: Hosts,
    port: int | str | None,
    *,
    family: int,
    flags: int,
    sock: socket.socket | None,
    backlog: int,
    reuse_address: bool | None,
    reuse_port: bool | None,
    keep_alive: bool | None,
    start_serving: bool,
    max_connections: int | None,
    tls_options: upgrade.Options | None,
) -> Server:
    check_limit(max_connections)
    if host is not None or port is not None:
        if sock is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        infos = await _resolve_hosts(loop, host, port, family, flags)
        options = [socket.SO_REUSEADDR] if reuse_address is None or reuse_address else []
        if reuse_port:
            options.append(socket.SO_REUSEPORT)
        if keep_alive:
            options.append(socket.SO_KEEPALIVE)
        sockets = _bind_all(loop, infos, options)
    else:
        if sock is None:
            raise ValueError("Neither host/port nor sock were specified")
        check_socket(sock)
        if sock.type != socket.SOCK_STREAM:
            raise ValueError(f"A Stream Socket was expected, got {sock!r}")
        sockets = [sock]
    shared = sock is not None
    server = Server(
        loop,
        sockets,
        protocol_factory,
        backlog,
        tls_options,
        shared=shared,
        max_connections=max_connections,
    )
    return await _serve(server, sockets, start_serving)


async def _serve(server: Server, sockets: list[socket.socket], start_serving: bool) -> Server:
    for sock in sockets:
        sock.setblocking(False)
    if start_serving:
        try:
            await server.start_serving()
        except BaseException:
            # Nobody gets the server. A given socket on which listen() failed stays the caller's.
            if server._listeners or not server._shared:
                server.close()
            raise
    if server._loop.get_debug():
        logger.info("%r is serving", server)
    return server


async def _resolve_hosts(
    loop: Loop, host: Hosts, port: int | str | None, family: int, flags: int
) -> list[AddressInfo]:
    """Resolve every host; an address of several hosts is returned once."""
    hosts: list[str | None]
    if host is None or (isinstance(host, str) and not host):
        hosts = [None]
    elif isinstance(host, str) or not isinstance(host, Iterable):
        hosts = [host]
    else:
        hosts = list(host)
    found = await asyncio.gather(
        *(_resolve_host(loop, name, port, family, flags) for name in hosts)
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


async def _resolve_host(
    loop: Loop, host: str | None, port: int | str | None, family: int, flags: int
) -> list[AddressInfo]:
    infos = await ensure_resolved(
        loop, (host, port), family=family, type=socket.SOCK_STREAM, flags=flags
    )
    if not infos:
        raise OSError(f"getaddrinfo({host!r}) returned empty list")
    return infos


def _bind_all(
    loop: Loop, infos: Sequence[AddressInfo], options: Sequence[int]
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in infos:
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                # The kernel is built without this family.
                if loop.get_debug():
                    logger.warning(
                        "create_server() failed to create socket.socket(%r, %r, %r)",
                        family,
                        kind,
                        proto,
                        exc_info=True,
                    )
                continue
            sockets.append(sock)
            for option in options:
                sock.setsockopt(socket.SOL_SOCKET, option, True)
            if family == socket.AF_INET6:
                # One socket per family: a dual-stack socket would bind the IPv4 port as well.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            try:
                sock.bind(address)
            except OSError as exc:
                reason = bind_failure(address, exc)
                if exc.errno != errno.EADDRNOTAVAIL or not stdlib.SERVERS_SKIP_ADDRESSES:
                    raise OSError(exc.errno, reason) from None
                # The machine has no address of the family.
                sockets.pop().close()
                if loop.get_debug():
                    logger.warning(reason)
        if not sockets and stdlib.SERVERS_SKIP_ADDRESSES:
            raise OSError(f"could not bind on any address out of {[info[4] for info in infos]!r}")
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


# ── UNIX ─────────────────────────────────────────────────────────────────────────────────────


async def create_unix_server(
    loop: Loop,
    protocol_factory: ProtocolFactory,
    path: str | bytes | os.PathLike[str] | None,
    *,
    sock: socket.socket | None,
    backlog: int,
    start_serving: bool,
    cleanup_socket: bool,
    mode: int | None,
    max_connections: int | None,
    tls_options: upgrade.Options | None,
) -> Server:
    check_limit(max_connections)
    if path is not None:
        if sock is not None:
            raise ValueError("path and sock can not be specified at the same time")
        sock = _bind_path(os.fspath(path), mode)
    else:
        if sock is None:
            raise ValueError("path was not specified, and no sock specified")
        if mode is not None:
            raise ValueError("mode is only meaningful with path")
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
            raise ValueError(f"A UNIX Domain Stream Socket was expected, got {sock!r}")
    shared = path is None
    server = Server(
        loop,
        [sock],
        protocol_factory,
        backlog,
        tls_options,
        shared=shared,
        max_connections=max_connections,
    )
    if cleanup_socket:
        # Find the file before the server listens, because nobody gets the server if this raises.
        try:
            server._socket_file = _socket_file(sock)
        except OSError:
            if not shared:
                server.close()
            raise
    return await _serve(server, [sock], start_serving)


def _socket_file(sock: socket.socket) -> tuple[str | bytes, int] | None:
    """Return the path and inode of a bound UNIX socket; None for an abstract name.

    A socket without a name raises IndexError, as in asyncio.
    """
    path = sock.getsockname()
    if path[0] in (0, "\0"):
        return None
    try:
        return path, _stat(path).st_ino
    except FileNotFoundError:
        # Removed already, or bound relative to another directory.
        return None


def _remove_socket_file(path: str | bytes, inode: int) -> None:
    """Remove the file of a closed server, unless another server has replaced it."""
    try:
        if _stat(path).st_ino == inode:
            _unlink(path)
    except FileNotFoundError:
        # Removed already.
        return
    except OSError as exc:
        logger.error("Unable to clean up listening UNIX socket %r: %r", path, exc)


def _bind_path(path: str | bytes, mode: int | None) -> socket.socket:
    if mode is not None and path and path[0] in (0, "\0"):
        raise ValueError("mode is not supported for abstract sockets")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        remove_stale_socket(path)
        sock.bind(path)
        if mode is not None:
            # Before listen(): no client can connect yet.
            os.chmod(path, mode)
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"Address {path!r} is already in use") from None
        raise
    except BaseException:
        sock.close()
        raise
    return sock


def remove_stale_socket(path: str | bytes) -> None:
    """Remove the socket file that an earlier process has left. An abstract name has no file."""
    if path[0] in (0, "\0"):
        return
    try:
        if stat.S_ISSOCK(_stat(path).st_mode):
            _unlink(path)
    except FileNotFoundError:
        # The usual case.
        return
    except OSError as exc:
        # bind() may succeed all the same, or raises an exception of its own.
        logger.error("Unable to check or remove stale UNIX socket %r: %r", path, exc)
