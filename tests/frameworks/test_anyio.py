"""anyio's asyncio backend on a given loop: scopes, streams, TLS, threads, signals, processes."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, program, quiet, serving_with_uvicorn
from support.leaks import open_fds, threads_left
from support.loops import LoopFactory
from support.roles import TIME_LIMIT, Loop, until

anyio = needs("anyio")
tls = needs("anyio.streams.tls")
pytestmark = quiet


def by_anyio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test by anyio.run, on the loop of `loop_factory`, and check for leaks."""

    @functools.wraps(test)
    def run(loop_factory: LoopFactory, **kwargs: Any) -> None:
        async def main() -> None:
            expected = loop_factory()
            expected.close()
            assert type(asyncio.get_running_loop()) is type(expected)
            with anyio.fail_after(TIME_LIMIT):
                await test(loop_factory=loop_factory, **kwargs)

        gc.collect()
        fds, threads = open_fds(), set(threading.enumerate())
        anyio.run(main, backend="asyncio", backend_options={"loop_factory": loop_factory})
        gc.collect()
        assert open_fds() - fds == set()
        # anyio tells its threads to end without waiting for them; `threads_left` waits.
        assert threads_left(threads) == []

    return run


async def echo(stream: Any) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


async def exchange(stream: Any, body: bytes) -> None:
    """Send *body* while its echo is read."""
    got = bytearray()
    async with anyio.create_task_group() as group:
        group.start_soon(stream.send, body)
        while len(got) < len(body):
            got += await stream.receive()
    assert got == body


@by_anyio
async def test_tasks_are_cancelled_with_their_scope(loop_factory: LoopFactory) -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(name)

    async def fail() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work, "third")
            await anyio.lowlevel.checkpoint()
            raise LookupError

    with anyio.move_on_after(0.01) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(work, "first")
            group.start_soon(work, "second")
    assert scope.cancelled_caught
    assert sorted(seen) == ["first", "second"]
    with pytest.raises(ExceptionGroup) as failure:
        await fail()
    assert failure.group_contains(LookupError)
    assert seen[-1] == "third"


@pytest.mark.slow
@by_anyio
async def test_tcp_and_unix_streams_carry_bytes(loop_factory: LoopFactory, tmp_path: Path) -> None:
    async def served(listener: Any, connect: Callable[[], Awaitable[Any]]) -> None:
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, echo)
            async with anyio.create_task_group() as clients:
                for _ in range(20):
                    clients.start_soon(client, connect)
            group.cancel_scope.cancel()

    async def client(connect: Callable[[], Awaitable[Any]]) -> None:
        async with await connect() as stream:
            await exchange(stream, b"x")
            await exchange(stream, LARGE)
            await stream.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()

    tcp = await anyio.create_tcp_listener(local_host="127.0.0.1")
    host, port = tcp.extra(anyio.abc.SocketAttribute.local_address)
    await served(tcp, lambda: anyio.connect_tcp(host, port))
    path = tmp_path / "socket"
    unix = await anyio.create_unix_listener(path)
    await served(unix, lambda: anyio.connect_unix(path))


@pytest.mark.slow
@by_anyio
async def test_tls_streams_carry_bytes(loop_factory: LoopFactory, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = plain.extra(anyio.abc.SocketAttribute.local_port)
    listener = tls.TLSListener(plain, certificate.server())
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo)
        stream = await anyio.connect_tcp(
            "127.0.0.1", port, tls_hostname="localhost", ssl_context=certificate.client()
        )
        async with stream:
            await exchange(stream, LARGE)
        group.cancel_scope.cancel()


