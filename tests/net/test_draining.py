"""Servers that drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from support.protocols import Collector, Echo
from support.roles import (
    Guests,
    close_server,
    connected,
    needs_ipv6,
    nothing_comes,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    turns,
    until,
    unused_port,
)
from support.sites import (
    LOCALHOST,
    Desk,
    Site,
)
from support.sockets import cancelled
from support.tls_contexts import Contexts
from support.tls_peers import Peer
from support.virtual_time import Stopwatch

import uringloop
from uringloop import Loop, testing
from uringloop._net.servers import Drained, Server

# ── drain() ──────────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_drain_without_connections_ends_at_once(loop: Loop, site: Site) -> None:
    async with site.serving(Echo) as server:
        waiting = loop.create_task(server.wait_closed())
        await turns(2)
        assert await server.drain() == Drained(ended=0, closed=0, aborted=0) == (0, 0, 0)
        assert not server.is_serving()
        assert server.sockets == ()
        await waiting
        # Of a closed server, too, and of one that was not started.
        assert await server.drain() == (0, 0, 0)
        server = await site.start(Echo, start_serving=False)
        assert await server.drain() == (0, 0, 0)
        with pytest.raises(RuntimeError, match="is closed"):
            await server.start_serving()


@pytest.mark.parametrize("timeout", [None, 10])
@on_loop
async def test_a_drain_waits_for_connections_to_end(
    loop: Loop, plain: Site, timeout: float | None
) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        clients = plain.connect_many(3)
        await guests.arrived(3)
        draining = loop.create_task(server.drain(timeout))
        await turns(3)
        assert not server.is_serving()
        for client in clients:
            assert not draining.done()
            await loop.sock_sendall(client, b" and more")
            client.close()
        assert await draining == (3, 0, 0)
        assert [guest.data for guest in guests.seen] == [b"%d and more" % n for n in range(3)]


@pytest.mark.parametrize("limited", [False, True])
@on_loop
async def test_a_drain_serves_those_that_wait(loop: Loop, site: Site, limited: bool) -> None:
    desk = Desk()
    async with site.serving(desk, max_connections=1 if limited else None) as server:
        if not limited:
            server.pause_accepting()
        # The first takes the only place, because it asks nothing.
        first = site.connect()
        asking = loop.create_task(site.ask_many(30))
        await nothing_comes(loop)
        assert desk.total <= 1
        draining = loop.create_task(server.drain())
        await asking
        assert not draining.done()
        first.close()
        assert await draining == (31, 0, 0)


@needs_ipv6
@on_loop
async def test_a_drain_serves_those_that_wait_at_every_socket(loop: Loop) -> None:
    hosts = [LOCALHOST, "::1"]
    server = await loop.create_server(Desk(), hosts, unused_port("::1"), max_connections=1)
    with contextlib.ExitStack() as stack:
        addresses = [server.sockets[which].getsockname() for which in (0, 1) * 10]
        clients = [stack.enter_context(connected(address)) for address in addresses]
        draining = loop.create_task(server.drain())
        await turns(2)
        for client in clients:
            client.send(b"you")
            client.setblocking(False)
            assert await read_to_end(loop, client) == b"to you"
    assert await draining == (20, 0, 0)


@on_loop
async def test_a_socket_is_closed_before_the_backlog_of_the_next_is_served(loop: Loop) -> None:
    guests = Guests(loop)
    answers: list[int] = []

    def factory() -> Collector:
        with socket.socket() as late:
            answers.append(late.connect_ex(addresses[0]))
        return guests()

    server = await loop.create_server(factory, [LOCALHOST, "127.0.0.2"], 0)
    addresses = [sock.getsockname() for sock in server.sockets]
    server.pause_accepting()
    with connected(addresses[1]):
        draining = loop.create_task(server.drain())
        await guests.arrived(1)
        assert answers == [errno.ECONNREFUSED]
    assert await draining == (1, 0, 0)


@on_loop
async def test_the_file_of_a_server_is_removed_before_its_backlog_is_served(
    loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    guests = Guests(loop)
    existed: list[bool] = []

    def factory() -> Collector:
        existed.append(path.exists())
        return guests()

    server = await loop.create_unix_server(factory, path, cleanup_socket=True)
    server.pause_accepting()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        draining = loop.create_task(server.drain())
        await guests.arrived(1)
        assert existed == [False]
    assert await draining == (1, 0, 0)


@pytest.mark.parametrize("kind", ["tcp", "given", "unix"])
@pytest.mark.parametrize("timeout", [None, 10])
@on_loop
async def test_a_drain_without_descriptors_waits_for_them(
    virtual_loop: testing.Loop, kind: str, timeout: float | None, tmp_path: Path, contexts: Contexts
) -> None:
    reports = record_handler_calls(virtual_loop)
    guests = Guests(virtual_loop)
    site = Site(virtual_loop, kind, tmp_path, contexts)
    async with site.serving(guests) as server:
        server.pause_accepting()
        clients = site.connect_many(3)
        virtual_loop.faults = testing.Faults(no_files=1)
        draining = virtual_loop.create_task(server.drain(timeout))
        await asyncio.sleep(2.5)
        assert guests.seen == []
        assert not draining.done()
        virtual_loop.faults = testing.Faults()
        watch = Stopwatch(virtual_loop)
        await guests.arrived(3)
        assert watch.shows(0.5)
        for client in clients:
            client.close()
        assert await draining == (3, 0, 0)
        assert [guest.data for guest in guests.seen] == [b"0", b"1", b"2"]
    messages = [report["message"] for report in reports]
    assert messages == ["socket.accept() out of system resource"] * 3
    reports.clear()


@pytest.mark.parametrize("kind", ["tcp", "given", "unix"])
@on_loop
async def test_a_drain_that_gets_no_descriptors_ends_at_its_timeout(
    virtual_loop: testing.Loop, kind: str, tmp_path: Path, contexts: Contexts
) -> None:
    reports = record_handler_calls(virtual_loop)
    site = Site(virtual_loop, kind, tmp_path, contexts)
    async with site.serving(Echo) as server:
        server.pause_accepting()
        client = site.connect()
        virtual_loop.faults = testing.Faults(no_files=1)
        watch = Stopwatch(virtual_loop)
        assert await server.drain(2.5) == (0, 0, 0)
        assert watch.shows(2.5)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert len(reports) >= 3
    reports.clear()


@pytest.mark.parametrize("times", [("x",), (b"1",), ([],), (None, "x"), (1, None)])
@on_loop
async def test_a_drain_with_wrong_times_is_refused_and_the_server_goes_on(
    loop: Loop, plain: Site, times: tuple[Any, ...]
) -> None:
    async with plain.serving(Echo, max_connections=2) as server:
        for client in (plain.connect(), plain.connect()):
            with pytest.raises(TypeError):
                await server.drain(*times)
            assert server.is_serving()
            await loop.sock_sendall(client, b"ping")
            assert await read_exactly(loop, client, 4) == b"ping"
        assert server.max_connections == 2


@on_loop
async def test_a_drain_closes_connections_after_the_timeout_and_sends_all(
    loop: Loop, site: Site
) -> None:
    data = bytes(range(256)) * 20_000
    guests = Guests(loop)
    async with site.serving(guests) as server:
        reader, writer = await site.open(limit=1024)
        await guests.arrived(1)
        guests.seen[0].transport.write(data)
        draining = loop.create_task(server.drain(0, close_timeout=20))
        read = bytearray()
        while piece := await reader.read(100_000):
            read += piece
            if len(read) < 500_000:
                await asyncio.sleep(0.005)
        assert read == data
        writer.close()
        await writer.wait_closed()
        assert await draining == (0, 1, 0)


@on_loop
async def test_a_drain_aborts_who_does_not_read(loop: Loop, plain: Site) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        clients = plain.connect_many(6)
        await guests.arrived(6)
        for guest in guests.seen[:3]:
            guest.transport.write(bytes(20_000_000))
        began = loop.time()
        draining = loop.create_task(server.drain(0.1, 0.1))
        clients[5].close()
        assert await draining == (1, 2, 3)
        assert 0.2 <= loop.time() - began < 1
        assert all(guest.lost.done() for guest in guests.seen)
        assert [await loop.sock_recv(client, 1) for client in clients[3:5]] == [b"", b""]


def read_by_tls(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """Connect and read to the end; EOF without close_notify is an error."""
    with context.wrap_socket(
        connected(address), server_hostname="localhost", suppress_ragged_eofs=False
    ) as client:
        return client.recv(100)


@pytest.mark.parametrize("timeout", [0, 0.1])
@on_loop
async def test_a_drain_tells_tls_clients_of_the_end(
    loop: Loop, contexts: Contexts, timeout: float
) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0, ssl=contexts.server)
    address = server.sockets[0].getsockname()
    reading = [asyncio.to_thread(read_by_tls, address, contexts.client) for _ in range(3)]
    read = asyncio.gather(*reading)
    await guests.arrived(3)
    # One is in mid-handshake, and stays there.
    with connected(address):
        await until(lambda: len(guests.seen) == 4)
        assert await server.drain(timeout) == (0, 4, 0)
    assert await read == [b""] * 3


@pytest.mark.parametrize("accepted", [False, True])
@on_loop
async def test_a_drain_lets_handshakes_end(loop: Loop, contexts: Contexts, accepted: bool) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0, ssl=contexts.server)
    if not accepted:
        server.pause_accepting()
    with connected(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        peer = Peer(loop, client, contexts.client)
        hello = peer.records(peer.tls.do_handshake)
        await loop.sock_sendall(client, hello[:100])
        await nothing_comes(loop)
        draining = loop.create_task(server.drain(0.3))
        await turns(3)
        await loop.sock_sendall(client, hello[100:])
        await peer.handshake()
        await peer.send(b"hello")
        assert await guests.seen[0].received(5) == b"hello"
        # Raises an exception if EOF comes without close_notify.
        assert await peer.read_to_end() == b""
    assert await draining == (0, 1, 0)


@on_loop
async def test_serve_forever_goes_on_until_the_drain_is_complete(loop: Loop, site: Site) -> None:
    async with site.serving(Desk(), start_serving=False) as server:
        serving = loop.create_task(server.serve_forever())
        await until(server.is_serving)
        client = site.connect()
        asking = loop.create_task(site.ask(b"?"))
        await turns(1)
        draining = loop.create_task(server.drain())
        assert await asking == b"to ?"
        await nothing_comes(loop)
        assert not serving.done()
        assert not draining.done()
        client.close()
        assert await draining == (2, 0, 0)
        with pytest.raises(asyncio.CancelledError):
            await serving


@on_loop
async def test_a_cancelled_drain_leaves_connections_open_and_the_server_closed(
    loop: Loop, plain: Site
) -> None:
    async with plain.serving(Echo, max_connections=1) as server:
        clients = [plain.connect() for _ in range(3)]
        draining = loop.create_task(server.drain())
        await nothing_comes(loop)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert not server.is_serving()
        assert server.sockets == ()
        for client in clients:
            await loop.sock_sendall(client, b"ping")
            assert await read_exactly(loop, client, 4) == b"ping"


@on_loop
async def test_two_drains_end_together(loop: Loop, plain: Site) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        clients = plain.connect_many(4)
        await guests.arrived(4)
        drains = [loop.create_task(server.drain(timeout)) for timeout in (None, 0.1)]
        await turns(3)
        clients[0].close()
        # The first sees that they have ended, not why.
        assert await asyncio.gather(*drains) == [(4, 0, 0), (1, 3, 0)]


@on_loop
async def test_a_closed_server_can_be_drained(loop: Loop, plain: Site) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        clients = plain.connect_many(3)
        await guests.arrived(3)
        server.close()
        draining = loop.create_task(server.drain(0.05))
        await turns(3)
        clients[0].close()
        assert await draining == (1, 2, 0)


@on_loop
async def test_connections_are_refused_once_a_drain_has_begun(loop: Loop) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    with connected(address):
        await guests.arrived(1)
        draining = loop.create_task(server.drain())
        await turns(1)
        with pytest.raises(ConnectionRefusedError):
            connected(address)
        await close_server(await loop.create_server(Echo, *address))
        assert not draining.done()
    assert await draining == (1, 0, 0)


@on_loop
async def test_a_drain_serves_a_long_backlog(loop: Loop, plain: Site) -> None:
    async with plain.serving(Desk(), max_connections=1) as server:
        clients = plain.connect_many(200)
        draining = loop.create_task(server.drain())
        answers = [await read_to_end(loop, client) for client in clients]
        assert answers == [b"to %d" % number for number in range(200)]
        assert await draining == (200, 0, 0)


@on_loop
async def test_those_that_a_drain_aborts_have_ended_when_it_returns(
    loop: Loop, plain: Site
) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        plain.connect()
        await guests.arrived(1)
        guests.seen[0].transport.write(bytes(20_000_000))
        # Awaited here: a task would end a turn later.
        assert await server.drain(0, 0.01) == (0, 0, 1)
        assert guests.seen[0].lost.done()


@on_loop
async def test_a_cancelled_drain_ends_serve_forever(loop: Loop, plain: Site) -> None:
    async with plain.serving(Echo, start_serving=False) as server:
        serving = loop.create_task(server.serve_forever())
        await until(server.is_serving)
        client = plain.connect()
        draining = loop.create_task(server.drain())
        await nothing_comes(loop)
        assert not serving.done()
        await cancelled(draining)
        client.close()
        await until(serving.done)
        assert serving.cancelled()


@on_loop
async def test_a_cancelled_wait_for_the_end_hinders_no_other(loop: Loop, plain: Site) -> None:
    async with plain.serving(Echo) as server:
        waits = [loop.create_task(server.wait_closed()) for _ in range(3)]
        await turns(2)
        await cancelled(waits[0])
        assert await server.drain() == (0, 0, 0)
        await asyncio.gather(*waits[1:])


def test_a_drain_leaves_those_that_wait_to_other_loops(loop: Loop, listener: socket.socket) -> None:
    other = uringloop.new_event_loop()
    address = listener.getsockname()

    async def drained(server: Server) -> Drained:
        server.pause_accepting()
        client.connect(address)
        return await server.drain(0.1, 0.1)

    with contextlib.closing(other), socket.socket() as client:
        ours, theirs = (
            each.run_until_complete(each.create_server(Desk(), sock=listener.dup()))
            for each in (loop, other)
        )
        assert loop.run_until_complete(drained(ours)) == (0, 0, 0)
        client.send(b"you")
        client.setblocking(False)
        assert other.run_until_complete(read_to_end(other, client)) == b"to you"
        other.run_until_complete(close_server(theirs))


def test_a_drained_socket_that_stays_open_does_not_keep_the_loop_busy(
    loop: Loop, listener: socket.socket
) -> None:
    other = uringloop.new_event_loop()

    async def drain_another() -> None:
        # The loop shares one socket, and has another for itself.
        shared = await loop.create_server(Desk(), sock=listener.dup())
        with socket.create_server((LOCALHOST, 0)) as kept:
            server = await loop.create_server(Desk(), sock=kept.dup())
            server.pause_accepting()
            with connected(kept.getsockname()) as client:
                client.send(b"you")
                assert await server.drain() == (1, 0, 0)
            with connected(kept.getsockname()):
                await nothing_comes(loop)
                before = loop.stats()["turns"]
                await asyncio.sleep(0.2)
                assert loop.stats()["turns"] - before < 20
        await close_server(shared)

    with contextlib.closing(other):
        theirs = other.run_until_complete(other.create_server(Desk(), sock=listener.dup()))
        loop.run_until_complete(drain_another())
        other.run_until_complete(close_server(theirs))
