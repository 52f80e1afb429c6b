"""Servers: every argument of create_server, the server object, closing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, runtime_checkable

import pytest
from support.leaks import open_fds
from support.protocols import Echo
from support.roles import (
    Guests,
    Loop,
    answers,
    close_server,
    connected,
    needs_ipv6,
    on_loop,
    read_to_end,
    serving,
    turns,
    until,
    unused_port,
)

import uringloop
from uringloop._cpython import stdlib

LOCALHOST = "127.0.0.1"


@runtime_checkable
class EndsClients(Protocol):
    """Methods that asyncio's Server has since 3.13, and uringloop's on every Python."""

    def close_clients(self) -> None: ...

    def abort_clients(self) -> None: ...


def closes_clients(server: asyncio.AbstractServer) -> EndsClients:
    assert isinstance(server, EndsClients)
    return server


# ── arguments ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_port_zero_picks_a_free_port(each_loop: Loop) -> None:
    async with serving(each_loop, Echo) as address:
        assert address[0] == LOCALHOST
        assert address[1] > 0
        assert await answers(each_loop, address)


@on_loop
async def test_the_port_may_be_a_string(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, "0")  # type: ignore[call-overload]
    assert server.sockets[0].getsockname()[1] > 0
    await close_server(server)


@pytest.mark.parametrize("host", [None, ""])
@on_loop
async def test_no_host_means_every_interface(each_loop: Loop, host: str | None) -> None:
    port = unused_port("::" if socket.has_ipv6 else "0.0.0.0")
    server = await each_loop.create_server(Guests(each_loop), host, port)
    families = {sock.family for sock in server.sockets}
    assert socket.AF_INET in families
    assert families <= {socket.AF_INET, socket.AF_INET6}
    assert {sock.getsockname()[1] for sock in server.sockets} == {port}
    assert {sock.getsockname()[0] for sock in server.sockets} <= {"0.0.0.0", "::"}
    await close_server(server)


@on_loop
async def test_a_host_name_is_resolved(each_loop: Loop) -> None:
    server = await each_loop.create_server(Guests(each_loop), "localhost", 0)
    assert server.sockets[0].getsockname()[0] in (LOCALHOST, "::1")
    await close_server(server)


@on_loop
async def test_each_of_several_hosts_has_a_listening_socket(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    hosts = [LOCALHOST, "127.0.0.2", LOCALHOST]
    server = await each_loop.create_server(guests, hosts, unused_port())
    names = [sock.getsockname() for sock in server.sockets]
    assert sorted(name[0] for name in names) == [LOCALHOST, "127.0.0.2"]
    for name in names:
        connected(name).close()
    await guests.arrived(2)
    await guests.end()
    await close_server(server)


@needs_ipv6
@on_loop
async def test_ipv6_sockets_do_not_take_ipv4(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, "::1", 0)
    (sock,) = server.sockets
    assert sock.family == socket.AF_INET6
    assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    connected(sock.getsockname()).close()
    await guests.arrived()
    await guests.end()
    await close_server(server)


@on_loop
async def test_family_restricts_the_addresses(each_loop: Loop) -> None:
    server = await each_loop.create_server(
        Guests(each_loop), None, unused_port(), family=socket.AF_INET
    )
    assert [sock.family for sock in server.sockets] == [socket.AF_INET]
    await close_server(server)


@on_loop
async def test_flags_go_to_the_resolver(each_loop: Loop) -> None:
    with pytest.raises(socket.gaierror):
        await each_loop.create_server(Echo, "localhost", 0, flags=socket.AI_NUMERICHOST)


@on_loop
async def test_a_bound_socket_can_be_given(each_loop: Loop) -> None:
    sock = socket.socket()
    sock.bind((LOCALHOST, 0))
    address = sock.getsockname()
    server = await each_loop.create_server(Echo, sock=sock)
    assert sock.gettimeout() == 0.0
    assert [s.getsockname() for s in server.sockets] == [address]
    assert await answers(each_loop, address)
    await close_server(server)
    assert sock.fileno() == -1


@on_loop
async def test_a_listening_unix_socket_can_be_given(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # An abstract address that the kernel chooses.
    server = await each_loop.create_server(guests, sock=listener)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        client.send(b"hello")
        await guests.arrived()
        assert await guests.seen[0].received(5) == b"hello"
    await guests.seen[0].lost
    await close_server(server)


@on_loop
async def test_reuse_address_is_on_by_default_and_can_be_off(each_loop: Loop) -> None:
    for option, expected in ((None, 1), (True, 1), (False, 0)):
        server = await each_loop.create_server(Echo, LOCALHOST, 0, reuse_address=option)
        sock = server.sockets[0]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == expected
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
        await close_server(server)


@on_loop
async def test_reuse_port_shares_a_port_between_servers(each_loop: Loop) -> None:
    first, second = Guests(each_loop), Guests(each_loop)
    one = await each_loop.create_server(first, LOCALHOST, 0, reuse_port=True)
    address = one.sockets[0].getsockname()
    two = await each_loop.create_server(second, *address, reuse_port=True)
    for count in range(1, 65):
        connected(address).close()
        await until(lambda count=count: len(first.seen) + len(second.seen) == count)  # type: ignore[misc]
    # The kernel distributes by a hash: all 64 at one server have a probability of 2**-63.
    assert first.seen
    assert second.seen
    for guests in (first, second):
        await guests.arrived(len(guests.seen))
        await guests.end()
    await close_server(one)
    await close_server(two)


async def keep_alive_options(create_server: Callable[..., Awaitable[asyncio.Server]]) -> list[int]:
    values = []
    for keep_alive in (None, False, True):
        server = await create_server(Echo, LOCALHOST, 0, keep_alive=keep_alive)
        values.append(server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        await close_server(server)
    return values


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio has keep_alive since 3.13")
@on_loop
async def test_keep_alive_sets_the_option(each_loop: Loop) -> None:
    assert await keep_alive_options(each_loop.create_server) == [0, 0, 1]


@on_loop
async def test_keep_alive_works_on_every_python(loop: uringloop.Loop) -> None:
    assert await keep_alive_options(loop.create_server) == [0, 0, 1]


@on_loop
async def test_start_serving_false_listens_later(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0, start_serving=False)
    address = server.sockets[0].getsockname()
    assert not server.is_serving()
    with pytest.raises(ConnectionRefusedError):
        connected(address)
    await server.start_serving()
    await server.start_serving()
    assert server.is_serving()
    assert await answers(each_loop, address)
    await close_server(server)


@on_loop
async def test_invalid_arguments_are_refused(each_loop: Loop) -> None:
    create: Callable[..., Awaitable[asyncio.Server]] = each_loop.create_server
    with socket.socket() as sock:
        with pytest.raises(ValueError, match=r"^host/port and sock can not be specified at the"):
            await create(Echo, LOCALHOST, 0, sock=sock)
        with pytest.raises(ValueError, match=r"^host/port and sock can not be specified at the"):
            await create(Echo, port=0, sock=sock)
    with pytest.raises(ValueError, match=r"^Neither host/port nor sock were specified$"):
        await create(Echo)
    with pytest.raises(TypeError, match=r"^ssl argument must be an SSLContext or None$"):
        await create(Echo, LOCALHOST, 0, ssl=True)
    with pytest.raises(ValueError, match=r"^ssl_handshake_timeout is only meaningful with ssl$"):
        await create(Echo, LOCALHOST, 0, ssl_handshake_timeout=1)
    with pytest.raises(ValueError, match=r"^ssl_shutdown_timeout is only meaningful with ssl$"):
        await create(Echo, LOCALHOST, 0, ssl_shutdown_timeout=1)
    wrong = pytest.raises(ValueError, match=r"^A Stream Socket was expected, got <socket")
    with socket.socket(type=socket.SOCK_DGRAM) as sock, wrong:
        await create(Echo, sock=sock)


@on_loop
async def test_the_error_of_a_failed_bind_names_the_address(each_loop: Loop) -> None:
    with socket.create_server((LOCALHOST, 0)) as holder:
        address = holder.getsockname()
        with pytest.raises(OSError, match=r"^.Errno 98. error while attempting to bind") as caught:
            await each_loop.create_server(Echo, *address)
        assert caught.value.errno == errno.EADDRINUSE
        assert f"on address {address!r}: " in str(caught.value)
        assert str(caught.value).endswith(os.strerror(errno.EADDRINUSE).lower())


@on_loop
async def test_a_failed_bind_closes_the_sockets_bound_before(each_loop: Loop) -> None:
    with socket.create_server((LOCALHOST, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="error while attempting to bind"):
            await each_loop.create_server(Echo, ["127.0.0.2", LOCALHOST], port)
        with socket.socket() as again:
            again.bind(("127.0.0.2", port))


@on_loop
async def test_an_address_of_another_machine_cannot_be_bound(each_loop: Loop) -> None:
    with pytest.raises(OSError, match="bind"):
        await each_loop.create_server(Echo, "192.0.2.77", 0)


@contextlib.contextmanager
def bound(host: str, port: int = 0) -> Iterator[socket.socket]:
    """A socket that does not listen: others may be bound to the same port."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        yield sock


