"""Accepting connections: failing factories, contexts, many clients, EMFILE, extra info."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import LEAVING, runs
from support.loops import FACTORIES
from support.protocols import Collector, Echo
from support.roles import (
    Guests,
    Loop,
    abort_and_wait,
    answers,
    close_server,
    connected,
    needs_ipv6,
    on_loop,
    record_handler_calls,
    released,
    reset,
    turns,
    until,
)
from support.virtual_time import Stopwatch

import uringloop
from uringloop import testing

LOCALHOST = "127.0.0.1"
# <linux/in.h>
IP_TRANSPARENT = 19


# asyncio does not close the accepted socket; the garbage collector does, with a ResourceWarning.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@on_loop
async def test_a_failing_factory_is_reported_and_the_server_goes_on(each_loop: Loop) -> None:
    error = ValueError("no protocol today")
    guests = Guests(each_loop)
    failures = iter([True, False])

    def factory() -> Collector:
        if next(failures):
            raise error
        return guests()

    handler_calls = record_handler_calls(each_loop)
    each_loop.set_debug(True)  # asyncio reports this error in debug mode only.
    server = await each_loop.create_server(factory, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    with connected(address) as client:
        await until(lambda: len(handler_calls) == 1)
        assert handler_calls[0]["message"] == "Error on transport creation for incoming connection"
        assert handler_calls[0]["exception"] is error
        handler_calls.clear()
        error.__traceback__ = None  # Its frames hold a reference to asyncio's open socket.
        client.setblocking(False)
        assert await each_loop.sock_recv(client, 1) == b""
    connected(address).close()
    await guests.arrived()
    await guests.end()
    await close_server(server)


@on_loop
async def test_accepted_protocols_run_in_the_context_of_the_server(each_loop: Loop) -> None:
    name = contextvars.ContextVar("name", default="unset")
    seen: list[str] = []

    class Witness(Collector):
        def data_received(self, data: bytes) -> None:
            seen.append(name.get())
            super().data_received(data)

    def factory() -> Collector:
        seen.append(name.get())
        return witness

    witness = Witness(each_loop)
    name.set("at the creation of the server")
    server = await each_loop.create_server(factory, LOCALHOST, 0)
    name.set("later")
    with connected(server.sockets[0].getsockname()) as client:
        client.send(b"x")
        await until(lambda: len(seen) == 2)
    await witness.lost
    await close_server(server)
    assert seen == ["at the creation of the server"] * 2


@on_loop
async def test_an_accepted_socket_can_be_handed_to_the_loop(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    with socket.create_server((LOCALHOST, 0)) as listener:
        client = connected(listener.getsockname())
        conn, _ = listener.accept()
    with client:
        transport, protocol = await each_loop.connect_accepted_socket(lambda: collector, conn)
        assert protocol is collector
        assert collector.calls == ["connection_made"]
        client.send(b"hello")
        assert await collector.received(5) == b"hello"
        transport.close()
        await released(transport)
        assert conn.fileno() == -1
    wrong = pytest.raises(ValueError, match=r"^A Stream Socket was expected, got <socket")
    with socket.socket(type=socket.SOCK_DGRAM) as sock, wrong:
        await each_loop.connect_accepted_socket(lambda: collector, sock)


@pytest.mark.slow
@on_loop
async def test_two_thousand_clients_are_served_in_sequence(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    for _ in range(2000):
        assert await answers(each_loop, address)
    await close_server(server)


@pytest.mark.slow
@on_loop
async def test_two_thousand_clients_are_served_at_once(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0, backlog=4096)
    address = server.sockets[0].getsockname()
    clients = [connected(address) for _ in range(2000)]
    await guests.arrived(2000)
    for number, client in enumerate(clients):
        client.send(b"%d" % number)
        client.close()
    for guest in guests.seen:
        assert await guest.lost is None
    assert sorted(int(guest.data) for guest in guests.seen) == list(range(2000))
    await close_server(server)


# ── too few file descriptors ──────────────────────────────────────────────────────────────

# Fills the descriptor table, lets a client connect, frees the table, and prints the results.
STARVED = """
import asyncio, errno, json, os, resource, socket, sys, time

