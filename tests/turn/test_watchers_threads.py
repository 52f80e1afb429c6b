"""add_reader and add_writer in another thread, which asyncio does not check: ipykernel does it."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from support.roles import PATIENCE, running_in_thread

import uringloop
from uringloop._cpython import gil

pytestmark = pytest.mark.skipif(not gil.free_threaded(), reason="as unsafe as on asyncio")

THREADS = 4
ROUNDS = 300


def watch(loop: uringloop.Loop) -> int:
    """Watch one socket after the other; return how many times the callback has run."""
    for turn in range(ROUNDS):
        one, other = socket.socketpair()
        reached = threading.Event()
        with one, other:
            loop.add_reader(one, reached.set)
            other.send(b"x")
            if not reached.wait(PATIENCE):
                return turn
            # The descriptor gets its next file while the loop may still run the callback.
            assert loop.remove_reader(one)
    return ROUNDS


def test_a_sleeping_loop_watches_what_another_thread_adds(loop: uringloop.Loop) -> None:
    one, other = socket.socketpair()
    reached = threading.Event()
    with one, other, running_in_thread(loop):
        loop.add_reader(one, reached.set)
        other.send(b"x")
        assert reached.wait(PATIENCE)
        assert loop.remove_reader(one)
        # The loop may have been about to run the callback.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)
        reached.clear()
        assert not loop.remove_reader(one)
        other.send(b"x")
        assert not reached.wait(0.05)
        loop.add_writer(one, reached.set)
        assert reached.wait(PATIENCE)
        assert loop.remove_writer(one)


def test_a_wrong_descriptor_raises_in_the_thread_that_adds_it(loop: uringloop.Loop) -> None:
    with running_in_thread(loop):
        with pytest.raises(ValueError, match="Invalid file descriptor"):
            loop.add_reader(-1, int)
        with pytest.raises(PermissionError), open(__file__) as file:
            loop.add_reader(file, int)


def test_debug_mode_refuses_it(loop: uringloop.Loop) -> None:
    loop.set_debug(True)
    with running_in_thread(loop):
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            loop.add_reader(0, int)
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            loop.remove_reader(0)


def test_threads_watch_and_forget_at_the_same_time(loop: uringloop.Loop) -> None:
    async def main() -> list[int]:
        calls = (asyncio.to_thread(watch, loop) for _ in range(THREADS))
        return await asyncio.gather(*calls)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(loop.run_until_complete, main()).result() == [ROUNDS] * THREADS


def test_threads_watch_while_runs_of_the_loop_begin_and_end(loop: uringloop.Loop) -> None:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            loop.run_until_complete(asyncio.sleep(0))

    with ThreadPoolExecutor() as pool:
        runner = pool.submit(run)
        watching = [pool.submit(watch, loop) for _ in range(THREADS)]
        wait(watching)
        over.set()
        runner.result()
    assert [each.result() for each in watching] == [ROUNDS] * THREADS


def test_the_descriptor_of_a_transport_is_refused_between_two_runs(loop: uringloop.Loop) -> None:
    near, far = socket.socketpair()
    with far:
        transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
        fd = near.fileno()
        with pytest.raises(RuntimeError, match=f"File descriptor {fd} is used by transport"):
            loop.add_reader(fd, int)
        transport.close()
        loop.run_until_complete(asyncio.sleep(0))
