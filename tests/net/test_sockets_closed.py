"""Sockets that are closed while a `sock_*` call waits: they stay open until the call returns.

uvloop does the same. asyncio closes the descriptor at once, and the call never returns.
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
    """A socket class of a program; the loop calls its methods."""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [socket.socket, Subclass])
@on_loop
async def test_a_waiting_receive_returns_data(
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
async def test_a_waiting_sendall_sends_every_byte(loop: uringloop.Loop) -> None:
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
async def test_a_waiting_connect_succeeds(loop: uringloop.Loop) -> None:
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
async def test_a_waiting_accept_returns_a_connection(loop: uringloop.Loop) -> None:
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
async def test_the_socket_is_closed_after_the_last_of_two_calls(loop: uringloop.Loop) -> None:
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
async def test_cancelling_the_call_closes_the_socket(loop: uringloop.Loop) -> None:
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
def test_closing_the_loop_closes_the_socket(loop: uringloop.Loop, closed_first: bool) -> None:
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
