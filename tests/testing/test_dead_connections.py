"""Connections of a loop for tests that are reset, refused late, or die without a word."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from uringloop import testing

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], **options: Any) -> tuple[T, float]:
    """Return the result, and how far the clock has advanced."""
    loop = testing.Loop(**options)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main), loop.elapsed()


def between_hosts() -> testing.Network:
    network = testing.Network(latency=0.01)
    network.set_route("web", "db", latency=0.01)
    return network


class Server:
    """An echo server on the host "db", which notes how its connections end."""

    def __init__(self) -> None:
        self.endings: list[object] = []

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
                await writer.drain()
            self.endings.append("end")
        except OSError as exc:
            self.endings.append(type(exc))
        finally:
            writer.close()


async def connect_to(
    network: testing.Network, serve: Callable[..., Coroutine[Any, Any, None]], **options: Any
) -> tuple[asyncio.Server, asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a server on "db", and connect from "web"."""
    serving = await asyncio.start_server(serve, "db", 5432, reuse_port=True, **options)
    with network.on("web"):
        reader, writer = await asyncio.open_connection("db", 5432)
    return serving, reader, writer


async def connect(
    network: testing.Network, server: Server
) -> tuple[asyncio.Server, asyncio.StreamReader, asyncio.StreamWriter]:
    serving, reader, writer = await connect_to(network, server.echo)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    return serving, reader, writer


async def ending_of(reader: asyncio.StreamReader) -> object:
    try:
        return await reader.read(100)
    except OSError as exc:
        return type(exc)


def test_a_reset_reaches_both_ends() -> None:
    network = between_hosts()

    async def main() -> None:
        server = Server()
        serving, reader, writer = await connect(network, server)
        network.reset("web", "db")
        assert await ending_of(reader) is ConnectionResetError
        await asyncio.sleep(1)
        assert server.endings == [ConnectionResetError]
        writer.close()
        serving.close()

    run(main(), network=network)


def test_hosts_that_were_never_named_have_no_connections() -> None:
    network = between_hosts()
    network.reset("web", "localhost")
    with pytest.raises(ValueError, match="no host has the name 'bd'"):
        network.reset("web", "bd")
    with pytest.raises(ValueError, match="no host has the name 'wbe'"):
        network.kill("wbe", "db")


def test_a_reset_reaches_calls_on_sockets() -> None:
    network = between_hosts()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = await asyncio.start_server(Server().echo, "db", 5432, reuse_port=True)
        with socket.socket() as sock:
            sock.setblocking(False)
            with network.on("web"):
                await loop.sock_connect(sock, (network.address("db"), 5432))
            await asyncio.sleep(1)
            network.reset("web", "db")
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(sock, 10)
        serving.close()

    run(main(), network=network)


def test_data_before_a_reset_arrives() -> None:
    network = between_hosts()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer")
        await asyncio.sleep(1)
        # The question has not been read: closing resets the connection.
        writer.close()

    async def main() -> None:
        serving, reader, writer = await connect_to(network, answer, limit=10)
        writer.write(bytes(1_000_000))
        assert await reader.readexactly(6) == b"answer"
        assert await ending_of(reader) is ConnectionResetError
        writer.close()
        serving.close()

    run(main(), network=network)


def test_a_sender_learns_of_a_dead_connection_after_a_quarter_of_an_hour() -> None:
    network = between_hosts()

    async def main() -> list[object]:
        server = Server()
        serving, reader, writer = await connect(network, server)
        network.kill("web", "db")
        writer.write(b"lost")
        assert await ending_of(reader) is TimeoutError
        writer.close()
        serving.close()
        return server.endings

    endings, took = run(main(), network=network)
    assert took == pytest.approx(924.6, abs=1)
    # Nobody has told the server.
    assert endings == []


