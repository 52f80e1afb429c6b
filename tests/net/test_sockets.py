"""loop.sock_*: the user's own non-blocking sockets, without transports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import sys
import termios
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, TypeVar
from unittest import mock

import pytest
from support.leaks import open_fds
from support.roles import (
    Loop,
    connected,
    narrow_pair,
    needs_ipv6,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    reset,
    silent_listener,
    turns,
    until,
    unused_port,
)
from support.sockets import cancelled, tcp_pair, unix_pair

import uringloop

LOCALHOST = "127.0.0.1"
NARROW = 16 * 1024

T = TypeVar("T")
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[tcp_pair, unix_pair], ids=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two connected stream sockets, TCP and then AF_UNIX."""
    make: Callable[[], Pair] = request.param
    left, right = make()
    with left, right:
        yield left, right


@pytest.fixture
def narrow() -> Iterator[Pair]:
    """Two connected TCP sockets with small buffers."""
    left, right = narrow_pair(NARROW)
    with left, right:
        yield left, right


@pytest.fixture
def datagram_pair() -> Iterator[Pair]:
    """Two bound UDP sockets."""
    with (
        socket.socket(type=socket.SOCK_DGRAM) as left,
        socket.socket(type=socket.SOCK_DGRAM) as right,
    ):
        for sock in (left, right):
            sock.bind((LOCALHOST, 0))
            sock.setblocking(False)
        yield left, right


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A non-blocking listening socket."""
    with socket.create_server((LOCALHOST, 0), backlog=100) as sock:
        sock.setblocking(False)
        yield sock


def unread(sock: socket.socket) -> int:
    """Return how many bytes have arrived at *sock*."""
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


# ── receiving ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_recv_returns_available_data(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    right.send(b"0123456789")
    assert await each_loop.sock_recv(left, 4) == b"0123"
    assert await each_loop.sock_recv(left, 100) == b"456789"


@on_loop
async def test_recv_waits_for_data(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    receiving = each_loop.create_task(each_loop.sock_recv(left, 100))
    await turns(5)
    assert not receiving.done()
    right.send(b"late")
    assert await receiving == b"late"


def at_once(operation: Awaitable[T]) -> T:
    """Run *operation*, which must not wait, and return its result."""
    steps: Generator[object, None, T] = operation.__await__()
    with contextlib.closing(steps):
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
    raise AssertionError("waits")


@pytest.mark.parametrize("mark", [1, 10])
@on_loop
async def test_what_has_arrived_is_received_at_once(each_loop: Loop, pair: Pair, mark: int) -> None:
    """Also after a receive that took all there was, and below SO_RCVLOWAT."""
    # Issue 51.
    left, right = pair
    left.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
    buffer = bytearray(100)
    right.send(bytes(mark))
    assert await each_loop.sock_recv(left, 100) == bytes(mark)
    right.send(b"abc")
    await until(lambda: unread(left) == 3)
    assert at_once(each_loop.sock_recv(left, 100)) == b"abc"
    right.send(b"de")
    await until(lambda: unread(left) == 2)
    assert at_once(each_loop.sock_recv_into(left, buffer)) == 2
    right.send(b"f")
    await until(lambda: unread(left) == 1)
    assert at_once(each_loop.sock_recv_into(left, buffer)) == 1
    assert buffer[:2] == b"fe"


@on_loop
async def test_a_waiting_recv_waits_for_the_low_water_mark(each_loop: Loop) -> None:
    # AF_UNIX reports every byte.
    left, right = tcp_pair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
        receiving = each_loop.create_task(each_loop.sock_recv(left, 100))
        await turns(3)
        right.send(b"below")
        await until(lambda: unread(left) == 5)
        await turns(3)
        assert not receiving.done()
        right.send(b" above")
        assert await receiving == b"below above"


@on_loop
async def test_recv_returns_empty_bytes_at_eof(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    right.send(b"last")
    right.close()
    assert await each_loop.sock_recv(left, 100) == b"last"
    assert await each_loop.sock_recv(left, 100) == b""
    assert await each_loop.sock_recv(left, 100) == b""


@on_loop
async def test_a_waiting_recv_returns_at_eof(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    receiving = each_loop.create_task(each_loop.sock_recv(left, 100))
    await turns(3)
    right.shutdown(socket.SHUT_WR)
    assert await receiving == b""


@on_loop
async def test_recv_raises_a_reset(each_loop: Loop) -> None:
    left, right = tcp_pair()
    with left:
        receiving = each_loop.create_task(each_loop.sock_recv(left, 100))
        await turns(3)
        reset(right)
        with pytest.raises(ConnectionResetError):
            await receiving


@on_loop
async def test_a_cancelled_recv_takes_no_data(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    for number in range(30):
        receiving = each_loop.create_task(each_loop.sock_recv(left, 100))
        await turns(number % 4)
        if number % 2:
            receiving.cancel()
            right.send(b"%02d" % number)
        else:
            right.send(b"%02d" % number)
            receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert await each_loop.sock_recv(left, 100) == b"%02d" % number


@on_loop
async def test_recv_into_fills_the_start_of_the_buffer(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    buffer = bytearray(b"........")
    receiving = each_loop.create_task(each_loop.sock_recv_into(left, buffer))
    await turns(3)
    assert not receiving.done()
    right.send(b"abc")
    assert await receiving == 3
    assert buffer == b"abc....."
    right.send(b"0123456789")
    assert await each_loop.sock_recv_into(left, memoryview(buffer)[4:]) == 4
    assert buffer == b"abc.0123"
    assert await each_loop.sock_recv_into(left, buffer) == 6
    right.close()
    assert await each_loop.sock_recv_into(left, buffer) == 0
    buffer.clear()


@on_loop
async def test_a_cancelled_recv_into_leaves_the_buffer_alone(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    buffer = bytearray(4)
    await_cancelled = each_loop.create_task(each_loop.sock_recv_into(left, buffer))
    await turns(3)
    await_cancelled.cancel()
    right.send(b"data")
    with pytest.raises(asyncio.CancelledError):
        await await_cancelled
    await turns(5)
    assert buffer == bytes(4)
    assert await each_loop.sock_recv(left, 4) == b"data"


@on_loop
async def test_a_receive_of_no_bytes_returns_at_once(each_loop: Loop, pair: Pair) -> None:
    sender, receiver = pair
    sender.send(b"ab")
    assert await each_loop.sock_recv(receiver, 10) == b"ab"
    async with asyncio.timeout(10):
        assert await each_loop.sock_recv(receiver, 0) == b""
        with pytest.raises(ValueError, match="negative buffersize"):
            await each_loop.sock_recv(receiver, -1)
    sender.send(b"cd")
    assert await each_loop.sock_recv_into(receiver, bytearray(10)) == 2
    async with asyncio.timeout(10):
        assert await each_loop.sock_recv_into(receiver, bytearray()) == 0


@on_loop
async def test_one_socket_can_send_and_receive_at_once(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    to_left, to_right = noise(4 << 20, 1), noise(4 << 20, 2)
    _, _, from_right, from_left = await asyncio.gather(
        each_loop.sock_sendall(left, to_right),
        each_loop.sock_sendall(right, to_left),
        read_exactly(each_loop, left, len(to_left)),
        read_exactly(each_loop, right, len(to_right)),
    )
    assert from_right == to_left
    assert from_left == to_right


# ── sending ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_sendall_sends_every_byte_to_a_slow_reader(each_loop: Loop, narrow: Pair) -> None:
    left, right = narrow
    data = noise(10 << 20)
    sending = each_loop.create_task(each_loop.sock_sendall(left, data))
    received = bytearray()
    while len(received) < len(data):
        received += await each_loop.sock_recv(right, 50_000)
        if len(received) < len(data) // 2:
            assert not sending.done()
            await turns(1)
    assert received == data
    await sending


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@on_loop
async def test_sendall_accepts_every_bytes_like_type(
    each_loop: Loop, narrow: Pair, kind: Callable[[bytes], bytes | bytearray | memoryview]
) -> None:
    left, right = narrow
    data = noise(1 << 20)
    sending = each_loop.create_task(each_loop.sock_sendall(left, kind(data)))
    assert await read_exactly(each_loop, right, len(data)) == data
    await sending
    await each_loop.sock_sendall(left, kind(b""))


@on_loop
async def test_sendall_refuses_text(each_loop: Loop, pair: Pair) -> None:
    send: Callable[[socket.socket, object], Awaitable[None]] = each_loop.sock_sendall  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'str'"):
        await send(pair[0], "text")


@on_loop
async def test_a_cancelled_sendall_sends_a_prefix(each_loop: Loop, narrow: Pair) -> None:
    left, right = narrow
    data = noise(10 << 20)
    sending = each_loop.create_task(each_loop.sock_sendall(left, data))
    head = await read_exactly(each_loop, right, 100_000)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    left.shutdown(socket.SHUT_WR)
    received = head + await read_to_end(each_loop, right)
    assert len(received) < len(data)
    assert data.startswith(received)


@on_loop
async def test_sendall_raises_after_a_reset(each_loop: Loop, narrow: Pair) -> None:
    left, right = narrow
    sending = each_loop.create_task(each_loop.sock_sendall(left, bytes(10 << 20)))
    await read_exactly(each_loop, right, 100_000)
    reset(right)
    with pytest.raises(ConnectionError):
        await sending


# ── connecting and accepting ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", ["mock of a socket", "mock", "proxy"])
@on_loop
async def test_sock_connect_takes_what_is_only_like_a_socket(each_loop: Loop, make: str) -> None:
    with socket.create_server((LOCALHOST, 0)) as listener, socket.socket() as sock:
        sock.setblocking(False)
        address = listener.getsockname()
        if make == "proxy":
            await each_loop.sock_connect(weakref.proxy(sock), address)
            assert sock.getpeername() == address
            return
        double = mock.Mock(spec=socket.socket) if make == "mock of a socket" else mock.Mock()
        double.family, double.type, double.proto = socket.AF_INET, socket.SOCK_STREAM, 0
        if make == "mock":
            double.family = "not a number"
        await each_loop.sock_connect(double, address)
        double.connect.assert_called_once_with(address)


@on_loop
async def test_sock_connect_and_sock_accept_make_a_connection(
    each_loop: Loop, listener: socket.socket
) -> None:
    with socket.socket() as client:
        client.setblocking(False)
        accepting = each_loop.create_task(each_loop.sock_accept(listener))
        await turns(3)
        assert not accepting.done()
        await each_loop.sock_connect(client, listener.getsockname())
        conn, address = await accepting
        with conn:
            assert address == client.getsockname()
            assert conn.gettimeout() == 0.0
            assert not conn.get_inheritable()
            client.send(b"hello")
            assert await each_loop.sock_recv(conn, 10) == b"hello"


@on_loop
async def test_connect_resolves_names(each_loop: Loop, listener: socket.socket) -> None:
    with socket.socket() as client:
        client.setblocking(False)
        await each_loop.sock_connect(client, ("localhost", listener.getsockname()[1]))
        assert client.getpeername() == listener.getsockname()


@needs_ipv6
@on_loop
async def test_connect_works_on_ipv6(each_loop: Loop) -> None:
    v6 = socket.AF_INET6
    with socket.create_server(("::1", 0), family=v6) as sock, socket.socket(v6) as client:
        client.setblocking(False)
        await each_loop.sock_connect(client, sock.getsockname()[:2])
        assert client.getpeername() == sock.getsockname()


@on_loop
async def test_connect_accepts_a_unix_address(each_loop: Loop) -> None:
    with socket.socket(socket.AF_UNIX) as sock, socket.socket(socket.AF_UNIX) as client:
        sock.bind("")  # An abstract address that the kernel chooses.
        sock.listen()
        sock.setblocking(False)
        client.setblocking(False)
        await each_loop.sock_connect(client, sock.getsockname())
        conn, _ = await each_loop.sock_accept(sock)
        with conn:
            await each_loop.sock_sendall(client, b"hello")
            assert await each_loop.sock_recv(conn, 10) == b"hello"


@on_loop
async def test_a_refused_connect_names_its_address(each_loop: Loop) -> None:
    address = (LOCALHOST, unused_port())
    with socket.socket() as client:
        client.setblocking(False)
        with pytest.raises(ConnectionRefusedError) as caught:
            await each_loop.sock_connect(client, address)
    assert caught.value.errno == errno.ECONNREFUSED
    assert str(caught.value) == f"[Errno 111] Connect call failed {address}"


@on_loop
async def test_a_cancelled_connect_leaves_the_socket_usable(each_loop: Loop) -> None:
    with silent_listener((LOCALHOST, 0)) as address, socket.socket() as client:
        client.setblocking(False)
        connecting = each_loop.create_task(each_loop.sock_connect(client, address))
        await turns(5)
        await cancelled(connecting)
        before = open_fds()
        await turns(3)
        assert open_fds() == before
        assert client.fileno() in before


@on_loop
async def test_a_listener_accepts_a_hundred_connections(
    each_loop: Loop, listener: socket.socket
) -> None:
    async def accept_all() -> list[int]:
        numbers = []
        for _ in range(100):
            conn, _ = await each_loop.sock_accept(listener)
            with conn:
                numbers.append(int(await read_to_end(each_loop, conn)))
        return numbers

    accepting = each_loop.create_task(accept_all())
    for number in range(100):
        with connected(listener.getsockname()) as client:
            client.send(b"%d" % number)
        await turns(number % 3)
    assert await accepting == list(range(100))


@on_loop
async def test_several_listeners_accept_at_once(each_loop: Loop) -> None:
    listeners = [socket.create_server((LOCALHOST, 0)) for _ in range(5)]
    for sock in listeners:
        sock.setblocking(False)
    accepting = [each_loop.create_task(each_loop.sock_accept(sock)) for sock in listeners]
    await turns(3)
    clients = [connected(sock.getsockname()) for sock in reversed(listeners)]
    for task, sock in zip(accepting, listeners, strict=True):
        conn, _ = await task
        assert conn.getsockname() == sock.getsockname()
        conn.close()
    for sock in (*listeners, *clients):
        sock.close()


@on_loop
async def test_one_listener_serves_several_accepts_at_once(
    loop: uringloop.Loop, listener: socket.socket
) -> None:
    # uringloop only: in asyncio the second call replaces the first, which then never returns.
    accepting = [loop.create_task(loop.sock_accept(listener)) for _ in range(5)]
    await turns(3)
    clients = [connected(listener.getsockname()) for _ in range(5)]
    peers = []
    for task in accepting:
        conn, address = await task
        conn.close()
        peers.append(address)
    assert sorted(peers) == sorted(client.getsockname() for client in clients)
    for client in clients:
        client.close()


@on_loop
async def test_a_cancelled_accept_takes_no_connection(
    each_loop: Loop, listener: socket.socket
) -> None:
    for number in range(10):
        accepting = each_loop.create_task(each_loop.sock_accept(listener))
        await turns(1 + number % 3)
        await cancelled(accepting)
        with connected(listener.getsockname()) as client:
            conn, address = await each_loop.sock_accept(listener)
            conn.close()
            assert address == client.getsockname()


# ── datagrams ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_datagrams_keep_their_boundaries_and_senders(
    each_loop: Loop, datagram_pair: Pair
) -> None:
    left, right = datagram_pair
    receiving = each_loop.create_task(each_loop.sock_recvfrom(left, 100))
    await turns(3)
    assert not receiving.done()
    assert await each_loop.sock_sendto(right, b"first", left.getsockname()) == 5
    assert await each_loop.sock_sendto(right, b"", left.getsockname()) == 0
    assert await each_loop.sock_sendto(right, b"a longer one", left.getsockname()) == 12
    assert await receiving == (b"first", right.getsockname())
    assert await each_loop.sock_recvfrom(left, 100) == (b"", right.getsockname())
    assert await each_loop.sock_recvfrom(left, 8) == (b"a longer", right.getsockname())


@on_loop
async def test_recvfrom_into_fills_the_buffer(each_loop: Loop, datagram_pair: Pair) -> None:
    left, right = datagram_pair
    buffer = bytearray(b"........")
    receiving = each_loop.create_task(each_loop.sock_recvfrom_into(left, buffer))
    await turns(3)
    await each_loop.sock_sendto(right, b"abc", left.getsockname())
    assert await receiving == (3, right.getsockname())
    assert buffer == b"abc....."
    await each_loop.sock_sendto(right, b"012345", left.getsockname())
    assert await each_loop.sock_recvfrom_into(left, buffer, 2) == (2, right.getsockname())
    assert buffer == b"01c....."


@on_loop
async def test_a_cancelled_recvfrom_takes_no_datagram(each_loop: Loop, datagram_pair: Pair) -> None:
    left, right = datagram_pair
    receiving = each_loop.create_task(each_loop.sock_recvfrom(left, 100))
    await turns(3)
    receiving.cancel()
    right.sendto(b"kept", left.getsockname())
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert await each_loop.sock_recvfrom(left, 100) == (b"kept", right.getsockname())


@on_loop
async def test_a_datagram_too_large_is_an_error(each_loop: Loop, datagram_pair: Pair) -> None:
    left, right = datagram_pair
    with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)) as caught:
        await each_loop.sock_sendto(left, bytes(70_000), right.getsockname())
    assert caught.value.errno == errno.EMSGSIZE


# ── misuse ────────────────────────────────────────────────────────────────────────────────


def operations(loop: Loop, sock: socket.socket) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return, by name, functions that each start one operation on *sock*."""
    return {
        "recv": lambda: loop.sock_recv(sock, 1),
        "recv_into": lambda: loop.sock_recv_into(sock, bytearray(1)),
        "recvfrom": lambda: loop.sock_recvfrom(sock, 1),
        "recvfrom_into": lambda: loop.sock_recvfrom_into(sock, bytearray(1)),
        "sendall": lambda: loop.sock_sendall(sock, b"x"),
        "sendto": lambda: loop.sock_sendto(sock, b"x", (LOCALHOST, 1)),
        "connect": lambda: loop.sock_connect(sock, (LOCALHOST, 1)),
        "accept": lambda: loop.sock_accept(sock),
    }


