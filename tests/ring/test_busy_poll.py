"""Loop(busy_poll_us=): the loop polls before it sleeps, and all else behaves as without it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import uringloop

BUSY_US = 200
PATIENCE_S = 30


@pytest.fixture
def busy() -> Iterator[uringloop.Loop]:
    loop = uringloop.Loop(busy_poll_us=BUSY_US)
    yield loop
    loop.close()


@pytest.mark.parametrize("value", [-1, 1_000_001, 2**70])
def test_time_out_of_range_raises_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="busy_poll_us must be between 0 and 1,000,000"):
        uringloop.Loop(busy_poll_us=value)


@pytest.mark.parametrize("value", ["1", 0.5, None])
def test_time_that_is_no_integer_raises_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        uringloop.Loop(busy_poll_us=value)


def test_busy_poll_us_is_keyword_only() -> None:
    with pytest.raises(TypeError):
        uringloop.Loop(BUSY_US)  # type: ignore[call-arg, arg-type]


def test_timers_are_in_time_and_in_order(busy: uringloop.Loop) -> None:
    ran: list[tuple[int, float]] = []

    def note(number: int) -> None:
        ran.append((number, busy.time()))

    async def main() -> float:
        started = busy.time()
        # Shorter and longer than the busy poll.
        for number, delay in enumerate((0.0001, 0.0002, 0.001, 0.02)):
            busy.call_later(delay, note, number)
        await asyncio.sleep(0.03)
        return started

    started = busy.run_until_complete(main())
    assert [number for number, _ in ran] == [0, 1, 2, 3]
    for (_, at), delay in zip(ran, (0.0001, 0.0002, 0.001, 0.02), strict=True):
        assert at - started >= delay


def test_the_loop_also_polls_before_a_timer_that_is_nearer_than_the_busy_poll() -> None:
    loop = uringloop.Loop(busy_poll_us=1_000_000)

    async def main() -> tuple[int, float]:
        await asyncio.sleep(0.001)
        entries, began = loop._kernel_entries, loop.time()
        for _ in range(20):
            await asyncio.sleep(0.001)
        return loop._kernel_entries - entries, loop.time() - began

    # A sleep in the kernel is an enter. So is a poll that another process interrupts: its time is
    # over when it goes on. On a busy machine some rounds are free of that.
    try:
        rounds = [loop.run_until_complete(main())]
        started = loop.time()
        while rounds[-1][0] >= 10 and loop.time() - started < PATIENCE_S:
            rounds.append(loop.run_until_complete(main()))
    finally:
        loop.close()
    assert rounds[-1][0] < 10
    # It does not poll for longer.
    assert 0.02 <= min(took for _, took in rounds) < 1


def test_another_thread_wakes_a_loop_that_spins_or_sleeps(busy: uringloop.Loop) -> None:
    async def main() -> int:
        heard = 0
        for pause in (0.0, 0.0001, 0.005) * 20:
            event = asyncio.Event()

            def wake(pause: float = pause, event: asyncio.Event = event) -> None:
                time.sleep(pause)
                busy.call_soon_threadsafe(event.set)

            thread = threading.Thread(target=wake)
            thread.start()
            await asyncio.wait_for(event.wait(), 5)
            thread.join()
            heard += 1
        return heard

    assert busy.run_until_complete(main()) == 60


def test_a_signal_reaches_its_handler(busy: uringloop.Loop) -> None:
    async def main() -> None:
        event = asyncio.Event()
        busy.add_signal_handler(signal.SIGUSR1, event.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(event.wait(), 5)
        busy.remove_signal_handler(signal.SIGUSR1)

    busy.run_until_complete(main())


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_an_echo_is_whole(busy: uringloop.Loop, size: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for number in range(20):
                message = bytes([number]) * size
                writer.write(message)
                assert await reader.readexactly(size) == message
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()

    busy.run_until_complete(asyncio.wait_for(main(), 10))
    assert busy._operations_in_flight == 0


def test_an_idle_loop_sleeps(busy: uringloop.Loop) -> None:
    began = time.process_time()
    busy.run_until_complete(asyncio.sleep(0.2))
    assert time.process_time() - began < 0.1


def test_other_threads_run_while_it_spins() -> None:
    loop = uringloop.Loop(busy_poll_us=1_000_000)
    left, right = socket.socketpair()
    left.setblocking(False)
    counted = 0

    def count() -> None:
        nonlocal counted
        while counted < 1000:
            counted += 1
        right.send(b"x")

    thread = threading.Thread(target=count)
    try:
        loop.call_soon(thread.start)
        assert loop.run_until_complete(asyncio.wait_for(loop.sock_recv(left, 1), 5)) == b"x"
        assert counted == 1000
    finally:
        thread.join()
        loop.close()
        left.close()
        right.close()
