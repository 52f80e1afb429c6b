"""Names to addresses: getaddrinfo and getnameinfo on the executor, literals without it."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from asyncio.log import logger
from typing import TypeAlias

Port: TypeAlias = bytes | str | int | None
AddressInfo: TypeAlias = tuple[
    int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]

PROTOCOL_OF_TYPE = {
    socket.SOCK_STREAM: socket.IPPROTO_TCP,
    socket.SOCK_DGRAM: socket.IPPROTO_UDP,
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
    resolve = _timed_getaddrinfo if loop.get_debug() else socket.getaddrinfo
    call = functools.partial(resolve, host, port, family, type, proto, flags)
    return await loop.run_in_executor(None, call)


def _timed_getaddrinfo(
    host: bytes | str | None, port: Port, family: int, type: int, proto: int, flags: int
) -> list[AddressInfo]:
    began = time.monotonic()
    infos = socket.getaddrinfo(host, port, family, type, proto, flags)
    took_ms = (time.monotonic() - began) * 1e3
    level = logger.info if took_ms >= 100 else logger.debug
    level("Getting address info %s:%r took %.3fms: %r", host, port, took_ms, infos)
    return infos


async def getnameinfo(
    loop: asyncio.AbstractEventLoop,
    sockaddr: tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int],
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
    """Return what getaddrinfo would say of an IP address and port in digits, or None."""
    if host is None or proto not in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return None
    if type not in PROTOCOL_OF_TYPE:
        return None
    number = _port_number(port)
    if number is None:
        return None
    if isinstance(host, bytes):
        try:
            host = host.decode("idna")
        except UnicodeError:
            return None
    if "%" in host:
        # A scope's name is the resolver's to translate.
        return None
    families = [family]
    if family == socket.AF_UNSPEC:
        families = [socket.AF_INET, socket.AF_INET6]
    for candidate in families:
        try:
            socket.inet_pton(candidate, host)
        except (OSError, ValueError):
            continue
        if candidate == socket.AF_INET6:
            return (
                candidate,
                type,
                PROTOCOL_OF_TYPE[type],  # type: ignore[index]
                "",
                (host, number, flowinfo, scope_id),
            )
        return candidate, type, PROTOCOL_OF_TYPE[type], "", (host, number)  # type: ignore[index]
    return None


def _port_number(port: Port) -> int | None:
    if port is None or port in ("", b""):
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
    """Resolve the host and port of *address* unless they are in digits already."""
    host, port, *rest = address
    numbers = [part for part in rest if isinstance(part, int)]
    info = literal_info(
        host,  # type: ignore[arg-type]
        port,  # type: ignore[arg-type]
        family=family,
        type=type,
        proto=proto,
        flowinfo=numbers[0] if numbers else 0,
        scope_id=numbers[1] if len(numbers) > 1 else 0,
    )
    if info is not None:
        return [info]
    return await loop.getaddrinfo(
        host,  # type: ignore[arg-type]
        port,  # type: ignore[arg-type]
        family=family,
        type=type,
        proto=proto,
        flags=flags,
    )