@on_loop
async def test_a_given_socket_on_which_listen_fails_stays_the_callers(each_loop: Loop) -> None:
    # Issue 51.
    with bound(LOCALHOST) as holder, bound(*holder.getsockname()) as sock:
        holder.listen()
        with pytest.raises(OSError, match="Address already in use"):
            await each_loop.create_server(Echo, sock=sock)
        holder.close()
        server = await each_loop.create_server(Echo, sock=sock)
        assert server.is_serving()
        server.close()
        await server.wait_closed()


@on_loop
async def test_a_server_that_has_started_in_part_can_be_closed(each_loop: Loop) -> None:
    # Issue 51.
    before = open_fds()
    with bound("127.0.0.2") as holder:
        port = holder.getsockname()[1]
        hosts = [LOCALHOST, "127.0.0.2"]
        server = await each_loop.create_server(Echo, hosts, port, start_serving=False)
        holder.listen()
        with pytest.raises(OSError, match="Address already in use"):
            await server.start_serving()
        server.close()
        await server.wait_closed()
    assert open_fds() == before


# ── the server object ─────────────────────────────────────────────────────────────────────


@on_loop
async def test_sockets_are_a_tuple_that_empties_on_close(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    assert isinstance(server.sockets, tuple)
    assert not hasattr(server.sockets[0], "recv")
    assert server.get_loop() is each_loop
    assert server.is_serving()
    server.close()
    server.close()
    assert server.sockets == ()
    assert not server.is_serving()
    await server.wait_closed()


@on_loop
async def test_async_with_closes_the_server(each_loop: Loop) -> None:
    async with await each_loop.create_server(Echo, LOCALHOST, 0) as server:
        address = server.sockets[0].getsockname()
        assert await answers(each_loop, address)
    assert not server.is_serving()
    with pytest.raises(ConnectionRefusedError):
        connected(address)


@on_loop
async def test_cancelling_serve_forever_closes_the_server(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0, start_serving=False)
    address = server.sockets[0].getsockname()
    serving_task = each_loop.create_task(server.serve_forever())
    await until(server.is_serving)
    assert await answers(each_loop, address)
    with pytest.raises(RuntimeError, match="is already being awaited on serve_forever"):
        await server.serve_forever()
    serving_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving_task
    assert not server.is_serving()
    assert server.sockets == ()
    with pytest.raises(RuntimeError, match=r"is closed$"):
        await server.serve_forever()


@on_loop
async def test_closing_ends_serve_forever(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    serving_task = each_loop.create_task(server.serve_forever())
    await turns(2)
    server.close()
    with pytest.raises(asyncio.CancelledError):
        await serving_task


@on_loop
async def test_wait_closed_waits_for_close(each_loop: Loop) -> None:
    # 3.12.0 returns at once; 3.12.1 fixed that.
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    waiting = each_loop.create_task(server.wait_closed())
    await turns(5)
    assert not waiting.done()
    server.close()
    await waiting
    await server.wait_closed()


@on_loop
async def test_wait_closed_waits_for_open_connections_since_3_12_1(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0)
    with connected(server.sockets[0].getsockname()) as client:
        await guests.arrived()
        server.close()
        waiting = each_loop.create_task(server.wait_closed())
        await turns(5)
        # Since 3.12.1 it waits for the connections; before, only for the sockets to be closed.
        assert waiting.done() == stdlib.WAIT_CLOSED_IGNORES_CLIENTS
        client.send(b"still served")
        assert await guests.seen[0].received(12) == b"still served"
    assert await guests.seen[0].lost is None
    await waiting


async def check_clients_end(loop: Loop, end: Callable[[asyncio.AbstractServer], None]) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0)
    clients = [connected(server.sockets[0].getsockname()) for _ in range(3)]
    await guests.arrived(3)
    guests.seen[0].transport.write(b"bye")
    end(server)
    assert all(guest.transport.is_closing() for guest in guests.seen)
    for guest in guests.seen:
        assert await guest.lost is None
    server.close()
    await server.wait_closed()
    for client in clients:
        client.setblocking(False)
        await read_to_end(loop, client)
        client.close()
    await guests.end()


def close_clients(server: asyncio.AbstractServer) -> None:
    closes_clients(server).close_clients()


def abort_clients(server: asyncio.AbstractServer) -> None:
    closes_clients(server).abort_clients()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio has these since 3.13")
@pytest.mark.parametrize("end", [close_clients, abort_clients])
@on_loop
async def test_close_clients_and_abort_clients_end_connections(
    each_loop: Loop, end: Callable[[asyncio.AbstractServer], None]
) -> None:
    await check_clients_end(each_loop, end)


@pytest.mark.parametrize("end", [close_clients, abort_clients])
@on_loop
async def test_close_clients_and_abort_clients_work_on_every_python(
    loop: uringloop.Loop, end: Callable[[asyncio.AbstractServer], None]
) -> None:
    await check_clients_end(loop, end)


# ── closing ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_the_port_can_be_bound_again_right_after_close(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    for _ in range(100):
        server.close()
        with socket.socket() as sock:
            sock.bind(address)
        server = await each_loop.create_server(Echo, *address, reuse_address=False)
    await close_server(server)


@on_loop
async def test_connections_are_refused_right_after_close(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    assert await answers(each_loop, address)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        connected(address)
    await server.wait_closed()


@on_loop
async def test_a_connection_in_the_backlog_at_close_is_closed(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0)
    with connected(server.sockets[0].getsockname()) as client:
        server.close()
        await server.wait_closed()
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            assert await each_loop.sock_recv(client, 1) == b""
    assert guests.seen == []


@on_loop
async def test_accepted_connections_outlive_the_server(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0)
    client = connected(server.sockets[0].getsockname())
    await guests.arrived()
    server.close()
    with client:
        client.send(b"hello")
        assert await guests.seen[0].received(5) == b"hello"
    await guests.seen[0].lost
    await server.wait_closed()
    await guests.end()
