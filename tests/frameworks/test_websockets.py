"""The websockets package at both ends, over TCP, a UNIX socket and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, process, program, python, quiet
from support.roles import PATIENCE, Loop

websockets = needs("websockets")
client = needs("websockets.asyncio.client")
server = needs("websockets.asyncio.server")
synchronous = needs("websockets.sync.client")
pytestmark = quiet


async def echo(connection: Any) -> None:
    async for message in connection:
        await connection.send(message)


async def exchange(connection: Any, **expected: object) -> None:
    """Send messages of every kind, and check their echoes."""
    for message in ("", "text", b"", b"\x00\xff", "é" * 70_000, LARGE):
        await connection.send(message)
        assert await connection.recv() == message
    await connection.send([LARGE[:1], LARGE[1:90_000], b"end"])
    assert await connection.recv() == LARGE[:90_000] + b"end"
    assert await (await connection.ping()) >= 0


@contextlib.asynccontextmanager
async def serving(handler: Any = echo, **options: Any) -> AsyncIterator[int]:
    async with server.serve(handler, "127.0.0.1", 0, **options) as running:
        yield running.sockets[0].getsockname()[1]


@pytest.mark.slow
@program
async def test_messages_of_every_kind_are_echoed(each_loop: Loop) -> None:
    async with serving(max_size=None) as port:
        async with client.connect(f"ws://127.0.0.1:{port}", max_size=None) as connection:
            await exchange(connection)
        assert connection.close_code == 1000


@pytest.mark.slow
@program
async def test_messages_are_echoed_over_a_unix_socket(each_loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    async with (
        server.unix_serve(echo, path, max_size=None),
        client.unix_connect(path, max_size=None) as connection,
    ):
        await exchange(connection)


@pytest.mark.slow
@program
async def test_messages_are_echoed_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    async with serving(max_size=None, ssl=certificate.server()) as port:
        url = f"wss://localhost:{port}"
        async with client.connect(url, max_size=None, ssl=certificate.client()) as connection:
            await exchange(connection)


@pytest.mark.slow
@program
async def test_a_broadcast_reaches_every_connection(each_loop: Loop) -> None:
    listeners: set[Any] = set()

    async def join(connection: Any) -> None:
        listeners.add(connection)
        async for message in connection:
            server.broadcast(listeners, message)

    async with serving(join) as port, contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{port}"
        connections = [await stack.enter_async_context(client.connect(url)) for _ in range(50)]
        await connections[0].send(b"to all" * 1_000)
        answers = await asyncio.gather(*(connection.recv() for connection in connections))
        assert set(answers) == {b"to all" * 1_000}


@pytest.mark.slow
@program
async def test_a_slow_reader_blocks_the_writer(each_loop: Loop) -> None:
    sent = 0

    async def flood(connection: Any) -> None:
        nonlocal sent
        for _ in range(100):
            await connection.send(LARGE)
            sent += 1

    async with serving(flood, compression=None) as port:
        url = f"ws://127.0.0.1:{port}"
        async with client.connect(url, max_size=None, max_queue=2, compression=None) as connection:
            assert await connection.recv() == LARGE
            # The messages sent ahead are in the kernel's buffers, which do not hold 100 MB.
            assert sent < 50
            for _ in range(99):
                assert await connection.recv() == LARGE
        assert sent == 100


@pytest.mark.slow
@program
async def test_the_server_closes_its_connections(each_loop: Loop) -> None:
    async with serving() as port:
        connection = await client.connect(f"ws://127.0.0.1:{port}")
        await connection.send("first")
        assert await connection.recv() == "first"
    with pytest.raises(websockets.ConnectionClosedOK):
        await connection.recv()
    assert connection.close_code == 1001
    await connection.close()


@pytest.mark.slow
@program
async def test_an_aborted_peer_is_reported_as_closed(each_loop: Loop) -> None:
    ended: asyncio.Future[object] = each_loop.create_future()

    async def watch(connection: Any) -> None:
        try:
            await connection.recv()
        except websockets.ConnectionClosed as exc:
            ended.set_result(type(exc))

    async with serving(watch) as port:
        connection = await client.connect(f"ws://127.0.0.1:{port}")
        connection.transport.abort()
        assert await ended is websockets.ConnectionClosedError
        await connection.wait_closed()


@pytest.mark.slow
def test_the_chat_example_sends_each_message_to_all() -> None:
    example = Path(__file__).parents[2] / "examples" / "chat.py"
    with process(python(str(example), "--port", "0")) as running:
        address = running.read_until(r"listening on ([\d.]+:\d+)")[1]
        with (
            synchronous.connect(f"ws://{address}/ann") as ann,
            synchronous.connect(f"ws://{address}/bob") as bob,
        ):
            bob.send("hello")
            heard = [ann.recv(PATIENCE) for _ in range(3)]
            assert heard == ["ann is here", "bob is here", "bob: hello"]
            assert [bob.recv(PATIENCE) for _ in range(2)] == heard[1:]
            bob.close()
            assert ann.recv(PATIENCE) == "bob has left"
        assert running.stop(signal.SIGINT) == 0
