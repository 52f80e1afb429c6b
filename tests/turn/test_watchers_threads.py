"""add_reader and add_writer in another thread, which asyncio does not check: ipykernel does it."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from support.roles import PATIENCE, in_thread, running_in_thread

import uringloop
from uringloop._cpython import gil

pytestmark = pytest.mark.skipif(not gil.free_threaded(), reason="as unsafe as on asyncio")

THREADS = 4
ROUNDS = 300


def test_a_sleeping_loop_watches_what_another_thread_adds(loop: uringloop.Loop) -> None:
    one, other = socket.socketpair()
    reached = threading.Event()
    with one, other, running_in_thread(loop):
        loop.add_reader(one, reached.set)
        other.send(b"x")
        assert reached.wait(PATIENCE)
        assert loop.remove_reader(one)
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
    missed: list[int] = []

    def watch(number: int) -> None:
        for turn in range(ROUNDS):
            one, other = socket.socketpair()
            reached = threading.Event()
            with one, other:
                loop.add_reader(one, reached.set)
                other.send(b"x")
                if not reached.wait(PATIENCE):
                    missed.append(number * ROUNDS + turn)
                    return
                # The descriptor gets its next file while the loop may still run the callback.
                assert loop.remove_reader(one)

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(watch, number) for number in range(THREADS)))

    in_thread(lambda: loop.run_until_complete(main()))
    assert missed == []