class Receiver(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = 0
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class BufferedReceiver(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.received = 0
        self.lost = asyncio.get_running_loop().create_future()
        self.buffer = bytearray(200_000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.mark.parametrize("kind", [Receiver, BufferedReceiver])
def test_a_receiver_of_large_messages_learns_the_same(
    kind: type[Receiver] | type[BufferedReceiver],
) -> None:
    """It receives without the ring."""
    network = between_hosts()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(20):
                await reader.readexactly(1)
                writer.write(bytes(100_000))
            await ending_of(reader)
        finally:
            writer.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = await asyncio.start_server(send, "db", 5432, reuse_port=True)
        receiver = kind()
        with network.on("web"):
            transport, _ = await loop.create_connection(lambda: receiver, "db", 5432)
        for count in range(20):
            transport.write(b"?")
            await asyncio.sleep(1)
            assert receiver.received == (count + 1) * 100_000
        network.kill("web", "db")
        transport.write(b"lost")
        assert isinstance(await receiver.lost, TimeoutError)
        serving.close()

    run(main(), network=network)


def test_who_only_waits_on_a_dead_connection_waits_for_ever() -> None:
    network = between_hosts()

    async def main() -> None:
        serving, reader, writer = await connect(network, Server())
        network.kill("web", "db")
        try:
            await reader.read(1)
        finally:
            writer.close()
            serving.close()

    with pytest.raises(testing.DeadlockError, match="main"):
        run(main(), network=network)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}, 60),
        ({}, 7200 + 9 * 75),
    ],
)
def test_keep_alive_finds_a_dead_connection(options: dict[int, int], seconds: float) -> None:
    network = between_hosts()

    async def main() -> None:
        serving, reader, writer = await connect(network, Server())
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        network.kill("web", "db")
        assert await ending_of(reader) is TimeoutError
        writer.close()
        serving.close()

    _, took = run(main(), network=network)
    assert took == pytest.approx(seconds, abs=1)


def test_a_user_timeout_finds_a_dead_connection() -> None:
    network = between_hosts()

    async def main() -> None:
        serving, reader, writer = await connect(network, Server())
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
        network.kill("web", "db")
        writer.write(b"lost")
        assert await ending_of(reader) is TimeoutError
        writer.close()
        serving.close()

    _, took = run(main(), network=network)
    assert took == pytest.approx(5, abs=0.1)


def test_a_dead_connection_takes_no_more_than_its_window() -> None:
    network = between_hosts()

    async def main() -> None:
        serving, _, writer = await connect(network, Server())
        network.kill("web", "db")
        with pytest.raises(TimeoutError):  # noqa: PT012 # Which drain() raises is not the matter.
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
        serving.close()

    _, took = run(main(), network=network)
    assert took == pytest.approx(924.6, abs=1)


def test_a_new_connection_takes_the_place_of_a_dead_one() -> None:
    network = between_hosts()

    async def main() -> None:
        serving, _, writer = await connect(network, Server())
        network.kill("web", "db")
        with network.on("web"):
            reader, second = await asyncio.open_connection("db", 5432)
        second.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()
        second.close()
        serving.close()

    run(main(), network=network)


