"""Clients: create_connection, create_unix_connection, connect_accepted_socket."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import os
import socket
from asyncio import staggered
from asyncio.log import logger
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from uringloop._net.argument_checks import bind_failure, check_socket, check_stream
from uringloop._net.resolver import AddressInfo, ensure_resolved
from uringloop._net.stream import make_stream
from uringloop._tls import upgrade

if TYPE_CHECKING:
    from uringloop.loop import Loop

P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")


async def create_connection(
    loop: Loop,
    protocol_factory: Callable[[], P],
    host: str | None,
    port: int | None,
    *,
    family: int,
    proto: int,
    flags: int,
    sock: socket.socket | None,
    local_addr: tuple[str, int] | None,
    happy_eyeballs_delay: float | None,
    interleave: int | None,
    all_errors: bool,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, P]:
    make = functools.partial(make_protocols, loop, protocol_factory, tls_options)
    if host is not None or port is not None:
        if sock is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        resolve = functools.partial(
            ensure_resolved, loop, family=family, type=socket.SOCK_STREAM, proto=proto, flags=flags
        )
        infos = await resolve((host, port))
        if not infos:
            raise OSError("getaddrinfo() returned empty list")
        local_infos = None
        if local_addr is not None:
            local_infos = await resolve(local_addr)
            if not local_infos:
                raise OSError("getaddrinfo() returned empty list")
        if happy_eyeballs_delay is not None and interleave is None:
            interleave = 1
        if interleave:
            infos = interleaved(infos, interleave)
        sock = await _connect_first(loop, infos, local_infos, happy_eyeballs_delay, all_errors)
        protocols = make_or_close(make, sock)
    else:
        if sock is None:
            raise ValueError("host and port was not specified and no sock specified")
        check_stream(sock)
        protocols = make()
    transport = await open_transport(loop, sock, protocols)
    if loop.get_debug():
        logger.debug("%r connected to %s:%r: (%r, %r)", sock, host, port, transport, protocols.app)
    return transport, protocols.app


async def create_unix_connection(
    loop: Loop,
    protocol_factory: Callable[[], P],
    path: str | bytes | os.PathLike[str] | None,
    *,
    sock: socket.socket | None,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, P]:
    make = functools.partial(make_protocols, loop, protocol_factory, tls_options)
    if path is not None:
        if sock is not None:
            raise ValueError("path and sock can not be specified at the same time")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, os.fspath(path))
        except BaseException:
            sock.close()
            raise
        protocols = make_or_close(make, sock)
    else:
        if sock is None:
            raise ValueError("no path and sock were specified")
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
            raise ValueError(f"A UNIX Domain Stream Socket was expected, got {sock!r}")
        protocols = make()
    return await open_transport(loop, sock, protocols), protocols.app


async def connect_accepted_socket(
    loop: Loop,
    protocol_factory: Callable[[], P],
    sock: socket.socket,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, P]:
    check_stream(sock)
    check_socket(sock)
    protocols = make_protocols(loop, protocol_factory, tls_options)
    transport = await open_transport(loop, sock, protocols)
    if loop.get_debug():
        logger.debug("%r handled: (%r, %r)", sock, transport, protocols.app)
    return transport, protocols.app


# ── from a socket to a transport ─────────────────────────────────────────────────────────────


class Protocols(Generic[P]):
    """The protocols of a connection: the program's, and asyncio's SSLProtocol below it or None."""

    def __init__(self, app: P, tls: SSLProtocol | None, waiter: asyncio.Future[None]) -> None:
        self.app = app
        self.tls = tls
        # Resolved after connection_made(), or at the end of the TLS handshake.
        self.waiter = waiter


def make_protocols(
    loop: Loop, protocol_factory: Callable[[], P], tls_options: upgrade.Options | None
) -> Protocols[P]:
    """Create the protocols. Raises the exceptions for invalid TLS arguments."""
    protocol = protocol_factory()
    waiter = loop.create_future()
    tls = None if tls_options is None else upgrade.wrap(loop, protocol, tls_options, waiter)
    return Protocols(protocol, tls, waiter)


async def open_transport(
    loop: Loop, sock: socket.socket, protocols: Protocols[P]
) -> asyncio.Transport:
    """Create the transport of a connected socket, which it owns, and wait until it is open."""
    try:
        sock.setblocking(False)
        if protocols.tls is None:
            transport = make_stream(loop, sock, protocols.app, protocols.waiter)
        else:
            make_stream(loop, sock, protocols.tls)
            transport = upgrade.app_transport(protocols.tls)
    except BaseException:
        # No transport owns the socket.
        sock.close()
        raise
    try:
        await protocols.waiter
    except BaseException:
        transport.close()
        raise
    return transport


def make_or_close(make: Callable[[], T], sock: socket.socket) -> T:
    """Return the result of *make*; close *sock* if it raises."""
    try:
        return make()
    except BaseException:
        sock.close()
        raise


# ── happy eyeballs ───────────────────────────────────────────────────────────────────────────


def interleaved(infos: Sequence[AddressInfo], first_count: int) -> list[AddressInfo]:
    """Alternate the families of *infos*, the first family leading by *first_count*."""
    by_family: dict[int, list[AddressInfo]] = collections.OrderedDict()
    for info in infos:
        by_family.setdefault(info[0], []).append(info)
    groups = list(by_family.values())
    leading: list[AddressInfo] = []
    if first_count > 1:
        leading = groups[0][: first_count - 1]
        del groups[0][: first_count - 1]
    rounds: Iterable[tuple[AddressInfo | None, ...]] = itertools.zip_longest(*groups)
    return leading + [info for group in rounds for info in group if info is not None]


async def _connect_first(
    loop: Loop,
    infos: Sequence[AddressInfo],
    local_infos: Sequence[AddressInfo] | None,
    delay: float | None,
    all_errors: bool,
) -> socket.socket:
    """Return the first socket that connects.

    Attempts start *delay* seconds apart; without a delay, one starts when the last has failed.
    """
    failures: list[list[OSError]] = []
    attempts = [
        functools.partial(_connect_one, loop, failures, info, local_infos) for info in infos
    ]
    sock = None
    if delay is None:
        for attempt in attempts:
            try:
                sock = await attempt()
                break
            except OSError:
                continue
    else:
        # The race's other results are not kept: they refer to the exceptions.
        sock = (await staggered.staggered_race(attempts, delay, loop=loop))[0]
    try:
        if sock is not None:
            return sock
        raise _combined([exc for group in failures for exc in group], all_errors)
    finally:
        # The exceptions and their frames refer to each other.
        failures.clear()


def _combined(failures: list[OSError], all_errors: bool) -> Exception:
    if all_errors:
        return ExceptionGroup("create_connection failed", failures)
    if not failures:
        return TimeoutError("create_connection failed")
    if len({str(exc) for exc in failures}) == 1:
        return failures[0]
    return OSError("Multiple exceptions: {}".format(", ".join(map(str, failures))))


async def _connect_one(
    loop: Loop,
    failures: list[list[OSError]],
    info: AddressInfo,
    local_infos: Sequence[AddressInfo] | None,
) -> socket.socket:
    mine: list[OSError] = []
    failures.append(mine)
    family, kind, proto, _, address = info
    sock = None
    try:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        if local_infos is not None:
            _bind_local(sock, local_infos, mine)
        await loop.sock_connect(sock, address)
        return sock
    except OSError as exc:
        mine.append(exc)
        if sock is not None:
            sock.close()
        raise
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    finally:
        # The exceptions and this frame refer to each other.
        del failures, mine


def _bind_local(
    sock: socket.socket, local_infos: Sequence[AddressInfo], failures: list[OSError]
) -> None:
    """Bind to the first available local address of the socket's family."""
    family = sock.family
    for local_family, _, _, _, address in local_infos:
        if local_family != family:
            continue
        try:
            sock.bind(address)
            return
        except OSError as exc:
            failures.append(OSError(exc.errno, bind_failure(address, exc)))
    if failures:
        raise failures.pop()
    raise OSError(f"no matching local address with {family=} found")
