"""Messages for tests: protocols that get them, and plain sockets that send and receive them."""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from support.datagrams import (
    Mailbox,
    endpoint,
    udp,
)
from support.roles import (
    PATIENCE,
    needs_ipv6,
)
from support.sockets import content
from uringloop import Loop

LOCAL = ("127.0.0.1", 0)
LARGEST = 65_507
# The transport receives four datagrams by polls, and later ones by the ring.
MANY = 14
IP, IPV6, SOCKET = socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET
# Options that the socket module has no constants for.
IP_PKTINFO, IP_RECVERR, IP_RECVTTL, IPV6_RECVERR = 8, 11, 12, 25
SO_NO_CHECK, SO_TIMESTAMPNS, SO_TIMESTAMPING, SO_RXQ_OVFL = 11, 35, 37, 40
UDP_GRO, UDP_LITE = 104, 136
# SOF_TIMESTAMPING_TX_SOFTWARE, SOFTWARE, OPT_TSONLY and OPT_ID: when each datagram left.
SEND_TIMES = 2 | 16 | 2048 | 128
# SOF_TIMESTAMPING_RX_SOFTWARE and SOFTWARE: when each datagram arrived.
RECEIVE_TIMES = 8 | 16
# linux/errqueue.h: the number, the origin and two more, a kind and a value of sock_extended_err.
EXTENDED_ERROR = struct.Struct("=IBBBxII")
ORIGIN_TIMESTAMPING = 4
TIMESPEC = struct.Struct("=qq")

Item = tuple[int, int, Any]


class Message(NamedTuple):
    data: bytes
    ancdata: list[Item]
    flags: int
    addr: Any


class Messages(Mailbox):
    """A mailbox that gets its datagrams with their ancillary data."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def message_received(self, data: bytes, ancdata: list[Item], flags: int, addr: Any) -> None:
        self.messages.append(Message(data, ancdata, flags, addr))
        self.mail.append((data, addr))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        raise AssertionError("this protocol has message_received()")


class Acting(Messages):
    """Call *act* after the messages with these numbers."""

    def __init__(self, act: Callable[[Any], object], *numbers: int) -> None:
        super().__init__()
        self.act, self.numbers = act, numbers

    def message_received(self, *args: Any) -> None:
        super().message_received(*args)
        if len(self.messages) in self.numbers:
            self.act(self)


def leaving_in(exc: type[BaseException], *numbers: int) -> Acting:
    def leave(_: Acting) -> None:
        raise exc

    return Acting(leave, *numbers)


def tos(value: int) -> Item:
    return IP, socket.IP_TOS, struct.pack("=i", value)


def rights(*fds: int) -> Item:
    return SOCKET, socket.SCM_RIGHTS, array.array("i", fds)


def contents(ancdata: list[Item], size: int = 100) -> list[bytes]:
    """Return what the pipes in *ancdata* hold, and close them."""
    found = []
    for level, kind, data in ancdata:
        assert (level, kind) == (SOCKET, socket.SCM_RIGHTS)
        found += [content(fd, size) for fd in array.array("i", data)]
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def enable(sock: Any, level: int, *options: int) -> None:
    for option in options:
        sock.setsockopt(level, option, 1)


def tell_all(sock: Any) -> None:
    """Have *sock* tell four things with each datagram."""
    enable(sock, SOCKET, SO_TIMESTAMPNS)
    if sock.family == socket.AF_INET6:
        enable(sock, IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_RECVPKTINFO)
        enable(sock, IPV6, socket.IPV6_RECVHOPLIMIT)
    else:
        enable(sock, IP, socket.IP_RECVTOS, IP_PKTINFO, IP_RECVTTL)


@contextlib.contextmanager
def blocking(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Yield a plain blocking UDP socket which tells all, too, and has room for many datagrams."""
    with udp(host) as sock:
        tell_all(sock)
        sock.settimeout(PATIENCE)
        sock.setsockopt(SOCKET, socket.SO_RCVBUF, 1 << 20)
        yield sock


def plain_message(sock: socket.socket, flags: int = 0) -> Message:
    return Message(*sock.recvmsg(1 << 17, 1000, flags))


def without_times(messages: list[Message]) -> list[Message]:
    """Return *messages* without the values of their time stamps, which must be recent."""
    result = []
    for data, ancdata, flags, addr in messages:
        (level, kind, value), *others = ancdata
        assert abs(TIMESPEC.unpack(value)[0] - time.time()) < 60
        result.append(Message(data, [(level, kind, b""), *others], flags, addr))
    return result


def seen_tos(messages: list[Message]) -> list[int]:
    """Return the type of service of each message."""
    items = [item for message in messages for item in message.ancdata]
    return [value[0] for level, kind, value in items if (level, kind) == (IP, socket.IP_TOS)]


@contextlib.asynccontextmanager
async def receiver(
    loop: Loop, protocol: Mailbox | None = None, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[tuple[Any, Any, socket.socket]]:
    """Open an endpoint that is told all, and a socket connected to it."""
    options = {"local_addr": (host, 0), **options}
    async with endpoint(loop, protocol or Messages(), **options) as (transport, mailbox):
        tell_all(transport.get_extra_info("socket"))
        with udp(host) as peer:
            peer.connect(transport.get_extra_info("sockname"))
            yield transport, mailbox, peer


async def pass_polls(mailbox: Any, peer: socket.socket) -> None:
    """Have *mailbox* get datagrams until the ring receives, and forget them."""
    for count in range(1, MANY):
        peer.send(b"by a poll")
        await mailbox.received(count)
    forget(mailbox)


def forget(mailbox: Any) -> None:
    mailbox.mail.clear()
    if isinstance(mailbox, Messages):
        mailbox.messages.clear()


each_way = pytest.mark.parametrize("ring", [False, True], ids=["polls", "ring"])
each_host = pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)], ids=["IPv4", "IPv6"]
)
