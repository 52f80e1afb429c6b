"""Accepting connections: failing factories, contexts, crowds, and too few file descriptors."""

from __future__ import annotations

import contextvars
import errno
import json
import socket
import subprocess
import sys

import pytest
from conftest import FACTORIES, Collector, Echo
from roles import (
    Guests,
    Loop,
    answers,
    complaints,
    connected,
    gone,
    on_loop,
    released,
    until,
)

LOCALHOST = "127.0.0.1"


# Asyncio leaves the accepted socket to the garbage collector, which warns.
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

    seen = complaints(each_loop)
    each_loop.set_debug(True)  # Without it asyncio says nothing.
    server = await each_loop.create_server(factory, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    with connected(address) as client:
        await until(lambda: len(seen) == 1)
        assert seen[0]["message"] == "Error on transport creation for incoming connection"
        assert seen[0]["exception"] is error
        seen.clear()
        error.__traceback__ = None  # It would keep asyncio's socket open.
        client.setblocking(False)
        assert await each_loop.sock_recv(client, 1) == b""
    connected(address).close()
    await guests.arrived()
    await guests.end()
    await gone(server)


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
    await gone(server)
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
async def test_two_thousand_clients_one_after_the_other(each_loop: Loop) -> None:
    server = await each_loop.create_server(Echo, LOCALHOST, 0)
    address = server.sockets[0].getsockname()
    for _ in range(2000):
        assert await answers(each_loop, address)
    await gone(server)


@pytest.mark.slow
@on_loop
async def test_two_thousand_clients_at_once(each_loop: Loop) -> None:
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
    await gone(server)


# ── too few file descriptors ──────────────────────────────────────────────────────────────

# Fills the descriptor table, lets a client connect, frees the table, and prints what it saw.
STARVED = """
import asyncio, errno, json, os, resource, socket, sys, time

class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"welcome")
        transport.close()

async def main():
    loop = asyncio.get_running_loop()
    complaints, reported = [], asyncio.Event()

    def complain(loop, context):
        complaints.append((context["message"], context["exception"].errno))
        assert "socket" in context
        reported.set()

    loop.set_exception_handler(complain)
    # First of all: the kernel keeps to the limit that was there when an accept was submitted.
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    # A backlog of 1: asyncio reports once for each place in the backlog.
    server = await loop.create_server(Greeter, "127.0.0.1", 0, backlog=1)
    client = socket.socket()
    client.setblocking(False)
    hogs = []
    try:
        while True:
            hogs.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as exc:
        assert exc.errno == errno.EMFILE
    client.connect_ex(server.sockets[0].getsockname())
    await reported.wait()
    reported_at, cpu_at = time.monotonic(), time.process_time()
    for fd in hogs:
        os.close(fd)
    greeting = await loop.sock_recv(client, 100)
    client.close()
    server.close()
    await server.wait_closed()
    return {
        "complaints": complaints,
        "greeting": greeting.decode(),
        "waited": time.monotonic() - reported_at,
        "cpu": time.process_time() - cpu_at,
    }

def factory():
    if sys.argv[1] == "asyncio":
        return asyncio.SelectorEventLoop()
    import uringloop
    return uringloop.new_event_loop()

with asyncio.Runner(loop_factory=factory) as runner:
    print(json.dumps(runner.run(main())))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(FACTORIES))
def test_a_server_survives_the_lack_of_file_descriptors(kind: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", STARVED, kind], capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["greeting"] == "welcome"
    message = "socket.accept() out of system resource"
    # asyncio complains once for each place in the backlog, from 3.14 on for one more.
    first, *others = seen["complaints"]
    assert first == [message, errno.EMFILE]
    assert others == ([first] if kind == "asyncio" and sys.version_info >= (3, 14) else [])
    # asyncio's ACCEPT_RETRY_DELAY is one second, spent asleep.
    assert 0.9 < seen["waited"] < 5
    assert seen["cpu"] < 0.3
