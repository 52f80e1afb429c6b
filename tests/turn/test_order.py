"""The order of callbacks, of ready descriptors and of timers: asyncio's, on both rings."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from support.roles import Loop, on_loop, turns, until

import uringloop
from uringloop._ring import features

# Long enough for the resolution of asyncio's clock, and shorter than a busy callback.
SOON = 0.00001


def busy(seconds: float = 0.0003) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Line:
    """A descriptor that logs its name, and does more, when it is readable."""

    def __init__(self, loop: Loop, name: str, log: list[str]) -> None:
        self.loop, self.name, self.log = loop, name, log
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.then: Callable[[], object] = lambda: None
        loop.add_reader(self.near, self.ready)

    def ready(self) -> None:
        self.log.append(self.name)
        self.near.recv(100)
        self.then()

    def tell(self) -> None:
        self.far.send(b"x")

    def close(self) -> None:
        self.loop.remove_reader(self.near)
        self.near.close()
        self.far.close()


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def lines(each_loop: Loop, log: list[str]) -> Iterator[tuple[Line, Line]]:
    pair = Line(each_loop, "a", log), Line(each_loop, "b", log)
    yield pair
    for line in pair:
        line.close()


async def settled(log: list[str], count: int) -> list[str]:
    await until(lambda: len(log) == count)
    await turns(3)
    return log


@on_loop
async def test_a_timer_runs_after_the_io_of_the_turn_in_which_it_is_due(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    a, b = lines
    b.then = a.tell

    def start() -> None:
        b.tell()
        each_loop.call_later(SOON, log.append, "timer")
        busy()

    await turns(3)
    each_loop.call_soon(start)
    assert await settled(log, 3) == ["b", "timer", "a"]


@on_loop
async def test_a_timer_of_a_reader_runs_after_the_io_that_the_reader_caused(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    a, b = lines

    def then() -> None:
        a.tell()
        each_loop.call_later(SOON, log.append, "timer")
        busy()

    b.then = then
    await turns(3)
    b.tell()
    assert await settled(log, 3) == ["b", "a", "timer"]


@on_loop
async def test_a_callback_of_a_callback_runs_before_the_descriptor_it_made_ready(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    def start() -> None:
        lines[0].tell()
        each_loop.call_soon(log.append, "soon")

    await turns(3)
    each_loop.call_soon(start)
    assert await settled(log, 2) == ["soon", "a"]


@on_loop
async def test_a_callback_of_a_task_runs_before_the_descriptor_it_made_ready(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    await turns(3)
    lines[0].tell()
    each_loop.call_soon(log.append, "soon")
    assert await settled(log, 2) == ["soon", "a"]


@on_loop
async def test_a_callback_of_a_reader_runs_before_the_descriptor_it_made_ready(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    a, b = lines

    def then() -> None:
        b.tell()
        each_loop.call_soon(log.append, "soon")

    a.then = then
    await turns(3)
    a.tell()
    assert await settled(log, 3) == ["a", "soon", "b"]


@on_loop
async def test_a_callback_runs_before_the_descriptor_it_made_ready_beside_another(
    each_loop: Loop, lines: tuple[Line, Line], log: list[str]
) -> None:
    if (
        isinstance(each_loop, uringloop.Loop)
        and features.report(each_loop.backend)["epoll_wait"] != "used"
    ):
        pytest.skip("without EPOLL_WAIT the loop calls epoll_wait() after the callbacks")
    a, b = lines

    def start() -> None:
        a.tell()
        each_loop.call_soon(log.append, "second")
        log.append("first")

    await turns(3)
    each_loop.call_soon(start)
    # Ready when the turn begins.
    b.tell()
    assert await settled(log, 4) == ["first", "b", "second", "a"]


@on_loop
async def test_data_is_received_after_callbacks_that_its_sender_scheduled(
    each_loop: Loop, log: list[str]
) -> None:
    class Log(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            log.append("bytes")

    near, far = socket.socketpair()
    with far:
        transport, _ = await each_loop.connect_accepted_socket(Log, near)

        def start() -> None:
            far.send(b"x")
            each_loop.call_soon(log.append, "soon")

        await turns(3)
        each_loop.call_soon(start)
        assert await settled(log, 2) == ["soon", "bytes"]
        transport.close()
        await turns(3)