class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"welcome")
        transport.close()

async def main():
    loop = asyncio.get_running_loop()
    handler_calls, reported = [], asyncio.Event()

    def on_exception(loop, context):
        handler_calls.append((context["message"], context["exception"].errno))
        assert "socket" in context
        reported.set()

    loop.set_exception_handler(on_exception)
    # Before create_server(): an accept in flight keeps the limit that it was submitted under.
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    # A backlog of 1, because asyncio reports EMFILE once for each place in the backlog.
    if sys.argv[2] == "own":
        server = await loop.create_server(Greeter, "127.0.0.1", 0, backlog=1)
    else:
        sock = socket.create_server(("127.0.0.1", 0), backlog=1)
        server = await loop.create_server(Greeter, sock=sock, backlog=1)
    address = server.sockets[0].getsockname()

    async def greet():
        reader, writer = await asyncio.open_connection(*address)
        greeting = await reader.read(100)
        writer.close()
        await writer.wait_closed()
        return greeting.decode()

    greetings = [await greet() for _ in range(3)]
    client = socket.socket()
    client.setblocking(False)
    hogs = []
    try:
        while True:
            hogs.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as exc:
        assert exc.errno == errno.EMFILE
    client.connect_ex(address)
    await reported.wait()
    reported_at, cpu_at = time.monotonic(), time.process_time()
    for fd in hogs:
        os.close(fd)
    greetings.append((await loop.sock_recv(client, 100)).decode())
    waited, cpu = time.monotonic() - reported_at, time.process_time() - cpu_at
    client.close()
    greetings += [await greet() for _ in range(3)]
    cpu_at = time.process_time()
    await asyncio.sleep(0.2)
    server.close()
    await server.wait_closed()
    return {
        "handler_calls": handler_calls,
        "greetings": greetings,
        "waited": waited,
        "cpu": cpu,
        "cpu_after": time.process_time() - cpu_at,
    }

def factory():
    if sys.argv[1] == "asyncio":
        return asyncio.SelectorEventLoop()
    import uringloop
    return uringloop.new_event_loop()

with asyncio.Runner(loop_factory=factory) as runner:
    print(json.dumps(runner.run(main())))
"""


PAUSED_BY_HANDLER = """
import asyncio, errno, os, resource, socket
import uringloop

async def main():
    loop = asyncio.get_running_loop()
    served = []
    factory = lambda: served.append(1) or asyncio.Protocol()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    reported = asyncio.Event()

    def on_exception(loop, context):
        server.pause_accepting()
        reported.set()

    loop.set_exception_handler(on_exception)
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    hogs = []
    try:
        while True:
            hogs.append(os.dup(0))
    except OSError as exc:
        assert exc.errno == errno.EMFILE
    client.connect(server.sockets[0].getsockname())
    await reported.wait()
    for fd in hogs:
        os.close(fd)
    # Longer than the listener waits after a shortage.
    await asyncio.sleep(1.2)
    assert not served
    server.resume_accepting()
    while not served:
        await asyncio.sleep(0.01)
    client.close()
    print(await server.drain(0.1))

