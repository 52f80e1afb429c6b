"""signal.set_wakeup_fd() when the program has set a descriptor of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator

import pytest
from support.datagrams import drained
from support.roles import Loop, fill, turns, until

import uringloop

OWN = signal.SIGUSR1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket pair whose second end is the program's wake-up descriptor.

    The program also has a Python-level handler for the signal OWN.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = signal.signal(OWN, lambda *_: None)
    with reader, writer:
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader, writer
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(OWN, before)


Ends = tuple[socket.socket, socket.socket]


def test_the_programs_descriptor_gets_signals_during_a_run(each_loop: Loop, ends: Ends) -> None:
    async def receive() -> bytes:
        os.kill(os.getpid(), OWN)
        return await asyncio.wait_for(each_loop.sock_recv(ends[0], 10), 5)

    assert each_loop.run_until_complete(receive()) == bytes([OWN])


def test_a_signal_in_the_last_turn_of_a_run_is_not_lost(each_loop: Loop, ends: Ends) -> None:
    each_loop.call_soon(each_loop.stop)
    each_loop.call_soon(os.kill, os.getpid(), OWN)
    each_loop.run_forever()
    assert ends[0].recv(10) == bytes([OWN])


def test_signals_with_a_handler_of_the_loop_are_not_passed_on(
    loop: uringloop.Loop, ends: Ends
) -> None:
    # With asyncio, the first handler takes the wake-up descriptor away from the program.
    async def receive() -> bytes:
        os.kill(os.getpid(), signal.SIGUSR2)
        await handled.wait()
        os.kill(os.getpid(), OWN)
        return await asyncio.wait_for(loop.sock_recv(ends[0], 10), 5)

    handled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR2, handled.set)
    assert loop.run_until_complete(receive()) == bytes([OWN])
    loop.remove_signal_handler(signal.SIGUSR2)
    assert signal.set_wakeup_fd(-1) == ends[1].fileno()


def test_a_full_or_broken_descriptor_does_no_harm(loop: uringloop.Loop, ends: Ends) -> None:
    handled: list[int] = []

    async def signals() -> None:
        os.kill(os.getpid(), OWN)
        await turns(3)
        ends[0].close()
        os.kill(os.getpid(), OWN)
        await turns(3)

    before = signal.signal(OWN, lambda number, _frame: handled.append(number))
    try:
        fill(ends[1].send)
        loop.run_until_complete(signals())
    finally:
        signal.signal(OWN, before)
    assert handled == [OWN, OWN]


def test_a_descriptor_set_during_the_run_stays(each_loop: Loop, ends: Ends) -> None:
    async def change() -> None:
        signal.set_wakeup_fd(other.fileno())
        os.kill(os.getpid(), OWN)
        await until(lambda: drained(peer) == [bytes([OWN])])

    other, peer = socket.socketpair()
    with other, peer:
        other.setblocking(False)
        peer.setblocking(False)
        each_loop.run_until_complete(change())
        assert signal.set_wakeup_fd(-1) == other.fileno()


def test_a_descriptor_removed_during_the_run_stays_removed(each_loop: Loop, ends: Ends) -> None:
    each_loop.call_soon(signal.set_wakeup_fd, -1)
    each_loop.call_soon(each_loop.stop)
    each_loop.run_forever()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_descriptor_set_between_runs_gets_signals_of_the_next_run(
    loop: uringloop.Loop, ends: Ends
) -> None:
    async def receive() -> bytes:
        os.kill(os.getpid(), OWN)
        return await asyncio.wait_for(loop.sock_recv(ends[0], 10), 5)

    signal.set_wakeup_fd(-1)
    loop.add_signal_handler(signal.SIGUSR2, print)
    loop.run_until_complete(turns())
    signal.set_wakeup_fd(ends[1].fileno())
    assert loop.run_until_complete(receive()) == bytes([OWN])
    loop.remove_signal_handler(signal.SIGUSR2)
    assert signal.set_wakeup_fd(-1) == ends[1].fileno()


def test_the_loops_descriptor_is_removed_if_the_previous_one_is_closed(
    loop: uringloop.Loop, ends: Ends
) -> None:
    loop.call_soon(ends[1].close)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert signal.set_wakeup_fd(-1) == -1
