"""Loop(batch_wait_us=): a sleep gathers completions, and all else behaves as without it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.loops import backend
from support.roles import PATIENCE, kernel_version

import uringloop

# Longer than other delays of the machine, and short enough for a test.
GATHER_S = 0.5
AT_ONCE_S = 0.25
BATCH = 64

gathers = pytest.mark.skipif(
    backend() == "io_uring" and kernel_version() < (6, 12),
    reason="the minimum wait (MIN_TIMEOUT) needs kernel 6.12",
)


def gathering(seconds: float, *, busy_poll_us: int = 0, sqpoll: int = 0) -> uringloop.Loop:
    return uringloop.Loop(
        batch_wait_us=int(seconds * 1_000_000), busy_poll_us=busy_poll_us, sqpoll=sqpoll
    )


@contextlib.contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Yield pairs of sockets; the left ones are non-blocking, for a loop."""
    with contextlib.ExitStack() as stack:
        made = [socket.socketpair() for _ in range(count)]
        for left, right in made:
            left.setblocking(False)
            stack.enter_context(left)
            stack.enter_context(right)
        yield made


def received(
    loop: uringloop.Loop,
    made: list[tuple[socket.socket, socket.socket]],
    send: Callable[[], None],
) -> float:
    """Call *send* in a thread while the loop sleeps; return the seconds until all bytes came."""

    async def main() -> float:
        waiting: list[Awaitable[bytes]] = [
            asyncio.ensure_future(loop.sock_recv(left, 1)) for left, _ in made
        ]
        await asyncio.sleep(0)
        thread = threading.Timer(0.05, send)
        thread.start()
        began = loop.time()
        async with asyncio.timeout(PATIENCE):
            for each in waiting:
                assert await each == b"x"
        thread.join()
        return loop.time() - began - 0.05

    return loop.run_until_complete(main())


@pytest.mark.parametrize("value", [-1, 1_000_001, 2**70])
def test_time_out_of_range_raises_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="batch_wait_us must be between 0 and 1,000,000"):
        uringloop.Loop(batch_wait_us=value)


@pytest.mark.parametrize("value", ["1", 0.5, None])
def test_time_that_is_no_integer_raises_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        uringloop.Loop(batch_wait_us=value)


@gathers
def test_completions_within_the_batch_wait_share_turns() -> None:
    def send() -> None:
        for _, right in made[:10]:
            right.send(b"x")
            time.sleep(0.01)

    turns: dict[float, int] = {}
    for seconds in (0, GATHER_S):
        with contextlib.closing(gathering(seconds)) as loop, pairs(10) as made:
            before = loop._kernel_entries
            received(loop, made, send)
            turns[seconds] = loop._kernel_entries - before
    assert turns[GATHER_S] < turns[0] / 2


@gathers
def test_full_batch_ends_the_sleep() -> None:
    def send() -> None:
        for _, right in made:
            right.send(b"x")

    with contextlib.closing(gathering(1)) as loop, pairs(BATCH) as made:
        assert received(loop, made, send) < AT_ONCE_S


def test_single_operation_does_not_wait_for_a_batch() -> None:
    with contextlib.closing(gathering(1)) as loop, pairs(1) as made:
        assert received(loop, made, lambda: made[0][1].sendall(b"x")) < AT_ONCE_S


def test_timers_are_not_late() -> None:
    async def main() -> None:
        waiting = [asyncio.ensure_future(loop.sock_recv(left, 1)) for left, _ in made]
        for delay in (0.001, 0.02, 0.0):
            began = loop.time()
            await asyncio.sleep(delay)
            assert delay <= loop.time() - began < AT_ONCE_S
        # A completion is there, and the timer is due before the batch wait ends.
        made[0][1].send(b"x")
        began = loop.time()
        await asyncio.sleep(0.02)
        assert loop.time() - began < AT_ONCE_S
        assert await asyncio.wait_for(waiting[0], PATIENCE) == b"x"
        for each in waiting[1:]:
            each.cancel()
        await asyncio.gather(*waiting[1:], return_exceptions=True)

    with contextlib.closing(gathering(1)) as loop, pairs(3) as made:
        loop.run_until_complete(main())


@pytest.mark.parametrize("options", [{}, {"busy_poll_us": 100}, {"sqpoll": 2}], ids=str)
def test_threads_and_signals_wake_a_batching_loop(options: dict[str, int]) -> None:
    async def main() -> None:
        waiting = [asyncio.ensure_future(loop.sock_recv(left, 1)) for left, _ in made]
        for pause in (0.0, 0.0001, 0.005) * 5:
            event = asyncio.Event()
            thread = threading.Timer(pause, loop.call_soon_threadsafe, (event.set,))
            thread.start()
            await asyncio.wait_for(event.wait(), PATIENCE)
            thread.join()
        event = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, event.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(event.wait(), PATIENCE)
        loop.remove_signal_handler(signal.SIGUSR1)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    with contextlib.closing(gathering(0.002, **options)) as loop, pairs(3) as made:
        loop.run_until_complete(main())


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_many_echoes_are_whole(size: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def ask(address: tuple[str, int], seed: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for number in range(5):
            message = bytes([seed + number]) * size
            writer.write(message)
            assert await reader.readexactly(size) == message
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            await asyncio.gather(*(ask(address, seed) for seed in range(20)))

    with contextlib.closing(gathering(0.001)) as loop:
        loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
        assert loop._operations_in_flight == 0
