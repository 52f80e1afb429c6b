"""Leaks: descriptors, operations in flight, buffers, transports, memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine

import pytest
from support.leaks import open_fds
from support.loops import LoopFactory
from support.protocols import Collector, Echo
from support.roles import (
    Guests,
    Loop,
    close_server,
    connected,
    narrow_pair,
    noise,
    nothing_left,
    on_loop,
    read_exactly,
    released,
    reset,
    resident_bytes,
    serving,
    silent_listener,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair

import uringloop
from uringloop._cpython import gil

LOCALHOST = "127.0.0.1"
NARROW = 16 * 1024
PLENTY = 4 * 1024 * 1024

Scenario = Callable[[Loop], Awaitable[None]]


# ── scenarios ─────────────────────────────────────────────────────────────────────────────


async def close_idle(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector) as (transport, _):
        transport.close()
        await collector.lost


async def close_while_writing(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector, buffer_size=NARROW) as (transport, peer):
        transport.write(noise(PLENTY))
        transport.close()
        await read_exactly(loop, peer, PLENTY)
        await collector.lost


async def abort_while_writing(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector, buffer_size=NARROW) as (transport, _):
        transport.write(bytes(PLENTY))
        await turns(3)
        transport.abort()
        await collector.lost


async def abort_while_paused(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector) as (transport, peer):
        transport.pause_reading()
        peer.send(bytes(100_000))
        await turns(5)
        transport.abort()
        await collector.lost


async def peer_closes(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector) as (_, peer):
        peer.send(b"last words")
        peer.close()
        await collector.lost


async def peer_resets_while_writing(loop: Loop) -> None:
    collector = Collector(loop)
    async with stream(loop, collector, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        await turns(3)
        reset(peer)
        await collector.lost


async def protocol_fails(loop: Loop) -> None:
    class Faulty(Collector):
        def data_received(self, data: bytes) -> None:
            raise ValueError

    loop.set_exception_handler(lambda loop, context: None)
    faulty = Faulty(loop)
    async with stream(loop, faulty) as (_, peer):
        peer.send(b"x")
        await faulty.lost


async def connect_is_refused(loop: Loop) -> None:
    with socket.socket() as sock:
        sock.bind((LOCALHOST, 0))
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Echo, *sock.getsockname())


async def connect_is_cancelled(loop: Loop) -> None:
    with silent_listener((LOCALHOST, 0)) as address:
        for count in range(4):
            connecting = loop.create_task(loop.create_connection(Echo, *address))
            await turns(count)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting


async def server_closes_before_its_clients(loop: Loop) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0)
    clients = [connected(server.sockets[0].getsockname()) for _ in range(10)]
    await guests.arrived(10)
    server.close()
    for client in clients:
        client.close()
    for guest in guests.seen:
        await guest.lost
    await server.wait_closed()


async def server_closes_with_clients_in_the_backlog(loop: Loop) -> None:
    server = await loop.create_server(Guests(loop), LOCALHOST, 0)
    clients = [connected(server.sockets[0].getsockname()) for _ in range(10)]
    server.close()
    await server.wait_closed()
    for client in clients:
        client.close()


async def server_never_serves(loop: Loop) -> None:
    await close_server(await loop.create_server(Echo, LOCALHOST, 0, start_serving=False))


async def sockets_are_cancelled(loop: Loop) -> None:
    left, right = narrow_pair(NARROW)
    with left, right:
        for task in (
            loop.create_task(loop.sock_sendall(left, bytes(PLENTY))),
            loop.create_task(loop.sock_recv(left, 10)),
        ):
            await turns(3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def watchers_come_and_go(loop: Loop) -> None:
    left, right = tcp_pair()
    with left, right:
        for count in range(10):
            loop.add_reader(left, lambda: None)
            loop.add_writer(left, lambda: None)
            await turns(count % 3)
            assert loop.remove_reader(left)
            assert loop.remove_writer(left)


SCENARIOS: tuple[Scenario, ...] = (
    close_idle,
    close_while_writing,
    abort_while_writing,
    abort_while_paused,
    peer_closes,
    peer_resets_while_writing,
    protocol_fails,
    connect_is_refused,
    connect_is_cancelled,
    server_closes_before_its_clients,
    server_closes_with_clients_in_the_backlog,
    server_never_serves,
    sockets_are_cancelled,
    watchers_come_and_go,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@on_loop
async def test_no_resource_is_leaked(loop: uringloop.Loop, scenario: Scenario) -> None:
    # The first rounds make what a loop keeps, such as its ring's eventfd.
    for _ in range(8):
        await scenario(loop)
    for _ in range(3):
        async with nothing_left(loop):
            await scenario(loop)


@on_loop
async def test_leak_checks_detect_an_open_connection(loop: uringloop.Loop) -> None:
    # If these counters were always zero, the other tests of this file could not fail.
    async with nothing_left(loop):
        collector = Collector(loop)
        async with stream(loop, collector) as (_, peer):
            await turns(3)
            assert loop._operations_in_flight > 0
            peer.send(b"x")
            await collector.received(1)
            assert loop._buffers_out == 0


@on_loop
async def test_the_counter_of_buffers_rises_while_one_is_copied(loop: uringloop.Loop) -> None:
    out: list[int] = []

    class Counting(asyncio.BufferedProtocol):
        """get_buffer() runs between the completion and the copy."""

        def get_buffer(self, sizehint: int) -> bytearray:
            out.append(loop._buffers_out)
            return bytearray(100)

        def buffer_updated(self, nbytes: int) -> None:
            out.append(nbytes)

    async with stream(loop, Counting()) as (_, peer):
        # The first messages take no buffer.
        for count in range(1, 6):
            peer.send(b"x")
            await until(lambda count=count: len(out) == 2 * count)  # type: ignore[misc]
        assert out[-2:] == [1, 1]
        assert loop._buffers_out == 0


@on_loop
async def test_a_delivered_buffer_returns_to_the_pool_at_once(loop: uringloop.Loop) -> None:
    out: list[int] = []

    class Counting(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            out.append(loop._buffers_out)

    counting = Counting(loop)
    async with stream(loop, counting) as (_, peer):
        data = noise(8 << 20)
        sending = loop.create_task(loop.sock_sendall(peer, data))
        assert await counting.received(len(data)) == data
        await sending
    # One buffer may still be out while its own data_received runs.
    assert max(out) <= 1


# ── closing the loop ──────────────────────────────────────────────────────────────────────


async def open_everything(loop: Loop) -> list[socket.socket]:
    """Leave a connection, a server with clients, a reader callback and pending writes open."""
    loop.set_exception_handler(lambda loop, context: None)
    ours, peer = narrow_pair(NARROW)
    transport, _ = await loop.create_connection(lambda: Collector(loop), sock=ours)
    transport.write(bytes(PLENTY // 8))
    paused_ours, paused_peer = tcp_pair()
    paused, _ = await loop.create_connection(lambda: Collector(loop), sock=paused_ours)
    paused.pause_reading()
    paused_peer.send(bytes(10_000))
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0)
    client = connected(server.sockets[0].getsockname())
    await guests.arrived()
    left, right = tcp_pair()
    loop.add_reader(left, lambda: None)
    loop.add_writer(left, lambda: None)
    await turns(5)
    return [peer, paused_peer, client, left, right]


# Unclosed transports and servers raise ResourceWarning, as in asyncio.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_closing_the_loop_with_everything_open_leaks_nothing(loop_factory: LoopFactory) -> None:
    gc.collect()
    fds = open_fds()
    loop = loop_factory()
    sockets = loop.run_until_complete(open_everything(loop))
    loop.close()
    for sock in sockets:
        sock.close()
    del loop
    gc.collect()
    assert open_fds() == fds


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.slow
def test_loops_created_and_closed_leave_memory_flat() -> None:
    def cycle() -> None:
        loop = uringloop.new_event_loop()
        for sock in loop.run_until_complete(open_everything(loop)):
            sock.close()
        loop.close()

    def cycles(tens: int) -> None:
        # Without a GIL the collector starts when the whole process has grown by a tenth: of all
        # that tests before this one have left, and by so much the garbage of loops would differ.
        for _ in range(tens):
            for _ in range(10):
                cycle()
            gc.collect()

    cycles(2)
    fds, before = open_fds(), resident_bytes()
    cycles(10)
    assert open_fds() == fds
    # One leaked ring of 160 KiB per loop would be 16 MiB.
    assert resident_bytes() - before < 8 << 20


# ── garbage ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["close", "abort", "peer", "reset"])
@on_loop
async def test_an_ended_transport_and_its_protocol_are_collected(each_loop: Loop, end: str) -> None:
    async def converse() -> tuple[weakref.ref[asyncio.Transport], weakref.ref[Collector]]:
        collector = Collector(each_loop)
        async with stream(each_loop, collector) as (transport, peer):
            transport.write(b"hello")
            assert await read_exactly(each_loop, peer, 5) == b"hello"
            peer.send(b"x")
            await collector.received(1)
            match end:
                case "close":
                    transport.close()
                case "abort":
                    transport.abort()
                case "peer":
                    peer.close()
                case "reset":
                    reset(peer)
            await collector.lost
        return weakref.ref(transport), weakref.ref(collector)

    references = await converse()
    await turns(3)
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@on_loop
async def test_a_closed_server_and_its_clients_are_collected(each_loop: Loop) -> None:
    async def serve() -> list[weakref.ref[object]]:
        guests = Guests(each_loop)
        server = await each_loop.create_server(guests, LOCALHOST, 0)
        with connected(server.sockets[0].getsockname()):
            await guests.arrived()
        await guests.seen[0].lost
        await close_server(server)
        return [weakref.ref(guests), weakref.ref(guests.seen[0]), weakref.ref(server)]

    references = await serve()
    await turns(3)
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


@on_loop
async def test_written_data_is_released_once_it_is_sent(each_loop: Loop) -> None:
    data = noise(PLENTY)
    references = sys.getrefcount(data)
    async with stream(each_loop, Collector(each_loop), buffer_size=NARROW) as (transport, peer):
        transport.write(data)
        await read_exactly(each_loop, peer, PLENTY)
        await until(lambda: transport.get_write_buffer_size() == 0)
        await turns(3)
        assert sys.getrefcount(data) == references


# ── memory ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@on_loop
async def test_ten_thousand_connections_leave_memory_flat(loop: uringloop.Loop) -> None:
    async def converse(address: tuple[str, int]) -> None:
        collector = Collector(loop)
        transport, _ = await loop.create_connection(lambda: collector, *address)
        transport.write(b"ping" * 250)
        await collector.received(1000)
        transport.close()
        await collector.lost

    async def cycle(count: int) -> None:
        server = await loop.create_server(Echo, LOCALHOST, 0, backlog=1000)
        address = server.sockets[0].getsockname()
        for _ in range(count // 50):
            await asyncio.gather(*(converse(address) for _ in range(50)))
        await turns(5)
        await close_server(server)

    await cycle(2000)
    gc.collect()
    before = resident_bytes()
    async with nothing_left(loop):
        await cycle(10_000)
    gc.collect()
    # 400 bytes leaked per connection would show.
    assert resident_bytes() - before < 4 << 20


@pytest.mark.slow
@on_loop
async def test_large_messages_leave_memory_flat(loop: uringloop.Loop) -> None:
    data = noise(PLENTY)

    async def echo_once(address: tuple[str, int]) -> None:
        collector = Collector(loop)
        transport, _ = await loop.create_connection(lambda: collector, *address)
        transport.write(data)
        await collector.received(PLENTY)
        transport.close()
        await collector.lost
        await released(transport)

    async with serving(loop, Echo) as address:
        for _ in range(5):
            await echo_once(address)
        gc.collect()
        before = resident_bytes()
        for _ in range(40):
            await echo_once(address)
        gc.collect()
        assert resident_bytes() - before < 8 * PLENTY


# ── without garbage collection ────────────────────────────────────────────────────────────


async def wait_for_nothing() -> None:
    await asyncio.sleep(0)


async def serve_one_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def use_the_executor() -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, int)
    await loop.shutdown_default_executor()


async def watch_a_descriptor() -> None:
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        loop.add_reader(left, int)
        await asyncio.sleep(0)
        loop.remove_reader(left)


@pytest.mark.parametrize(
    "use", [wait_for_nothing, serve_one_connection, use_the_executor, watch_a_descriptor]
)
def test_a_closed_loop_is_freed_without_garbage_collection(
    loop_factory: LoopFactory, use: Callable[[], Coroutine[object, object, None]]
) -> None:
    # Run it once before the check: modules that are imported at first use leave garbage.
    with contextlib.closing(loop_factory()) as first:
        first.run_until_complete(use())
    loop = loop_factory()
    watch = weakref.ref(loop)
    gc.collect()
    gc.disable()
    try:
        loop.run_until_complete(use())
        loop.close()
        # Programs that clean up late create futures of a closed loop.
        loop.create_future()
        del loop
        assert watch() is None
    finally:
        gc.enable()


def test_a_closed_loop_that_threads_called_often_is_freed_by_a_collection() -> None:
    loop = uringloop.new_event_loop()
    watch = weakref.ref(loop)

    def call_often(called: asyncio.AbstractEventLoop) -> None:
        for _ in range(2000):
            called.call_soon_threadsafe(int)

    async def wait() -> None:
        running = asyncio.get_running_loop()
        await running.run_in_executor(None, call_often, running)
        await running.shutdown_default_executor()

    gc.disable()
    try:
        loop.run_until_complete(wait())
        loop.close()
        del loop
        assert (watch() is not None) == gil.free_threaded()
        gc.collect()
        assert watch() is None
    finally:
        gc.enable()
