"""What may come from outside: as long as something works, the clock goes on as real time does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from uringloop import testing

T = TypeVar("T")

# What works takes so long; the time-outs of the program are far longer.
WORK_S = 0.15
PATIENCE_S = 20


def run(main: Coroutine[Any, Any, T], **options: Any) -> tuple[T, float]:
    """Return the result, and how far the clock has advanced."""

    async def timed() -> tuple[T, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await asyncio.wait_for(main, PATIENCE_S)
        return result, loop.time() - began

    with asyncio.Runner(loop_factory=lambda: testing.Loop(**options)) as runner:
        return runner.run(timed())


def nap(seconds: float) -> int:
    """Sleep in another process."""
    time.sleep(seconds)
    return os.getpid()


def answer_later(peer: socket.socket) -> None:
    peer.recv(100)
    time.sleep(WORK_S)
    peer.sendall(b"x")


async def in_thread() -> object:
    command = [sys.executable, "-c", f"import time; time.sleep({WORK_S})"]
    return await asyncio.to_thread(subprocess.run, command, check=True)


async def in_a_pool_of_processes() -> object:
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, nap, WORK_S)


async def by_a_blocking_client() -> object:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "import socket, sys, time; s = socket.socket(fileno=0);"]
    command[2] += f"s.recv(9); time.sleep({WORK_S}); s.sendall(b'x')"

    def ask() -> bytes:
        ours.sendall(b"q")
        return ours.recv(1)

    with ours, subprocess.Popen(command, stdin=theirs.fileno()):  # noqa: ASYNC220  # as programs do
        theirs.close()
        return await asyncio.to_thread(ask)


async def by_a_child_that_only_its_pipe_tells_of() -> object:
    command = [sys.executable, "-c", f"import time; time.sleep({WORK_S}); print('x')"]
    loop = asyncio.get_running_loop()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:  # noqa: ASYNC220  # the same
        assert child.stdout is not None
        readable = loop.create_future()
        loop.add_reader(child.stdout, readable.set_result, None)
        await readable
        loop.remove_reader(child.stdout)
        return child.stdout.read()


async def by_unix_socket() -> object:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "import socket, time; s = socket.socket(fileno=0);"]
    command[2] += f"s.recv(9); time.sleep({WORK_S}); s.sendall(b'x')"
    loop = asyncio.get_running_loop()
    with ours, subprocess.Popen(command, stdin=theirs.fileno()):  # noqa: ASYNC220  # as programs do
        theirs.close()
        ours.setblocking(False)
        await loop.sock_sendall(ours, b"q")
        return await loop.sock_recv(ours, 1)


async def by_signal() -> object:
    loop = asyncio.get_running_loop()
    came = loop.create_future()
    loop.add_signal_handler(signal.SIGALRM, came.set_result, None)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
    try:
        return await came
    finally:
        loop.remove_signal_handler(signal.SIGALRM)


async def seen_by_a_program_that_spins() -> object:
    task = asyncio.ensure_future(asyncio.to_thread(time.sleep, WORK_S))
    while not task.done():  # noqa: ASYNC110  # it spins
        await asyncio.sleep(0)
    await task
    return None


@pytest.mark.parametrize(
    "work",
    [
        in_thread,
        in_a_pool_of_processes,
        by_a_blocking_client,
        by_a_child_that_only_its_pipe_tells_of,
        by_unix_socket,
        by_signal,
        seen_by_a_program_that_spins,
    ],
)
def test_work_takes_its_time(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    _, took = run(work())
    assert WORK_S * 0.9 <= took < PATIENCE_S / 2


def test_loops_for_tests_in_two_threads_do_not_wait_for_each_other() -> None:
    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(asyncio.sleep(15),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 10


def test_a_thread_that_was_blocked_before_the_loop_does_not_count() -> None:
    read, write = os.pipe()
    thread = threading.Thread(target=os.read, args=(read, 1))
    thread.start()
    time.sleep(0.1)

    async def sleep_often() -> None:
        for _ in range(100):
            await asyncio.sleep(0.1)

    try:
        began = time.monotonic()
        run(sleep_often())
        assert time.monotonic() - began < 1
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("size", [1, 10])
def test_a_busy_program_does_not_spin(size: int) -> None:
    """However many turns it takes, no time passes."""

    async def exchange() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(size)

        async def put() -> None:
            for number in range(15_000):
                await queue.put(number)

        putting = asyncio.create_task(put())
        for number in range(15_000):
            assert await queue.get() == number
        await putting

    _, took = run(exchange())
    assert took < 1e-6


def test_a_program_that_spins_by_timers() -> None:
    async def spin() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def again() -> None:
            if not done.done():
                loop.call_later(0, again)

        again()
        loop.call_later(1, done.set_result, None)
        await done

    _, took = run(spin())
    assert took == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("seconds", [9.3e9, 1e300, threading.TIMEOUT_MAX])
def test_a_deadline_at_the_end_of_the_clock_is_a_deadlock(seconds: float) -> None:
    async def main() -> None:
        await asyncio.sleep(seconds)

    with (
        asyncio.Runner(loop_factory=testing.Loop) as runner,
        pytest.raises(testing.DeadlockError),
    ):
        runner.run(main())


def test_the_time_limit_holds_while_something_works() -> None:
    with pytest.raises(testing.TimeLimitError):
        run(asyncio.to_thread(time.sleep, 0.5), time_limit=0.1)


def test_an_alarm_that_is_far_away_is_a_watchdog() -> None:
    signal.alarm(60)
    try:
        began = time.monotonic()
        run(asyncio.sleep(15))
        assert time.monotonic() - began < 10
    finally:
        signal.alarm(0)
