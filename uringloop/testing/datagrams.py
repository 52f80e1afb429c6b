"""Datagrams between the endpoints of one loop for tests: they pass the network, not the kernel.

UDP over loopback hands most datagrams over at once, but not all, and loses none. A datagram to
another endpoint of the same loop is delivered by the loop, after the delays of the route and the
faults. A datagram to anybody else, or one that the kernel would refuse, goes through the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from uringloop._net.datagram_transport import DatagramTransport, checked_message
from uringloop._net.socket_messages import Ancillary
from uringloop.testing import proc
from uringloop.testing.network import LOCALHOST
from uringloop.testing.peers import borrowed
from uringloop.testing.servers import EVERY_ADDRESS, is_at, is_local
from uringloop.testing.weak_list import WeakList

if TYPE_CHECKING:
    from uringloop.testing.loop import Loop

# The largest datagram of UDP over IPv4: the kernel refuses a larger one.
DATAGRAM_MAX = 65507
# For each family the level, the option that asks for the traffic class, its type and size.
TRAFFIC_CLASSES: dict[int, tuple[int, int, int, int]] = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_RECVTOS, socket.IP_TOS, 1),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS, 4),
}
# How many ports are tried for an endpoint that sends and has none yet.
BIND_TRIES = 100


class Endpoint(DatagramTransport):
    """A datagram endpoint, whose datagrams to endpoints of its loop pass the network."""

    datagrams: Datagrams
    family: int
    # The address of the host that was the current one when the endpoint was made, or None.
    host: str | None
    # The only address that it sends to, or None.
    remote: Any
    # It has sent something through the kernel: somebody outside may answer.
    has_asked = False

    def sendto(self, data: bytes | bytearray | memoryview, addr: Any = None) -> None:
        addr = self.datagrams.resolved(addr)
        if not self._is_carried(data, addr, ()):
            super().sendto(data, addr)

    def sendmsg(
        self, buffers: Iterable[Any], ancdata: Iterable[Any] = (), addr: Any = None
    ) -> None:
        addr = self.datagrams.resolved(addr)
        data, ancillary = checked_message(buffers, ancdata)
        if not self._is_carried(data, addr, ancillary):
            super().sendmsg([data], ancillary, addr)

    def send_segments(
        self,
        data: bytes | bytearray | memoryview,
        segment_size: int,
        addr: Any = None,
        ancdata: Iterable[Any] = (),
    ) -> None:
        ancillary = list(ancdata)
        # Only checks the arguments.
        super().send_segments(data[:0], segment_size, self.datagrams.resolved(addr), ancillary)
        for start in range(0, len(data), segment_size):
            self.sendmsg([data[start : start + segment_size]], ancillary, addr)

    def _is_carried(self, data: Any, addr: Any, ancillary: Sequence[Ancillary]) -> bool:
        """Return whether a datagram passes the network; otherwise it is for the kernel."""
        try:
            if self.datagrams.carry(self, data, addr, ancillary):
                return True
        except OSError as exc:
            protocol: Any = self.get_protocol()
            protocol.error_received(exc)
            return True
        self.has_asked = self.has_asked or self.datagrams.may_answer(self, addr)
        return False

    def told_by(self, ancillary: Sequence[Ancillary]) -> list[Ancillary]:
        """Return what the kernel tells the receiver, this, of a sender's ancillary data: the ECN.

        It tells it also where the sender has sent none, if the receiver has asked for it.
        """
        level, option, kind, size = TRAFFIC_CLASSES[self.family]
        with borrowed(self.fd()) as sock:
            if not sock.getsockopt(level, option):
                return []
        sent = {item[:2]: item[2] for item in ancillary}.get((level, kind), b"\0")
        return [(level, kind, sent[:1].ljust(size, b"\0"))]

    def fd(self) -> int:
        """Return the descriptor; -1 after the end."""
        sock: Any = self.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def name(self) -> Any:
        """Return the socket's name now: it may have got a port since it was made."""
        with borrowed(self.fd()) as sock:
            return sock.getsockname()

    def takes(self, address: Any, source: Any) -> bool:
        """Return whether a datagram to *address*, from *source*, is for this endpoint."""
        if self.is_closing() or self.fd() < 0:
            return False
        name = self.name()
        if name[1] != address[1] or not is_at(self.family, name[0], address[0]):
            return False
        peer: Any = self.get_extra_info("peername")
        return peer is None or peer[:2] == source[:2]