uringloop.run(main())
"""


@pytest.mark.slow
def test_an_exception_handler_may_pause_the_server_that_lacks_descriptors() -> None:
    command = [sys.executable, "-c", PAUSED_BY_HANDLER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Drained(")


@pytest.mark.slow
@pytest.mark.parametrize("sock", ["own", "shared"])
@pytest.mark.parametrize("kind", list(FACTORIES))
def test_a_server_survives_emfile(kind: str, sock: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", STARVED, kind, sock], capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["greetings"] == ["welcome"] * 7
    message = "socket.accept() out of system resource"
    # asyncio reports once for each place in the backlog; 3.14 and 3.15 report once more.
    first, *others = seen["handler_calls"]
    assert first == [message, errno.EMFILE]
    one_more = kind == "asyncio" and (3, 14) <= sys.version_info < (3, 16)
    assert others == ([first] if one_more else [])
    # The loop sleeps for asyncio's ACCEPT_RETRY_DELAY, one second, before it accepts again.
    assert 0.9 < seen["waited"] < 5
    assert seen["cpu"] < 0.3
    assert seen["cpu_after"] < 0.1


@contextlib.asynccontextmanager
async def starved(
    loop: testing.Loop, sock: str
) -> AsyncIterator[tuple[asyncio.Server, list[float], Guests]]:
    """Yield a server that cannot accept a waiting client, and the times at which it says so."""
    reports: list[float] = []

    def note(_: Loop, context: dict[str, Any]) -> None:
        assert context["message"] == "socket.accept() out of system resource"
        assert context["exception"].errno == errno.EMFILE
        reports.append(loop.time())

    loop.set_exception_handler(note)
    guests = Guests(loop)
    if sock == "own":
        server = await loop.create_server(guests, LOCALHOST, 0)
    else:
        server = await loop.create_server(guests, sock=socket.create_server((LOCALHOST, 0)))
    loop.faults = testing.Faults(no_files=1)
    with connected(server.sockets[0].getsockname()):
        await until(lambda: bool(reports))
        yield server, reports, guests


async def check_server_goes_on(loop: testing.Loop, server: Any, guests: Guests) -> None:
    """Check that a starved server, half a second before its next attempt, serves again."""
    loop.faults = testing.Faults()
    watch = Stopwatch(loop)
    # Without this sleep the clock would stand still: the loop would be busy for 150,000 turns.
    await asyncio.sleep(0.499)
    assert guests.seen == []
    await guests.arrived()
    assert watch.shows(0.5)
    # It waits for connections again, and accepts them at once.
    with connected(server.sockets[0].getsockname()):
        await guests.arrived(2)
    assert watch.shows(0)


@pytest.mark.parametrize("sock", ["own", "shared"])
@on_loop
async def test_a_starved_server_accepts_again_every_second(
    virtual_loop: testing.Loop, sock: str
) -> None:
    async with starved(virtual_loop, sock) as (server, reports, guests):
        await asyncio.sleep(3.5)
        waited = [after - before for before, after in itertools.pairwise(reports)]
        assert waited == pytest.approx([1, 1, 1], abs=1e-6)
        await check_server_goes_on(virtual_loop, server, guests)
        assert len(reports) == 4
        await guests.end()
        await close_server(server)


@pytest.mark.parametrize("sock", ["own", "shared"])
@on_loop
async def test_a_starved_server_that_is_closed_does_not_try_again(
    virtual_loop: testing.Loop, sock: str
) -> None:
    async with starved(virtual_loop, sock) as (server, reports, guests):
        await asyncio.sleep(0.5)
        await close_server(server)
        virtual_loop.faults = testing.Faults()
        await asyncio.sleep(60)
        assert len(reports) == 1
        assert guests.seen == []


@LEAVING
@pytest.mark.parametrize("sock", ["own", "shared"])
def test_a_starved_server_goes_on_after_its_exception_handler_has_left_the_run(
    virtual_loop: testing.Loop, sock: str, leaving: type[BaseException]
) -> None:
    guests = Guests(virtual_loop)
    reports: list[object] = []

    def leave(_: Loop, context: dict[str, Any]) -> None:
        reports.append(context["message"])
        # No run would end if there were a report in each of them.
        if len(reports) < 10:
            raise leaving

    async def serve() -> None:
        if sock == "own":
            server = await virtual_loop.create_server(guests, LOCALHOST, 0)
        else:
            listener = socket.create_server((LOCALHOST, 0))
            server = await virtual_loop.create_server(guests, sock=listener)
        virtual_loop.set_exception_handler(leave)
        virtual_loop.faults = testing.Faults(no_files=1)
        with connected(server.sockets[0].getsockname()):
            await asyncio.sleep(2.5)
            await check_server_goes_on(virtual_loop, server, guests)
            await guests.end()
            await close_server(server)

    assert runs(virtual_loop, serve(), leaving) == 3
    assert reports == ["socket.accept() out of system resource"] * 3


# ── extra info of accepted connections ───────────────────────────────────────────────────────


@on_loop
async def test_accepted_transports_know_both_addresses(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    # The server listens on every address, so sockname differs between the clients' addresses.
    server = await each_loop.create_server(guests, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    clients = [connected((f"127.0.0.{last}", port)) for last in (1, 2, 2, 1)]
    try:
        await guests.arrived(4)
        # Compared as pairs, because clients of two addresses may have the same port.
        extra_infos = [guest.transport.get_extra_info for guest in guests.seen]
        ends = sorted(
            (extra_info("peername"), extra_info("sockname")) for extra_info in extra_infos
        )
        assert ends == sorted((each.getsockname(), each.getpeername()) for each in clients)
        assert [extra_info("nothing", 7) for extra_info in extra_infos] == [7] * 4
    finally:
        for client in clients:
            client.close()
    await guests.end()
    await close_server(server)


@needs_ipv6
@on_loop
async def test_accepted_transports_know_both_addresses_on_ipv6(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, "::1", 0)
    with socket.create_connection(server.sockets[0].getsockname()[:2]) as client:
        await guests.arrived()
        transport = guests.seen[0].transport
        assert transport.get_extra_info("peername") == client.getsockname()
        assert transport.get_extra_info("sockname") == client.getpeername()
    await guests.end()
    await close_server(server)


class WithoutTransparency(socket.socket):
    """A socket of a kernel that does not know IP_TRANSPARENT, such as qemu's for user programs."""

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        if (level, option) == (socket.SOL_IP, IP_TRANSPARENT):
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        return super().getsockopt(level, option, *size)


