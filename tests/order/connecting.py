"""How each kind of connection is made, by the loop under test and by its peer.

The peer acts in the same thread: before the call, or in a callback once the loop has begun. What is
sent early is in the kernel before the loop has a transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from support.tls_contexts import Contexts, client_context, server_context

from order.links import Link
from order.peers import Peer, PipePeer, TlsPeer
from order.watching import Receiving, Watching

EARLY_SIZE = 100
CONTEXTS = Contexts(server_context(), client_context())


def act_early(link: Link) -> None:
    """Do what the peer has done before the loop knows of the connection."""
    for action in link.made_as.early.split():
        if action == "data":
            link.peer.send(EARLY_SIZE)
        elif action == "eof":
            link.peer.send_eof()
        elif action == "close":
            link.peer.close()
        else:
            link.peer.reset()


@contextlib.contextmanager
def each_turn(link: Link, function: Callable[[], bool]) -> Iterator[None]:
    """Call *function* in each turn until it returns False, or to the end of the block."""
    handle: asyncio.Handle | None = None

    def again() -> None:
        nonlocal handle
        handle = link.loop.call_soon(again) if function() else None

    handle = link.loop.call_soon(again)
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()


async def client(link: Link, listener: socket.socket, connect: Awaitable[Any]) -> None:
    """Connect to a listener; its side accepts and sends in the turn in which it can."""
    listener.setblocking(False)

    def accept() -> bool:
        try:
            link.peer = Peer(listener.accept()[0])
        except BlockingIOError:
            return True
        act_early(link)
        return False

    with listener, each_turn(link, accept):
        link.attach(await connect)


async def tcp_client(link: Link) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    await client(link, listener, link.loop.create_connection(link.protocol, host, port))


async def unix_client(link: Link) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        await client(link, listener, link.loop.create_unix_connection(link.protocol, path))


async def accepted(link: Link, server: asyncio.Server, peer: socket.socket) -> None:
    """Wait until a server has accepted *peer*."""
    link.peer = Peer(peer)
    act_early(link)
    await link.made
    server.close()


async def tcp_server(link: Link) -> None:
    server = await link.loop.create_server(link.server_protocol, "127.0.0.1", 0)
    await accepted(link, server, socket.create_connection(server.sockets[0].getsockname()))


async def unix_server(link: Link) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        server = await link.loop.create_unix_server(link.server_protocol, path)
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
        await accepted(link, server, peer)


def tcp_ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        return listener.accept()[0], peer


async def connected(link: Link, ours: socket.socket, peer: socket.socket) -> None:
    ours.setblocking(False)
    link.peer = Peer(peer)
    link.peer.other = ours.fileno
    act_early(link)
    link.attach(await link.loop.create_connection(link.protocol, sock=ours))


async def tcp_socket(link: Link) -> None:
    await connected(link, *tcp_ends())


async def unix_socket(link: Link) -> None:
    await connected(link, *socket.socketpair())


async def watched(link: Link) -> None:
    """Watch a socket by add_reader()."""
    ours, peer = socket.socketpair()
    begin_watching(link, Watching, ours, peer)


async def received(link: Link) -> None:
    """Receive from a socket by sock_recv()."""
    begin_watching(link, Receiving, *tcp_ends())


def begin_watching(
    link: Link, kind: type[Watching], ours: socket.socket, peer: socket.socket
) -> None:
    ours.setblocking(False)
    link.peer = Peer(peer)
    link.peer.other = ours.fileno
    act_early(link)
    kind(link, ours)


# ── pipes ───────────────────────────────────────────────────────────────────────────────────


async def reading(link: Link, fd: int) -> None:
    act_early(link)
    file = os.fdopen(fd, "rb", buffering=0)
    link.attach(await link.loop.connect_read_pipe(link.protocol, file))


async def writing(link: Link, fd: int) -> None:
    file = os.fdopen(fd, "wb", buffering=0)
    link.attach(await link.loop.connect_write_pipe(link.protocol, file))


async def read_pipe(link: Link) -> None:
    ours, theirs = os.pipe()
    link.peer = PipePeer(theirs)
    await reading(link, ours)


async def read_fifo(link: Link) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fifo")
        os.mkfifo(path)
        ours = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        link.peer = PipePeer(os.open(path, os.O_WRONLY))
    await reading(link, ours)


async def read_socket(link: Link) -> None:
    ours, peer = socket.socketpair()
    link.peer = Peer(peer)
    await reading(link, ours.detach())


async def write_pipe(link: Link) -> None:
    theirs, ours = os.pipe()
    link.peer = PipePeer(theirs)
    await writing(link, ours)


async def write_socket(link: Link) -> None:
    ours, peer = socket.socketpair()
    link.peer = Peer(peer)
    await writing(link, ours.detach())


# ── datagrams ───────────────────────────────────────────────────────────────────────────────


async def udp(link: Link) -> None:
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind(("127.0.0.1", 0))
    link.peer = Peer(peer)
    transport, _ = await link.loop.create_datagram_endpoint(
        link.protocol, ("127.0.0.1", 0), peer.getsockname()
    )
    peer.connect(transport.get_extra_info("sockname"))


async def unix_datagrams(link: Link) -> None:
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    link.peer = Peer(peer)
    act_early(link)
    await link.loop.create_datagram_endpoint(link.protocol, sock=ours)


# ── TLS ─────────────────────────────────────────────────────────────────────────────────────


def tls_ends(link: Link, peer_serves: bool) -> tuple[socket.socket, Callable[[], bool]]:
    """Return our socket, and what the peer does in each turn of the handshake."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    context = CONTEXTS.server if peer_serves else CONTEXTS.client
    link.peer = peer = TlsPeer(theirs, context, peer_serves)

    def turn() -> bool:
        peer.turn()
        if peer.connected:
            act_early(link)
        return not peer.connected

    return ours, turn


async def tls_client(link: Link) -> None:
    ours, turn = tls_ends(link, True)
    with each_turn(link, turn):
        made = await link.loop.create_connection(
            link.protocol, sock=ours, ssl=CONTEXTS.client, server_hostname="localhost"
        )
        link.attach(made)


async def tls_server(link: Link) -> None:
    ours, turn = tls_ends(link, False)
    with each_turn(link, turn):
        made = await link.loop.connect_accepted_socket(link.protocol, ours, ssl=CONTEXTS.server)
        link.attach(made)


KINDS: dict[str, Callable[[Link], Awaitable[None]]] = {
    "tcp client": tcp_client,
    "tcp server": tcp_server,
    "tcp socket": tcp_socket,
    "unix client": unix_client,
    "unix server": unix_server,
    "unix socket": unix_socket,
    "add_reader": watched,
    "sock_recv": received,
    "read pipe": read_pipe,
    "read fifo": read_fifo,
    "read socket": read_socket,
    "write pipe": write_pipe,
    "write socket": write_socket,
    "udp": udp,
    "unix datagrams": unix_datagrams,
    "tls client": tls_client,
    "tls server": tls_server,
}


async def connect(link: Link) -> None:
    await KINDS[link.made_as.kind](link)
