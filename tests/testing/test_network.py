"""The network of a loop for tests: names, latency, bandwidth, partitions, faults."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from uringloop import testing

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], **options: Any) -> T:
    async def until_all_has_arrived() -> T:
        result = await main
        await asyncio.sleep(10)
        return result

    with asyncio.Runner(loop_factory=lambda: testing.Loop(**options)) as runner:
        return runner.run(until_all_has_arrived())


def now() -> float:
    return asyncio.get_running_loop().time()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def ask(host: str, port: int, data: bytes) -> tuple[bytes, float]:
    """Send *data* to an echo server; return the answer, and how long connecting and that took."""
    began = now()
    reader, writer = await asyncio.open_connection(host, port)

    async def send() -> None:
        writer.write(data)
        writer.write_eof()

    answer, _ = await asyncio.gather(reader.read(), send())
    took = now() - began
    writer.close()
    await writer.wait_closed()
    return answer, took


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_a_direct_connection_takes_no_time(size: int) -> None:
    async def main() -> tuple[bytes, float]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            return await ask("127.0.0.1", port_of(server), bytes(size))

    answer, took = run(main())
    assert answer == bytes(size)
    assert took == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_latency_is_that_of_a_handshake_and_of_each_way(size: int) -> None:
    async def main() -> tuple[bytes, float]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            return await ask("127.0.0.1", port_of(server), bytes(size))

    answer, took = run(main(), network=testing.Network(latency=0.05))
    assert answer == bytes(size)
    assert 0.2 <= took < 2


def test_bandwidth_takes_its_time() -> None:
    async def main() -> tuple[bytes, float]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            return await ask("127.0.0.1", port_of(server), bytes(1_000_000))

    answer, took = run(main(), network=testing.Network(bandwidth=1_000_000))
    assert answer == bytes(1_000_000)
    # Both directions at the same time.
    assert 1 <= took < 2.1


def test_names_have_addresses_and_routes() -> None:
    network = testing.Network()
    network.set_route("web", "db", latency=1)

    async def main() -> list[Any]:
        async with await asyncio.start_server(echo, "db", 0) as server:
            here = await ask("db", port_of(server), b"x")
            with network.on("web"):
                there = await asyncio.create_task(ask("db", port_of(server), b"x"))
            return [here, there, server.sockets[0].getsockname()[0]]

    here, there, address = run(main(), network=network)
    assert here[1] == pytest.approx(0, abs=1e-6)
    assert there[1] == pytest.approx(4, abs=1e-6)
    assert address == network.address("db")
    assert address.startswith("127.77.")


def test_a_partition_holds_data_until_it_is_healed() -> None:
    network = testing.Network()
    network.set_route("web", "db", latency=0.1)

    async def main() -> tuple[bytes, float]:
        async with await asyncio.start_server(echo, "db", 0) as server:
            with network.on("web"):
                reader, writer = await asyncio.open_connection("db", port_of(server))
            network.partition("web", "db")
            asyncio.get_running_loop().call_later(60, network.heal, "web", "db")
            began = now()
            writer.write(b"question")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(8), 30)
            answer = await reader.readexactly(8)
            writer.close()
            return answer, now() - began

    answer, took = run(main(), network=network)
    assert answer == b"question"
    assert 60 <= took < 61


def test_a_client_gives_up_to_connect_through_a_partition() -> None:
    network = testing.Network()
    network.partition("web", "db")

    async def main() -> float:
        async with await asyncio.start_server(echo, "db", 0) as server:
            began = now()
            with network.on("web"), pytest.raises(TimeoutError, match="timed out"):
                await asyncio.open_connection("db", port_of(server))
            return now() - began

    assert run(main(), network=network) == pytest.approx(127, abs=1e-6)


def test_a_client_connects_when_a_partition_is_healed() -> None:
    network = testing.Network()
    network.partition("web", "db")

    async def main() -> tuple[bytes, float]:
        async with await asyncio.start_server(echo, "db", 0) as server:
            asyncio.get_running_loop().call_later(5, network.heal, "web", "db")
            with network.on("web"):
                return await ask("db", port_of(server), b"x")

    answer, took = run(main(), network=network)
    assert answer == b"x"
    assert took == pytest.approx(5, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_no_byte_is_lost_by_delays_and_splits(seed: int) -> None:
    faults = testing.Faults(delay=0.3, split=0.3, short=0.3, late=0.2)
    data = bytes(range(256)) * 300

    async def main() -> list[bytes]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            asking = [ask("127.0.0.1", port_of(server), data) for _ in range(3)]
            return [answer for answer, _ in await asyncio.gather(*asking)]

    assert run(main(), seed=seed, faults=faults, network=testing.Network(jitter=0.1)) == [data] * 3


def test_a_refused_connection() -> None:
    async def main() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port_of(server))
            assert asyncio.get_running_loop().faults_happened()["refused"] == 1  # type: ignore[attr-defined]

    run(main(), faults=testing.Faults(refused=1))


def test_a_name_that_is_not_resolved() -> None:
    async def main() -> None:
        with pytest.raises(socket.gaierror, match="Temporary failure"):
            await asyncio.open_connection("localhost", 1)

    run(main(), faults=testing.Faults(no_name=1))


@pytest.mark.parametrize("latency", [0, 0.01])
def test_the_end_of_a_connection_reaches_the_other_side(latency: float) -> None:
    async def main() -> list[Any]:
        ended = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                ended.set_result(exc)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(b"x" * 1000)
        writer.close()
        found = [await ended]
        server.close()
        await server.wait_closed()
        return found

    assert run(main(), network=testing.Network(latency=latency)) == [None]


@pytest.mark.parametrize("latency", [0, 0.01])
def test_sockets_have_the_names_and_options_of_tcp(latency: float) -> None:
    async def main() -> None:
        names = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            names.set_result([writer.get_extra_info(name) for name in ("sockname", "peername")])
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        here, there = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        assert await names == [there, here]
        assert there == ("127.0.0.1", port_of(server))
        assert here == ("127.0.0.1", 49152)
        sock = writer.get_extra_info("socket")
        assert sock.family == socket.AF_INET
        assert (sock.getsockname(), sock.getpeername()) == (here, there)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert await reader.read() == b""
        writer.close()
        server.close()

    run(main(), network=testing.Network(latency=latency))


def test_sock_calls_and_watched_sockets() -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", port_of(server)))
                await loop.sock_sendall(sock, b"one")
                received = await loop.sock_recv(sock, 100)
                readable = loop.create_future()
                loop.add_reader(sock, readable.set_result, None)
                assert sock.send(b"two") == 3
                await readable
                loop.remove_reader(sock)
                return received + sock.recv(100)

    assert run(main()) == b"onetwo"


@pytest.mark.parametrize("options", [{"latency": -1}, {"jitter": -1}, {"bandwidth": 0}])
def test_an_impossible_network_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        testing.Network(**options)


def test_a_connection_that_has_ended_leaves_no_descriptor() -> None:
    async def main() -> int:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            await ask("127.0.0.1", port_of(server), b"x")
            await asyncio.sleep(1)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                await ask("127.0.0.1", port_of(server), b"x")
            await asyncio.sleep(1)
            return len(os.listdir("/proc/self/fd")) - before

    gc.disable()
    try:
        assert run(main(), network=testing.Network(latency=0.01)) == 0
    finally:
        gc.enable()


def test_a_loop_may_be_closed_twice() -> None:
    loop = testing.Loop(network=testing.Network(latency=0.01))

    async def main() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            await ask("127.0.0.1", port_of(server), b"x")

    loop.run_until_complete(main())
    loop.close()
    loop.close()


def test_a_partition_without_a_server() -> None:
    network = testing.Network()
    network.partition("web", "db")

    async def main() -> None:
        with network.on("web"), pytest.raises(TimeoutError):
            await asyncio.open_connection("db", 1)

    run(main(), network=network)


def test_a_server_that_closes_during_the_handshake() -> None:
    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        asyncio.get_running_loop().call_later(0.5, server.close)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(server))

    run(main(), network=testing.Network(latency=1))


def test_the_newest_server_at_a_path_answers(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        def serving(name: bytes) -> Callable[[Any, asyncio.StreamWriter], None]:
            def serve(reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(name)
                writer.close()

            return serve

        servers = [
            await asyncio.start_unix_server(serving(name), tmp_path / "socket")
            for name in (b"one", b"two")
        ]
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        found = [await reader.read()]
        writer.close()
        os.unlink(tmp_path / "socket")
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(tmp_path / "socket")
        for server in servers:
            server.close()
        return found

    assert run(main()) == [b"two"]


def test_a_socket_is_connected_once_and_keeps_its_options() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            with socket.socket() as sock:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                with pytest.raises(OSError, match="already connected"):
                    await loop.sock_connect(sock, address)
                with sock.dup() as other:
                    assert other.getpeername() == address

    run(main())


def test_a_class_of_the_program_s_own_goes_through_the_kernel() -> None:
    class Own(socket.socket):
        pass

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            with Own() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, server.sockets[0].getsockname())
                await loop.sock_sendall(sock, b"x")
                return await loop.sock_recv(sock, 1)

    assert run(main()) == b"x"


def test_no_descriptor_is_left_for_a_connection() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            loop.call_later(3, setattr, loop, "faults", testing.Faults())
            await ask("127.0.0.1", port_of(server), b"x")
        return int(loop.faults_happened()["no_files"])  # type: ignore[attr-defined]

    assert run(main(), faults=testing.Faults(no_files=1)) >= 2
