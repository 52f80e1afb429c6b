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
from typing import Any

Address = Any

# The names of a VirtualSocket, its own and its peer's, and its options. Not attributes: a socket
# of the program's becomes a VirtualSocket when it is connected.
_names: weakref.WeakKeyDictionary[socket.socket, tuple[Address, Address]]
_names = weakref.WeakKeyDictionary()
_options: weakref.WeakKeyDictionary[socket.socket, dict[tuple[int, int], Any]]
_options = weakref.WeakKeyDictionary()

# What leaves a byte in a VirtualSocket that nobody reads.
_fillers: weakref.WeakKeyDictionary[socket.socket, Callable[[], None]]
_fillers = weakref.WeakKeyDictionary()
# SO_LINGER, on, of 0 seconds.
NO_LINGER = struct.pack("ii", 1, 0)

# Options that a program may have set before it connects.
KEPT = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY))
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
        """Close; with SO_LINGER of no time the peer gets ECONNRESET, as by TCP."""
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
        return made

    def _check_open(self) -> None:
        # Raises the OSError of a closed socket.
        super().getsockname()

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if level in INTERNET:
            self._check_open()
            _options.setdefault(self, {})[level, option] = value[0]
        else:
            super().setsockopt(level, option, *value)

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        if level not in INTERNET:
            return super().getsockopt(level, option, *size)
        self._check_open()
        value = _options.get(self, {}).get((level, option), 0)
        return bytes(size[0]) if size else int(value)


def replace_descriptor(sock: socket.socket, other: socket.socket) -> None:
    """Give *sock* the file of *other*, which is closed, under its own number.

    The program may have stored the number.
    """
    before = {
        (level, option): sock.getsockopt(level, option)
        for level, option in KEPT
        if level not in INTERNET or sock.family != socket.AF_UNIX
    }
    with other:
        os.dup2(other.fileno(), sock.fileno(), inheritable=False)
    sock.setblocking(sock.gettimeout() != 0)
    for (level, option), value in before.items():
        if level in INTERNET:
            _options.setdefault(sock, {})[level, option] = value
        else:
            sock.setsockopt(level, option, value)


def mapped(address: Address) -> Address:
    """Return an address of IPv4 as a socket of IPv6 sees it."""
    return (f"::ffff:{address[0]}", address[1], 0, 0)


def name_ends(
    sock: socket.socket,
    accepted: socket.socket,
    family: int,
    name: Address,
    peername: Address,
) -> VirtualSocket:
    """Name the ends of a connection, the client's *sock* and *accepted*; return the latter.

    *family* is that of the socket that has accepted: IPv6 may take connections of IPv4.
    """
    made = VirtualSocket(family, sock.type, sock.proto, accepted.detach())
    made.setblocking(False)
    sock.__class__ = VirtualSocket
    _names[sock] = (name, peername)
    if family == sock.family:
        _names[made] = (peername, name)
    else:
        _names[made] = (mapped(peername), mapped(name))
    return made


def leave_unread(fd: int) -> None:
    """Send a byte by a UNIX socket: if its peer closes without reading it, *fd* gets ECONNRESET."""
    with contextlib.suppress(OSError):
        # Not os.write(): see proc.py.
        posix.write(fd, b"\0")


def on_reset(sock: VirtualSocket, fill: Callable[[], None]) -> None:
    """Let *fill* leave a byte in *sock* if the program closes it by a reset."""
    _fillers[sock] = fill


def option_of(sock: socket.socket, level: int, option: int) -> int:
    """Return an option of a VirtualSocket; 0 if it was not set."""
    return sock.getsockopt(level, option) if sock.fileno() >= 0 else 0
