"""Faults of connections: each reaches a connection of one message, and is counted as it happens."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from uringloop import testing

T = TypeVar("T")
DATA = b"question"
RUNS = 200


class Collector(asyncio.Protocol):
    """Notes each piece of data as it is received, and how the connection has ended."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.began.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def run(main: Coroutine[Any, Any, T], **options: Any) -> tuple[T, dict[str, int]]:
    """Return the result, and how often each fault has happened."""
    loop = testing.Loop(**options)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main), loop.faults_happened()


async def connect(path: Path | None = None) -> tuple[Collector, Collector, asyncio.Server]:
    """Return a client, the server's end of its connection, and the server."""
    loop = asyncio.get_running_loop()
    client, server = Collector(), Collector()
    if path is None:
        serving = await loop.create_server(lambda: server, "127.0.0.1", 0)
        await loop.create_connection(lambda: client, *serving.sockets[0].getsockname())
    else:
        serving = await loop.create_unix_server(lambda: server, path)
        await loop.create_unix_connection(lambda: client, str(path))
    await server.began
    return client, server, serving


async def send(data: bytes = DATA, path: Path | None = None) -> tuple[Collector, Collector]:
    """Send *data* over a new connection, as its only message; return client and server."""
    client, server, serving = await connect(path)
    client.transport.write(data)
    await asyncio.sleep(1)
    client.transport.close()
    await client.ended
    # Nobody tells the server if the connection has died.
    server.transport.abort()
    await server.ended
    serving.close()
    return client, server


def errors(*ends: Collector) -> list[int | None]:
    found = [end.ended.result() for end in ends]
    return [exc.errno if isinstance(exc, OSError) else None for exc in found]


@pytest.mark.parametrize("is_unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize(
    ("kind", "error"), [("reset", errno.ECONNRESET), ("no_memory", errno.ENOMEM)]
)
def test_the_only_message_of_a_connection_fails(
    kind: str, error: int, is_unix: bool, tmp_path: Path
) -> None:
    path = tmp_path / "socket" if is_unix else None
    (client, server), happened = run(send(path=path), faults=testing.Faults(**{kind: 1.0}))
    assert server.data == b""
    assert errors(client, server) == [errno.ECONNRESET, error]
    assert happened[kind] == 1


@pytest.mark.parametrize("kind", ["short", "split", "reset", "no_memory", "half_open"])
def test_a_fault_happens_to_the_only_message_with_its_probability(kind: str) -> None:
    faults = testing.Faults(**{kind: 0.25})
    disturbed = 0
    for seed in range(RUNS):
        (_, server), happened = run(send(), seed=seed, faults=faults)
        disturbed += server.pieces != [DATA]
        assert (server.pieces != [DATA]) == (happened[kind] > 0)
    assert disturbed / RUNS == pytest.approx(0.25, abs=0.1)


def test_a_short_transfer_has_mostly_a_few_bytes_and_loses_none() -> None:
    sizes = []
    for seed in range(RUNS):
        (_, server), happened = run(send(DATA * 100), seed=seed, faults=testing.Faults(short=0.5))
        assert server.data == DATA * 100
        assert len(server.pieces) <= 1 + happened["short"]
        sizes += [len(piece) for piece in server.pieces[:1] if len(piece) < 800]
    assert sum(size <= 7 for size in sizes) / len(sizes) == pytest.approx(0.5, abs=0.15)


def test_a_message_that_is_split_is_received_in_parts() -> None:
    (_, server), happened = run(send(), faults=testing.Faults(split=1.0))
    assert server.pieces == [DATA[at : at + 1] for at in range(len(DATA))]
    assert happened["split"] == 1
    (_, server), happened = run(send(DATA * 100), faults=testing.Faults(split=1.0))
    assert server.data == DATA * 100
    assert len(server.pieces) > 1


@pytest.mark.parametrize("kind", ["short", "split"])
def test_what_cannot_be_taken_apart_is_not_counted(kind: str) -> None:
    (_, server), happened = run(send(b"x"), faults=testing.Faults(**{kind: 1.0}))
    assert server.pieces == [b"x"]
    assert happened[kind] == 0


def test_parts_take_no_time_that_a_program_would_notice() -> None:
    loop = testing.Loop(faults=testing.Faults(split=1.0, short=1.0))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(send(DATA * 8))
    assert loop.elapsed() == pytest.approx(1, abs=1e-3)


def test_the_receiver_of_an_answer_has_no_memory() -> None:
    async def main() -> list[int | None]:
        client, server, serving = await connect()
        client.transport.write(DATA)
        await asyncio.sleep(1)
        assert server.data == DATA
        loop = asyncio.get_running_loop()
        assert isinstance(loop, testing.Loop)
        loop.faults = testing.Faults(no_memory=1.0)
        server.transport.write(DATA)
        await asyncio.sleep(1)
        serving.close()
        return errors(client, server)

    found, _ = run(main(), network=testing.Network())
    assert found == [errno.ENOMEM, errno.ECONNRESET]


def test_faults_reach_calls_on_sockets() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Collector()
        serving = await loop.create_server(lambda: server, "127.0.0.1", 0)
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, serving.sockets[0].getsockname())
            await server.began
            server.transport.write(DATA)
            with pytest.raises(OSError, match="memory") as caught:
                await loop.sock_recv(sock, 100)
            assert caught.value.errno == errno.ENOMEM
        serving.close()
        await server.ended

    run(main(), faults=testing.Faults(no_memory=1.0))


def test_the_ring_s_faults_happen_to_the_program_s_own_receives_only() -> None:
    async def main() -> None:
        client, server, serving = await connect()
        for number in range(RUNS):
            client.transport.write(DATA)
            await asyncio.sleep(1)
            assert len(server.data) == (number + 1) * len(DATA)
        client.transport.close()
        await client.ended
        await server.ended
        serving.close()

    # Only a receive by the ring, which a connection of many small messages has, needs a buffer.
    faults = testing.Faults(starved=1.0)
    direct, routed = (
        run(main(), faults=faults, network=network)[1]["starved"]
        for network in (None, testing.Network())
    )
    assert direct == routed > 0
