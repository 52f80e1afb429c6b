"""Name resolution: getaddrinfo() and getnameinfo() in threads, numeric addresses at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from asyncio.log import logger
from collections.abc import Callable
from socket import AddressFamily, SocketKind
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from uringloop._cpython.stdlib import Original

if TYPE_CHECKING:
    from uringloop._net.names import Names, Query

T = TypeVar("T")
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


GETADDRINFO = Original(socket, "getaddrinfo", uses="_socket")
GETNAMEINFO = Original(socket, "getnameinfo")


async def getaddrinfo(
    loop: asyncio.AbstractEventLoop,
    names: Names | None,
    host: bytes | str | None,
    port: Port,
    family: int,
    type: int,
    proto: int,
    flags: int,
) -> list[AddressInfo]:
    """Resolve by *names*, or by the default executor; in debug mode, log how long it took."""
    question = (host, port, family, type, proto, flags)
    debug = loop.get_debug()
    if debug:
        _log_question(*question)
    answer: Any = None
    if names is not None and GETADDRINFO.is_in_place():
        answer = names.addresses(loop, *question)
    if answer is None:
        answer = await loop.run_in_executor(None, _timed, socket.getaddrinfo, question)
    elif not isinstance(answer, tuple):
        answer = await _answer_of(answer)
    infos: list[AddressInfo]
    infos, took_s = answer
    if debug:
        _log_answer(loop, took_s, infos, *question)
    return infos


async def getnameinfo(
    loop: asyncio.AbstractEventLoop,
    names: Names | None,
    sockaddr: SocketAddress,
    flags: int,
) -> tuple[str, str]:
    """Resolve by *names*, or by the default executor."""
    answer: Any = None
    if names is not None and GETNAMEINFO.is_in_place():
        answer = names.name(loop, sockaddr, flags)
    if answer is None:
        return await loop.run_in_executor(None, socket.getnameinfo, sockaddr, flags)
    if not isinstance(answer, tuple):
        answer = await _answer_of(answer)
    found: tuple[str, str] = answer[0]
    return found


async def _answer_of(query: Query) -> tuple[Any, float]:
    waiter = query.new_waiter()
    try:
        return await waiter
    finally:
        query.forget(waiter)


def _timed(function: Callable[..., T], args: tuple[Any, ...]) -> tuple[T, float]:
    began = time.monotonic()
    return function(*args), time.monotonic() - began


def _log_question(host: object, port: object, *rest: object) -> None:
    logger.debug("Get address info %s", _format_question(host, port, *rest))


def _log_answer(
    loop: Any, took_s: float, infos: object, host: object, port: object, *rest: object
) -> None:
    is_slow = took_s >= loop.slow_callback_duration
    logger.log(
        logging.INFO if is_slow else logging.DEBUG,
        "Getting address info %s took %.3fms: %r",
        _format_question(host, port, *rest),
        took_s * 1e3,
        infos,
    )


def _format_question(host: object, port: object, *rest: object) -> str:
    options = zip(("family", "type", "proto", "flags"), rest, strict=True)
    return ", ".join(
        [f"{host}:{port!r}", *(f"{name}={value!r}" for name, value in options if value)]
    )


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
