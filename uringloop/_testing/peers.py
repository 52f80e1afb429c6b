"""Whom the sockets of a loop are connected to, and whether something is under way.

Both ends of a TCP connection may be in this process: a test's client and its server. The kernel
carries bytes between them at once, but not always before send(2) has returned. TCP_INFO tells: what
one end has sent and the other has not received is under way.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import select
import socket
import stat
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass

# Offsets in struct tcp_info of linux/tcp.h.
STATE = 0
LAST_DATA_SENT = 44
LAST_DATA_RECEIVED = 52
BYTES_RECEIVED = 128
NOT_SENT = 144
BYTES_SENT = 200
BYTES_RETRANSMITTED = 208
TCP_INFO_SIZE = 216

# States of TCP, of include/net/tcp_states.h.
ESTABLISHED = 1
SYN_SENT = 2
CLOSE_WAIT = 8
LISTEN = 10


class Traffic(enum.IntEnum):
    """What may come to the sockets of a loop; the higher values outweigh the lower."""

    NONE = 0  # nothing
    LATELY = 1  # another program may have been asked: nothing tells
    OPEN = 2  # another program may or may not speak
    ASKED = 3  # another program has been asked
    UNDER_WAY = 4  # bytes between two sockets of this process


@dataclass
class Stream:
    """A TCP socket, as TCP_INFO describes it."""

    state: int
    sent: int
    received: int
    unsent: int
    asked: bool  # it has sent since it has received


def stream_of(sock: socket.socket) -> Stream | None:
    """Return the state of a TCP socket; None if the kernel does not tell."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
    except OSError:
        return None
    if len(info) < TCP_INFO_SIZE:
        return None
    sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
    (received,) = struct.unpack_from("Q", info, BYTES_RECEIVED)
    (unsent,) = struct.unpack_from("I", info, NOT_SENT)
    (last_sent,) = struct.unpack_from("I", info, LAST_DATA_SENT)
    (last_received,) = struct.unpack_from("I", info, LAST_DATA_RECEIVED)
    # Milliseconds ago.
    asked = sent > 0 and (last_sent <= last_received or not received)
    return Stream(info[STATE], sent - again, received, unsent, asked)


@contextlib.contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """Give a socket object for a descriptor that belongs to somebody else."""
    sock = socket.socket(fileno=fd)
    try:
        yield sock
    finally:
        sock.detach()


def names_of(fd: int) -> tuple[object, object] | None:
    """Return the names of a connected socket and of its peer."""
    with borrowed(fd) as sock:
        try:
            return sock.getsockname(), sock.getpeername()
        except OSError:
            return None


def unread_bytes(sock: socket.socket) -> int:
    """Return how many bytes the socket has received that nobody has taken."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(count)


def is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


class Peers:
    """The sockets of this process by their names."""

    def __init__(self) -> None:
        self.fds: dict[tuple[object, object], int] = {}

    def traffic(self, waits: list[tuple[int, int]], *, asked_lately: bool) -> Traffic:
        """Return what may come to the descriptors that the loop waits for.

        *waits* are descriptors with events of poll(2). *asked_lately*: a short time ago the loop
        has done something that may have been a question.
        """
        highest = Traffic.NONE
        self.fds = {}
        for fd, events in waits:
            found = self.traffic_of(fd, bool(events & select.POLLIN))
            if found is Traffic.LATELY:
                found = Traffic.ASKED if asked_lately else Traffic.OPEN
            highest = max(highest, found)
        return highest

    def traffic_of(self, fd: int, receives: bool) -> Traffic:
        if not is_socket(fd):
            return Traffic.NONE
        with borrowed(fd) as sock:
            if sock.family == socket.AF_UNIX:
                return self.traffic_of_unix(sock)
            if sock.type == socket.SOCK_STREAM:
                return self.traffic_of_stream(sock, receives)
            return self.traffic_of_datagrams(sock)

    def traffic_of_unix(self, sock: socket.socket) -> Traffic:
        """The kernel hands bytes over before send(2) returns: nothing is ever under way."""
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return Traffic.NONE
        pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Traffic.NONE if pid in (0, os.getpid()) else Traffic.LATELY

    def traffic_of_datagrams(self, sock: socket.socket) -> Traffic:
        try:
            name, peer = sock.getsockname(), sock.getpeername()
        except OSError:
            # It may have asked anybody.
            return Traffic.LATELY
        return Traffic.LATELY if self.find(peer, name) is None else Traffic.NONE

    def traffic_of_stream(self, sock: socket.socket, receives: bool) -> Traffic:
        here = stream_of(sock)
        if here is None or here.state == LISTEN:
            return Traffic.NONE
        if here.state == SYN_SENT:
            return Traffic.ASKED
        if here.state not in (ESTABLISHED, CLOSE_WAIT):
            return Traffic.NONE
        try:
            name, peer = sock.getsockname(), sock.getpeername()
        except OSError:
            return Traffic.NONE
        if receives and unread_bytes(sock):
            # They have been reported: the program does not want them now.
            return Traffic.NONE
        other = self.find(peer, name)
        if other is None:
            if not receives:
                # The other program makes room.
                return Traffic.ASKED
            if not here.sent and not here.received:
                return Traffic.LATELY
            return Traffic.ASKED if here.asked else Traffic.OPEN
        with borrowed(other) as sock:
            there = stream_of(sock)
        if receives and there is not None and is_under_way(there, here):
            return Traffic.UNDER_WAY
        return Traffic.NONE

    def find(self, name: object, peer: object) -> int | None:
        """Return the descriptor of this process's socket with these names."""
        if not self.fds:
            for text in os.listdir("/proc/self/fd"):
                if is_socket(int(text)) and (names := names_of(int(text))) is not None:
                    self.fds[names] = int(text)
        return self.fds.get((name, peer))


def is_under_way(there: Stream, here: Stream) -> bool:
    """Return whether *here* will receive bytes that *there* has sent."""
    return there.sent > here.received or (there.unsent > 0 and there.sent == here.received)