class Datagrams:
    """The datagram endpoints of one loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.endpoints: WeakList[Endpoint] = WeakList()
        # For each pair of hosts, when the last byte from one to the other will have left.
        self.free_at: dict[tuple[str, str], float] = {}

    def add(self, endpoint: Endpoint, family: int, remote: Any) -> None:
        endpoint.datagrams = self
        endpoint.family = family
        endpoint.remote = remote
        endpoint.host = self.loop.network.current_address()
        if family in EVERY_ADDRESS:
            self.endpoints.add(endpoint)

    def silent(self) -> set[int]:
        """Return the descriptors of endpoints that have asked nobody outside, and get no answer."""
        return {known.fd() for known in self.endpoints if not known.has_asked}

    def resolved(self, address: Any) -> Any:
        """Return *address* with the name of a host of the network replaced by its address."""
        if isinstance(address, tuple) and address and self.loop is not None:
            network = self.loop.network
            if network.knows(address[0]) or address[0] == LOCALHOST:
                return (network.address(address[0]), *address[1:])
        return address

    def may_answer(self, sender: Endpoint, addr: Any) -> bool:
        """Return whether somebody may answer what *sender* sends through the kernel."""
        address = addr or sender.remote
        if sender.family not in EVERY_ADDRESS or not isinstance(address, tuple):
            return True
        return not is_local(sender.family, address[0]) or has_receiver(sender.family, address[1])

    def carry(
        self,
        sender: Endpoint,
        data: bytes | bytearray | memoryview,
        addr: Any,
        ancillary: Sequence[Ancillary] = (),
    ) -> bool:
        """Carry a datagram to an endpoint of the loop; return False if it is for the kernel.

        Raises OSError with ENOBUFS if that fault happens.
        """
        if self.loop is None or sender.family not in EVERY_ADDRESS:
            return False
        if sender.is_closing() or sender.fd() < 0 or not is_plain(data):
            return False
        address = addr or sender.remote
        if not isinstance(address, tuple) or len(address) < 2 or not address[1]:
            return False
        # An endpoint with a remote address sends only to that; sendto() raises the error.
        if sender.remote not in (None, address):
            return False
        source = self.source(sender, address[0])
        if source is None:
            return False
        found = [known for known in self.endpoints if known.family == sender.family]
        found = [known for known in found if known.takes(address, source)]
        if len(found) != 1 or sender.get_write_buffer_size():
            return False
        self.send(found[0], bytes(data), source, address, ancillary)
        return True

    def source(self, sender: Endpoint, target: str) -> Any:
        """Return the address from which *sender* reaches *target*; None if it has none."""
        name = sender.name()
        if not name[1]:
            name = self.bind(sender, name)
        if name is None or name[0] not in EVERY_ADDRESS.values():
            return name
        host = sender.host or self.loop._connections.source_host(sender.family, target)
        return (host, *name[1:])

    def bind(self, sender: Endpoint, name: Any) -> Any:
        """Give *sender* a port, as the kernel does when it sends; return its name."""
        with borrowed(sender.fd()) as sock:
            for _ in range(BIND_TRIES):
                port = self.loop._connections.next_port()
                with contextlib.suppress(OSError):
                    sock.bind((name[0], port, *name[2:]))
                    return sock.getsockname()
        return None

    def send(
        self,
        target: Endpoint,
        data: bytes,
        source: Any,
        address: Any,
        ancillary: Sequence[Ancillary],
    ) -> None:
        loop = self.loop
        if loop._happens("no_buffers"):
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        hosts = loop.network.host_of(source), loop.network.host_of(address)
        route = loop.network.route(*hosts)
        if loop._happens("lost") or not route.open:
            return
        told = target.told_by(ancillary)
        for _ in range(2 if loop._happens("doubled") else 1):
            delay = route.latency + route.jitter * loop.random() + loop._network_delay()
            if route.bandwidth != math.inf:
                delay += self.occupy(hosts, len(data) / route.bandwidth)
            if delay:
                loop.call_later(delay, target._receive, data, source, told)
            else:
                # Keep the order of the calls, as a loopback interface does.
                loop.call_soon(target._receive, data, source, told)

    def occupy(self, hosts: tuple[str, str], seconds: float) -> float:
        """Occupy the way between two hosts for *seconds*; return in how many seconds it is free."""
        now = self.loop.time()
        self.free_at[hosts] = max(self.free_at.get(hosts, now), now) + seconds
        return self.free_at[hosts] - now


def is_plain(data: object) -> bool:
    """Return whether sendto() takes *data*, and the kernel a datagram of its size."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return False
    view = memoryview(data)
    return view.contiguous and view.nbytes <= DATAGRAM_MAX


def has_receiver(family: int, port: int) -> bool:
    """Return whether a socket of this machine is bound to the UDP port *port*."""
    for name in ("udp", "udp6") if family == socket.AF_INET else ("udp6",):
        with contextlib.suppress(OSError):
            lines = proc.read(f"/proc/net/{name}").splitlines()[1:]
            if any(line.split()[1].endswith(f":{port:04X}") for line in lines):
                return True
    return False
