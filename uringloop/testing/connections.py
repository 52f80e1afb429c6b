"""Connections between a program's clients and its own servers, on one loop for tests.

Every client connects by sock_connect(), and every server has been registered. A connection between
them is a pair of UNIX sockets, or a Wire through the network.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
import weakref
from asyncio import constants
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uringloop._net.listener import Listener
from uringloop.testing.network import LOCALHOST
from uringloop.testing.servers import EVERY_ADDRESS, Servers
from uringloop.testing.virtual_sockets import (
    VirtualSocket,
    leave_unread,
    name_ends,
    on_reset,
    replace_descriptor,
)
from uringloop.testing.weak_list import WeakList
from uringloop.testing.wire import Wire

if TYPE_CHECKING:
    from uringloop.testing.loop import Loop

# Ports of clients, in this order: the kernel's would differ from run to run.
PORT_MIN, PORT_MAX = 49152, 65535
LOCAL_ADDRESS: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# How long TCP tries to connect: Linux sends a SYN seven times.
CONNECT_TIMEOUT_S = 127.0
# How much longer it takes if the first SYN is lost, or the first two, or three.
SLOW_CONNECTS_S = (1.0, 3.0, 7.0)
# The faults that happen to a piece of data: wire.py.
OF_WIRES = ("delay", "split", "half_open", "short", "reset", "no_memory")

Refusal = Callable[[], None]


class Filler:
    """Sends a byte from *sock*, if that is still open, which the other end never reads."""

    def __init__(self, sock: VirtualSocket) -> None:
        self.sock = weakref.ref(sock)

    def __call__(self) -> None:
        sock = self.sock()
        if sock is not None and sock.fileno() >= 0:
            leave_unread(sock.fileno())


class RouteWaiter:
    """Resolves a future when the routes of a network change."""

    def __init__(self, changed: asyncio.Future[None]) -> None:
        self.changed = changed

    def route_changed(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)


class Connections:
    """The servers of one loop, and what connects its clients to them."""

    def __init__(self, loop: Loop, has_network: bool) -> None:
        self.loop = loop
        # Whether the test has a network, whose routes may change while a connection lasts.
        self.has_network = has_network
        self.servers = Servers()
        self.wires: WeakList[Wire] = WeakList()
        self.newest_port = PORT_MIN - 1

    async def connect(self, sock: socket.socket, address: Any) -> bool:
        """Connect *sock* to a server of the loop; return whether one listens at *address*."""
        loop = self.loop
        name = self.name_of(sock, address)
        hosts = loop.network.host_of(name), loop.network.host_of(address)
        found = self.servers.find(sock.family, address)
        if found is not None or hosts[0] != hosts[1]:
            await self.reach(hosts)
            found = self.servers.find(sock.family, address)
        if found is None:
            return False
        listener, listening = found
        if loop._happens("refused"):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
        if self.has_network or hosts[0] != hosts[1] or self.has_faults():
            accepted, refuse = self.connect_wire(sock, listening, name, address, hosts)
        else:
            accepted, refuse = connect_pair(sock, listening, name, address)
        # By a timer, so that the seed chooses when the server accepts.
        # Later, because the wire may not be ready.
        refuse_later = functools.partial(loop.call_later, 0, self.refuse, accepted, refuse)
        listener.give(accepted, refuse_later)
        loop.call_later(0, self.accept, listener)
        return True

    async def reach(self, hosts: tuple[str, str]) -> None:
        """Wait until the other host has answered. Raises the TimeoutError of TCP."""
        loop = self.loop
        gives_up = loop.time() + CONNECT_TIMEOUT_S
        if loop._happens("slow_connect"):
            await asyncio.sleep(SLOW_CONNECTS_S[int(loop.random() * len(SLOW_CONNECTS_S))])
        while True:
            while not (route := loop.network.route(*hosts)).open:
                changed = loop.create_future()
                loop.network._add_waiting(waiting := RouteWaiter(changed))
                timer = loop.call_at(gives_up, waiting.route_changed)
                try:
                    await changed
                finally:
                    timer.cancel()
                if loop.time() >= gives_up:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            if route.is_direct:
                return
            await asyncio.sleep(2 * route.latency + route.jitter * loop.random())
            if loop.network.route(*hosts).open:
                return

    def has_faults(self) -> bool:
        """Return whether a fault can happen that needs a wire."""
        return any(map(self.loop.faults.chance, OF_WIRES))

    def connect_wire(
        self,
        sock: socket.socket,
        listening: Any,
        name: Any,
        address: Any,
        hosts: tuple[str, str],
    ) -> tuple[VirtualSocket, Refusal]:
        wire = Wire(self.loop, *hosts)
        self.wires.add(wire)
        near, client_relay = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        replace_descriptor(sock, near)
        near, server_relay = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        accepted = name_ends(sock, near, listening, name, address)
        assert isinstance(sock, VirtualSocket)
        wire.attach(0, client_relay, sock)
        wire.attach(1, server_relay, accepted)
        return accepted, wire.reset

    def name_of(self, sock: socket.socket, address: Any) -> Any:
        """Return the name of a client's socket, which TCP chooses when it connects."""
        name = sock.getsockname()
        if sock.family == socket.AF_UNIX or name[1]:
            return name
        host = name[0]
        if host in EVERY_ADDRESS.values():
            host = self.source_host(sock.family, address[0])
        return (host, self.next_port(), *address[2:])

    def source_host(self, family: int, target: str) -> str:
        """Return the source address of what is sent to the address *target*."""
        network = self.loop.network
        current = network.current_address()
        if current is not None:
            return current
        if target == EVERY_ADDRESS[family]:
            return LOCAL_ADDRESS[family]
        # Within a host the kernel uses the target's address as the source, too.
        return network.address(LOCALHOST) if network.knows_address(target) else target

    def next_port(self) -> int:
        self.newest_port = self.newest_port + 1 if self.newest_port < PORT_MAX else PORT_MIN
        return self.newest_port

    def refuse(self, accepted: socket.socket, refuse: Refusal) -> None:
        """Reset a connection that was in the backlog of a server when that was closed."""
        refuse()
        accepted.close()

    def accept(self, listener: Listener) -> None:
        """Accept a connection, if the server has not accepted it, or been closed, meanwhile."""
        loop = self.loop
        has_no_files = loop._happens("no_files")
        if has_no_files:
            # Report what a loop reports if it has no descriptor left for a connection.
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            loop.call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": error}
            )
        if has_no_files or listener.is_paused():
            loop.call_later(constants.ACCEPT_RETRY_DELAY, self.accept, listener)
        else:
            listener.accept_given()

    def forget(self) -> None:
        """Let all sockets go: the loop is closed."""
        for wire in self.wires:
            wire.forget()


def connect_pair(
    sock: socket.socket, listening: Any, name: Any, peername: Any
) -> tuple[VirtualSocket, Refusal]:
    """Connect the program's *sock* to a new socket, the server's, which is returned."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    replace_descriptor(sock, ours)
    accepted = name_ends(sock, theirs, listening, name, peername)
    assert isinstance(sock, VirtualSocket)
    on_reset(sock, Filler(accepted))
    on_reset(accepted, Filler(sock))
    return accepted, Filler(sock)
