"""Sockets that are closed while a `sock_*` call waits for them: they stay open until it has ended.

As on uvloop. On asyncio the descriptor is closed at once, and the call waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.roles import connected, narrow_pair, noise, on_loop, read_exactly, turns, until
from support.sockets import tcp_pair

import uringloop

LOCALHOST = "127.0.0.1"
PLENTY = 1024 * 1024

Call = Callable[[uringloop.Loop, socket.socket], Coroutine[Any, Any, object]]

CALLS: dict[str, tuple[Call, object]] = {
    "recv": (lambda loop, sock: loop.sock_recv(sock, 10), b"late"),
    "recv_into": (lambda loop, sock: loop.sock_recv_into(sock, bytearray(10)), 4),
    "recvfrom": (lambda loop, sock: loop.sock_recvfrom(sock, 10), (b"late", None)),
    "recvfrom_into": (lambda loop, sock: loop.sock_recvfrom_into(sock, bytearray(10)), (4, None)),
}


class Subclass(socket.socket):
    """Its methods are asked, whatever they do."""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [socket.socket, Subclass])
@on_loop
async def test_a_call_that_waits_is_served(
    loop: uringloop.Loop, name: str, kind: type[socket.socket]
) -> None:
    call, wanted = CALLS[name]
    left, peer = tcp_pair()
    sock = kind(fileno=left.detach())
    sock.setblocking(False)
    with peer:
        task = loop.create_task(call(loop, sock))
        await turns(3)
        sock.close()
        assert sock.fileno() != -1
        peer.send(b"late")
        assert await task == wanted
        assert sock.fileno() == -1
        assert await loop.sock_recv(peer, 1) == b""


@on_loop
async def test_all_of_a_message_is_sent(loop: uringloop.Loop) -> None:
    sock, peer = narrow_pair(16 * 1024)
    with peer:
        task = loop.create_task(loop.sock_sendall(sock, noise(PLENTY)))
        await turns(3)
        sock.close()
        assert await read_exactly(loop, peer, PLENTY) == noise(PLENTY)
        await task
        assert sock.fileno() == -1
        assert await loop.sock_recv(peer, 1) == b""


@on_loop
async def test_a_connection_is_made(loop: uringloop.Loop) -> None:
    with socket.create_server((LOCALHOST, 0)) as listener:
        listener.setblocking(False)
        sock = socket.socket()
        sock.setblocking(False)
        loop.call_soon(sock.close)
        await loop.sock_connect(sock, listener.getsockname())
        await until(lambda: sock.fileno() == -1)
        client, _ = await loop.sock_accept(listener)
        with client:
            assert await loop.sock_recv(client, 1) == b""


@on_loop
async def test_a_connection_is_accepted(loop: uringloop.Loop) -> None:
    listener = socket.create_server((LOCALHOST, 0))
    listener.setblocking(False)
    address = listener.getsockname()
    task = loop.create_task(loop.sock_accept(listener))
    await turns(3)
    listener.close()
    with connected(address):
        client, _ = await task
        client.close()
    assert listener.fileno() == -1


@on_loop
async def test_two_calls_keep_a_socket_open(loop: uringloop.Loop) -> None:
    sock, peer = narrow_pair(16 * 1024)
    with peer:
        receiving = loop.create_task(loop.sock_recv(sock, 10))
        sending = loop.create_task(loop.sock_sendall(sock, noise(PLENTY)))
        await turns(3)
        sock.close()
        await loop.sock_sendall(peer, b"late")
        assert await receiving == b"late"
        assert sock.fileno() != -1
        await read_exactly(loop, peer, PLENTY)
        await sending
        assert sock.fileno() == -1


@on_loop
async def test_a_call_that_is_cancelled_lets_go(loop: uringloop.Loop) -> None:
    sock, peer = tcp_pair()
    with peer:
        task = loop.create_task(loop.sock_recv(sock, 10))
        await turns(3)
        sock.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert sock.fileno() == -1
        assert await loop.sock_recv(peer, 1) == b""


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_loop_that_is_closed_lets_go(loop: uringloop.Loop, closed_first: bool) -> None:
    sock, peer = tcp_pair()
    with peer:
        task = loop.create_task(loop.sock_recv(sock, 10))
        loop.run_until_complete(turns(3))
        if closed_first:
            sock.close()
            assert sock.fileno() != -1
            loop.close()
        else:
            loop.close()
            assert sock.fileno() != -1
            sock.close()
        assert sock.fileno() == -1
        peer.setblocking(True)
        assert peer.recv(1) == b""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