@pytest.mark.parametrize("seed", range(5))
def test_the_fault_half_open_kills_connections(seed: int) -> None:
    async def main() -> object:
        serving = await asyncio.start_server(Server().echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
        try:
            async with asyncio.timeout(10_000):
                while True:
                    writer.write(b"ping")
                    await reader.readexactly(4)
        except OSError as exc:
            return type(exc)
        finally:
            writer.close()
            serving.close()

    ending, _ = run(main(), seed=seed, faults=testing.Faults(half_open=0.05))
    # The question is lost, or the answer: then only the server learns of it.
    assert ending is TimeoutError


@pytest.mark.parametrize("network", [None, testing.Network()], ids=["direct", "network"])
def test_a_connection_in_the_backlog_of_a_closed_server_is_reset(
    network: testing.Network | None,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = await asyncio.start_server(Server().echo, "127.0.0.1", 0)
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, serving.sockets[0].getsockname())
            serving.close()
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(sock, 10)

    run(main(), network=network, order="fifo")


@pytest.mark.parametrize("network", [None, testing.Network()], ids=["direct", "network"])
def test_closing_with_unread_data_resets(network: testing.Network | None) -> None:
    async def main() -> None:
        server = Server()
        serving = await asyncio.start_server(server.echo, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"question")
        await asyncio.sleep(1)
        writer.close()
        await asyncio.sleep(1)
        assert server.endings == [ConnectionResetError]
        serving.close()

    run(main(), network=network)


def test_a_slow_connect_takes_as_long_as_lost_packets_take() -> None:
    async def main() -> float:
        serving = await asyncio.start_server(Server().echo, "127.0.0.1", 0)
        began = asyncio.get_running_loop().time()
        _, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
        took = asyncio.get_running_loop().time() - began
        writer.close()
        serving.close()
        return round(took, 3)

    faults = testing.Faults(slow_connect=0.9)
    assert {run(main(), seed=seed, faults=faults)[0] for seed in range(50)} == {0, 1, 3, 7}


def test_a_name_takes_its_time() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        return asyncio.get_running_loop().time() - began

    assert 0 < run(main(), faults=testing.Faults(slow_name=1.0))[0] < 5


def test_a_call_is_cancelled_with_its_executor() -> None:
    ran: list[int] = []

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.get_running_loop().run_in_executor(None, ran.append, 1)

    run(main(), faults=testing.Faults(cancelled_call=1.0))
    assert ran == []


def test_the_result_of_a_call_takes_its_time() -> None:
    async def main() -> tuple[float, list[object]]:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(None, int, text) for text in ("7", "x", "8")]
        calls[2].cancel()
        answers: list[object] = await asyncio.gather(*calls, return_exceptions=True)
        return loop.time(), answers

    began = testing.Loop.START_S
    for seed in range(10):
        ended, answers = run(main(), seed=seed, faults=testing.Faults(slow_call=1.0))[0]
        assert 0 < ended - began < 2
        assert answers[0] == 7
        assert isinstance(answers[1], ValueError)
        assert isinstance(answers[2], asyncio.CancelledError)


def test_a_seed_chooses_the_order_of_results_of_calls() -> None:
    async def main() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        order = []

        async def call(number: int) -> None:
            await loop.run_in_executor(None, int)
            order.append(number)

        await asyncio.gather(*map(call, range(4)))
        return tuple(order)

    for faults in (testing.Faults(), testing.Faults(slow_call=0.5)):
        orders = [run(main(), seed=seed, faults=faults)[0] for seed in range(40)]
        assert orders == [run(main(), seed=seed, faults=faults)[0] for seed in range(40)]
        assert len(set(orders)) > 10


def listen_on_both() -> socket.socket:
    sock = socket.socket(socket.AF_INET6)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("::", 0))
    return sock


def listen_by_an_abstract_name() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0uringloop-testing")
    return sock


@pytest.mark.parametrize("listen", [listen_on_both, listen_by_an_abstract_name])
def test_every_listening_socket_of_the_loop_is_found(listen: Callable[[], socket.socket]) -> None:
    network = testing.Network(latency=1)

    async def main() -> tuple[Any, Any]:
        sock = listen()
        named: list[Any] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            named.append(writer.get_extra_info("peername"))
            writer.close()

        if sock.family == socket.AF_UNIX:
            serving: Any = await asyncio.start_unix_server(answer, sock=sock)
            reader, writer = await asyncio.open_unix_connection("\0uringloop-testing")
        else:
            serving = await asyncio.start_server(answer, sock=sock)
            reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
        assert await reader.read() == b""
        own = writer.get_extra_info("sockname")
        writer.close()
        serving.close()
        return own, named[0]

    (own, seen), took = run(main(), network=network)
    assert took >= 3
    assert seen == own or seen == (f"::ffff:{own[0]}", own[1], 0, 0)


