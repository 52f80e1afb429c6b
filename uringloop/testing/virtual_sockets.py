"""Sockets of connections within a loop for tests.

A connection between a client and a server of the same loop is a pair of UNIX sockets, whatever its
address: the kernel hands their bytes over before send(2) returns, so a run depends on nothing but
the seed. TCP over loopback does so most of the time, and its buffers grow by real time. The socket
objects have the names that TCP would have given them, and take its options.
"""

from __future__ import annotations

import contextlib
import os
import posix
import socket
import struct
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Address = Any

# The names of a VirtualSocket, its own and its peer's, and its options. They are not attributes,
# because a socket of the program's becomes a VirtualSocket only when it is connected.
_names: weakref.WeakKeyDictionary[socket.socket, tuple[Address, Address]]
_names = weakref.WeakKeyDictionary()
_options: weakref.WeakKeyDictionary[socket.socket, dict[tuple[int, int], Any]]
_options = weakref.WeakKeyDictionary()

# For each VirtualSocket, what leaves an unread byte in it.
_fillers: weakref.WeakKeyDictionary[socket.socket, Callable[[], None]]
_fillers = weakref.WeakKeyDictionary()
# The value of SO_LINGER that switches it on, with 0 seconds.
NO_LINGER = struct.pack("ii", 1, 0)

# For each VirtualSocket, how its connection has ended if a UNIX socket would report something else.
_endings: weakref.WeakKeyDictionary[socket.socket, int] = weakref.WeakKeyDictionary()
# What is called after a program has set an option.
_on_option: weakref.WeakKeyDictionary[socket.socket, Callable[[], None]]
_on_option = weakref.WeakKeyDictionary()

# Options that a program may set before it connects, and that an accepted socket inherits from the
# one that listens.
KEPT = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.SOL_SOCKET, socket.SO_LINGER),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
)
# The sizes in bytes of those that are structures.
SIZES = {(socket.SOL_SOCKET, socket.SO_LINGER): 8}
# Levels of options that a UNIX socket does not have.
INTERNET = (socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6)


