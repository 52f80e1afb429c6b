"""Datagram endpoints: create_datagram_endpoint."""

from __future__ import annotations

import asyncio
import socket
import warnings
from asyncio.log import logger
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from uringloop._cpython import stdlib
from uringloop._net.resolver import ensure_resolved
from uringloop._net.servers import remove_stale_socket

if TYPE_CHECKING:
    from uringloop.loop import Loop

# udp(7); the socket module has no name for it.
UDP_GRO = 104

P = TypeVar("P", bound=asyncio.DatagramProtocol)
Address: TypeAlias = tuple[str, int] | str | None
# Family, protocol, resolved local address, resolved remote address.
Candidate: TypeAlias = tuple[int, int, object, object]


async def create_datagram_endpoint(
    loop: Loop,
    protocol_factory: Callable[[], P],
    local_addr: Address,
    remote_addr: Address,
    *,
    family: int,
    proto: int,
    flags: int,
    reuse_port: bool | None,
    allow_broadcast: bool | None,
    sock: socket.socket | None,
    gro: bool,
) -> tuple[asyncio.DatagramTransport, P]:
    address: object = None
    given = sock
    if sock is not None:
        options: dict[str, object] = {
            "local_addr": local_addr,
            "remote_addr": remote_addr,
            "family": family,
            "proto": proto,
            "flags": flags,
            "reuse_port": reuse_port,
            "allow_broadcast": allow_broadcast,
        }
        _check_given(sock, options)
        sock.setblocking(False)
    else:
        candidates = await _candidates(loop, local_addr, remote_addr, family, proto, flags)
        sock, address = await _open_first(loop, candidates, reuse_port, allow_broadcast)
    waiter = loop.create_future()
    try:
        if gro:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        protocol = protocol_factory()
        transport = loop._make_datagram(sock, protocol, address, waiter)
    except BaseException:
        if given is None:
            sock.close()
        raise
    if loop.get_debug():
        _log_created(local_addr, remote_addr, transport, protocol)
    try:
        await waiter
    except BaseException:
        transport.close()
        raise
    return transport, protocol


def check_reuse_address(wanted: bool | None) -> None:
    if wanted:
        raise ValueError(
            "Passing `reuse_address=True` is no longer supported: with SO_REUSEADDR, processes of "
            "other users could bind the same UDP port and receive its datagrams"
        )
    if wanted is not None:
        warnings.warn(
            "The reuse_address parameter of create_datagram_endpoint() has no effect",
            DeprecationWarning,
            stacklevel=3,
        )


def _check_given(sock: socket.socket, options: dict[str, object]) -> None:
    if stdlib.DATAGRAMS_OF_ANY_TYPE:
        if sock.type == socket.SOCK_STREAM:
            raise ValueError(f"A datagram socket was expected, got {sock!r}")
    elif sock.type != socket.SOCK_DGRAM:
        raise ValueError(f"A UDP Socket was expected, got {sock!r}")
    if any(options.values()):
        problems = ", ".join(f"{name}={value}" for name, value in options.items() if value)
        raise ValueError(
            f"socket modifier keyword arguments can not be used when sock is specified. "
            f"({problems})"
        )


def _log_created(
    local_addr: Address,
    remote_addr: Address,
    transport: asyncio.DatagramTransport,
    protocol: asyncio.DatagramProtocol,
) -> None:
    if local_addr:
        logger.info(
            "Datagram endpoint local_addr=%r remote_addr=%r created: (%r, %r)",
            local_addr,
            remote_addr,
            transport,
            protocol,
        )
    else:
        logger.debug(
            "Datagram endpoint remote_addr=%r created: (%r, %r)", remote_addr, transport, protocol
        )


# ── addresses ────────────────────────────────────────────────────────────────────────────────


async def _candidates(
    loop: Loop, local_addr: Address, remote_addr: Address, family: int, proto: int, flags: int
) -> list[Candidate]:
    """Return the families and addresses to try, in order."""
    if not local_addr and not remote_addr:
        if family == 0:
            raise ValueError("unexpected address family")
        return [(family, proto, None, None)]
    if family == socket.AF_UNIX:
        for path in (local_addr, remote_addr):
            if path is not None and not isinstance(path, str):
                raise TypeError("string is expected")
        if isinstance(local_addr, str) and local_addr:
            remove_stale_socket(local_addr)
        return [(family, proto, local_addr or None, remote_addr or None)]
    found: dict[tuple[int, int], list[object]] = {}
    for side, wanted in enumerate((local_addr, remote_addr)):
        if wanted is None:
            continue
        if not (isinstance(wanted, tuple) and len(wanted) == 2):
            raise TypeError("2-tuple is expected")
        infos = await ensure_resolved(
            loop, wanted, family=family, type=socket.SOCK_DGRAM, proto=proto, flags=flags
        )
        if not infos:
            raise OSError("getaddrinfo() returned empty list")
        for info in infos:
            # The last address of a family is used, as in asyncio.
            found.setdefault((info[0], info[2]), [None, None])[side] = info[4]
    candidates: list[Candidate] = [
        (found_family, found_proto, local, remote)
        for (found_family, found_proto), (local, remote) in found.items()
        if not (local_addr and local is None) and not (remote_addr and remote is None)
    ]
    if not candidates:
        raise ValueError("can not get address information")
    return candidates


# ── sockets ──────────────────────────────────────────────────────────────────────────────────


async def _open_first(
    loop: Loop,
    candidates: list[Candidate],
    reuse_port: bool | None,
    allow_broadcast: bool | None,
) -> tuple[socket.socket, object]:
    """Return the first socket that can be opened, and its remote address or None."""
    failure: OSError | None = None
    try:
        for candidate in candidates:
            try:
                sock = await _open(loop, candidate, reuse_port, allow_broadcast)
            except OSError as exc:
                failure = failure or exc
            else:
                return sock, candidate[3]
        assert failure is not None
        raise failure
    finally:
        # The exception and its frame refer to each other.
        del failure


async def _open(
    loop: Loop, candidate: Candidate, reuse_port: bool | None, allow_broadcast: bool | None
) -> socket.socket:
    family, proto, local, remote = candidate
    sock = socket.socket(family, socket.SOCK_DGRAM, proto)
    try:
        if reuse_port:
            _set_reuse_port(sock)
        if allow_broadcast:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setblocking(False)
        if local:
            sock.bind(local)  # type: ignore[arg-type]
        if remote and not allow_broadcast:
            # A connected socket would not receive the replies to a broadcast.
            await loop.sock_connect(sock, remote)
    except BaseException:
        sock.close()
        raise
    return sock


def _set_reuse_port(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        raise ValueError(
            "reuse_port not supported by socket module, SO_REUSEPORT defined but not implemented."
        ) from None