def test_a_reset_after_the_end_of_a_question_is_no_end_of_the_answer() -> None:
    network = between_hosts()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(b"half of")
        await asyncio.sleep(100)
        writer.close()

    async def main() -> None:
        serving, reader, writer = await connect_to(network, answer)
        writer.write_eof()
        assert await reader.readexactly(7) == b"half of"
        network.reset("web", "db")
        assert await ending_of(reader) is ConnectionResetError
        writer.close()
        serving.close()
        await asyncio.sleep(200)

    run(main(), network=network)


def test_a_writer_that_waits_for_room_learns_of_a_dead_connection() -> None:
    network = between_hosts()

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10_000)
        writer.close()

    async def main() -> None:
        serving, _, writer = await connect_to(network, read_nothing)
        writer.write(bytes(3_000_000))
        draining = asyncio.create_task(writer.drain())
        await asyncio.sleep(5)
        network.kill("web", "db")
        with pytest.raises(TimeoutError):
            await draining
        serving.close()
        await asyncio.sleep(20_000)

    _, took = run(main(), network=network)
    assert took == pytest.approx(20_930, abs=5)


def test_keep_alive_of_a_server_is_that_of_its_connections() -> None:
    network = between_hosts()

    async def main() -> list[object]:
        endings: list[object] = []

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            endings.append(await ending_of(reader))
            writer.close()

        with socket.create_server((network.address("db"), 0)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
            serving = await asyncio.start_server(wait, sock=listening)
            with network.on("web"):
                _, writer = await asyncio.open_connection(*listening.getsockname())
            await asyncio.sleep(1)
            network.kill("web", "db")
            await asyncio.sleep(31)
            writer.close()
            serving.close()
        return endings

    assert run(main(), network=network)[0] == [TimeoutError]


def test_keep_alive_rests_while_data_is_not_acknowledged() -> None:
    network = between_hosts()

    async def main() -> None:
        serving, reader, writer = await connect(network, Server())
        network.kill("web", "db")
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
        writer.write(b"lost")
        assert await ending_of(reader) is TimeoutError
        writer.close()
        serving.close()

    assert run(main(), network=network)[1] == pytest.approx(924.6, abs=1)


@pytest.mark.parametrize("host", ["192.0.2.1", "224.0.0.251", "255.255.255.255"])
def test_a_server_at_every_address_of_the_machine_is_at_no_other(host: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = await asyncio.start_server(Server().echo, "0.0.0.0", 0)
        address = (host, serving.sockets[0].getsockname()[1])
        assert loop._connections.servers.find(socket.AF_INET, address) is None  # type: ignore[attr-defined]
        own = ("127.0.0.5", address[1])
        assert loop._connections.servers.find(socket.AF_INET, own) is not None  # type: ignore[attr-defined]
        serving.close()

    run(main())


def test_a_closed_loop_is_freed_by_its_last_reference() -> None:
    gc.collect()
    gc.disable()
    try:
        network = testing.Network(latency=0.1)
        with asyncio.Runner(loop_factory=lambda: testing.Loop(network=network)) as runner:
            runner.run(asyncio.sleep(1))
            watch = weakref.ref(runner.get_loop())
        del runner
        assert watch() is None
    finally:
        gc.enable()


def test_a_connection_of_unix_sockets_dies_as_others_do(tmp_path: Path) -> None:
    network = testing.Network(latency=0.01)

    async def main() -> None:
        path = str(tmp_path / "socket")
        serving = await asyncio.start_unix_server(Server().echo, path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        network.kill("localhost", "localhost")
        writer.write(b"lost")
        assert await ending_of(reader) is TimeoutError
        writer.close()
        serving.close()

    assert run(main(), network=network)[1] == pytest.approx(924.6, abs=1)


def test_a_default_time_out_of_sockets_changes_no_descriptor() -> None:
    ours, theirs = socket.socketpair()
    socket.setdefaulttimeout(5)
    try:
        with ours, theirs:
            run(asyncio.sleep(10))
            assert ours.getblocking()
            assert os.get_blocking(ours.fileno())
    finally:
        socket.setdefaulttimeout(None)
