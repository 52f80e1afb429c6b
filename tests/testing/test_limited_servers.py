"""Loops for tests: servers with a limit, paused servers and those that drain."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.protocols import Echo
from support.roles import (
    Guests,
    close_server,
    on_loop,
    record_handler_calls,
    until,
)
from support.sites import (
    LOCALHOST,
)
from support.virtual_time import Stopwatch

from uringloop import testing
from uringloop._net.servers import Server

# ── the simulation ───────────────────────────────────────────────────────────────────────────────


class Shop:
    """A server in virtual time that takes a second for each of its clients."""

    def __init__(self) -> None:
        self.present = self.most = 0
        self.order: list[int] = []

    async def open(self, **options: Any) -> Server:
        server = await asyncio.start_server(self.serve, LOCALHOST, 0, **options)
        assert isinstance(server, Server)
        self.address = server.sockets[0].getsockname()
        return server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.present += 1
        self.most = max(self.most, self.present)
        question = await reader.readline()
        self.order.append(int(question))
        await asyncio.sleep(1)
        writer.write(question)
        self.present -= 1
        writer.close()

    async def ask(self, number: int, after: float = 0) -> None:
        await asyncio.sleep(after)
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(b"%d\n" % number)
        assert await reader.read() == b"%d\n" % number
        writer.close()
        await writer.wait_closed()


def simulate(main: Callable[[], Awaitable[None]]) -> None:
    """Run *main* under the seeds 1 to 50; a call of the exception handler is an error."""
    for seed in range(1, 51):
        loop = testing.Loop(seed)
        handler_calls: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: handler_calls.append(context))  # noqa: B023
        try:
            loop.run_until_complete(main())
            loop.run_until_complete(asyncio.sleep(1))
        except BaseException as exc:
            exc.add_note(f"with the seed {seed}")
            raise
        finally:
            loop.close()
        assert handler_calls == [], f"with the seed {seed}"


def test_a_limit_holds_in_the_simulation() -> None:
    async def main() -> None:
        shop = Shop()
        server = await shop.open(max_connections=2)
        watch = Stopwatch(server.get_loop())
        await asyncio.gather(*(shop.ask(number) for number in range(20)))
        assert watch.shows(10)
        assert (shop.most, sorted(shop.order)) == (2, list(range(20)))
        await close_server(server)

    simulate(main)


def test_those_that_wait_are_served_in_their_order_in_the_simulation() -> None:
    async def main() -> None:
        shop = Shop()
        server = await shop.open(max_connections=1)
        # Some connect just when the server has room again, and others wait.
        await asyncio.gather(*(shop.ask(number, number / 2) for number in range(20)))
        assert shop.order == list(range(20))
        await close_server(server)

    simulate(main)


def test_a_server_can_be_paused_in_the_simulation() -> None:
    async def main() -> None:
        shop = Shop()
        server = await shop.open(max_connections=10)
        watch = Stopwatch(server.get_loop())
        server.pause_accepting()
        asking = asyncio.gather(*(shop.ask(number) for number in range(20)))
        await asyncio.sleep(60)
        assert shop.most == 0
        server.resume_accepting()
        await asyncio.sleep(0.5)
        server.pause_accepting()
        await asyncio.sleep(60)
        assert len(shop.order) == 10
        server.resume_accepting()
        await asking
        assert watch.shows(121.5)
        await close_server(server)

    simulate(main)


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("paused", [False, True])
def test_a_drain_serves_those_that_wait_in_the_simulation(limit: int | None, paused: bool) -> None:
    async def main() -> None:
        shop = Shop()
        server = await shop.open(max_connections=limit)
        if paused:
            server.pause_accepting()
        asking = asyncio.gather(*(shop.ask(number) for number in range(10)))
        await asyncio.sleep(0.5)
        assert await server.drain() == (10, 0, 0)
        await asking

    simulate(main)


def test_a_drain_serves_what_has_just_connected_in_the_simulation() -> None:
    async def main() -> None:
        shop = Shop()
        server = await shop.open()
        pairs = [await asyncio.open_connection(*shop.address) for _ in range(10)]
        draining = asyncio.ensure_future(server.drain())
        for _, writer in pairs:
            writer.write(b"7\n")
        reads = (reader.read() for reader, _ in pairs)
        answers = await asyncio.gather(*reads, return_exceptions=True)
        for _, writer in pairs:
            writer.close()
        assert (answers, await draining) == ([b"7\n"] * 10, (10, 0, 0))

    simulate(main)


def test_a_drain_closes_and_aborts_in_virtual_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, testing.Loop)
        guests = Guests(loop)
        server = await loop.create_server(guests, LOCALHOST, 0)
        address = server.sockets[0].getsockname()
        pairs = [await asyncio.open_connection(*address, limit=10) for _ in range(3)]
        await guests.arrived(3)
        guests.seen[0].transport.close()
        guests.seen[2].transport.write(bytes(20_000_000))
        watch = Stopwatch(loop)
        assert await server.drain(60, 30) == (1, 1, 1)
        assert watch.shows(90)
        for _, writer in pairs:
            writer.transport.abort()

    simulate(main)


@on_loop
async def test_a_server_that_accepts_no_more_resets_its_clients(virtual_loop: testing.Loop) -> None:
    reports = record_handler_calls(virtual_loop)
    server = await virtual_loop.create_server(Echo, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    with server.sockets[0].dup() as sock:
        sock.shutdown(socket.SHUT_RDWR)
    await until(lambda: len(reports) == 1)
    assert reports.pop()["message"] == "socket.accept() failed"
    reader, writer = await asyncio.open_connection(*address)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 10)
    writer.close()
    await close_server(server)


@on_loop
async def test_a_factory_that_fails_leaves_no_open_socket(virtual_loop: testing.Loop) -> None:
    def fail() -> asyncio.Protocol:
        raise ValueError("no protocol today")

    # In debug mode they are reported.
    virtual_loop.set_exception_handler(lambda loop, context: None)
    server = await virtual_loop.create_server(fail, LOCALHOST, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    await close_server(server)
