"""Servers with a limit, and paused ones."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.protocols import Echo
from support.roles import (
    Guests,
    close_server,
    connected,
    needs_ipv6,
    nothing_comes,
    nothing_left,
    on_loop,
    read_to_end,
    record_handler_calls,
    reset,
    turns,
    until,
    unused_port,
)
from support.sites import (
    LOCALHOST,
    Desk,
    Site,
    Visit,
)
from support.tls_contexts import Contexts
from support.virtual_time import Stopwatch

import uringloop
from uringloop import Loop, testing
from uringloop._net.servers import Server

# ── the limit ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [1, 3, 10])
@on_loop
async def test_there_are_never_more_connections_than_the_limit(
    loop: Loop, site: Site, limit: int
) -> None:
    desk = Desk()
    async with site.serving(desk, max_connections=limit) as server:
        assert server.max_connections == limit
        await site.ask_many(count := 60 if site.kind == "tls" else 300)
        assert desk.total == count
        # Over TLS a connection counts from accept(), and the protocol has it after the handshake.
        assert desk.most <= limit if site.kind == "tls" else desk.most == limit


@pytest.mark.parametrize("start", [asyncio.start_server, asyncio.start_unix_server])
@on_loop
async def test_servers_of_streams_take_a_limit(loop: Loop, start: Any, tmp_path: Path) -> None:
    present: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        present.append(1)
        writer.write(b"%d" % len(present) + await reader.read(1))
        present.pop()
        writer.close()

    where = [LOCALHOST, 0] if start is asyncio.start_server else [tmp_path / "socket"]
    server = await start(serve, *where, max_connections=1)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(server.sockets[0].family)) for _ in range(9)]
        for client in clients:
            client.connect(server.sockets[0].getsockname())
            client.setblocking(False)
            client.send(b"x")
        assert [await read_to_end(loop, client) for client in clients] == [b"1x"] * 9
    await close_server(server)


@pytest.mark.parametrize("limit", [1, 3])
@on_loop
async def test_those_that_wait_are_served_in_the_order_of_their_connects(
    loop: Loop, plain: Site, limit: int
) -> None:
    guests = Guests(loop)
    async with plain.serving(guests, max_connections=limit):
        plain.connect_many(40)
        for number in range(40):
            await guests.arrived(number + 1)
            assert len(guests.seen) <= number + limit
            assert await guests.seen[number].received(1)
            guests.seen[number].transport.close()
            await guests.seen[number].lost
        assert [int(guest.data) for guest in guests.seen] == list(range(40))


@needs_ipv6
@on_loop
async def test_the_limit_counts_over_all_sockets_of_a_server(loop: Loop) -> None:
    guests = Guests(loop)
    hosts = [LOCALHOST, "::1"]
    server = await loop.create_server(guests, hosts, unused_port("::1"), max_connections=3)
    with contextlib.ExitStack() as stack:
        for which in (0, 1) * 5:
            stack.enter_context(connected(server.sockets[which].getsockname()))
        for number in range(10):
            await guests.arrived(min(number + 3, 10))
            await nothing_comes(loop)
            assert len(guests.seen) == min(number + 3, 10)
            guests.seen[number].transport.close()
            await guests.seen[number].lost
    families = [guest.transport.get_extra_info("socket").family for guest in guests.seen]
    assert collections.Counter(families) == {socket.AF_INET: 5, socket.AF_INET6: 5}
    await close_server(server)


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_a_server_that_does_not_accept_sleeps(loop: Loop, plain: Site, paused: bool) -> None:
    async with plain.serving(Echo, max_connections=1) as server:
        if paused:
            server.pause_accepting()
        plain.connect_many(5)
        await nothing_comes(loop)
        turns_before, cpu_before = loop.stats()["turns"], time.process_time()
        await asyncio.sleep(0.2)
        assert loop.stats()["turns"] - turns_before < 10
        assert time.process_time() - cpu_before < 0.1


@on_loop
async def test_a_lower_limit_closes_nobody_and_accepts_nobody_until_there_is_room(
    loop: Loop, plain: Site
) -> None:
    guests = Guests(loop)
    async with plain.serving(guests) as server:
        assert server.max_connections is None
        server.max_connections = 4
        plain.connect_many(6)
        await guests.arrived(4)
        server.max_connections = 2
        assert server.max_connections == 2
        # The number of the guest that leaves, and how many have been accepted then.
        for leaving, accepted in ((3, 4), (2, 4), (0, 5), (1, 6)):
            guests.seen[leaving].transport.close()
            await guests.seen[leaving].lost
            await guests.arrived(accepted)
            await nothing_comes(loop)
            assert len(guests.seen) == accepted
        assert [guest.lost.done() for guest in guests.seen] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("limit", [3, None])
@on_loop
async def test_a_higher_limit_accepts_at_once(loop: Loop, plain: Site, limit: int | None) -> None:
    guests = Guests(loop)
    async with plain.serving(guests, max_connections=1) as server:
        plain.connect_many(5)
        await guests.arrived(1)
        for higher in (limit, 5):
            server.max_connections = higher
            await guests.arrived(higher or 5)
            await nothing_comes(loop)
            assert len(guests.seen) == (higher or 5)


@pytest.mark.parametrize(
    ("limit", "error"), [("x", TypeError), (1.5, TypeError), (0, ValueError), (-1, ValueError)]
)
@on_loop
async def test_a_wrong_limit_is_refused_and_nothing_stays_bound(
    loop: Loop, limit: Any, error: type[Exception], tmp_path: Path
) -> None:
    path, port = tmp_path / "socket", unused_port()
    async with nothing_left(loop):
        with pytest.raises(error, match="max_connections must be"):
            await loop.create_server(Echo, LOCALHOST, port, max_connections=limit)
        with pytest.raises(error, match="max_connections must be"):
            await loop.create_unix_server(Echo, str(path), max_connections=limit)
        assert not path.exists()
        server = await loop.create_server(Echo, LOCALHOST, port, max_connections=3)
        with pytest.raises(error, match="max_connections must be"):
            server.max_connections = limit
        assert server.max_connections == 3
        await close_server(server)


@pytest.mark.parametrize("fault", ["raises", "no protocol"])
@on_loop
async def test_a_factory_that_fails_takes_no_place(loop: Loop, plain: Site, fault: str) -> None:
    desk = Desk()
    calls = iter(range(20))

    def factory() -> object:
        if next(calls) % 4 == 0:
            return desk()
        if fault == "raises":
            raise ValueError("no protocol today")
        return object()

    async with plain.serving(factory, max_connections=1):
        for number, client in enumerate(plain.connect_many(20)):
            if number % 4 == 0:
                assert await read_to_end(loop, client) == b"to %d" % number
            else:
                with contextlib.suppress(ConnectionResetError):
                    assert await loop.sock_recv(client, 1) == b""
        assert (desk.most, desk.total) == (1, 5)


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@on_loop
async def test_a_client_that_leaves_the_backlog_takes_no_place(
    loop: Loop, plain: Site, leave: Callable[[socket.socket], None]
) -> None:
    guests = Guests(loop)
    async with plain.serving(guests, max_connections=1):
        clients = plain.connect_many(6)
        await guests.arrived(1)
        for client in clients[1:5]:
            leave(client)
        await nothing_comes(loop)
        assert len(guests.seen) == 1
        guests.seen[0].transport.close()
        await until(lambda: guests.seen[-1].data == b"5")


@on_loop
async def test_aborted_connections_leave_their_places(loop: Loop, site: Site) -> None:
    desk = Desk()

    class Aborting(Visit):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            loop.call_soon(self.transport.abort)

    async with site.serving(lambda: Aborting(desk), max_connections=2):
        asked = (site.ask(b"?") for _ in range(60))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(answer == b"" or isinstance(answer, OSError) for answer in answers)
        assert desk.total == 60
        assert desk.most <= 2


@on_loop
async def test_connections_closed_in_connection_made_leave_their_places(
    loop: Loop, site: Site
) -> None:
    desk = Desk()

    class Brief(Visit):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"goodbye")
            self.transport.close()

    async with site.serving(lambda: Brief(desk), max_connections=1):
        # They send nothing: a connection that is closed with unread data is reset.
        assert await asyncio.gather(*(site.ask(b"") for _ in range(60))) == [b"goodbye"] * 60
        assert (desk.most, desk.total) == (1, 60)


@on_loop
async def test_a_server_can_be_closed_at_its_limit(loop: Loop) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0, max_connections=1)
    address = server.sockets[0].getsockname()
    with connected(address), connected(address):
        await guests.arrived(1)
        server.close()
        await close_server(await loop.create_server(Echo, *address))
        with pytest.raises(ConnectionRefusedError):
            connected(address)
    await guests.seen[0].lost
    await server.wait_closed()
    assert len(guests.seen) == 1


@on_loop
async def test_a_closed_server_with_a_limit_is_in_no_cycle(loop: Loop) -> None:
    server = await loop.create_server(Echo, LOCALHOST, 0, max_connections=5)
    await close_server(server)
    reference = weakref.ref(server)
    gc.disable()
    try:
        del server
        await turns(3)
        assert reference() is None
    finally:
        gc.enable()


@on_loop
async def test_the_largest_limits_are_none(loop: Loop) -> None:
    async with nothing_left(loop):
        server = await loop.create_server(Echo, LOCALHOST, 0, max_connections=2**63)
        server.max_connections = 2**70
        assert server.max_connections == 2**70
        await close_server(server)


# ── pausing ──────────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_paused_server_lets_clients_wait_until_it_resumes(loop: Loop, site: Site) -> None:
    desk = Desk()
    async with site.serving(desk) as server:
        for _ in range(3):
            early = site.connect()
            await site.ask_many(3)
            total = desk.total
            server.pause_accepting()
            server.pause_accepting()
            assert server.is_serving()
            asking = loop.create_task(site.ask_many(20))
            await nothing_comes(loop)
            assert desk.total == total
            if site.kind != "tls":
                await loop.sock_sendall(early, b"early")
                assert await read_to_end(loop, early) == b"to early"
            server.resume_accepting()
            server.resume_accepting()
            await asking


@on_loop
async def test_a_server_can_be_paused_and_resumed_at_once(loop: Loop, site: Site) -> None:
    async with site.serving(Desk()) as server:
        for count in range(20):
            server.pause_accepting()
            server.resume_accepting()
            await turns(count % 3)
            server.pause_accepting()
            await turns(count % 4)
            server.resume_accepting()
            await site.ask_many(2)


@on_loop
async def test_a_server_can_be_paused_before_it_starts(loop: Loop, plain: Site) -> None:
    guests = Guests(loop)
    async with plain.serving(guests, start_serving=False) as server:
        server.pause_accepting()
        assert not server.is_serving()
        await server.start_serving()
        assert server.is_serving()
        plain.connect_many(3)
        await nothing_comes(loop)
        assert guests.seen == []
        server.resume_accepting()
        await guests.arrived(3)


@on_loop
async def test_pausing_does_nothing_after_close(loop: Loop, plain: Site) -> None:
    async with plain.serving(Echo, max_connections=1) as server:
        await close_server(server)
        server.resume_accepting()
        server.pause_accepting()
        server.resume_accepting()
        server.max_connections = 5
        await turns(3)
        assert not server.is_serving()
        assert server.sockets == ()


def test_a_pause_holds_while_another_loop_begins_to_accept(loop: Loop) -> None:
    other = uringloop.new_event_loop()

    async def pause(server: Server) -> None:
        # The poll has reported a connection, but the loop has not seen it yet.
        await asyncio.sleep(0.01)
        with connected(server.sockets[0].getsockname()):
            server.pause_accepting()
            await nothing_comes(loop)
            before = loop.stats()["turns"]
            await asyncio.sleep(0.2)
            assert loop.stats()["turns"] - before < 20

    with contextlib.closing(other):
        ours = loop.run_until_complete(loop.create_server(Echo, LOCALHOST, 0))
        theirs = other.run_until_complete(other.create_server(Echo, sock=ours.sockets[0].dup()))
        loop.run_until_complete(pause(ours))
        loop.run_until_complete(close_server(ours))
        other.run_until_complete(close_server(theirs))


@on_loop
async def test_a_pause_and_a_limit_hold_together(loop: Loop, plain: Site) -> None:
    guests = Guests(loop)
    async with plain.serving(guests, max_connections=2) as server:
        plain.connect_many(6)
        await guests.arrived(2)
        server.pause_accepting()
        server.max_connections = 3
        guests.seen[0].transport.close()
        await guests.seen[0].lost
        await nothing_comes(loop)
        assert len(guests.seen) == 2
        for limit, accepted in ((3, 4), (3, 4), (None, 6)):
            server.max_connections = limit
            server.resume_accepting()
            await guests.arrived(accepted)
            await nothing_comes(loop)
            assert len(guests.seen) == accepted


@pytest.mark.parametrize("kind", ["tcp", "given"])
@on_loop
async def test_a_server_without_descriptors_can_be_paused_and_resumed(
    virtual_loop: testing.Loop, kind: str, tmp_path: Path, contexts: Contexts
) -> None:
    reports = record_handler_calls(virtual_loop)
    guests = Guests(virtual_loop)
    site = Site(virtual_loop, kind, tmp_path, contexts)
    async with site.serving(guests) as server:
        virtual_loop.faults = testing.Faults(no_files=1)
        site.connect()
        await until(lambda: len(reports) == 1)
        server.resume_accepting()
        await asyncio.sleep(0.5)
        server.pause_accepting()
        await asyncio.sleep(5)
        assert len(reports) == 1
        server.resume_accepting()
        await until(lambda: len(reports) == 2)
        await asyncio.sleep(2.5)
        messages = [report["message"] for report in reports]
        assert messages == ["socket.accept() out of system resource"] * 4
        server.pause_accepting()
        virtual_loop.faults = testing.Faults()
        await asyncio.sleep(5)
        assert guests.seen == []
        watch = Stopwatch(virtual_loop)
        server.resume_accepting()
        await guests.arrived(1)
        assert watch.shows(0)
