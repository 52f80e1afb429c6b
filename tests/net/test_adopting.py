"""Loop.adopt(): connected sockets handed to a loop by other threads, and who closes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.leaks import open_fds
from support.protocols import Collector, Echo
from support.roles import PATIENCE, in_thread, on_loop, pair, run_script, until
from support.sockets import tcp_pair
from support.tls_contexts import Contexts
from support.virtual_time import Stopwatch

import uringloop
from uringloop import testing

Made = tuple[asyncio.Transport, asyncio.BaseProtocol]


class Line(Echo):
    """An echo that records the threads that call it."""

    def __init__(self) -> None:
        self.threads = [threading.get_ident()]
        self.lost = threading.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.threads.append(threading.get_ident())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.fixture
def elsewhere() -> Iterator[uringloop.Loop]:
    """A loop that runs in another thread until the end of the test."""
    gc.collect()
    before = open_fds()
    loop = uringloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    loop.close()
    gc.collect()
    assert open_fds() == before


def is_closed(peer: socket.socket) -> bool:
    """Wait for EOF or a reset, and return True."""
    peer.settimeout(PATIENCE)
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


# ── the connection ───────────────────────────────────────────────────────────────────────────


def test_a_socket_is_served_by_the_loop_of_another_thread(elsewhere: uringloop.Loop) -> None:
    ours, peer = tcp_pair()
    ours.setblocking(True)
    peer.setblocking(True)
    with peer:
        transport, line = elsewhere.adopt(ours, Line).result(PATIENCE)
        assert line.transport is transport
        assert set(line.threads) == {elsewhere._thread_id} != {threading.get_ident()}
        peer.sendall(b"hello")
        assert peer.recv(10) == b"hello"
        peer.shutdown(socket.SHUT_WR)
        assert is_closed(peer)
        assert line.lost.wait(PATIENCE)


def test_many_threads_hand_over_many_sockets(elsewhere: uringloop.Loop) -> None:
    def hand_over(number: int) -> bytes:
        ours, peer = tcp_pair()
        with peer:
            _, line = elsewhere.adopt(ours, Line).result(PATIENCE)
            peer.settimeout(PATIENCE)
            peer.sendall(b"%d" % number)
            answer = peer.recv(10)
        assert line.lost.wait(PATIENCE)
        return answer

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(hand_over, range(50))) == [b"%d" % number for number in range(50)]


@on_loop
async def test_the_thread_of_the_loop_may_call_it_too(loop: uringloop.Loop) -> None:
    with pair() as (ours, peer):
        adopted = loop.adopt(ours, lambda: Collector(loop))
        transport, collector = await asyncio.wrap_future(adopted)
        assert collector.calls == ["connection_made"]
        peer.send(b"data")
        assert await collector.received(4) == b"data"
        transport.close()
        await collector.lost


@on_loop
async def test_a_unix_socket_is_adopted(loop: uringloop.Loop) -> None:
    ours, peer = socket.socketpair()
    with peer:
        _, collector = await asyncio.wrap_future(loop.adopt(ours, lambda: Collector(loop)))
        peer.send(b"data")
        assert await collector.received(4) == b"data"
    await collector.lost


def test_the_future_is_done_in_the_thread_of_the_loop(elsewhere: uringloop.Loop) -> None:
    threads: list[int] = []
    done = threading.Event()

    def note(future: concurrent.futures.Future[tuple[asyncio.Transport, Line]]) -> None:
        threads.append(threading.get_ident())
        future.result()[0].abort()
        done.set()

    with pair() as (ours, _):
        begun = threading.Event()
        # The callback is added before the loop comes to the socket.
        elsewhere.call_soon_threadsafe(begun.wait, PATIENCE)
        elsewhere.adopt(ours, Line).add_done_callback(note)
        begun.set()
        assert done.wait(PATIENCE)
    assert threads == [elsewhere._thread_id]


@on_loop
async def test_an_adopted_connection_has_tls(loop: uringloop.Loop, contexts: Contexts) -> None:
    ours, peer = tcp_pair()
    peer.setblocking(True)
    peer.settimeout(PATIENCE)

    def converse() -> bytes:
        with contexts.client.wrap_socket(peer, server_hostname="localhost") as client:
            client.sendall(b"secret")
            return client.recv(6)

    answer = asyncio.create_task(asyncio.to_thread(converse))
    adopted = loop.adopt(ours, Line, ssl=contexts.server, ssl_handshake_timeout=PATIENCE)
    transport, line = await asyncio.wrap_future(adopted)
    assert transport.get_extra_info("ssl_object").version().startswith("TLS")
    assert await answer == b"secret"
    await until(line.lost.is_set)


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def fail() -> Echo:
    raise LookupError("no protocol")


@on_loop
async def test_a_factory_that_fails_closes_the_socket(loop: uringloop.Loop) -> None:
    with pair() as (ours, peer):
        with pytest.raises(LookupError, match="no protocol"):
            await asyncio.wrap_future(loop.adopt(ours, fail))
        assert ours.fileno() == -1
        assert is_closed(peer)


@on_loop
async def test_a_handshake_that_fails_closes_the_socket(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    with pair() as (ours, peer):
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            await asyncio.wrap_future(loop.adopt(ours, Line, ssl=contexts.server))
        await until(lambda: ours.fileno() == -1)


@pytest.mark.parametrize(
    ("options", "seconds"), [({"ssl_handshake_timeout": 20.0}, 20.0), ({}, 60.0)]
)
@on_loop
async def test_a_handshake_that_takes_too_long_closes_the_socket(
    virtual_loop: testing.Loop, contexts: Contexts, options: dict[str, float], seconds: float
) -> None:
    with pair() as (ours, _):
        watch = Stopwatch(virtual_loop)
        adopted = virtual_loop.adopt(ours, Line, ssl=contexts.server, **options)
        with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer"):
            await asyncio.wrap_future(adopted)
        assert watch.shows(seconds)
        await until(lambda: ours.fileno() == -1)


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_a_factory_that_leaves_the_run_closes_the_socket(
    loop: uringloop.Loop, leaving: type[BaseException]
) -> None:
    def leave() -> Echo:
        raise leaving

    with pair() as (ours, _):
        adopted = loop.adopt(ours, leave)
        with pytest.raises(leaving):
            loop.run_forever()
        assert isinstance(adopted.exception(0), leaving)
        assert ours.fileno() == -1


def test_a_cancelled_future_closes_the_socket(elsewhere: uringloop.Loop) -> None:
    cancelled = threading.Event()
    with pair() as (ours, peer):
        elsewhere.call_soon_threadsafe(cancelled.wait, PATIENCE)
        adopted = elsewhere.adopt(ours, fail)
        assert adopted.cancel()
        cancelled.set()
        assert is_closed(peer)
        assert adopted.cancelled()


# ── the end of the loop ──────────────────────────────────────────────────────────────────────


def test_a_loop_that_is_closed_before_closes_the_socket(loop: uringloop.Loop) -> None:
    with pair() as (ours, peer), pair() as (cancelled, _):
        adopted = in_thread(lambda: loop.adopt(ours, Line))
        loop.adopt(cancelled, Line).cancel()
        loop.close()
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            adopted.result(0)
        assert (ours.fileno(), cancelled.fileno()) == (-1, -1)
        assert is_closed(peer)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_a_loop_that_is_closed_between_closes_the_socket(loop: uringloop.Loop) -> None:
    with pair() as (ours, peer):
        adopted = loop.adopt(ours, Line)
        loop.call_soon(loop.stop)
        # The transport exists; connection_made() is a callback of the next turn.
        loop.run_forever()
        assert adopted.running()
        loop.close()
        gc.collect()
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            adopted.result(0)
        assert is_closed(peer)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_a_loop_that_is_closed_during_a_handshake_closes_the_socket(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    with pair() as (ours, peer):
        adopted = loop.adopt(ours, Line, ssl=contexts.server)
        loop.run_until_complete(asyncio.sleep(0.001))
        assert adopted.running()
        loop.close()
        gc.collect()
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            adopted.result(0)
        assert is_closed(peer)


def test_no_socket_is_lost_while_the_loop_closes(loop: uringloop.Loop) -> None:
    begun = threading.Event()

    def run() -> None:
        loop.call_soon(begun.set)
        while not adopted:
            loop.run_until_complete(asyncio.sleep(0.002))
        loop.close()

    adopted: list[tuple[socket.socket, concurrent.futures.Future[Any]]] = []
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="Event loop is closed"):  # noqa: PT012
        while True:
            ours, peer = socket.socketpair()
            peer.close()
            adopted.append((ours, loop.adopt(ours, fail)))
    ours.close()
    thread.join(PATIENCE)
    assert {type(future.exception(0)) for _, future in adopted} <= {LookupError, RuntimeError}
    assert {sock.fileno() for sock, _ in adopted} == {-1}


def test_an_unclosed_loop_closes_the_socket() -> None:
    with pair() as (ours, peer):
        # Nothing refers to the loop when this returns.
        adopted = uringloop.new_event_loop().adopt(ours, Line)
        with pytest.warns(ResourceWarning, match="unclosed event loop"):
            gc.collect()
        assert isinstance(adopted.exception(0), RuntimeError)
        assert is_closed(peer)


def test_a_closed_loop_leaves_the_socket_to_the_caller(loop: uringloop.Loop) -> None:
    loop.close()
    with pair() as (ours, peer):
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            loop.adopt(ours, Line)
        ours.send(b"still open")
        assert peer.recv(20) == b"still open"


@pytest.mark.slow
def test_a_process_that_ends_with_a_queued_socket_is_silent() -> None:
    done = run_script(
        """
        import asyncio, socket, uringloop
        loop = uringloop.new_event_loop()
        ours, peer = socket.socketpair()
        future = loop.adopt(ours, asyncio.Protocol)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


# ── arguments ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (lambda: socket.socket(type=socket.SOCK_DGRAM), {}, ValueError, "Stream Socket"),
        (socket.socket, {"ssl_handshake_timeout": 1.0}, ValueError, "only meaningful with ssl"),
        (socket.socket, {"ssl_shutdown_timeout": 1.0}, ValueError, "only meaningful with ssl"),
        (socket.socket, {"ssl": True}, ValueError, "Server side SSL needs a valid SSLContext"),
        (
            lambda: ssl.create_default_context().wrap_socket(
                socket.socket(), server_hostname="a", do_handshake_on_connect=False
            ),
            {},
            TypeError,
            "Socket cannot be of type SSLSocket",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once_as_by_connect_accepted_socket(
    loop: uringloop.Loop,
    make: Callable[[], socket.socket],
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    with make() as sock:
        with pytest.raises(error, match=message):
            loop.adopt(sock, Line, **options)  # type: ignore[arg-type]
        assert sock.fileno() >= 0
        with pytest.raises(error, match=message):
            loop.run_until_complete(loop.connect_accepted_socket(Line, sock, **options))  # type: ignore[arg-type]
