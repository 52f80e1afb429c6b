"""Finds the server of a loop for tests that a client connects to."""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any

from uringloop._net.listener import Listener
from uringloop._net.servers import Server

# Hosts that stand for every address of the machine.
EVERY_ADDRESS: dict[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class Servers:
    """The servers of one loop. They listen on real sockets, too, for other programs."""

    def __init__(self) -> None:
        # In the order in which they were made, not in that of a set.
        self.known: list[weakref.ref[Server]] = []

    def add(self, server: Server) -> None:
        self.known = [known for known in self.known if known() is not None]
        self.known.append(weakref.ref(server))

    def find(self, family: int, address: Any) -> Listener | None:
        """Return the listener that a connection to *address* goes to; None if it is no server's."""
        found: Listener | None = None
        # The newest first: it has taken the place of others at a path.
        for known in reversed(self.known):
            server = known()
            if server is None or not server.is_serving():
                continue
            for sock, listener in zip(server._sockets or (), server._listeners, strict=True):
                name = sock.getsockname()
                if sock.family != family or not is_reached(name, address, family):
                    continue
                if name == address[: len(name)]:
                    return listener
                found = found or listener
        return found


def exists(path: str | bytes) -> bool:
    """Return whether a UNIX socket's file is still there; abstract names have none."""
    return path[:1] in ("\0", b"\0") or os.path.exists(path)


def is_reached(name: Any, address: Any, family: int) -> bool:
    """Return whether a connection to *address* reaches the listening socket called *name*."""
    if family not in EVERY_ADDRESS:
        return os.fsencode(name) == os.fsencode(address) and exists(name)
    return name[1] == address[1] and name[0] in (address[0], EVERY_ADDRESS[family])