@on_loop
async def test_a_kernel_without_transparent_sockets_has_servers(each_loop: Loop) -> None:
    sock = WithoutTransparency()
    sock.bind((LOCALHOST, 0))
    server = await each_loop.create_server(Echo, sock=sock)
    assert await answers(each_loop, sock.getsockname())
    await close_server(server)


@on_loop
async def test_an_accepted_socket_has_its_listeners_family_and_type(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0)
    listening = server.sockets[0]
    with connected(listening.getsockname()) as client:
        await guests.arrived()
        transport = guests.seen[0].transport
        sock = transport.get_extra_info("socket")
        assert sock is transport.get_extra_info("socket")
        assert sock.getpeername() == client.getsockname()
        kinds = [(each.family, each.type, each.proto) for each in (sock, listening)]
        assert kinds[0] == kinds[1]
        # The extra info is the transport's own file description, not a copy.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with socket.fromfd(sock.fileno(), sock.family, sock.type) as copy:
            assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert not os.get_blocking(copy.fileno())
        transport.write(b"through the transport")
        await turns(2)
        assert client.recv(100) == b"through the transport"
        await abort_and_wait(transport)
        await until(lambda: sock.fileno() == -1)
        assert client.recv(100) == b""
    await close_server(server)


@pytest.mark.parametrize("asked_before", [True, False])
@on_loop
async def test_addresses_are_known_after_a_reset_and_after_connection_lost(
    each_loop: Loop, asked_before: bool
) -> None:
    guests = Guests(each_loop)
    server = await each_loop.create_server(guests, LOCALHOST, 0)
    client = connected(server.sockets[0].getsockname())
    names = client.getpeername(), client.getsockname()
    await guests.arrived()
    guest = guests.seen[0]
    if asked_before:
        assert guest.transport.get_extra_info("peername") == names[1]
    reset(client)
    assert isinstance(await guest.lost, ConnectionResetError)
    await turns(3)
    assert guest.transport.get_extra_info("socket").fileno() == -1
    assert guest.transport.get_extra_info("sockname") == names[0]
    assert guest.transport.get_extra_info("peername") == names[1]
    await close_server(server)


