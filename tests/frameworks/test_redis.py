"""redis-py's asyncio client with a real redis-server, over TCP, a UNIX socket and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, needs_programs, process, program, quiet
from support.roles import Loop, turns, unused_port

redis = needs("redis.asyncio")
errors = needs("redis.exceptions")
pytestmark = quiet


class Server:
    """A redis-server; `tcp`, `unix` and `tls` are a client's options to connect to it."""

    def __init__(self, folder: Path) -> None:
        self.certificate = Certificate(folder)
        port, tls_port = unused_port(), unused_port()
        path = folder / "socket"
        self.tcp = {"host": "127.0.0.1", "port": port}
        self.unix = {"unix_socket_path": str(path)}
        self.tls = {
            "host": "localhost",
            "port": tls_port,
            "ssl": True,
            "ssl_ca_certs": str(self.certificate.authority),
        }
        self.settings = {
            "bind": "127.0.0.1",
            "port": port,
            "unixsocket": path,
            "save": "",
            "dir": folder,
            "tls-port": tls_port,
            "tls-cert-file": self.certificate.chain,
            "tls-key-file": self.certificate.key,
            "tls-ca-cert-file": self.certificate.authority,
            "tls-auth-clients": "no",
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = needs_programs("redis-server", shutil.which("redis-server"))
    found = Server(tmp_path_factory.mktemp("redis"))
    for name, value in found.settings.items():
        command += [f"--{name}", str(value)]
    with process(command) as running:
        running.read_until("eady to accept connections")
        running.remove_time_limit()
        yield found
        assert running.stop(signal.SIGTERM) == 0


@contextlib.asynccontextmanager
async def connected(options: dict[str, Any], **more: Any) -> AsyncIterator[Any]:
    """Yield a client of an empty database, and close all its connections at the end."""
    async with redis.Redis(**options, **more) as client:
        await client.flushdb()
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", ["tcp", "unix", "tls"])
@program
async def test_redis_keeps_values_of_every_kind(
    each_loop: Loop, server: Server, way: str, protocol: int
) -> None:
    async with connected(getattr(server, way), protocol=protocol) as client:
        assert await client.ping()
        for value in (b"", b"\r\n$5\r\n", b"\x00\xff", LARGE):
            await client.set("key", value)
            assert await client.get("key") == value
        assert await client.get("absent") is None
        assert await client.incrby("number", 41) == 41
        await client.hset("hash", mapping={"a": 1, "b": LARGE})
        assert await client.hgetall("hash") == {b"a": b"1", b"b": LARGE}
        await client.rpush("list", *range(1_000))
        assert await client.lrange("list", 0, -1) == [b"%d" % n for n in range(1_000)]
        with pytest.raises(errors.ResponseError, match="WRONGTYPE"):
            await client.incr("list")
        assert await client.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v") == [b"k", b"v"]


@pytest.mark.slow
@program
async def test_a_pipeline_of_redis_is_answered_in_order(each_loop: Loop, server: Server) -> None:
    async with connected(server.tcp) as client, client.pipeline(transaction=True) as pipeline:
        for number in range(5_000):
            pipeline.set(f"key {number}", number)
            pipeline.get(f"key {number}")
        answers = await pipeline.execute()
        assert answers[::2] == [True] * 5_000
        assert answers[1::2] == [b"%d" % n for n in range(5_000)]


@pytest.mark.slow
@program
async def test_tasks_share_a_pool_of_connections(each_loop: Loop, server: Server) -> None:
    async def work(client: Any, name: int) -> None:
        key = f"counter {name}"
        for number in range(1, 51):
            assert await client.incr(key) == number

    pool = redis.BlockingConnectionPool(max_connections=10, **server.tcp)
    async with connected({"connection_pool": pool}) as client:
        await asyncio.gather(*(work(client, name) for name in range(50)))
        assert len(await client.keys("counter *")) == 50
    await pool.aclose()


@pytest.mark.slow
@program
async def test_a_message_of_redis_reaches_every_subscriber(each_loop: Loop, server: Server) -> None:
    async with connected(server.unix) as client, contextlib.AsyncExitStack() as stack:
        subscribers = []
        for _ in range(10):
            subscriber = await stack.enter_async_context(client.pubsub())
            await subscriber.subscribe("news")
            assert (await subscriber.get_message(timeout=10))["type"] == "subscribe"
            subscribers.append(subscriber)
        for number in range(20):
            assert await client.publish("news", b"%d" % number * 1_000) == 10
        for subscriber in subscribers:
            for number in range(20):
                message = await subscriber.get_message(timeout=10)
                assert message["data"] == b"%d" % number * 1_000


@pytest.mark.slow
@program
async def test_a_blocking_read_of_redis_can_be_cancelled(each_loop: Loop, server: Server) -> None:
    async with connected(server.tcp) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.blpop("empty", timeout=0), 0.05)
        waiting = asyncio.create_task(client.blpop("queue", timeout=0))
        while not (await client.info("clients"))["blocked_clients"]:
            await turns()
        await client.rpush("queue", "item")
        # A list or a tuple, depending on the protocol's version.
        assert tuple(await waiting) == (b"queue", b"item")
