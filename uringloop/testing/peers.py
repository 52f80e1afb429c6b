"""Whom the sockets of a loop are connected to, and whether something is under way.

Both ends of a TCP connection may be in this process: a test's client and its server. The kernel
carries bytes between them at once, but not always before send(2) has returned. TCP_INFO tells
what is under way: the bytes that one end has sent and the other has not received.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import re
import select
import socket
import stat
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uringloop.testing import proc
from uringloop.testing.servers import EVERY_ADDRESS

if TYPE_CHECKING:
    from uringloop.testing.loop import Loop

# Offsets in struct tcp_info of linux/tcp.h.
STATE = 0
BACKLOG = 24
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

# A server that speaks first does so within so many milliseconds after the connection was made.
GREETING_MS = 1000

EPOLL = "anon_inode:[eventpoll]"
ALL_EVENTS = select.POLLIN | select.POLLOUT | select.POLLPRI | select.POLLRDHUP
# Descriptors by which the kernel tells what other programs do.
WATCHES = ("anon_inode:inotify", "inotify", "anon_inode:[fanotify]", "anon_inode:[pidfd]")


class Traffic(enum.IntEnum):
    """What may come to the sockets of a loop; the higher values outweigh the lower."""

    NONE = 0  # nothing
    LATELY = 1  # another program may have been asked; nothing tells whether it was
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
    backlog: int  # of a socket that listens: how many connections nobody has accepted
    unused_ms: int  # milliseconds since it last sent, or was connected
    asked: bool  # it has sent since it last received, or in the same tick of the kernel's clock


def stream_of(sock: socket.socket) -> Stream | None:
    """Return the state of a TCP socket; None if unknown."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
    except OSError:
        return None
    if len(info) < TCP_INFO_SIZE:
        return None
    sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
    (received,) = struct.unpack_from("Q", info, BYTES_RECEIVED)
    (backlog,) = struct.unpack_from("I", info, BACKLOG)
    (unsent,) = struct.unpack_from("I", info, NOT_SENT)
    (last_sent,) = struct.unpack_from("I", info, LAST_DATA_SENT)
    (last_received,) = struct.unpack_from("I", info, LAST_DATA_RECEIVED)
    # Both count the milliseconds since an event: the smaller number is that of the later event.
    asked = sent > 0 and (last_sent <= last_received or not received)
    return Stream(info[STATE], sent - again, received, unsent, backlog, last_sent, asked)


@contextlib.contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """Yield a socket object for a descriptor that belongs to somebody else."""
    default = socket.getdefaulttimeout()
    if default is not None:
        # A default timeout would make the descriptor non-blocking.
        socket.setdefaulttimeout(None)
    try:
        sock = socket.socket(fileno=fd)
    finally:
        if default is not None:
            socket.setdefaulttimeout(default)
    try:
        yield sock
    finally:
        sock.detach()


def names_of(fd: int) -> tuple[object, object] | None:
    """Return the names of a connected socket and of its peer."""
    try:
        with borrowed(fd) as sock:
            return sock.getsockname(), sock.getpeername()
    except OSError:
        return None


def backlog_at(fd: int) -> tuple[str, int] | None:
    """Return the address of a TCP socket that has connections to accept; None for any other."""
    try:
        with borrowed(fd) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            stream = stream_of(sock)
            if stream is None or stream.state != LISTEN or not stream.backlog:
                return None
            host, port, *_ = sock.getsockname()
    except OSError:
        # Another thread has closed it.
        return None
    return host, port


def unread_bytes(sock: socket.socket) -> int:
    """Return how many bytes the socket has received that nobody has taken."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(count)


def process_of_peer(sock: socket.socket) -> int:
    """Return the process that made a UNIX socket's peer; 0 if nobody knows."""
    pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def is_pair(sock: socket.socket) -> bool:
    """Return whether a UNIX socket is connected to one of this process."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    return process_of_peer(sock) == os.getpid()


def has_own_peer(sock: socket.socket) -> bool:
    """Return whether this process has the other end of a UNIX socket, or nobody knows."""
    return process_of_peer(sock) in (0, os.getpid())


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Return how many bytes the socket has sent that the other kernel has not acknowledged."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(count)


def is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def watched(waits: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield *waits*, with what it watches in place of each epoll instance."""
    for fd, events in waits:
        if kind_of(fd) == EPOLL:
            yield from watched(members_of(fd))
        else:
            yield fd, events


