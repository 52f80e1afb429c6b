"""The sock_* methods and uringloop.sockets: wrong sockets, wrong data, addresses, no peer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from bad_input.stage import BadFileno, Call, Stage, cases
from uringloop import sockets

# Seconds. No peer sends, so that a call that waits raises TimeoutError.
BRIEFLY = 0.2
HOST = "127.0.0.1"

SOCKETS: dict[str, Call] = {
    "None": lambda s: None,
    "1": lambda s: 1,
    "'text'": lambda s: "text",
    "object with fileno()": lambda s: BadFileno(0),
    "closed": Stage.closed,
    "TLS": Stage.tls,
    "blocking": Stage.blocking,
    "with a timeout": Stage.timed,
    "unconnected": Stage.fresh,
    "listener": Stage.listener,
}
METHODS: dict[str, Callable[[Stage, Any], Any]] = {
    "sock_recv": lambda s, sock: s.loop.sock_recv(sock, 1),
    "sock_recv_into": lambda s, sock: s.loop.sock_recv_into(sock, bytearray(1)),
    "sock_recvfrom": lambda s, sock: s.loop.sock_recvfrom(sock, 1),
    "sock_recvfrom_into": lambda s, sock: s.loop.sock_recvfrom_into(sock, bytearray(1)),
    "sock_sendall": lambda s, sock: s.loop.sock_sendall(sock, b"x"),
    "sock_sendto": lambda s, sock: s.loop.sock_sendto(sock, b"x", (HOST, 9)),
    "sock_connect": lambda s, sock: s.loop.sock_connect(sock, (HOST, 9)),
    "sock_accept": lambda s, sock: s.loop.sock_accept(sock),
    "sock_sendfile": lambda s, sock: s.loop.sock_sendfile(sock, s.file()),
    "recvmsg": lambda s, sock: sockets.recvmsg(s.loop, sock, 1, 100),
    "recvmsg_into": lambda s, sock: sockets.recvmsg_into(s.loop, sock, [bytearray(1)]),
    "sendmsg": lambda s, sock: sockets.sendmsg(s.loop, sock, [b"x"]),
    "sendmsg to": lambda s, sock: sockets.sendmsg(s.loop, sock, [b"x"], (), 0, (HOST, 9)),
    "send_fds": lambda s, sock: sockets.send_fds(s.loop, sock, [b"x"], [0]),
    "recv_fds": lambda s, sock: sockets.recv_fds(s.loop, sock, 1, 1),
    "wait": lambda s, sock: sockets.wait(s.loop, sock, sockets.READ),
}
# Sockets that would block any loop, also asyncio's, unless debug mode refuses them.
BLOCKS = ("blocking", "with a timeout")


def _with_sock(method: Callable[[Stage, Any], Any], make: Call) -> Call:
    async def call(s: Stage) -> object:
        return await asyncio.wait_for(method(s, make(s)), BRIEFLY)

    return call


def _wrong_sockets(names: list[str]) -> dict[str, Call]:
    return {
        f"{method}({name})": _with_sock(call, SOCKETS[name])
        for method, call in METHODS.items()
        for name in names
    }


def _with(make: Callable[[Stage], Any], method: str, *args: Any) -> Call:
    async def call(s: Stage) -> object:
        return await asyncio.wait_for(getattr(s.loop, method)(make(s), *args), BRIEFLY)

    return call


def _tcp(method: str, *args: Any) -> Call:
    return _with(Stage.tcp, method, *args)


def _function(call: Callable[..., Any], *args: Any, **options: Any) -> Call:
    return lambda s: asyncio.wait_for(call(s.loop, s.tcp(), *args, **options), BRIEFLY)


def _connect(address: Any, make: Callable[[Stage], Any] = Stage.fresh) -> Call:
    # Without a timeout: asyncio resolves addresses in a thread.
    return lambda s: s.loop.sock_connect(make(s), address)


ARGUMENTS: dict[str, Call] = {
    "sock_recv(sock)": _tcp("sock_recv"),
    "sock_recv(sock, -1)": _tcp("sock_recv", -1),
    "sock_recv(sock, 'x')": _tcp("sock_recv", "x"),
    "sock_recv(sock, None)": _tcp("sock_recv", None),
    "sock_recv(sock, 1.5)": _tcp("sock_recv", 1.5),
    "sock_recv(sock, 2**70)": _tcp("sock_recv", 2**70),
    "sock_recv_into(sock, bytes)": _tcp("sock_recv_into", b"xx"),
    "sock_recv_into(sock, text)": _tcp("sock_recv_into", "xx"),
    "sock_recv_into(sock, None)": _tcp("sock_recv_into", None),
    "sock_recv_into(sock, 1)": _tcp("sock_recv_into", 1),
    "sock_recv_into(sock, list)": _tcp("sock_recv_into", [1]),
    "sock_recvfrom(sock, -1)": _tcp("sock_recvfrom", -1),
    "sock_recvfrom(sock, 'x')": _tcp("sock_recvfrom", "x"),
    "sock_recvfrom_into(sock, bytes)": _tcp("sock_recvfrom_into", b"xx"),
    "sock_recvfrom_into(sock, None)": _tcp("sock_recvfrom_into", None),
    "sock_recvfrom_into(sock, buffer, -1)": _tcp("sock_recvfrom_into", bytearray(1), -1),
    "sock_recvfrom_into(sock, buffer, 2)": _tcp("sock_recvfrom_into", bytearray(1), 2),
    "sock_recvfrom_into(sock, buffer, 'x')": _tcp("sock_recvfrom_into", bytearray(1), "x"),
    "sock_sendall(sock, text)": _tcp("sock_sendall", "text"),
    "sock_sendall(sock, None)": _tcp("sock_sendall", None),
    "sock_sendall(sock, 1)": _tcp("sock_sendall", 1),
    "sock_sendall(sock, list)": _tcp("sock_sendall", [b"x"]),
    "sock_sendall(sock, non-contiguous view)": _tcp("sock_sendall", memoryview(b"abcd")[::2]),
    "sock_sendall(sock, no bytes)": _tcp("sock_sendall", b""),
    "sock_sendto(sock, text, address)": _tcp("sock_sendto", "text", (HOST, 9)),
    "sock_sendto(UDP, None, address)": _with(Stage.udp, "sock_sendto", None, (HOST, 9)),
    "sock_sendto(UDP, data, None)": _with(Stage.udp, "sock_sendto", b"x", None),
    "sock_sendto(UDP, data, text)": _with(Stage.udp, "sock_sendto", b"x", "text"),
    "sock_sendto(UDP, data, 1)": _with(Stage.udp, "sock_sendto", b"x", 1),
    "sock_sendto(UDP, data, (host,))": _with(Stage.udp, "sock_sendto", b"x", (HOST,)),
    "sock_sendto(UDP, data, (host, 'x'))": _with(Stage.udp, "sock_sendto", b"x", (HOST, "x")),
    "sock_sendto(UDP, data, (host, -1))": _with(Stage.udp, "sock_sendto", b"x", (HOST, -1)),
    "sock_sendto(UDP, too long, address)": _with(
        Stage.udp, "sock_sendto", bytes(70_000), (HOST, 9)
    ),
    "sock_sendto(UNIX datagram, data, missing)": _with(
        Stage.unix_datagram, "sock_sendto", b"x", "/missing/socket"
    ),
    "sock_connect(sock, None)": _connect(None),
    "sock_connect(sock, 1)": _connect(1),
    "sock_connect(sock, text)": _connect("text"),
    "sock_connect(sock, text of two letters)": _connect("ab"),
    "sock_connect(sock, ())": _connect(()),
    "sock_connect(sock, (host,))": _connect((HOST,)),
    "sock_connect(sock, (host, 'x'))": _connect((HOST, "no such service")),
    "sock_connect(sock, (host, None))": _connect((HOST, None)),
    "sock_connect(sock, (host, -1))": _connect((HOST, -1)),
    "sock_connect(sock, (host, 65536))": _connect((HOST, 65536)),
    "sock_connect(sock, (1, 80))": _connect((1, 80)),
    "sock_connect(sock, (None, 1))": _connect((None, 1)),
    "sock_connect(sock, [host, 9])": _connect([HOST, 9]),
    "sock_connect(sock, (host with a null byte, 9))": _connect(("127.0.0.1\0", 9)),
    "sock_connect(IPv4 sock, IPv6 address)": _connect(("::1", 9)),
    "sock_connect(sock, three items)": _connect((HOST, 9, 1)),
    "sock_connect(sock, six items)": _connect((HOST, 9, 1, 1, 1, 1)),
    "sock_connect(sock, refused)": lambda s: s.loop.sock_connect(s.fresh(), (HOST, s.unused())),
    "sock_connect(sock, twice)": _connect((HOST, 9), Stage.tcp),
    "sock_connect(listener, address)": _connect((HOST, 9), Stage.listener),
    "sock_connect(UDP, refused)": _connect((HOST, 9), Stage.udp),
    "sock_connect(UDP, (host, 'x'))": _connect((HOST, "no such service"), Stage.udp),
    "sock_connect(UNIX, missing)": _connect("/missing/socket", Stage.unix),
    "sock_connect(UNIX, too long)": _connect("/tmp/" + "x" * 200, Stage.unix),
    "sock_connect(UNIX, tuple)": _connect((HOST, 9), Stage.unix),
    "sock_connect(UNIX, None)": _connect(None, Stage.unix),
    "sock_connect(UNIX, '')": _connect("", Stage.unix),
    "recvmsg(sock)": _function(sockets.recvmsg),
    "recvmsg(sock, 2**70)": _function(sockets.recvmsg, 2**70),
    "recvmsg(sock, 1, 2**70)": _function(sockets.recvmsg, 1, 2**70),
    "recvmsg(sock, None)": _function(sockets.recvmsg, None),
    "recvmsg(sock, 1, None)": _function(sockets.recvmsg, 1, None),
    "recvmsg(sock, 1, 0, None)": _function(sockets.recvmsg, 1, 0, None),
    "recvmsg(sock, 1, 0, 2**40)": _function(sockets.recvmsg, 1, 0, 2**40),
    "recvmsg(sock, 1, 0, MSG_OOB)": _function(sockets.recvmsg, 1, 0, socket.MSG_OOB),
    "recvmsg(sock, 1, unknown=1)": _function(sockets.recvmsg, 1, unknown=1),
    "recvmsg_into(sock, None)": _function(sockets.recvmsg_into, None),
    "recvmsg_into(sock, [])": _function(sockets.recvmsg_into, []),
    "recvmsg_into(sock, [None])": _function(sockets.recvmsg_into, [None]),
    "recvmsg_into(sock, 2,000 buffers)": _function(sockets.recvmsg_into, [bytearray(1)] * 2000),
    "sendmsg(sock, None)": _function(sockets.sendmsg, None),
    "sendmsg(sock, [])": _function(sockets.sendmsg, []),
    "sendmsg(sock, [1])": _function(sockets.sendmsg, [1]),
    "sendmsg(sock, 2,000 buffers)": _function(sockets.sendmsg, [b"x"] * 2000),
    "sendmsg(sock, ancdata=None)": _function(sockets.sendmsg, [b"x"], None),
    "sendmsg(sock, ancdata of two)": _function(sockets.sendmsg, [b"x"], [(1, 2)]),
    "sendmsg(sock, level of 2**40)": _function(sockets.sendmsg, [b"x"], [(2**40, 2, b"")]),
    "sendmsg(sock, data of a text)": _function(sockets.sendmsg, [b"x"], [(1, 2, "x")]),
    "sendmsg(sock, unknown level)": _function(sockets.sendmsg, [b"x"], [(99, 99, b"x")]),
    "sendmsg(sock, flags='x')": _function(sockets.sendmsg, [b"x"], (), "x"),
    "sendmsg(sock, address=())": _function(sockets.sendmsg, [b"x"], (), 0, ()),
    "sendmsg(sock, address=text)": _function(sockets.sendmsg, [b"x"], (), 0, "x"),
    "send_fds(sock, None)": _function(sockets.send_fds, [b"x"], None),
    "send_fds(sock, [-1])": _function(sockets.send_fds, [b"x"], [-1]),
    "send_fds(sock, [0])": _function(sockets.send_fds, [b"x"], [0]),
    "recv_fds(sock, 1, None)": _function(sockets.recv_fds, 1, None),
    "recv_fds(sock, 1, 2**40)": _function(sockets.recv_fds, 1, 2**40),
    "wait(sock, 0)": _function(sockets.wait, 0),
    "wait(sock, 2**70)": _function(sockets.wait, 2**70),
    "wait(sock, None)": _function(sockets.wait, None),
    "wait(sock, text)": _function(sockets.wait, "READ"),
    "sock_accept()": lambda s: s.loop.sock_accept(),
    "sock_accept(connected)": _tcp("sock_accept"),
    "sock_accept(UDP)": _with(Stage.udp, "sock_accept"),
}


def _sendfile(file: Callable[[Stage], Any], *args: Any, **options: Any) -> Call:
    return lambda s: s.loop.sock_sendfile(s.tcp(), file(s), *args, **options)


SENDFILE: dict[str, Call] = {
    "None": _sendfile(lambda s: None),
    "text mode": _sendfile(lambda s: s.file("r")),
    "offset=-1": _sendfile(Stage.file, -1),
    "offset='x'": _sendfile(Stage.file, "x"),
    "offset=None": _sendfile(Stage.file, None),
    "offset=1.5": _sendfile(Stage.file, 1.5),
    "count=0": _sendfile(Stage.file, 0, 0),
    "count=-1": _sendfile(Stage.file, 0, -1),
    "count='x'": _sendfile(Stage.file, 0, "x"),
    "beyond the end": _sendfile(Stage.file, 100),
    "no fallback for text": _sendfile(lambda s: s.file("r"), fallback=False),
    "no fallback for no file": _sendfile(lambda s: BadFileno(OSError()), fallback=False),
    "write only": _sendfile(lambda s: s.file("ab")),
    "UDP": lambda s: s.loop.sock_sendfile(s.udp(), s.file()),
}


async def _on_transport(s: Stage, call: Callable[[Any], Any]) -> object:
    """Use a transport's descriptor, by its number, in another socket object."""
    transport = await s.transport()
    with socket.socket(fileno=transport.get_extra_info("socket").fileno()) as sock:
        try:
            return await asyncio.wait_for(call(sock), BRIEFLY)
        finally:
            sock.detach()


OWNED: dict[str, Call] = {
    "sock_recv": lambda s: _on_transport(s, lambda sock: s.loop.sock_recv(sock, 1)),
    "sock_recv_into": lambda s: _on_transport(
        s, lambda sock: s.loop.sock_recv_into(sock, bytearray(1))
    ),
    "sock_accept": lambda s: _on_transport(s, lambda sock: s.loop.sock_accept(sock)),
    "sock_sendfile": lambda s: _on_transport(s, lambda sock: s.loop.sock_sendfile(sock, s.file())),
}

CASES = [
    *cases("plain", _wrong_sockets([name for name in SOCKETS if name not in BLOCKS])),
    *cases("debug", _wrong_sockets(list(SOCKETS))),
    *cases("closed", _wrong_sockets(["None", "closed", "TLS", "unconnected"])),
    *cases("plain debug", ARGUMENTS),
    *cases("plain", {f"sock_sendfile(sock, {name})": call for name, call in SENDFILE.items()}),
    *cases("plain", {f"{name}(of a transport)": call for name, call in OWNED.items()}),
]