NAMES = (
    "recv",
    "recv_into",
    "recvfrom",
    "recvfrom_into",
    "sendall",
    "sendto",
    "connect",
    "accept",
)


@pytest.mark.parametrize("name", NAMES)
@on_loop
async def test_debug_mode_refuses_a_blocking_socket(each_loop: Loop, name: str) -> None:
    each_loop.set_debug(True)
    refusal = pytest.raises(ValueError, match=r"^the socket must be non-blocking$")
    with socket.socket() as sock, refusal:
        await operations(each_loop, sock)[name]()


@pytest.mark.parametrize("name", NAMES)
@on_loop
async def test_a_closed_socket_is_an_error(each_loop: Loop, name: str) -> None:
    sock = socket.socket()
    sock.setblocking(False)
    sock.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await operations(each_loop, sock)[name]()


@on_loop
async def test_the_socket_of_a_transport_is_refused(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    with peer:
        transport, _ = await each_loop.create_connection(asyncio.Protocol, sock=ours)
        with pytest.raises(RuntimeError, match="is used by transport"):
            await each_loop.sock_recv(ours, 1)
        transport.close()
        await turns(3)


@on_loop
async def test_a_large_message_is_received_in_parts(each_loop: Loop) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    with left, right:
        data = noise(35 * (700 + 999))
        right.sendall(data)
        got = bytearray()
        buffer = bytearray(1000)
        while len(got) < len(data):
            got += await each_loop.sock_recv(left, 700)
            count = await each_loop.sock_recv_into(left, memoryview(buffer)[:999])
            got += buffer[:count]
        assert got == data
        right.close()
        assert await each_loop.sock_recv(left, 10) == b""
        assert await each_loop.sock_recv_into(left, buffer) == 0


@on_loop
async def test_the_methods_of_a_socket_subclass_are_called(each_loop: Loop) -> None:
    class Tapped(socket.socket):
        def recv(self, *args: Any) -> bytes:
            return super().recv(*args).upper()

        def send(self, data: Any, *args: Any) -> int:
            return super().send(bytes(data).lower(), *args)

    left, right = socket.socketpair()
    tapped = Tapped(fileno=left.detach())
    tapped.setblocking(False)
    with tapped, right:
        right.send(b"loud")
        assert await each_loop.sock_recv(tapped, 100) == b"LOUD"
        await each_loop.sock_sendall(tapped, b"QUIET")
        assert right.recv(100) == b"quiet"


@on_loop
async def test_sendall_continues_after_a_short_send(each_loop: Loop) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    with left, right:
        for data in (noise(300_000), bytearray(noise(300_000)), memoryview(noise(300_000))):
            task = each_loop.create_task(each_loop.sock_sendall(left, data))
            assert await read_exactly(each_loop, right, 300_000) == data
            await task
