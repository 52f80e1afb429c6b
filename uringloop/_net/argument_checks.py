"""Checks of arguments that several methods share, with asyncio's wording."""

from __future__ import annotations

import socket
import ssl

from uringloop._cpython import stdlib

# The largest descriptor.
C_INT_MAX = 2**31 - 1


def check_stream(sock: socket.socket) -> None:
    """Raise ValueError for a socket of another type; the family does not matter, as in asyncio."""
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")


def check_socket(sock: socket.socket) -> None:
    """Raise TypeError for an SSLSocket: a transport would read encrypted records."""
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")


def check_nonblocking(sock: socket.socket) -> None:
    if sock.gettimeout() != 0:
        raise ValueError("the socket must be non-blocking")


def check_ssl_timeouts(
    ssl: object, ssl_handshake_timeout: float | None, ssl_shutdown_timeout: float | None
) -> None:
    """Raise ValueError for TLS timeouts without TLS."""
    if ssl:
        return
    if ssl_handshake_timeout is not None:
        raise ValueError("ssl_handshake_timeout is only meaningful with ssl")
    if ssl_shutdown_timeout is not None:
        raise ValueError("ssl_shutdown_timeout is only meaningful with ssl")


def check_server_hostname(ssl: object, server_hostname: str | None, host: str | None) -> None:
    """Raise ValueError for a host name without TLS, and for TLS without a host name."""
    if server_hostname is not None and not ssl:
        raise ValueError("server_hostname is only meaningful with ssl")
    if server_hostname is None and ssl and not host:
        raise ValueError("You must set server_hostname when using ssl without a host")


def bind_failure(address: object, exc: OSError) -> str:
    """Return asyncio's message for a failed bind()."""
    reason = str(exc) if stdlib.BIND_SAYS_ERRNO else exc.strerror or ""
    return f"error while attempting to bind on address {address!r}: {reason.lower()}"


def descriptor(file: object) -> int:
    """Return the descriptor *file*, or its fileno(). Raises ValueError for other objects."""
    if isinstance(file, int):
        return file
    try:
        return int(file.fileno())  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"Invalid file object: {file!r}") from None


def check_descriptor(fd: int) -> None:
    if fd < 0:
        raise ValueError(f"Invalid file descriptor: {fd}")


def check_is_c_int(fd: int) -> None:
    """Raise OverflowError for a number that no descriptor can have, as selectors do."""
    if fd > C_INT_MAX:
        raise OverflowError("Python int too large to convert to C int")


def check_limit(max_connections: int | None) -> None:
    """Raise TypeError or ValueError for a limit of a server that is not a positive number."""
    if max_connections is None:
        return
    if not isinstance(max_connections, int):
        raise TypeError(
            f"max_connections must be an integer or None, not {type(max_connections).__name__}"
        )
    if max_connections < 1:
        raise ValueError(f"max_connections must be at least 1: {max_connections!r}")
