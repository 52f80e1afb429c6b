"""asyncpg with a real PostgreSQL server, over a UNIX socket, TCP and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, needs_programs, process, program, quiet
from support.roles import TIME_LIMIT, Loop, turns, unused_port

asyncpg = needs("asyncpg")
pytestmark = quiet


def found(name: str) -> str | None:
    """Return the path of a PostgreSQL program, which on Debian is not on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(name, path=os.pathsep.join([*map(str, debian), os.environ["PATH"]]))


def owner() -> str:
    """Return the user that the server runs as, since PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Server:
    """A PostgreSQL server; `unix`, `tcp` and `tls` are a client's options to connect to it."""

    def __init__(self, folder: Path) -> None:
        self.certificate = Certificate(folder)
        common = {"port": unused_port(), "user": "tester", "database": "postgres"}
        self.port = common["port"]
        self.unix = {**common, "host": str(folder), "ssl": False}
        self.tcp = {**common, "host": "127.0.0.1", "ssl": False}
        self.tls = {**common, "host": "localhost", "ssl": self.certificate.client()}


@contextlib.contextmanager
def private_folder(user: str) -> Iterator[Path]:
    """Make a folder that *user* owns; its path is short, since it will hold a socket."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        if os.geteuid() == 0:
            shutil.chown(name, user)
        yield Path(name)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    initdb, postgres = needs_programs("postgresql", found("initdb"), found("postgres"))
    user = owner()
    # Options of subprocess that only root may use.
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        identity = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    with private_folder(user) as folder:
        reached = Server(folder)
        for path in (reached.certificate.chain, reached.certificate.key):
            path.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(path, user)
        data = folder / "data"
        command = [initdb, "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(
            [*command, "--locale=C"],
            check=True,
            capture_output=True,
            cwd=folder,
            timeout=TIME_LIMIT,
            **identity,
        )
        settings = {
            "port": reached.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": folder,
            "fsync": "off",
            "ssl": "on",
            "ssl_cert_file": reached.certificate.chain,
            "ssl_key_file": reached.certificate.key,
        }
        command = [postgres, "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with process(command, cwd=folder, **identity) as running:
            running.read_until("ready to accept connections")
            running.remove_time_limit()
            yield reached
            # SIGINT requests PostgreSQL's fast shutdown.
            assert running.stop(signal.SIGINT) == 0


@contextlib.asynccontextmanager
async def connected(options: dict[str, Any]) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(**options)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unix", "tcp", "tls"])
@program
async def test_values_of_every_kind_come_back(each_loop: Loop, server: Server, way: str) -> None:
    async with connected(getattr(server, way)) as connection:
        encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await connection.fetchval(encrypted) is (way == "tls")
        now = datetime.datetime.now(datetime.UTC)
        for kind, value in (
            ("int8", 1 << 62),
            ("text", "é" * 70_000),
            ("bytea", b""),
            ("bytea", LARGE),
            ("timestamptz", now),
            ("int4[]", list(range(10_000))),
            ("text", None),
        ):
            assert await connection.fetchval(f"SELECT $1::{kind}", value) == value
        rows = await connection.fetch(
            "SELECT n, repeat('x', n) AS x FROM generate_series(1, 2000) n"
        )
        assert [row["n"] for row in rows] == list(range(1, 2001))
        assert all(row["x"] == "x" * row["n"] for row in rows)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.fetchval("SELECT 1 / 0")
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.slow
@program
async def test_a_failed_transaction_is_rolled_back_and_a_cursor_reads_rows(
    each_loop: Loop, server: Server
) -> None:
    async def fail(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("INSERT INTO numbers VALUES (1)")
            raise LookupError

    async with connected(server.unix) as connection:
        await connection.execute("CREATE TEMP TABLE numbers (n int)")
        with pytest.raises(LookupError):
            await fail(connection)
        assert await connection.fetchval("SELECT count(*) FROM numbers") == 0
        await connection.executemany("INSERT INTO numbers VALUES ($1)", [(n,) for n in range(5000)])
        async with connection.transaction():
            cursor = connection.cursor("SELECT n FROM numbers ORDER BY n", prefetch=100)
            assert [row["n"] async for row in cursor] == list(range(5_000))


@pytest.mark.slow
@program
async def test_copy_streams_in_both_directions(each_loop: Loop, server: Server) -> None:
    records = [(n, "text" * (n % 50)) for n in range(20_000)]
    got = bytearray()

    async def keep(data: bytes) -> None:
        got.extend(data)

    async with connected(server.tcp) as connection:
        await connection.execute("CREATE TEMP TABLE copied (n int, t text)")
        await connection.copy_records_to_table("copied", records=records)
        await connection.copy_from_query("SELECT * FROM copied ORDER BY n", output=keep)
    assert got.decode() == "".join(f"{n}\t{text}\n" for n, text in records)


@pytest.mark.slow
@program
async def test_tasks_share_a_pool(each_loop: Loop, server: Server) -> None:
    async def work(pool: Any, number: int) -> int:
        async with pool.acquire() as connection, connection.transaction():
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            assert await connection.fetchval("SELECT $1::int * 2", number) == 2 * number
            assert isinstance(pid, int)
            return pid

    async with asyncpg.create_pool(min_size=2, max_size=8, **server.unix) as pool:
        backends = await asyncio.gather(*(work(pool, number) for number in range(200)))
    assert 2 <= len(set(backends)) <= 8


@pytest.mark.slow
@program
async def test_a_notification_reaches_every_listener(each_loop: Loop, server: Server) -> None:
    async with connected(server.unix) as listener, connected(server.tcp) as sender:
        got: asyncio.Queue[str] = asyncio.Queue()
        await listener.add_listener("news", lambda *news: got.put_nowait(news[-1]))
        for number in range(20):
            await sender.execute(f"NOTIFY news, '{number}'")
        assert [await got.get() for _ in range(20)] == [str(number) for number in range(20)]
        await listener.reset()


@pytest.mark.slow
@program
async def test_cancelling_a_query_ends_it_at_the_server(each_loop: Loop, server: Server) -> None:
    async with connected(server.tcp) as connection, connected(server.unix) as watcher:
        pid = connection.get_server_pid()
        state = "SELECT state FROM pg_stat_activity WHERE pid = $1"
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT pg_sleep(600)", timeout=0.05)
        assert await connection.fetchval("SELECT 'still usable'") == "still usable"
        assert await watcher.fetchval(state, pid) == "idle"
        task = asyncio.create_task(connection.fetchval("SELECT pg_sleep(600)"))
        while await watcher.fetchval(state, pid) != "active":
            await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await connection.fetchval("SELECT 1") == 1
