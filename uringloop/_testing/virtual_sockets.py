"""Sockets of connections within a loop for tests.

A connection between a client and a server of the same loop is a pair of UNIX sockets, whatever its
address: the kernel hands their bytes over before send(2) returns, so a run depends on nothing but
the seed. TCP over loopback does so most of the time, and its buffers grow by real time. The socket
objects have the names that TCP would have given them, and take its options.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any

Address = Any

# The names of a VirtualSocket, its own and its peer's, and its options. Not attributes: a socket
# of the program's becomes a VirtualSocket when it is connected.
_names: weakref.WeakKeyDictionary[socket.socket, tuple[Address, Address]]
_names = weakref.WeakKeyDictionary()
_options: weakref.WeakKeyDictionary[socket.socket, dict[tuple[int, int], Any]]
_options = weakref.WeakKeyDictionary()

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


def name_ends(
    sock: socket.socket, accepted: socket.socket, name: Address, peername: Address
) -> socket.socket:
    """Name the ends of a connection, the client's *sock* and *accepted*; return the latter."""
    made = VirtualSocket(sock.family, sock.type, sock.proto, accepted.detach())
    made.setblocking(False)
    sock.__class__ = VirtualSocket
    _names[sock] = (name, peername)
    _names[made] = (peername, name)
    return made


def connect_pair(sock: socket.socket, name: Address, peername: Address) -> socket.socket:
    """Connect the program's *sock* to a new socket, the server's, which is returned."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    replace_descriptor(sock, ours)
    return name_ends(sock, theirs, name, peername)
