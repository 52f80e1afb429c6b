"""class Network: named hosts, and what lies between them, in virtual time."""

from __future__ import annotations

import contextvars
import dataclasses
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from uringloop.testing.weak_list import WeakList

# Hosts have addresses of the loopback network, which every machine has.
FIRST_ADDRESS = 127 << 24 | 77 << 16 | 1
# The host of every address that does not belong to a named host.
LOCALHOST = "localhost"

_current: contextvars.ContextVar[str] = contextvars.ContextVar("uringloop.testing.host")


class Waiting(Protocol):
    """Something that waits for a route: a connection, or a client that wants one."""

    def route_changed(self) -> None: ...


class Connection(Waiting, Protocol):
    """A connection between two hosts."""

    hosts: tuple[str, str]

    def die(self) -> None: ...

    def reset(self) -> None: ...


@dataclasses.dataclass(kw_only=True)
class Route:
    """What lies between two hosts, in either direction.

    *latency* is in seconds, one way; up to *jitter* seconds more are added to each piece of data.
    *bandwidth* is in bytes a second. Data that is sent while the route is not *open* arrives when
    it is open again, as TCP sends it again.
    """

    latency: float = 0.0
    jitter: float = 0.0
    bandwidth: float = math.inf
    open: bool = True

    def __post_init__(self) -> None:
        if not self.latency >= 0 or not self.jitter >= 0:
            raise ValueError("latency and jitter must not be negative")
        if not self.bandwidth > 0:
            raise ValueError("bandwidth must be above 0")

    @property
    def is_direct(self) -> bool:
        """Return whether data arrives at once."""
        return self.open and not self.latency and not self.jitter and self.bandwidth == math.inf


class Network:
    """Hosts with names, for a loop for tests.

    The arguments are those of the route between hosts that have none of their own.
    """

    def __init__(
        self, *, latency: float = 0.0, jitter: float = 0.0, bandwidth: float = math.inf
    ) -> None:
        self._default = Route(latency=latency, jitter=jitter, bandwidth=bandwidth)
        self._routes: dict[frozenset[str], Route] = {}
        self._addresses: dict[str, str] = {}
        self._waiting: WeakList[Waiting] = WeakList()
        self._connections: WeakList[Connection] = WeakList()

    # ── hosts ────────────────────────────────────────────────────────────────────────────────

    def address(self, name: str) -> str:
        """Return the address of the host *name*, which its first mention creates."""
        if name == LOCALHOST:
            return "127.0.0.1"
        if name not in self._addresses:
            number = FIRST_ADDRESS + len(self._addresses)
            self._addresses[name] = socket.inet_ntoa(number.to_bytes(4, "big"))
        return self._addresses[name]

    def knows(self, name: object) -> bool:
        """Return whether *name* is the name of a host."""
        return name in self._addresses

    def knows_address(self, address: str) -> bool:
        """Return whether *address* is that of a host with a name."""
        return address in self._addresses.values()

    def host_of(self, address: Any) -> str:
        """Return the name of the host with *address*."""
        host = address[0] if isinstance(address, tuple) and address else None
        for name, known in self._addresses.items():
            if known == host:
                return name
        return LOCALHOST

    @contextmanager
    def on(self, name: str) -> Iterator[str]:
        """Connect from the host *name* within this block, and in the tasks that it creates."""
        address = self.address(name)
        token = _current.set(name)
        try:
            yield address
        finally:
            _current.reset(token)

    def current_address(self) -> str | None:
        """Return the address that a client connects from; None for the default."""
        name = _current.get(None)
        return None if name is None else self.address(name)

    # ── routes ───────────────────────────────────────────────────────────────────────────────

    def route(self, one: str, other: str) -> Route:
        """Return the route between two hosts."""
        if one == other and one != LOCALHOST:
            return Route()
        return self._routes.get(frozenset((one, other)), self._default)

    def set_route(self, one: str, other: str, **options: float) -> Route:
        """Give two hosts a route of their own; the options are the fields of Route."""
        for name in (one, other):
            self.address(name)
        changed = dataclasses.replace(self.route(one, other), **options)  # type: ignore[arg-type]
        self._routes[frozenset((one, other))] = changed
        self._wake()
        return changed

    def partition(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts until `heal` is called."""
        self.set_route(one, other, open=False)

    def heal(self, one: str, other: str) -> None:
        """End a partition: what was sent meanwhile arrives."""
        self.set_route(one, other, open=True)

    def kill(self, one: str, other: str) -> None:
        """Let the connections between two hosts die, without a word to either end.

        This is what happens when a router forgets them, or a machine loses its power. A send fails
        with ETIMEDOUT after a quarter of an hour. Later connections are not affected.
        """
        for connection in self._between(one, other):
            connection.die()

    def reset(self, one: str, other: str) -> None:
        """Reset the connections between two hosts: both ends get ECONNRESET."""
        for connection in self._between(one, other):
            connection.reset()

    def _between(self, one: str, other: str) -> list[Connection]:
        wanted = {one, other}
        for name in wanted - {LOCALHOST} - self._addresses.keys():
            raise ValueError(f"no host has the name {name!r}")
        return [known for known in self._connections if set(known.hosts) == wanted]

    def _add_waiting(self, waiting: Waiting) -> None:
        self._waiting.add(waiting)

    def _add_connection(self, connection: Connection) -> None:
        self._connections.add(connection)

    def _wake(self) -> None:
        for waiting in (*self._connections, *self._waiting):
            waiting.route_changed()
