"""The sleep of a loop that serves a listening socket which other processes share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support.loops import each_ring
from support.protocols import Echo
from support.roles import (
    BUSY_ROUNDS,
    PATIENCE,
    Guests,
    Loop,
    abort_and_wait,
    close_server,
    connected,
    converse,
    in_thread,
    on_loop,
    released,
    run_script,
    until,
)

import uringloop

LOCALHOST = "127.0.0.1"

# A process that locks the socket as accepting processes do, but does not accept.
COMPANION = """
import fcntl, sys

fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_SH, 1)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def companion(sock: socket.socket) -> Iterator[None]:
    """Run a process that claims, by its lock, to accept from *sock*."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", COMPANION, str(sock.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[sock.fileno()],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.stdin.close()


@contextlib.asynccontextmanager
async def shared(loop: Loop, sock: socket.socket, *, alone: bool = False):  # type: ignore[no-untyped-def]
    """Serve *sock* beside a companion process, or alone; then wait for the end of its connections.

    The block has closed the clients.
    """
    served: list[Echo] = []

    def serve() -> Echo:
        served.append(Echo())
        return served[-1]

    with contextlib.nullcontext() if alone else companion(sock):
        server = await loop.create_server(serve, sock=sock.dup())
        try:
            yield server
        finally:
            await close_server(server)
        for echo in served:
            await released(echo.transport)


either = pytest.mark.parametrize("alone", [False, True], ids=["company", "alone"])


@either
@on_loop
async def test_timers_threads_signals_and_data_end_a_sleep_beside_a_shared_socket(
    each_loop: Loop, listener: socket.socket, alone: bool
) -> None:
    async with shared(each_loop, listener, alone=alone):
        began = time.monotonic()
        await asyncio.sleep(0.02)
        assert 0.019 < time.monotonic() - began < PATIENCE
        assert await each_loop.run_in_executor(None, lambda: 7) == 7
        woken = asyncio.Event()
        each_loop.add_signal_handler(signal.SIGUSR1, woken.set)
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        await woken.wait()
        assert each_loop.remove_signal_handler(signal.SIGUSR1)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for number in range(100):
            writer.write(b"%d\n" % number)
            assert await reader.readline() == b"%d\n" % number
        writer.close()
        await writer.wait_closed()


@on_loop
async def test_a_process_that_is_alone_needs_one_system_call_per_sleep(
    loop: uringloop.Loop, listener: socket.socket
) -> None:
    def converse_slowly(client: socket.socket) -> None:
        for _ in range(50):
            time.sleep(0.0015)
            converse(client, 1)

    async with shared(loop, listener, alone=True):
        for _ in range(5):
            with connected(listener.getsockname()) as client:
                await loop.run_in_executor(None, converse, client, 1)
                before = loop.stats()["kernel_entries"]
                await loop.run_in_executor(None, converse_slowly, client)
                entries = loop.stats()["kernel_entries"] - before
            if entries < 75:
                break
            # Each round is one sleep, unless the machine is very busy.
        else:
            pytest.fail(f"{entries} system calls")


@on_loop
async def test_a_busy_process_needs_one_system_call_per_sleep(
    loop: uringloop.Loop, listener: socket.socket
) -> None:
    async with shared(loop, listener):
        with connected(listener.getsockname()) as client:
            for _ in range(5):
                await loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
                before = loop.stats()["kernel_entries"]
                await loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
                entries = loop.stats()["kernel_entries"] - before
                if entries < 1.5 * BUSY_ROUNDS:
                    break
                # The machine was so busy that each sleep was a long one.
            else:
                pytest.fail(f"{entries} system calls")


@either
@on_loop
async def test_a_busy_process_accepts_each_connection_in_time(
    each_loop: Loop, listener: socket.socket, alone: bool
) -> None:
    def another() -> float:
        began = time.monotonic()
        with connected(listener.getsockname()) as client:
            converse(client, 1)
        return time.monotonic() - began

    async with shared(each_loop, listener, alone=alone):
        with connected(listener.getsockname()) as client:
            for _ in range(5):
                await each_loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
                for _ in range(3):
                    assert await each_loop.run_in_executor(None, another) < 0.5


@on_loop
async def test_a_busy_process_may_add_and_close_shared_sockets(
    each_loop: Loop, listener: socket.socket
) -> None:
    def another(sock: socket.socket) -> None:
        with connected(sock.getsockname()) as client:
            converse(client, 1)

    with socket.create_server((LOCALHOST, 0)) as second:
        server = await each_loop.create_server(Echo, sock=listener.dup())
        with connected(listener.getsockname()) as client:
            await each_loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
            async with shared(each_loop, second):
                for sock in (second, listener, second):
                    await each_loop.run_in_executor(None, another, sock)
                await each_loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
            await each_loop.run_in_executor(None, another, listener)
            await each_loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
            server.close()
            # No server accepts: the connection waits in the backlog.
            with connected(listener.getsockname()) as late:
                await each_loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
                late.setblocking(False)
                with pytest.raises(BlockingIOError):
                    late.recv(1)
        await server.wait_closed()


@pytest.mark.slow
@either
@on_loop
async def test_no_wake_up_is_late_beside_a_shared_socket(
    each_loop: Loop, listener: socket.socket, alone: bool
) -> None:
    # io_uring does not write to a ring's eventfd from within a write to another one.
    other = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    called = asyncio.Event()

    def call() -> None:
        os.eventfd_read(other)
        called.set()

    def write_later() -> None:
        time.sleep(0.002)
        os.eventfd_write(other, 1)

    async with shared(each_loop, listener, alone=alone):
        each_loop.add_reader(other, call)
        slowest = 0.0
        for _ in range(50):
            began = time.monotonic()
            await each_loop.run_in_executor(None, time.sleep, 0.002)
            writer = threading.Thread(target=write_later)
            writer.start()
            await called.wait()
            called.clear()
            slowest = max(slowest, time.monotonic() - began)
            writer.join()
        assert each_loop.remove_reader(other)
        os.close(other)
    assert slowest < 0.5


@either
@on_loop
async def test_a_sleep_beside_a_shared_socket_uses_no_processor_time(
    each_loop: Loop, listener: socket.socket, alone: bool
) -> None:
    async with shared(each_loop, listener, alone=alone):
        for _ in range(3):
            # A connection has ended before, and must not keep the loop awake.
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"x")
            await reader.read(1)
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.05)
            cpu = time.process_time()
            await asyncio.sleep(0.3)
            assert time.process_time() - cpu < 0.1


@each_ring
def test_a_run_in_another_thread_goes_on_accepting(backend: str, listener: socket.socket) -> None:
    loop = uringloop.Loop(backend=backend)  # type: ignore[arg-type, unused-ignore]
    server = loop.run_until_complete(loop.create_server(Echo, sock=listener.dup()))

    async def converse_in_loop() -> None:
        with connected(listener.getsockname()) as client:
            await loop.run_in_executor(None, converse, client, BUSY_ROUNDS)
        for _ in range(10):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            writer.close()
            await writer.wait_closed()

    for _ in range(3):
        in_thread(lambda: loop.run_until_complete(converse_in_loop()))
    loop.run_until_complete(converse_in_loop())
    server.close()
    loop.run_until_complete(server.wait_closed())
    loop.close()


@each_ring
@pytest.mark.parametrize(
    "options", [{"busy_poll_us": 200}, {"batch_wait_us": 200}, {"sqpoll": 1}], ids=str
)
def test_shared_sockets_are_served_with_every_kind_of_sleep(
    backend: str, options: dict[str, int], listener: socket.socket
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with shared(loop, listener):
            for number in range(20):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(b"%d\n" % number)
                assert await reader.readline() == b"%d\n" % number
                writer.close()
                await writer.wait_closed()
                await asyncio.sleep(0.001)

    loop = uringloop.Loop(backend=backend, **options)  # type: ignore[arg-type, unused-ignore]
    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    loop.close()


@each_ring
@pytest.mark.parametrize(
    "options", [{}, {"busy_poll_us": 5000}, {"batch_wait_us": 200}, {"sqpoll": 1}], ids=str
)
def test_a_busy_connection_hides_neither_connections_nor_watched_descriptors(
    backend: str, options: dict[str, int], listener: socket.socket
) -> None:
    ended = threading.Event()

    def play(client: socket.socket) -> None:
        with client:
            while not ended.is_set():
                converse(client, 1)

    def visit() -> None:
        with connected(listener.getsockname()) as visitor:
            converse(visitor, 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        async with shared(loop, listener):
            player = threading.Thread(target=play, args=[connected(listener.getsockname())])
            player.start()
            left, right = socket.socketpair()
            with left, right:
                loop.add_reader(left, heard.set)
                await asyncio.sleep(0.05)
                right.send(b"x")
                await asyncio.wait_for(heard.wait(), PATIENCE)
                loop.remove_reader(left)
            for _ in range(10):
                await asyncio.wait_for(loop.run_in_executor(None, visit), PATIENCE)
            ended.set()
            await loop.run_in_executor(None, player.join)

    loop = uringloop.Loop(backend=backend, **options)  # type: ignore[arg-type, unused-ignore]
    try:
        loop.run_until_complete(main())
    finally:
        ended.set()
        loop.close()


@on_loop
async def test_several_shared_sockets_are_served_side_by_side(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    sockets = [socket.create_server((LOCALHOST, 0)) for _ in range(5)]
    servers = [await each_loop.create_server(guests, sock=sock) for sock in sockets]
    clients = [connected(sock.getsockname()) for sock in sockets for _ in range(5)]
    await guests.arrived(25)
    for client in clients:
        client.close()
    await guests.end()
    await close_server(servers.pop())
    # The others are still served.
    with connected(sockets[0].getsockname()):
        await guests.arrived(26)
    await guests.end()
    for server in servers:
        await close_server(server)


@on_loop
async def test_a_server_closed_by_its_first_client_leaves_the_second_to_others(
    each_loop: Loop, listener: socket.socket
) -> None:
    seen: list[asyncio.Transport] = []

    class Last(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            seen.append(transport)
            server.close()

    server = await each_loop.create_server(Last, sock=listener.dup(), backlog=1)
    with connected(listener.getsockname()) as first:
        await until(lambda: bool(seen))
        with connected(listener.getsockname()) as second:
            await asyncio.sleep(0)
            conn, _ = listener.accept()
            with conn:
                conn.send(b"from the next")
                assert second.recv(20) == b"from the next"
        await abort_and_wait(seen[0])
        assert first.recv(1) == b""
    await server.wait_closed()


CHILD = """
    import asyncio, os, socket
    import uringloop

    number = None

    def fork():
        global number
        number = os.fork()
        if number:
            print(os.waitpid(number, 0)[1])

    async def main():
        sock = socket.create_server(("127.0.0.1", 0))
        address = sock.getsockname()
        server = await loop.create_server(asyncio.Protocol, sock=sock)
        loop.call_soon(fork)
        await asyncio.sleep(0.01)
        _, writer = await asyncio.open_connection(*address)
        writer.close()
        await writer.wait_closed()
        server.close()

    loop = uringloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    except RuntimeError:
        if number != 0:
            raise
        # These files reuse descriptor numbers of the parent's loop.
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        loop.close()
        for fd in files:
            os.fstat(fd)
        os._exit(0)
    loop.close()
"""


def test_closing_the_loop_in_a_forked_child_leaves_the_parent_alone() -> None:
    done = run_script(CHILD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
