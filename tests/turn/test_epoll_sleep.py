"""The sleep in epoll_wait(2) of a loop that is busy with watched descriptors, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.loops import run_turns
from support.roles import Loop, turns, until
from support.sockets import unix_pair
from support.watching import MANY, SOON, Game, after, eventfds, is_at_epoll

import uringloop

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def game(each_loop: Loop) -> Iterator[Game]:
    """Readers that have kept the loop busy for a while, and go on waiting."""
    with contextlib.closing(Game(each_loop)) as made:
        each_loop.run_until_complete(made.play())
        yield made


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = unix_pair()
    with left, right:
        yield left, right


# ── what ends the sleep ───────────────────────────────────────────────────────────────────


def test_another_thread_ends_the_sleep(each_loop: Loop, game: Game) -> None:
    async def main() -> None:
        for _ in range(20):
            await game.play(20)
            future = each_loop.create_future()
            timer = after(0.005, each_loop.call_soon_threadsafe, future.set_result, None)
            await asyncio.wait_for(future, SOON)
            timer.join()

    each_loop.run_until_complete(main())


def test_a_timer_ends_the_sleep_in_time(each_loop: Loop, game: Game) -> None:
    async def main() -> float:
        began = each_loop.time()
        await asyncio.sleep(0.0205)
        return each_loop.time() - began

    slept = each_loop.run_until_complete(main())
    assert 0.0205 <= slept < SOON
    assert game.hits >= MANY


@pytest.mark.parametrize("pause", [0.005, 0.25], ids=["short", "long"])
def test_a_socket_call_ends_the_sleep(
    each_loop: Loop, game: Game, pair: Pair, pause: float
) -> None:
    left, right = pair

    async def main() -> None:
        timer = after(pause, right.send, b"x")
        assert await asyncio.wait_for(each_loop.sock_recv(left, 10), SOON) == b"x"
        timer.join()

    each_loop.run_until_complete(main())


def test_a_transport_is_served_between_events(each_loop: Loop, game: Game, pair: Pair) -> None:
    left, right = pair

    async def main() -> None:
        reader, writer = await asyncio.open_connection(sock=left)
        for number in range(60):
            await game.play(5 if number % 20 else MANY)
            timer = after(0.001, right.send, b"line\n")
            assert await asyncio.wait_for(reader.readline(), SOON) == b"line\n"
            timer.join()
            writer.write(b"answer\n")
            await until(lambda: is_readable(right))
            assert right.recv(100) == b"answer\n"
        writer.close()
        await writer.wait_closed()

    each_loop.run_until_complete(main())


def is_readable(sock: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(sock.recv(1, socket.MSG_PEEK))
    return False


def test_a_signal_ends_the_sleep(each_loop: Loop, game: Game) -> None:
    async def main() -> None:
        future = each_loop.create_future()
        each_loop.add_signal_handler(signal.SIGUSR1, future.set_result, None)
        await game.play()
        timer = after(0.01, os.kill, os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(future, SOON)
        timer.join()
        each_loop.remove_signal_handler(signal.SIGUSR1)

    each_loop.run_until_complete(main())


def test_the_end_of_a_process_ends_the_sleep(each_loop: Loop, game: Game) -> None:
    async def main() -> int:
        process = await asyncio.create_subprocess_exec("sleep", "0.02")
        await game.play()
        return await asyncio.wait_for(process.wait(), SOON)

    assert each_loop.run_until_complete(main()) == 0


# ── events ────────────────────────────────────────────────────────────────────────────────


def test_unread_data_fires_again_in_each_turn(each_loop: Loop, game: Game, pair: Pair) -> None:
    left, right = pair
    calls: list[int] = []
    each_loop.add_reader(left, calls.append, 1)
    right.send(b"x")
    run_turns(each_loop, 40)
    assert 36 <= len(calls) <= 40
    assert each_loop.remove_reader(left)
    assert game.hits >= MANY


def test_events_come_after_a_busy_time_without_any(each_loop: Loop, game: Game) -> None:
    async def main() -> None:
        for _ in range(10):
            await turns(30)
            await asyncio.wait_for(game.play(40), SOON)

    each_loop.run_until_complete(main())


def test_a_callback_can_close_and_reuse_the_descriptor_of_the_next(
    each_loop: Loop, game: Game
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    calls: list[int] = []

    async def main() -> None:
        await game.play()
        numbers = [left.fileno() for left, _ in pairs]

        def first(index: int) -> None:
            calls.append(index)
            for number in numbers:
                each_loop.remove_reader(number)
            for left, _ in pairs:
                left.close()
            # The same numbers, of files that are never ready.
            fresh.extend(os.pipe() for _ in range(2))
            for read, _ in fresh:
                each_loop.add_reader(read, calls.append, -1)

        fresh: list[tuple[int, int]] = []
        for index, number in enumerate(numbers):
            each_loop.add_reader(number, first, index)
            pairs[index][1].send(b"x")
        await until(lambda: len(calls) > 0)
        await turns(5)
        for read, write in fresh:
            each_loop.remove_reader(read)
            os.close(read)
            os.close(write)

    each_loop.run_until_complete(main())
    assert len(calls) == 1
    for _, right in pairs:
        right.close()


def test_a_replaced_callback_runs_instead_of_the_old_one(
    each_loop: Loop, game: Game, pair: Pair
) -> None:
    left, right = pair
    calls: list[str] = []

    def replacement() -> None:
        calls.append("new")
        left.recv(10)

    def replace() -> None:
        calls.append("old")
        each_loop.add_reader(left, replacement)

    async def main() -> None:
        await game.play()
        each_loop.add_reader(left, replace)
        right.send(b"x")
        await until(lambda: "new" in calls)
        await turns(5)
        each_loop.remove_reader(left)

    each_loop.run_until_complete(main())
    assert calls == ["old", "new"]


def test_removing_lets_a_close_reach_the_peer(each_loop: Loop, game: Game) -> None:
    left, right = socket.socketpair()
    with right:
        each_loop.add_reader(left, print)
        each_loop.run_until_complete(game.play())
        each_loop.remove_reader(left)
        left.close()
        assert right.recv(1) == b""


def test_watching_goes_on_in_another_thread(each_loop: Loop, game: Game) -> None:
    def run() -> None:
        each_loop.run_until_complete(game.play())

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(SOON)
        assert not thread.is_alive()
        each_loop.run_until_complete(game.play())


# ── the choice, on the kernel's ring ──────────────────────────────────────────────────────


@pytest.fixture
def ring_game(loop: uringloop.Loop) -> Iterator[Game]:
    if loop.backend != "io_uring":
        pytest.skip("a software ring sleeps in epoll_wait(2) anyway")
    with contextlib.closing(Game(loop)) as made:
        yield made


def test_each_event_takes_one_system_call(loop: uringloop.Loop, ring_game: Game) -> None:
    loop.run_until_complete(ring_game.play())
    before = loop._kernel_entries
    loop.run_until_complete(ring_game.play(1000))
    assert loop._kernel_entries - before <= 1010


def test_a_loop_that_does_not_sleep_goes_back_to_the_ring(
    loop: uringloop.Loop, ring_game: Game
) -> None:
    at_first = eventfds()
    for _ in range(3):
        loop.run_until_complete(ring_game.play(3 * MANY))
        assert is_at_epoll()
        # The ring keeps its eventfd for the next time.
        assert eventfds() == at_first + 1
        run_turns(loop, 20)
        assert not is_at_epoll()


def test_an_idle_loop_with_operations_in_flight_sleeps_in_the_ring(
    loop: uringloop.Loop, ring_game: Game, pair: Pair
) -> None:
    async def main() -> None:
        receiving = asyncio.ensure_future(loop.sock_recv(pair[0], 10))
        await ring_game.play()
        assert is_at_epoll()
        await asyncio.sleep(0.3)
        assert not is_at_epoll()
        await asyncio.wait_for(ring_game.play(20), SOON)
        pair[1].send(b"x")
        assert await receiving == b"x"

    loop.run_until_complete(main())


def test_a_loop_that_spins_stays_in_the_ring(pair: Pair) -> None:
    loop = uringloop.Loop(busy_poll_us=10)
    try:
        with contextlib.closing(Game(loop)) as game:
            loop.run_until_complete(game.play(4 * MANY))
            assert not is_at_epoll()
    finally:
        loop.close()


def test_closing_the_loop_closes_the_eventfd() -> None:
    before = eventfds()
    loop = uringloop.new_event_loop()
    with contextlib.closing(Game(loop)) as game:
        loop.run_until_complete(game.play())
    loop.close()
    deadline = time.monotonic() + SOON
    while eventfds() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert eventfds() == before
