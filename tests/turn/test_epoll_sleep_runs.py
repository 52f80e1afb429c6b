"""A loop that sleeps in epoll_wait(2) for watched descriptors: its runs, forks, rings, features."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import seccomp
from support.leaks import leak_checked
from support.loops import each_ring, on_io_uring, run_turns
from support.roles import turns, until
from support.watching import MANY, SOON, Game, after, is_at_epoll, open_files

import uringloop
from uringloop._ring.backends import Backend


@pytest.fixture
def ring_loop(backend: Backend) -> Iterator[uringloop.Loop]:
    for created in leak_checked(lambda: uringloop.Loop(backend=backend, nestable=True)):
        assert isinstance(created, uringloop.Loop)
        yield created


@pytest.fixture
def ring_game(ring_loop: uringloop.Loop) -> Iterator[Game]:
    """A loop that sleeps in epoll_wait(2)."""
    with contextlib.closing(Game(ring_loop)) as made:
        ring_loop.run_until_complete(made.play())
        assert is_at_epoll()
        yield made


def wakes(loop: uringloop.Loop, times: int = 3) -> None:
    """Assert that another thread ends the sleep of *loop*, each time."""

    async def main() -> None:
        for _ in range(times):
            future = loop.create_future()
            timer = after(0.01, loop.call_soon_threadsafe, future.set_result, None)
            await asyncio.wait_for(future, SOON)
            timer.join()

    loop.run_until_complete(main())


# ── runs ──────────────────────────────────────────────────────────────────────────────────


@each_ring
def test_a_nested_run_serves_the_same_descriptors(
    ring_loop: uringloop.Loop, ring_game: Game
) -> None:
    async def main() -> None:
        for _ in range(3):
            ring_loop.run_until_complete(ring_game.play(20))
            await asyncio.wait_for(ring_game.play(20), SOON)

    ring_loop.run_until_complete(main())
    wakes(ring_loop)


@each_ring
def test_a_reader_can_run_the_loop(ring_loop: uringloop.Loop, ring_game: Game) -> None:
    left, right = socket.socketpair()
    read: list[bytes] = []

    def nest() -> None:
        letter = left.recv(1)
        ring_loop.run_until_complete(ring_game.play(20))
        # Only now, or the coroutine below would go on in the nested run.
        read.append(letter)

    async def main() -> None:
        await ring_game.play(20)
        ring_loop.add_reader(left, nest)
        for index in range(3):
            right.send(b"x")
            while len(read) <= index:
                await turns(1)
            await turns(3)
        ring_loop.remove_reader(left)

    with left, right:
        ring_loop.run_until_complete(main())
    assert read == [b"x"] * 3
    wakes(ring_loop)


@each_ring
def test_what_is_read_between_two_runs_is_not_reported(
    ring_loop: uringloop.Loop, ring_game: Game
) -> None:
    left, right = socket.socketpair()
    calls: list[int] = []
    with left, right:
        ring_loop.add_reader(left, calls.append, 1)
        run_turns(ring_loop, 2)
        right.send(b"x")
        run_turns(ring_loop)
        assert is_at_epoll()
        left.recv(1)
        calls.clear()
        run_turns(ring_loop, 3)
        assert calls == []
        ring_loop.remove_reader(left)


@each_ring
def test_runs_in_other_threads_are_woken(ring_loop: uringloop.Loop, ring_game: Game) -> None:
    def run() -> None:
        ring_loop.run_until_complete(ring_game.play())
        wakes(ring_loop)

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(SOON)
        assert not thread.is_alive()
        run()


@each_ring
def test_closing_a_loop_at_epoll_leaves_no_descriptor(backend: Backend) -> None:
    before = open_files()
    loop = uringloop.Loop(backend=backend)
    with contextlib.closing(Game(loop)) as game:
        loop.run_until_complete(game.play())
        assert is_at_epoll()
        loop.close()
    assert open_files() == before


# ── timers ────────────────────────────────────────────────────────────────────────────────


async def shortest_sleep(game: Game) -> float:
    """Return the shortest of 20 sleeps of 1.1 ms: a busy machine lengthens some of them."""
    slept = []
    for _ in range(20):
        await game.play(20)
        began = time.monotonic()
        await asyncio.sleep(0.0011)
        slept.append(time.monotonic() - began)
    return min(slept)


@each_ring
def test_timers_are_not_rounded_to_milliseconds(ring_loop: uringloop.Loop, ring_game: Game) -> None:
    assert 0.0011 <= ring_loop.run_until_complete(shortest_sleep(ring_game)) < 0.0019
    assert is_at_epoll()


@on_io_uring
@pytest.mark.parametrize("backend", ["io_uring"])
def test_timers_stay_precise_when_other_code_closes_the_epoll_descriptor(
    ring_loop: uringloop.Loop, ring_game: Game
) -> None:
    (mine,) = [fd for fd, name in open_files().items() if "eventpoll" in name and is_at_epoll(fd)]
    os.close(mine)
    ring_loop.run_until_complete(asyncio.sleep(0.0011))
    ring_loop.run_until_complete(ring_game.play())
    assert ring_loop.run_until_complete(shortest_sleep(ring_game)) < 0.0019
    assert is_at_epoll()


# ── other work beside the events ──────────────────────────────────────────────────────────


@each_ring
def test_readers_that_are_always_ready_do_not_starve_a_transport(
    ring_loop: uringloop.Loop, ring_game: Game
) -> None:
    left, right = socket.socketpair()
    idle, full = socket.socketpair()

    async def main() -> None:
        reader, writer = await asyncio.open_connection(sock=left)
        ring_loop.add_reader(idle, int)
        full.send(b"never read")
        right.setblocking(False)
        for _ in range(50):
            right.send(b"line\n")
            assert await asyncio.wait_for(reader.readline(), SOON) == b"line\n"
            writer.write(b"answer\n")
            assert await ring_loop.sock_recv(right, 100) == b"answer\n"
        ring_loop.remove_reader(idle)
        writer.close()
        await writer.wait_closed()

    with left, right, idle, full:
        ring_loop.run_until_complete(main())


@each_ring
def test_busy_transports_do_not_starve_a_reader(ring_loop: uringloop.Loop, ring_game: Game) -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)  # type: ignore[attr-defined]

    ends = socket.socketpair()

    async def main() -> None:
        transports = []
        for end in ends:
            transport, _ = await ring_loop.create_connection(Echo, sock=end)
            transports.append(transport)
        transports[0].write(b"to and fro")
        for _ in range(10):
            await asyncio.wait_for(ring_game.play(30), SOON)
        for transport in transports:
            transport.abort()
        await turns(3)

    ring_loop.run_until_complete(main())


@each_ring
def test_a_hang_up_reaches_reader_and_writer(ring_loop: uringloop.Loop, ring_game: Game) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    calls: set[str] = set()

    async def main() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                left.send(bytes(1 << 16))
        ring_loop.add_reader(left, calls.add, "reader")
        ring_loop.add_writer(left, calls.add, "writer")
        await ring_game.play(20)
        assert calls == set()
        right.close()
        await until(lambda: calls == {"reader", "writer"})
        ring_loop.remove_reader(left)
        ring_loop.remove_writer(left)

    with left:
        ring_loop.run_until_complete(main())


@each_ring
def test_a_regular_file_is_refused(
    ring_loop: uringloop.Loop, ring_game: Game, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(PermissionError):
        ring_loop.add_reader(file, print)
    ring_loop.run_until_complete(ring_game.play(20))


@each_ring
def test_a_shared_listening_socket_takes_over_the_sleep(
    ring_loop: uringloop.Loop, ring_game: Game
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = await asyncio.start_server(serve, sock=listening)
            for _ in range(3):
                await asyncio.wait_for(ring_game.play(), SOON)
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"line\n")
                assert await asyncio.wait_for(reader.read(), SOON) == b"line\n"
                writer.close()
            server.close()
            await server.wait_closed()
        await asyncio.wait_for(ring_game.play(), SOON)

    ring_loop.run_until_complete(main())
    wakes(ring_loop)


# ── forks ─────────────────────────────────────────────────────────────────────────────────

PRELUDE = """
import asyncio, errno, os, signal, socket, threading, time, weakref
import uringloop
from support import seccomp
from support.watching import Game, is_at_epoll