def members_of(fd: int) -> list[tuple[int, int]]:
    """Return the descriptors of an epoll instance, with their events."""
    try:
        text = proc.read(f"/proc/self/fdinfo/{fd}")
    except OSError:
        return []
    found = re.findall(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", text, re.MULTILINE)
    # A descriptor that is disarmed has flags of epoll, but no event. The instance's own number
    # would make the recursion endless.
    return [
        (int(number), int(mask, 16) & ALL_EVENTS)
        for number, mask in found
        if int(mask, 16) & ALL_EVENTS and int(number) != fd
    ]


def kind_of(fd: int) -> str:
    """Return what the kernel calls the file of a descriptor; "" if there is none."""
    try:
        return proc.target(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def traffic_of_other(fd: int) -> Traffic:
    """Return what may come to a descriptor that is not a socket's."""
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode):
            # A pipe of the program's own hands over at once what is written to it.
            return Traffic.NONE if has_other_end(fd) else Traffic.ASKED
        if stat.S_ISCHR(mode):
            # A terminal hands over later what was written to its other end.
            return Traffic.OPEN
        kind = kind_of(fd)
        if kind == "anon_inode:[timerfd]":
            return Traffic.ASKED if is_armed(fd) else Traffic.NONE
    except OSError:
        return Traffic.NONE
    return Traffic.OPEN if kind in WATCHES else Traffic.NONE


def access_of(fd: int) -> int:
    """Return whether a descriptor reads, writes or does both, as the mode of open(2)."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


def has_other_end(fd: int) -> bool:
    """Return whether this process has the other end of a pipe, too."""
    file, access = os.fstat(fd), access_of(fd)
    for text in proc.names("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = os.fstat(int(text))
            if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino) and (
                os.O_RDWR in (access, access_of(int(text))) or access_of(int(text)) != access
            ):
                return True
    return False


def is_own(fd: int) -> bool:
    """Return whether both ends of a pipe, or of a pair of UNIX sockets, are in this process."""
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return has_other_end(fd)
        if not is_socket(fd):
            return False
        with borrowed(fd) as sock:
            return sock.family == socket.AF_UNIX and is_pair(sock)
    except OSError:
        return False


def is_armed(fd: int) -> bool:
    """Return whether a timerfd will expire."""
    return "it_value: (0, 0)" not in proc.read(f"/proc/self/fdinfo/{fd}")


class Peers:
    """The sockets of this process by their names."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.fds: dict[tuple[object, object], int] = {}
        self.backlogs: set[tuple[str, int]] = set()

    def traffic(self, waits: list[tuple[int, int]], *, asked_lately: bool) -> Traffic:
        """Return what may come to the descriptors that the loop waits for.

        *waits* are descriptors with events of poll(2). *asked_lately*: a short time ago the loop
        has done something that may have been a question.
        """
        highest = Traffic.NONE
        self.fds = {}
        self.backlogs = set()
        for fd, events in watched(waits):
            try:
                found = self.traffic_of(fd, bool(events & select.POLLIN))
            except OSError:
                # Another thread has closed it.
                continue
            if found is Traffic.LATELY:
                found = Traffic.ASKED if asked_lately else Traffic.OPEN
            highest = max(highest, found)
        return highest

    def traffic_of(self, fd: int, receives: bool) -> Traffic:
        if not is_socket(fd):
            return traffic_of_other(fd)
        with borrowed(fd) as sock:
            if sock.family == socket.AF_UNIX:
                return self.traffic_of_unix(sock)
            if sock.type == socket.SOCK_STREAM:
                return self.traffic_of_stream(fd, sock, receives)
            return self.traffic_of_datagrams(sock)

    def traffic_of_unix(self, sock: socket.socket) -> Traffic:
        """Return what may come. No bytes are under way: send(2) returns after handing them over."""
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return Traffic.NONE
        return Traffic.NONE if has_own_peer(sock) else Traffic.LATELY

    def traffic_of_datagrams(self, sock: socket.socket) -> Traffic:
        try:
            name, peer = sock.getsockname(), sock.getpeername()
        except OSError:
            # It has no peer, and may have asked anybody.
            return Traffic.LATELY
        return Traffic.LATELY if self.find(peer, name) is None else Traffic.NONE

    def traffic_of_stream(self, fd: int, sock: socket.socket, receives: bool) -> Traffic:
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
            # These bytes have been reported: the program does not want them now.
            return Traffic.NONE
        other = self.find(peer, name)
        if other is None:
            if self.has_backlog(peer):
                # The other end is a connection that this process has yet to accept.
                return Traffic.NONE
            if not receives:
                # The loop waits until the other program makes room.
                return Traffic.ASKED
            if not here.sent and not here.received:
                # A server may speak first.
                return Traffic.ASKED if here.unused_ms < GREETING_MS else Traffic.OPEN
            if self.is_asked(fd, here):
                return Traffic.ASKED
            # What came last may have been TLS's own: tickets come after the handshake.
            return Traffic.LATELY if self.loop._is_encrypted(fd) else Traffic.OPEN
        try:
            with borrowed(other) as target:
                there = stream_of(target)
                unread = unread_bytes(target)
        except OSError:
            # Another thread has closed it: the end of the stream is under way.
            return Traffic.UNDER_WAY
        if there is None:
            return Traffic.NONE
        # If a thread has the other end, a question has reached it once its bytes have arrived.
        under_way = here.sent > there.received or (receives and is_under_way(there, here))
        if not receives:
            # The other end has taken all; the kernel acknowledges that some milliseconds later.
            under_way |= not unread and unacknowledged_bytes(sock) > 0
        return Traffic.UNDER_WAY if under_way else Traffic.NONE

    def is_asked(self, fd: int, here: Stream) -> bool:
        """Return whether a socket has sent since it has received."""
        received, sent = self.loop._bytes_at_receive(fd)
        if received and received == here.received:
            return here.sent > sent
        # The loop has not received the newest bytes: the program receives by itself, or has not
        # taken all.
        return here.asked

    def find(self, name: object, peer: object) -> int | None:
        """Return the descriptor of this process's socket with these names."""
        self.look_around()
        return self.fds.get((name, peer))

    def has_backlog(self, name: Any) -> bool:
        """Return whether a socket of this process listens at *name*, with connections to accept."""
        self.look_around()
        return any((host, name[1]) in self.backlogs for host in (name[0], *EVERY_ADDRESS.values()))

    def look_around(self) -> None:
        """Note the names of this process's sockets, once for each `traffic`."""
        if self.fds or self.backlogs:
            return
        for text in proc.names("/proc/self/fd"):
            if not is_socket(int(text)):
                continue
            if (names := names_of(int(text))) is not None:
                self.fds[names] = int(text)
            elif (where := backlog_at(int(text))) is not None:
                self.backlogs.add(where)


def is_under_way(there: Stream, here: Stream) -> bool:
    """Return whether *here* will receive bytes that *there* has sent."""
    return there.sent > here.received or (there.unsent > 0 and there.sent == here.received)
