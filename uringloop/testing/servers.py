"""Finds the server of a loop for tests that a client connects to."""

from __future__ import annotations

import ipaddress
import os
import posix
import socket
from typing import Any

from uringloop._net.listener import Listener
from uringloop._net.servers import Server
from uringloop.testing.weak_list import WeakList

# Hosts that stand for every address of the machine.
EVERY_ADDRESS: dict[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


BROADCAST = "255.255.255.255"


class Servers:
    """The servers of one loop. They listen on real sockets, too, for other programs."""

    def __init__(self) -> None:
        self._known: WeakList[Server] = WeakList()

    def add(self, server: Server) -> None:
        self._known.add(server)

    def find(self, family: int, address: Any) -> tuple[Listener, Any] | None:
        """Return who listens at *address*, and the socket; None if nobody does."""
        found: tuple[Listener, Any] | None = None
        # Look at the newest first: at a path it has taken the place of others.
        for server in reversed(list(self._known)):
            if not server.is_serving():
                continue
            for sock, listener in zip(server._sockets or (), server._listeners, strict=True):
                name = sock.getsockname()
                if not is_reached(sock, name, address, family):
                    continue
                if name == address[: len(name)]:
                    return listener, sock
                found = found or (listener, sock)
        return found


def exists(path: str | bytes) -> bool:
    """Return whether a UNIX socket's file is still there; abstract names have none."""
    if path[:1] in ("\0", b"\0"):
        return True
    try:
        # Tests may replace os.path.exists(): see proc.py.
        posix.stat(path)
    except OSError:
        return False
    return True


def takes_both(sock: Any) -> bool:
    """Return whether a socket that listens on IPv6 takes connections of IPv4, too."""
    return not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def is_reached(sock: Any, name: Any, address: Any, family: int) -> bool:
    """Return whether a connection to *address* reaches *sock*, which listens at *name*."""
    if family not in EVERY_ADDRESS:
        return sock.family == family and os.fsencode(name) == os.fsencode(address) and exists(name)
    if sock.family != family:
        is_every = sock.family == socket.AF_INET6 and name[0] == EVERY_ADDRESS[socket.AF_INET6]
        return (
            is_every and name[1] == address[1] and takes_both(sock) and is_local(family, address[0])
        )
    return name[1] == address[1] and is_at(family, name[0], address[0])


def is_at(family: int, bound: str, host: str) -> bool:
    """Return whether a socket that is bound to *bound* is reached at *host*."""
    return bound == host or (bound == EVERY_ADDRESS[family] and is_local(family, host))


def is_local(family: int, host: str) -> bool:
    """Return whether *host* is an address of this machine: a socket can be bound to it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_loopback:
        return True
    if address.is_multicast or host == BROADCAST:
        return False
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True