@pytest.mark.parametrize("listening_before", [True, False])
@on_loop
async def test_accepted_connections_have_tcp_nodelay(
    each_loop: Loop, listening_before: bool
) -> None:
    guests = Guests(each_loop)
    # A socket with proto 0 is TCP, too, but asyncio sets TCP_NODELAY for IPPROTO_TCP only.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind((LOCALHOST, 0))
    if listening_before:
        sock.listen()
        early = connected(sock.getsockname())
    server = await each_loop.create_server(guests, sock=sock)
    if not listening_before:
        early = connected(sock.getsockname())
    with early, connected(sock.getsockname()):
        await guests.arrived(2)
        for guest in guests.seen:
            accepted = guest.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await guests.end()
    await close_server(server)


@on_loop
async def test_a_protocol_without_connection_made_ends_the_connection(loop: uringloop.Loop) -> None:
    # uringloop only: asyncio leaves the socket to the garbage collector.
    loop.set_debug(True)
    handler_calls = record_handler_calls(loop)
    factory: Any = object
    server = await loop.create_server(factory, LOCALHOST, 0)
    with connected(server.sockets[0].getsockname()) as client:
        await until(lambda: len(handler_calls) == 1)
        assert handler_calls[0]["message"] == "Error on transport creation for incoming connection"
        assert isinstance(handler_calls[0]["exception"], AttributeError)
        client.setblocking(False)
        assert await loop.sock_recv(client, 1) == b""
    await close_server(server)
    assert loop._operations_in_flight == 0


class Refused:
    """An attribute at which nobody may look."""

    def __get__(self, instance: object, owner: type) -> None:
        raise RuntimeError("refused")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("tcp", "data_received"), ("unix", "data_received"), ("unix", "fds_received")],
)
@on_loop
async def test_a_protocol_that_refuses_a_look_at_it_ends_the_connection_once(
    loop: uringloop.Loop, kind: str, name: str, tmp_path: Path
) -> None:
    refusing: Any = type("Refusing", (asyncio.Protocol,), {name: Refused()})
    loop.set_debug(True)
    handler_calls = record_handler_calls(loop)
    path = str(tmp_path / "socket")
    if kind == "tcp":
        server = await loop.create_server(refusing, LOCALHOST, 0)
    else:
        server = await loop.create_unix_server(refusing, path)
    client = socket.socket(server.sockets[0].family)
    # A transport that closes its descriptor when it is freed warns; the loop closes it, too.
    with client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.connect(server.sockets[0].getsockname())
        await until(lambda: len(handler_calls) == 1)
        assert isinstance(handler_calls[0]["exception"], RuntimeError)
        client.setblocking(False)
        assert await loop.sock_recv(client, 1) == b""
    assert caught == []
    await close_server(server)


@on_loop
async def test_close_clients_and_abort_clients_end_foreign_transports(loop: uringloop.Loop) -> None:
    class Foreign:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def close(self) -> None:
            self.calls.append("close")

        def abort(self) -> None:
            self.calls.append("abort")

    foreign = Foreign()
    server: Any = await loop.create_server(Echo, LOCALHOST, 0)
    server._attach(foreign)
    server.close_clients()
    server.abort_clients()
    assert foreign.calls == ["close", "abort"]
    server.close()
    waiter = loop.create_task(server.wait_closed())
    await turns(3)
    assert waiter.done() == (sys.version_info < (3, 12))
    server._detach(foreign)
    await waiter
