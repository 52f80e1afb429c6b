"""UNIX sockets whose peer has no room: a full backlog for connections, a full queue for datagrams.

The kernel answers EAGAIN and reports nowhere when there is room. asyncio returns an unconnected
socket as if it were connected, and tries a datagram again in every turn.
"""

# Issue 51.

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.protocols import Collector
from support.roles import PATIENCE, kernel_version, on_loop, turns

import uringloop

# From Linux's <netinet/in.h>; Python has no name for it.
IP_LOCAL_PORT_RANGE = 51

KINDS = [
    pytest.param(socket.SOCK_STREAM, id="stream"),
    pytest.param(socket.SOCK_SEQPACKET, id="seqpacket"),
]


def full_listener(path: Path | str, kind: int = socket.SOCK_STREAM) -> list[socket.socket]:
    """Return a listener at *path*, and behind it the clients that fill its backlog."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    listener.listen(0)
    listener.setblocking(False)
    sockets = [listener]
    while True:
        client = socket.socket(socket.AF_UNIX, kind)
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:
            client.close()
            return sockets
        sockets.append(client)


def accept_all(listener: socket.socket) -> list[socket.socket]:
    accepted = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except BlockingIOError:
            return accepted


def close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


@pytest.fixture
def full(path: Path) -> Iterator[list[socket.socket]]:
    sockets = full_listener(path)
    yield sockets
    close_all(sockets)


# ── connections ───────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_connection_waits_for_room_in_the_backlog(
    loop: uringloop.Loop, path: Path, full: list[socket.socket]
) -> None:
    connecting = loop.create_task(
        loop.create_unix_connection(lambda: Collector(loop), os.fspath(path))
    )
    await turns(10)
    assert not connecting.done()
    accepted = accept_all(full[0])
    transport, protocol = await asyncio.wait_for(connecting, PATIENCE)
    peer, _ = full[0].accept()
    peer.sendall(b"served")
    assert await protocol.received(6) == b"served"
    transport.close()
    await protocol.lost
    close_all([*accepted, peer])


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_sock_connect_waits_for_room_in_the_backlog(
    loop: uringloop.Loop, path: Path, kind: int
) -> None:
    sockets = full_listener(path, kind)
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.setblocking(False)
        connecting = loop.create_task(loop.sock_connect(client, str(path)))
        await turns(10)
        assert not connecting.done()
        sockets += accept_all(sockets[0])
        await asyncio.wait_for(connecting, PATIENCE)
        assert client.getpeername() == str(path)
    close_all(sockets)


@on_loop
async def test_streams_wait_for_room_in_the_backlog(
    loop: uringloop.Loop, path: Path, full: list[socket.socket]
) -> None:
    opening = [loop.create_task(asyncio.open_unix_connection(str(path))) for _ in range(3)]
    await turns(10)
    assert not any(task.done() for task in opening)
    accepted = []
    deadline = loop.time() + PATIENCE
    while not all(task.done() for task in opening):
        assert loop.time() < deadline
        accepted += accept_all(full[0])
        await asyncio.wait(opening, timeout=0.001)
    for task in opening:
        _, writer = task.result()
        assert writer.get_extra_info("peername") == str(path)
        writer.close()
        await writer.wait_closed()
    close_all([*accepted, *accept_all(full[0])])


@on_loop
async def test_a_connection_that_waits_for_room_can_be_cancelled(
    loop: uringloop.Loop, path: Path, full: list[socket.socket]
) -> None:
    connecting = loop.create_task(loop.create_unix_connection(asyncio.Protocol, str(path)))
    await turns(10)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    # The cancelled connection takes no place: all that are accepted are the clients that filled it.
    accepted = accept_all(full[0])
    assert len(accepted) == len(full) - 1
    close_all(accepted)


@on_loop
async def test_a_connection_that_waits_for_room_is_refused_when_the_listener_closes(
    loop: uringloop.Loop, path: Path, full: list[socket.socket]
) -> None:
    connecting = loop.create_task(loop.create_unix_connection(asyncio.Protocol, str(path)))
    await turns(10)
    full[0].close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.wait_for(connecting, PATIENCE)


@on_loop
async def test_a_socket_that_is_closed_while_it_waits_for_room_is_an_error(
    loop: uringloop.Loop, path: Path, full: list[socket.socket]
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        connecting = loop.create_task(loop.sock_connect(client, str(path)))
        await turns(10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await asyncio.wait_for(connecting, PATIENCE)


@pytest.mark.skipif(kernel_version() < (6, 3), reason="IP_LOCAL_PORT_RANGE is new in Linux 6.3")
@on_loop
async def test_connecting_without_a_free_local_port_is_an_error(loop: uringloop.Loop) -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as taken,
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        taken.bind(("0.0.0.0", 0))
        port = taken.getsockname()[1]
        client.setsockopt(
            socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port)
        )
        client.setblocking(False)
        # asyncio returns, although the socket has no peer.
        with pytest.raises(BlockingIOError) as caught:
            await loop.sock_connect(client, ("127.0.0.1", 9))
        assert caught.value.errno == errno.EAGAIN


# ── datagrams ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_datagram_for_a_full_queue_waits_without_work(
    loop: uringloop.Loop, path: Path
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(str(path))
        receiver.setblocking(False)
        sender.setblocking(False)
        count = 0
        while True:
            try:
                sender.sendto(b"fill", str(path))
            except BlockingIOError:
                break
            count += 1
        sending = loop.create_task(loop.sock_sendto(sender, b"last", str(path)))
        await turns(10)
        # Each attempt is a poll and a pause; without pauses a turn follows the other.
        entries = loop._kernel_entries
        await asyncio.wait([sending], timeout=0.1)
        assert loop._kernel_entries - entries < 50
        assert not sending.done()
        assert [receiver.recv(10) for _ in range(count)] == [b"fill"] * count
        assert await asyncio.wait_for(sending, PATIENCE) == 4
        assert receiver.recv(10) == b"last"
