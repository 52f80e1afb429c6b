"""Where health is served, and what counts: the arguments of serve(), and the variable."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import urllib.parse

from uringloop._loop import options
from uringloop.monitor import socket_paths

# A loop that has been in one turn for this many seconds is dead.
DEAD_AFTER_S = 30.0
# A loop that has been in one turn for this many seconds is not ready.
READY_AFTER_S = 1.0
BACKLOG = 128
NO_ADDRESS = (
    "{!r} is no address: it must be the number of a host and a port, as 127.0.0.1:9100 or "
    "[::1]:9100, or unix:/path"
)
PORT_MAX = 65535
# How much of an answer the kernel keeps for a client that does not read it; the server limits the
# rest.
SEND_BUFFER_BYTES = 65536


class Place:
    """An address: a host and a port or, after `unix:`, the path of a socket.

    listen() replaces a port of 0 with the number of the port.
    """

    def __init__(self, text: str) -> None:
        """Parse *text*. Raises ValueError if it is not an address."""
        self.path = ""
        self.host = ipaddress.ip_address("127.0.0.1")
        self.port = 0
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path or "\0" in path:
                raise ValueError(NO_ADDRESS.format(text))
            self.path = os.path.abspath(path)
            self.name = f"unix:{self.path}"
            return
        host, colon, port = text.rpartition(":")
        in_brackets = host.startswith("[") and host.endswith("]")
        if not (colon and port.isascii() and port.isdigit()) or (":" in host) != in_brackets:
            raise ValueError(NO_ADDRESS.format(text))
        self.port = int(port)
        try:
            if host not in ("", "localhost"):
                self.host = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            raise ValueError(NO_ADDRESS.format(text)) from None
        if self.port > PORT_MAX:
            raise ValueError(NO_ADDRESS.format(text))
        self.name = self._name()

    def _name(self) -> str:
        host = f"[{self.host}]" if self.host.version == 6 else str(self.host)
        return f"{host}:{self.port}"

    def is_public(self) -> bool:
        """Return whether other machines may reach the address."""
        mapped = getattr(self.host, "ipv4_mapped", None)
        return not self.path and not (mapped or self.host).is_loopback

    def listen(self) -> socket.socket:
        """Return a socket that listens there. Raises OSError, or FileExistsError for a path."""
        if self.path:
            return socket_paths.listen(self.path, BACKLOG)
        sock = socket.socket(socket.AF_INET6 if self.host.version == 6 else socket.AF_INET)
        try:
            # The next process may have the address at once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections get this from the socket that listens.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            sock.bind((str(self.host), self.port))
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        self.port = sock.getsockname()[1]
        self.name = self._name()
        return sock

    def is_taken(self, exc: OSError) -> bool:
        """Return whether listen() has failed because a process listens there."""
        return isinstance(exc, socket_paths.PathInUse) or exc.errno == errno.EADDRINUSE


class Limits:
    """How long a turn may last, in seconds, and whether stacks are shown and systemd is told."""

    def __init__(
        self, dead_after: float, ready_after: float, *, stacks: bool, watchdog: bool
    ) -> None:
        for name, value in (("dead_after", dead_after), ("ready_after", ready_after)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
        self.dead_after = dead_after
        self.ready_after = ready_after
        self.stacks = stacks
        self.watchdog = watchdog


# What may follow the address in the variable.
SETTINGS = ("dead_after", "ready_after", "stacks", "watchdog")


def parsed(text: str) -> tuple[Place, Limits]:
    """Return the address and, after a question mark, the limits that the variable has.

    Raises ValueError.
    """
    name = options.HEALTH.variable
    address, _, query = text.partition("?")
    try:
        values = dict(urllib.parse.parse_qsl(query, True, strict_parsing=bool(query)))
    except ValueError:
        raise ValueError(f"{name}: {query!r} is not of the form dead_after=60&stacks=1") from None
    if unknown := [each for each in values if each not in SETTINGS]:
        raise ValueError(f"{name} has no {', '.join(unknown)}; it has {', '.join(SETTINGS)}")
    dead_after = _seconds(f"{name}: dead_after", values.get("dead_after"), DEAD_AFTER_S)
    ready_after = _seconds(f"{name}: ready_after", values.get("ready_after"), READY_AFTER_S)
    stacks = options.says_yes(f"{name}: stacks", values.get("stacks", "0"))
    watchdog = options.says_yes(f"{name}: watchdog", values.get("watchdog", "0"))
    limits = Limits(dead_after, ready_after, stacks=stacks, watchdog=watchdog)
    try:
        return Place(address), limits
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from None


def _seconds(name: str, text: str | None, default: float) -> float:
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number of seconds above 0, not {text!r}") from None
