"""Name resolution: getaddrinfo() and getnameinfo() in the executor, numeric addresses at once."""

from __future__ import annotations

import asyncio
import socket
import time
from asyncio.log import logger
from socket import AddressFamily, SocketKind
from typing import Literal, TypeAlias

Port: TypeAlias = bytes | str | int | None
SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
AddressInfo: TypeAlias = (
    tuple[Literal[AddressFamily.AF_INET], SocketKind, int, str, tuple[str, int]]
    | tuple[
        Literal[AddressFamily.AF_INET6],
        SocketKind,
        int,
        str,
        tuple[str, int, int, int] | tuple[int, bytes],
    ]
)

# The type and protocol that getaddrinfo() returns for a numeric address, by the requested type.
KINDS = {
    int(socket.SOCK_STREAM): (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    int(socket.SOCK_DGRAM): (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
}


async def getaddrinfo(
    loop: asyncio.AbstractEventLoop,
    host: bytes | str | None,
    port: Port,
    *,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> list[AddressInfo]:
    """Resolve on the default executor; in debug mode, log how long it took."""
    resolve = _timed_getaddrinfo if loop.get_debug() else _getaddrinfo
    return await loop.run_in_executor(None, resolve, host, port, family, type, proto, flags)


def _getaddrinfo(
    host: bytes | str | None, port: Port, family: int, type: int, proto: int, flags: int
) -> list[AddressInfo]:
    return list(socket.getaddrinfo(host, port, family, type, proto, flags))


def _timed_getaddrinfo(
    host: bytes | str | None, port: Port, family: int, type: int, proto: int, flags: int
) -> list[AddressInfo]:
    began = time.monotonic()
    infos = _getaddrinfo(host, port, family, type, proto, flags)
    took_ms = (time.monotonic() - began) * 1e3
    level = logger.info if took_ms >= 100 else logger.debug
    level("Getting address info %s:%r took %.3fms: %r", host, port, took_ms, infos)
    return infos


async def getnameinfo(
    loop: asyncio.AbstractEventLoop,
    sockaddr: SocketAddress,
    flags: int = 0,
) -> tuple[str, str]:
    return await loop.run_in_executor(None, socket.getnameinfo, sockaddr, flags)


def literal_info(
    host: str | bytes | None,
    port: Port,
    *,
    family: int,
    type: int,
    proto: int,
    flowinfo: int = 0,
    scope_id: int = 0,
) -> AddressInfo | None:
    """Return what getaddrinfo() returns for a numeric host and port; None for other hosts."""
    if host is None or proto not in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return None
    kind = KINDS.get(type)
    if kind is None:
        return None
    number = _port_number(port)
    if number is None:
        return None
    if isinstance(host, bytes):
        host = host.decode("idna")
    if "%" in host:
        # The resolver translates the name of a scope.
        return None
    if family != socket.AF_INET6 and _is_literal(family or socket.AF_INET, host):
        return socket.AF_INET, *kind, "", (host, number)
    if family in (socket.AF_UNSPEC, socket.AF_INET6) and _is_literal(socket.AF_INET6, host):
        return socket.AF_INET6, *kind, "", (host, number, flowinfo, scope_id)
    return None


def _is_literal(family: int, host: str) -> bool:
    # inet_pton() raises OSError if the host is not numeric, or the family neither IPv4 nor IPv6. A
    # host with a null character raises ValueError, which the caller gets.
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    return True


def _port_number(port: Port) -> int | None:
    # `port in ("", b"")` would raise BytesWarning under `python -bb`.
    if port is None or (isinstance(port, (bytes, str)) and not port):
        return 0
    try:
        return int(port)
    except (TypeError, ValueError):
        return None


async def ensure_resolved(
    loop: asyncio.AbstractEventLoop,
    address: tuple[object, ...],
    *,
    family: int = 0,
    type: int = socket.SOCK_STREAM,
    proto: int = 0,
    flags: int = 0,
) -> list[AddressInfo]:
    """Return the addresses of a host and port; numeric ones are not resolved."""
    host, port = address[:2]
    rest = address[2:]
    if len(rest) > 2:
        raise TypeError(f"an address has 2 to 4 items, got {address!r}")
    info = literal_info(
        host,  # type: ignore[arg-type]  # Sockets and the resolver raise for other types.
        port,  # type: ignore[arg-type]
        family=family,
        type=type,
        proto=proto,
        flowinfo=rest[0] if rest else 0,  # type: ignore[arg-type]
        scope_id=rest[1] if len(rest) > 1 else 0,  # type: ignore[arg-type]
    )
    if info is not None:
        return [info]
    infos = await loop.getaddrinfo(
        host,  # type: ignore[arg-type]
        port,  # type: ignore[arg-type]
        family=family,
        type=type,
        proto=proto,
        flags=flags,
    )
    # A resolver of the program may return None.
    return list(infos or ())