loop = uringloop.Loop(backend=BACKEND)

async def wakes():
    for _ in range(3):
        future = loop.create_future()
        threading.Timer(0.02, loop.call_soon_threadsafe, (future.set_result, None)).start()
        began = time.monotonic()
        # A loop that misses the wake-up finds the call when this timer ends its sleep.
        await asyncio.wait([future], timeout=1.0)
        if time.monotonic() - began > 0.9:
            return False
    return True
"""


def lines_of(script: str, backend: Backend, **variables: str) -> list[str]:
    script = PRELUDE.replace("BACKEND", repr(backend)) + script
    # Python 3.12+ warns that a process with threads forks.
    return seccomp.lines_of(script, "-Wignore::DeprecationWarning", **variables)


# The parent goes on with its watched descriptors, and a thread wakes it.
CHANGED_IN_A_FORK = """
child = None

async def main():
    game = Game(loop)
    await game.play()
    forked = loop.create_future()
    left, right = socket.socketpair()

    def fork():
        global child
        left.recv(1)
        loop.remove_reader(left)
        game.forget()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            loop.add_reader(left, int)
            forked.set_result(None)

    loop.add_reader(left, fork)
    right.send(b"x")
    await forked
    print(is_at_epoll(), await wakes())

try:
    loop.run_until_complete(main())
