"""Finds the server of a loop for tests that a client connects to."""

from __future__ import annotations

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
        for known in self.known:
            server = known()
            if server is None or not server.is_serving():
                continue
            for sock, listener in zip(server._sockets or (), server._listeners, strict=True):
                if sock.family == family and is_reached(sock.getsockname(), address, family):
                    return listener
        return None


def is_reached(name: Any, address: Any, family: int) -> bool:
    """Return whether a connection to *address* reaches the listening socket called *name*."""
    if family not in EVERY_ADDRESS:
        return bool(name == address)
    return name[1] == address[1] and name[0] in (address[0], EVERY_ADDRESS[family])
