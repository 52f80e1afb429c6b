"""Helpers of the tests of frameworks: running programs, HTTP clients, uvicorn, certificates.

A program runs in the test itself, on the loop under test, or in its own process, whose output is
checked at its end. The HTTP clients are the standard library's blocking ones in a thread, so that
only the server runs on asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import importlib.util
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import pytest
from application import LARGE, PIECES, STREAMED
from support.roles import PATIENCE, TIME_LIMIT, Loop, on_loop, until

P = ParamSpec("P")
Address = tuple[str, int]

HERE = Path(__file__).parent
INSTALL = "pip install '.[frameworks]'"

# Output that shows an error, a leak or a crash.
NOISE = re.compile(
    r"Traceback|ResourceWarning|Exception ignored|never retrieved|never awaited|was destroyed"
    r"|Unclosed|unclosed|Segmentation fault"
)


def needs(package: str) -> Any:
    """Import a third-party *package*, or skip the file with the command that installs it."""
    return pytest.importorskip(package, reason=f"{package}: {INSTALL}")


def needs_elsewhere(package: str) -> None:
    """Skip the file unless *package* is installed; it is imported by a child process only."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package}: {INSTALL}", allow_module_level=True)


def needs_programs(package: str, *paths: str | None) -> list[str]:
    """Return the programs, or skip with the Debian *package* to install if one is missing."""
    found = [path for path in paths if path is not None]
    if len(found) < len(paths):
        pytest.skip(f"apt-get install {package}")
    return found


# Frameworks may use names that Python deprecates.
quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"
)


# ── on the loop under test ────────────────────────────────────────────────────────────────────


def operations(loop: Loop) -> int:
    """Return how many operations of *loop* are in flight; 0 for stock asyncio."""
    return getattr(loop, "_operations_in_flight", 0)


def program(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on its loop, and wait at the end until no operation is left in flight.

    The loop's fixture counts descriptors and threads.
    """

    @functools.wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = asyncio.get_running_loop()
        idle = operations(loop)
        await test(*args, **kwargs)
        await until(lambda: operations(loop) <= idle)

    return on_loop(run)


# ── in a child process ────────────────────────────────────────────────────────────────────────


class Process:
    """A running program in its own session, with stdout and stderr in one pipe."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running
        self.output = ""
        self.watchdog = threading.Timer(TIME_LIMIT, self.kill)
        self.watchdog.start()

    def remove_time_limit(self) -> None:
        """Remove the time limit."""
        self.watchdog.cancel()
        self.watchdog.join()

    def kill(self) -> None:
        """Kill the program and its children: a surviving child would keep the pipe open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read the output until a line matches *pattern*."""
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self.output += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"ended without {pattern!r}:\n{self.output}")

    def stop(self, sig: signal.Signals) -> int:
        """Send *sig*, read the rest of the output, and return the exit status."""
        self.running.send_signal(sig)
        return self.wait()

    def wait(self) -> int:
        """Wait for the program to exit, and return its status."""
        self.output += self.running.communicate()[0]
        return self.running.returncode


@contextlib.contextmanager
def process(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator[Process]:
    """Run *command*; kill it after the time limit, and fail if its output matches NOISE."""
    variables = {**os.environ, "PYTHONWARNINGS": "default::ResourceWarning"}
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=options.pop("stdin", subprocess.DEVNULL),
        text=True,
        start_new_session=True,
        env={**variables, "PYTHONUNBUFFERED": "1", **(environment or {})},
        **options,
    )
    started = Process(running)
    try:
        yield started
    finally:
        started.remove_time_limit()
        started.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()
    assert not NOISE.search(started.output), started.output


def python(*arguments: str) -> list[str]:
    """Return the command of a Python program in this environment."""
    return [sys.executable, *arguments]


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────

Connect = Callable[[], http.client.HTTPConnection]