@pytest.mark.slow
@by_anyio
async def test_worker_threads_call_the_loop_and_return_results(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    async def double(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * number

    def in_thread(number: int) -> int:
        answer = anyio.from_thread.run(double, number)
        assert isinstance(answer, int)
        return answer

    answers = [await anyio.to_thread.run_sync(in_thread, number) for number in range(50)]
    assert answers == list(range(0, 100, 2))
    path = anyio.Path(tmp_path / "file")
    await path.write_bytes(LARGE)
    async with await anyio.open_file(path, "rb") as file:
        assert await file.read() == LARGE


@by_anyio
async def test_signals_and_sockets_end_waits(loop_factory: LoopFactory) -> None:
    with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        async for number in signals:
            assert number == signal.SIGUSR1
            break
    left, right = socket.socketpair()
    with left, right:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.wait_readable, left)
            await anyio.wait_writable(right)
            right.send(b"x")


@by_anyio
async def test_datagrams_are_echoed(loop_factory: LoopFactory) -> None:
    async def answer(server: Any) -> None:
        async for data, (host, port) in server:
            await server.sendto(data, host, port)

    async with await anyio.create_udp_socket(local_host="127.0.0.1") as server:
        host, port = server.extra(anyio.abc.SocketAttribute.local_address)
        async with anyio.create_task_group() as group:
            group.start_soon(answer, server)
            async with await anyio.create_connected_udp_socket(host, port) as client:
                for size in (1, 1_000, 9_000):
                    await client.send(LARGE[:size])
                    assert await client.receive() == LARGE[:size]
            group.cancel_scope.cancel()


@pytest.mark.slow
@by_anyio
async def test_a_process_gets_input_and_returns_output(loop_factory: LoopFactory) -> None:
    upper = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(3)"
    done = await anyio.run_process([sys.executable, "-c", upper], input=b"text", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"TEXT", b"")


def test_a_portal_reaches_a_loop_in_another_thread(loop_factory: LoopFactory) -> None:
    async def where() -> tuple[type, int]:
        await anyio.sleep(0.001)
        return type(asyncio.get_running_loop()), threading.get_ident()

    options = {"loop_factory": loop_factory}
    with anyio.from_thread.start_blocking_portal("asyncio", options) as portal:
        kind, thread = portal.call(where)
        futures = [portal.start_task_soon(where) for _ in range(20)]
        assert {future.result(TIME_LIMIT) for future in futures} == {(kind, thread)}
    assert thread != threading.get_ident()


# Successive calls of a short function, each from its own task.
CALLS = 1_000


def by_run_until_complete(
    loop: asyncio.AbstractEventLoop, main: Callable[[], Awaitable[None]]
) -> None:
    """Run *main* by run_until_complete(), as anyio's pytest plugin and asyncio programs do."""

    async def limited() -> None:
        with anyio.fail_after(TIME_LIMIT):
            await main()

    loop.run_until_complete(limited())


@quiet
def test_calls_from_many_tasks_share_a_thread(each_loop: asyncio.AbstractEventLoop) -> None:
    # Thread objects, not numbers: a new thread may get the number of one that has ended.
    threads: set[threading.Thread] = set()

    async def call() -> None:
        threads.add(await anyio.to_thread.run_sync(threading.current_thread))

    async def main() -> None:
        for _ in range(CALLS):
            await asyncio.create_task(call())

    before = set(threading.enumerate())
    by_run_until_complete(each_loop, main)
    assert len(threads) == 1
    # The worker thread ends with the root task.
    assert threads_left(before) == []


@quiet
def test_each_run_has_its_own_threads(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    threads: list[threading.Thread] = []

    async def main() -> None:
        threads.append(await anyio.to_thread.run_sync(threading.current_thread))

    for _ in range(3):
        by_run_until_complete(each_loop, main)
    assert len(set(threads)) == 3


@pytest.mark.slow
@quiet
def test_a_process_outlives_the_task_that_used_it(each_loop: asyncio.AbstractEventLoop) -> None:
    processes: set[int] = set()

    async def call() -> None:
        processes.add(await anyio.to_process.run_sync(os.getpid))

    async def main() -> None:
        for _ in range(5):
            await asyncio.create_task(call())

    by_run_until_complete(each_loop, main)
    assert len(processes) == 1
    # anyio kills the process after the run; asyncio's loop closes its descriptor when it is reaped.
    pid = processes.pop()
    by_run_until_complete(each_loop, lambda: until(lambda: not os.path.exists(f"/proc/{pid}")))


@pytest.mark.slow
@program
async def test_blocking_endpoints_share_threads(each_loop: Loop) -> None:
    fastapi, httpx = needs("fastapi"), needs("httpx")
    needs("uvicorn")
    threads: set[threading.Thread] = set()
    api = fastapi.FastAPI()

    def blocking() -> str:
        threads.add(threading.current_thread())
        return "done"

    api.get("/")(blocking)

    async with serving_with_uvicorn(api) as (host, port), httpx.AsyncClient() as client:
        for _ in range(100):
            assert (await client.get(f"http://{host}:{port}/")).json() == "done"
    assert len(threads) == 1