except RuntimeError as exc:
    if child != 0 or "inherited through a fork" not in str(exc):
        raise
"""


@each_ring
def test_a_forked_child_leaves_the_wake_ups_to_its_parent(backend: Backend) -> None:
    assert lines_of(CHANGED_IN_A_FORK, backend) == ["True True"]


# A destructor that runs immediately before the sleep.
FORKED_BEFORE_A_SLEEP = """
child = None

def fork(_):
    global child, began
    child = os.fork()
    began = time.monotonic()

async def main():
    await Game(loop).play()
    timer = loop.call_later(0.3, print)
    reference = weakref.ref(timer, fork)
    timer.cancel()
    del timer
    await asyncio.sleep(0.6)

try:
    loop.run_until_complete(main())
except RuntimeError as exc:
    if child != 0 or "inherited through a fork" not in str(exc):
        raise
    os._exit(time.monotonic() - began > 0.2)
print(is_at_epoll(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@each_ring
def test_a_forked_child_does_not_sleep_in_its_parents_loop(backend: Backend) -> None:
    assert lines_of(FORKED_BEFORE_A_SLEEP, backend) == ["True 0"]


# ── rings and features ────────────────────────────────────────────────────────────────────

REFUSED = """
async def main():
    game = Game(loop)
    await game.play()
    print(is_at_epoll(), loop.backend)
    left, right = socket.socketpair()
    left.setblocking(False)
    receiving = asyncio.ensure_future(loop.sock_recv(left, 10))
    await game.play(20)
    seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | errno.EPERM, (seccomp.ALONE[CALL],))
    await game.play()
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    await asyncio.wait_for(signalled.wait(), 5)
    print(await wakes())
    await game.play()
    right.send(b"x")
    print(await asyncio.wait_for(receiving, 5), loop.backend)

loop.run_until_complete(main())
loop.close()
"""


@on_io_uring
@pytest.mark.parametrize(("call", "then"), [("enter", "soft"), ("register", "io_uring")])
def test_a_sandbox_closes_around_a_loop_at_epoll(call: str, then: str) -> None:
    script = REFUSED.replace("CALL", repr(call))
    assert lines_of(script, "io_uring") == ["True io_uring", "True", f"b'x' {then}"]


SWITCHED_OFF = """
async def main():
    game = Game(loop)
    await game.play()
    print(is_at_epoll(), await wakes())

loop.run_until_complete(main())
"""


@each_ring
def test_the_sleep_can_be_disabled(backend: Backend) -> None:
    assert lines_of(SWITCHED_OFF, backend) == ["True True"]
    assert lines_of(SWITCHED_OFF, backend, URINGLOOP_DISABLE="epoll_sleep") == ["False True"]


@on_io_uring
@pytest.mark.parametrize("disabled", ["epoll_wait"])
def test_the_sleep_does_not_need_a_newer_ring(disabled: str) -> None:
    assert lines_of(SWITCHED_OFF, "io_uring", URINGLOOP_DISABLE=disabled) == ["True True"]


@each_ring
def test_a_loop_with_many_turns_for_each_event_stays_in_the_ring(backend: Backend) -> None:
    loop = uringloop.Loop(backend=backend)

    async def main() -> int:
        rounds = 0
        with contextlib.closing(Game(loop)) as game:
            for _ in range(2 * MANY):
                await game.play(1)
                await turns(20)
                rounds += is_at_epoll()
        return rounds

    assert loop.run_until_complete(main()) < MANY // 4
    loop.close()
