"""What every test file shares: the loops under test, and the roles that protocols play.

``each_loop`` runs a test once on stock asyncio, the oracle, and once on uringloop: a test that
uses it states a contract of asyncio. ``loop`` is uringloop's alone. Both count the file
descriptors and threads around the test and fail it when one is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tls_contexts import Contexts, client_context, server_context

import uringloop

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so; here, and in children, Ctrl-C must have its meaning.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# How long a thread that has nothing left to do may take to end, on a busy machine.
THREADS_END_S = 10.0


def backend() -> str:
    """Return which ring loops are on in this run: the suite is run on both."""
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        return loop.backend


on_io_uring = pytest.mark.skipif(backend() != "io_uring", reason="only io_uring has that")
each_ring = pytest.mark.parametrize(
    "backend", [pytest.param("io_uring", marks=on_io_uring), "soft"]
)

FACTORIES: dict[str, LoopFactory] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uringloop": uringloop.new_event_loop,
}


def open_fds() -> set[int]:
    """Return the numbers of the open file descriptors of this process."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    return {fd for fd in numbers if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def run_until(loop: asyncio.AbstractEventLoop, when: float) -> None:
    """Run *loop* until the turn in which a timer for *when* fires."""
    loop.call_at(when, loop.stop)
    loop.run_forever()


def run_turns(loop: asyncio.AbstractEventLoop, count: int = 1) -> None:
    """Run exactly *count* turns of *loop*."""
    for _ in range(count):
        loop.call_soon(loop.stop)
        loop.run_forever()


def drain_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Finish what `asyncio.run` would finish: generators and the default executor."""
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())


@pytest.fixture
def restored_sigterm() -> Iterator[None]:
    """Give the signal back that the benchmarks' command lines take."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    """Leave what is there already to itself: most tests collect garbage, twice and more often.

    To go through all that pytest holds each time was three quarters of the whole run.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def lasting(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads started since *before* that go on; what has been told to end may end."""
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(THREADS_END_S)
    return [thread for thread in started if thread.is_alive()]


def _guarded(factory: LoopFactory) -> Iterator[asyncio.AbstractEventLoop]:
    gc.collect()
    fds = open_fds()
    threads = set(threading.enumerate())
    loop = factory()
    if sys.flags.dev_mode:
        # Debug mode has tests of its own; the others tell what is so without it.
        loop.set_debug(False)
    yield loop
    if not loop.is_closed():
        drain_executor(loop)
        loop.close()
    gc.collect()
    left_threads = lasting(threads)
    assert not left_threads, f"threads left running: {left_threads}"
    left = open_fds() - fds
    assert not left, f"file descriptors left open: {sorted(left)}"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket, to be shared."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as sock:
        yield sock


@pytest.fixture(params=list(FACTORIES))
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """A factory of loops: stock asyncio's, then uringloop's."""
    return FACTORIES[request.param]


@pytest.fixture
def each_loop(loop_factory: LoopFactory) -> Iterator[asyncio.AbstractEventLoop]:
    """A new loop of each kind, checked for leaks afterwards."""
    yield from _guarded(loop_factory)


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new uringloop loop, checked for leaks afterwards."""
    for created in _guarded(uringloop.new_event_loop):
        assert isinstance(created, uringloop.Loop)
        yield created


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty folder where other temporary files are, and one in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no file system in memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def contexts() -> Contexts:
    """A server's and a client's TLS context that trust each other; not to be changed."""
    return Contexts(server_context(), client_context())


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking TCP sockets on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


class Echo(asyncio.Protocol):
    """Writes back what it reads."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Collector(asyncio.Protocol):
    """Keeps every byte and every callback's name, and resolves futures as they come."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.data = bytearray()
        self.calls: list[str] = []
        self.made: asyncio.Future[None] = loop.create_future()
        self.eof: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self._wanted: list[tuple[int, asyncio.Future[None]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.append("connection_made")
        self.made.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.calls[-1] != "data_received":
            self.calls.append("data_received")
        for count, future in self._wanted:
            if len(self.data) >= count and not future.done():
                future.set_result(None)

    def eof_received(self) -> bool | None:
        self.calls.append("eof_received")
        self.eof.set_result(None)
        return None

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")
        self.lost.set_result(exc)

    async def received(self, count: int) -> bytes:
        """Wait until at least *count* bytes have come, and return all of them."""
        if len(self.data) < count:
            future = self.loop.create_future()
            self._wanted.append((count, future))
            await future
        return bytes(self.data)