def connector(address: Address, context: ssl.SSLContext | None = None) -> Connect:
    """Return a function that makes blocking clients of a server, over TLS with a *context*."""
    host, port = address
    if context is None:
        return functools.partial(http.client.HTTPConnection, host, port, timeout=TIME_LIMIT)
    return functools.partial(
        http.client.HTTPSConnection, "localhost", port, timeout=TIME_LIMIT, context=context
    )


def speak_http(connect: Connect) -> None:
    """Check that a server gives the answers of `application.py`, all on one connection."""
    with contextlib.closing(connect()) as connection:
        connection.connect()
        port = connection.sock.getsockname()[1]

        def answer(method: str, path: str, body: Any = None) -> bytes:
            connection.request(method, path, body, encode_chunked=True, headers=chunked(body))
            response = connection.getresponse()
            assert response.status == 200, (path, response.status)
            assert response.headers["x-client-port"] == str(port), "not the same connection"
            return response.read()

        assert answer("GET", "/small") == b"hello"
        assert answer("GET", "/large") == LARGE
        assert answer("GET", "/stream") == STREAMED
        assert answer("POST", "/echo", b"") == b""
        assert answer("POST", "/echo", b"x" * 10) == b"x" * 10
        assert answer("POST", "/echo", LARGE) == LARGE
        assert answer("POST", "/echo", iter(PIECES)) == STREAMED
        connection.request("GET", "/absent")
        response = connection.getresponse()
        assert (response.status, response.read()) == (404, b"no such page")
        connection.request("HEAD", "/large")
        response = connection.getresponse()
        assert (response.read(), response.headers["content-length"]) == (b"", str(len(LARGE)))
        assert answer("GET", "/small") == b"hello"


def chunked(body: Any) -> dict[str, str]:
    """Return the headers of a request with *body*: an iterator is sent in chunks."""
    return {"Transfer-Encoding": "chunked"} if isinstance(body, Iterator) else {}


def request_concurrently(connect: Connect, count: int = 30) -> None:
    """Request LARGE by *count* concurrent clients, and read the answers in another order."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(connect())) for _ in range(count)]
        for client in clients:
            client.request("GET", "/large")
        for client in reversed(clients):
            assert client.getresponse().read() == LARGE
        # The first half of the clients closes while the answers are being sent.
        for client in clients:
            client.request("GET", "/large")
        for client in clients[: count // 2]:
            client.close()
        for client in clients[count // 2 :]:
            assert client.getresponse().read() == LARGE


async def check_http(address: Address, context: ssl.SSLContext | None = None) -> None:
    """Check a server on this loop, by clients in a thread."""
    connect = connector(address, context)
    await asyncio.to_thread(speak_http, connect)
    await asyncio.to_thread(request_concurrently, connect)


# ── uvicorn ───────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def serving_with_uvicorn(application: Any, **settings: Any) -> AsyncIterator[Address]:
    """Serve on a free port on the running loop, and shut down gracefully."""
    uvicorn = needs("uvicorn")
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, log_level="warning", lifespan="on", **settings
    )
    server = uvicorn.Server(config)
    # The task group ends the block if the server fails.
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve())
        try:
            await until(lambda: server.started or task.done())
            if server.started:
                yield server.servers[0].sockets[0].getsockname()
        finally:
            server.should_exit = True
            await asyncio.wait([task], timeout=PATIENCE)


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────


class Certificate:
    """A certificate authority made for this run, and a certificate for localhost."""

    def __init__(self, folder: Path) -> None:
        trustme = needs("trustme")
        authority = trustme.CA()
        certified = authority.issue_cert("localhost", "127.0.0.1")
        self.authority = folder / "authority.pem"
        self.chain = folder / "chain.pem"
        self.key = folder / "key.pem"
        authority.cert_pem.write_to_path(self.authority)
        certified.private_key_pem.write_to_path(self.key)
        self.chain.write_bytes(b"".join(blob.bytes() for blob in certified.cert_chain_pems))

    def server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.chain, self.key)
        return context

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))
