"""Pairs of connected sockets."""

from __future__ import annotations

import socket


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking TCP sockets on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def unix_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking UNIX stream sockets."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right