class VirtualSocket(socket.socket):
    """A socket with the names of a TCP connection, and a UNIX socket's descriptor."""

    __slots__ = ()

    def getsockname(self) -> Address:
        self._check_open()
        return _names[self][0]

    def getpeername(self) -> Address:
        self._check_open()
        return _names[self][1]

    def close(self) -> None:
        """Close; if SO_LINGER is on with 0 seconds, the peer gets ECONNRESET, as by TCP."""
        fill = _fillers.pop(self, None)
        if fill is not None and self.fileno() >= 0:
            with contextlib.suppress(OSError):
                if super().getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == NO_LINGER:
                    fill()
        super().close()

    def dup(self) -> VirtualSocket:
        made = VirtualSocket(self.family, self.type, self.proto, os.dup(self.fileno()))
        made.settimeout(self.gettimeout())
        _names[made] = _names[self]
        _options[made] = dict(_options.get(self, {}))
        return made

    def _check_open(self) -> None:
        # Raises the OSError of a closed socket.
        super().getsockname()

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if level in INTERNET and self.family != socket.AF_UNIX:
            self._check_open()
            with self._probe() as probe:
                # Raises what TCP raises for an option that it does not take.
                probe.setsockopt(level, option, *value)
            _options.setdefault(self, {})[level, option] = value
        else:
            super().setsockopt(level, option, *value)
        if (changed := _on_option.get(self)) is not None:
            changed()

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        if level not in INTERNET or self.family == socket.AF_UNIX:
            return super().getsockopt(level, option, *size)
        self._check_open()
        with self._probe() as probe:
            return probe.getsockopt(level, option, *size)

    def _probe(self) -> socket.socket:
        """Return a new socket of TCP with the options of this one."""
        probe = socket.socket(self.family, self.type)
        for (level, option), value in _options.get(self, {}).items():
            probe.setsockopt(level, option, *value)
        return probe

    # ── receiving and sending by the program itself, or by sock_recv() and its like ──────────

    def recv(self, *arguments: Any) -> bytes:
        return self._ended(super().recv, *arguments)

    def recv_into(self, *arguments: Any) -> int:
        return self._ended(super().recv_into, *arguments)

    def send(self, *arguments: Any) -> int:
        return self._ended(super().send, *arguments)

    def _ended(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call *call*; in place of EOF or a ConnectionError raise the error of the connection."""
        try:
            result = call(*arguments)
        except ConnectionError:
            self._raise_ending()
            raise
        if not result:
            self._raise_ending()
        return result

    def _raise_ending(self) -> None:
        error = _endings.pop(self, 0)
        if error:
            raise OSError(error, os.strerror(error))


def replace_descriptor(sock: socket.socket, other: socket.socket) -> None:
    """Give *sock* the file of *other*, which is closed; *sock* keeps its number.

    The program may have stored the number.
    """
    before = options_of(sock)
    with other:
        os.dup2(other.fileno(), sock.fileno(), inheritable=False)
    sock.setblocking(sock.gettimeout() != 0)
    give_options(sock, before)


Options = dict[tuple[int, int], Any]


def options_of(sock: Any) -> Options:
    """Return the options of KEPT that a socket has, with their values."""
    options = {}
    for kept in KEPT:
        if kept[0] not in INTERNET or sock.family != socket.AF_UNIX:
            size = [SIZES[kept]] if kept in SIZES else []
            options[kept] = sock.getsockopt(*kept, *size)
    return options


def give_options(sock: socket.socket, options: Options) -> None:
    """Give the options to a UNIX socket that stands for one of TCP."""
    for (level, option), value in options.items():
        if level in INTERNET:
            _options.setdefault(sock, {})[level, option] = (value,)
        else:
            sock.setsockopt(level, option, value)


def mapped(address: Address) -> Address:
    """Return an address of IPv4 as a socket of IPv6 sees it."""
    return (f"::ffff:{address[0]}", address[1], 0, 0)


def name_ends(
    sock: socket.socket,
    accepted: socket.socket,
    listening: Any,
    name: Address,
    peername: Address,
) -> VirtualSocket:
    """Name the ends of a connection, the client's *sock* and *accepted*; return the latter.

    *listening* is the socket that accepts; one of IPv6 may take connections of IPv4.
    """
    family = listening.family
    made = VirtualSocket(family, sock.type, sock.proto, accepted.detach())
    made.setblocking(False)
    sock.__class__ = VirtualSocket
    _names[sock] = (name, peername)
    if family == sock.family:
        _names[made] = (peername, name)
    else:
        _names[made] = (mapped(peername), mapped(name))
    give_options(made, options_of(listening))
    return made


def leave_unread(fd: int) -> None:
    """Send a byte by a UNIX socket: if its peer closes without reading it, *fd* gets ECONNRESET."""
    with contextlib.suppress(OSError):
        # Tests may replace os.write(): see proc.py.
        posix.write(fd, b"\0")


def end_with(sock: VirtualSocket, error: int) -> None:
    """Let the next call that sees the end of the connection raise *error*."""
    _endings[sock] = error


def on_option(sock: VirtualSocket, changed: Callable[[], None]) -> None:
    """Call *changed* after the program has set an option of *sock*."""
    _on_option[sock] = changed


def on_reset(sock: VirtualSocket, fill: Callable[[], None]) -> None:
    """Let *fill* leave a byte in *sock* if the program closes it by a reset."""
    _fillers[sock] = fill


def option_of(sock: socket.socket, level: int, option: int) -> int:
    """Return an option of TCP's; 0 for a closed socket, and for a UNIX socket, which has none."""
    if sock.fileno() < 0 or sock.family == socket.AF_UNIX:
        return 0
    return sock.getsockopt(level, option)
