"""The order of callbacks on a loop for tests: what the seed chooses, and what stays."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from uringloop import testing

SEEDS = range(100)


def orders(
    main: Callable[[list[Any]], Coroutine[Any, Any, None]], **options: Any
) -> set[tuple[Any, ...]]:
    """Return the orders in which *main* fills its list, under SEEDS."""
    found = set()
    for seed in SEEDS:
        ran: list[Any] = []
        factory = functools.partial(testing.Loop, seed, **options)
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(ran))
        found.add(tuple(ran))
    return found


async def note(ran: list[Any], what: object) -> None:
    ran.append(what)


async def start_three(ran: list[Any]) -> None:
    await asyncio.gather(*(note(ran, number) for number in range(3)))


def test_new_tasks_begin_in_any_order() -> None:
    assert len(orders(start_three)) == 6


def test_fifo_is_the_order_of_other_loops() -> None:
    assert orders(start_three, order="fifo") == {(0, 1, 2)}


async def wake_three(ran: list[Any]) -> None:
    event = asyncio.Event()

    async def wait(number: int) -> None:
        await event.wait()
        ran.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(1)
    event.set()
    await asyncio.wait(tasks)


def test_tasks_that_are_woken_run_in_any_order() -> None:
    assert len(orders(wake_three)) == 6


async def call_soon(ran: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    for number in range(5):
        loop.call_soon(ran.append, number)
    await asyncio.sleep(0)
    ran.append("task")


def test_callbacks_run_in_the_order_of_the_calls() -> None:
    assert orders(call_soon) == {(0, 1, 2, 3, 4, "task")}


async def yield_once(ran: list[Any]) -> None:
    tasks = [asyncio.create_task(note(ran, number)) for number in range(3)]
    await asyncio.sleep(0)
    ran.append("yielded")
    await asyncio.wait(tasks)


def test_a_task_that_yields_runs_after_all_that_were_ready() -> None:
    found = orders(yield_once)
    assert {order[3] for order in found} == {"yielded"}
    assert len(found) == 6


async def resolve(ran: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def note(number: int, _: object) -> None:
        ran.append(number)

    for number in range(3):
        future.add_done_callback(functools.partial(note, number))
    future.set_result(None)
    await asyncio.sleep(1)


def test_the_callbacks_of_a_future_run_in_order() -> None:
    assert orders(resolve) == {(0, 1, 2)}


async def timers(ran: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    when = loop.time() + 1
    for number in range(3):
        loop.call_at(when, ran.append, number)
    loop.call_at(when + 0.001, ran.append, "later")
    await asyncio.sleep(2)


def test_timers_of_the_same_deadline_run_in_any_order() -> None:
    found = orders(timers)
    assert len(found) == 6
    assert {order[3] for order in found} == {"later"}


async def timers_of_one_step(ran: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(1, ran.append, 0)
    loop.call_soon(loop.call_later, 1, ran.append, "a turn later")
    for number in range(1, 5):
        loop.call_later(1, ran.append, number)
    await asyncio.sleep(2)


def test_timers_that_one_step_makes_run_in_order() -> None:
    """On every loop the first one has the earlier deadline."""
    found = orders(timers_of_one_step)
    assert {tuple(number for number in order if number != "a turn later") for order in found} == {
        (0, 1, 2, 3, 4)
    }
    assert {order.index("a turn later") for order in found} == set(range(6))


async def timers_of_two_tasks(ran: list[Any]) -> None:
    """Their steps have one order, in one turn."""
    loop = asyncio.get_running_loop()

    async def make(number: int) -> None:
        await asyncio.sleep(0)
        loop.call_later(1, ran.append, number)

    asyncio.create_task(make(0))  # the loop keeps it
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop.call_later(1, ran.append, 1)
    await asyncio.sleep(2)


def test_timers_that_two_tasks_make_in_one_turn_run_in_any_order() -> None:
    assert orders(timers_of_two_tasks) == {(0, 1), (1, 0)}


async def time_out_and_sleep(ran: list[Any]) -> None:
    try:
        async with asyncio.timeout(1):
            await asyncio.sleep(1)
            ran.append("slept")
    except TimeoutError:
        ran.append("timed out")


def test_a_time_out_ends_a_sleep_of_the_same_length() -> None:
    assert orders(time_out_and_sleep) == {("timed out",)}


async def streams(ran: list[Any]) -> None:
    """Each connection gets its bytes in order, whatever the order among them."""

    class Receiver(asyncio.Protocol):
        def __init__(self) -> None:
            self.data = b""

        def data_received(self, data: bytes) -> None:
            self.data += data

        def connection_lost(self, exc: Exception | None) -> None:
            assert exc is None
            ran.append(self.data)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def send(number: int) -> None:
        _, writer = await asyncio.open_connection(*address)
        for step in range(5):
            writer.write(b"%d%d" % (number, step))
            await asyncio.sleep(0.1)
        writer.close()

    await asyncio.gather(*(send(number) for number in range(3)))
    await asyncio.sleep(1)
    server.close()


def test_what_a_connection_was_promised_stays_in_order() -> None:
    faults = testing.Faults(short=0.5, late=0.3, reordered=0.5)
    found = orders(streams, faults=faults)
    whole = {b"".join(b"%d%d" % (number, step) for step in range(5)) for number in range(3)}
    assert {frozenset(order) for order in found} == {frozenset(whole)}
    assert len(found) > 1


async def lost_wake_up(ran: list[Any]) -> None:
    """A queue of one's own, whose consumer believes that it is woken for an item of its own."""
    items: list[int] = []
    ready = asyncio.Event()

    async def consume() -> None:
        await ready.wait()
        ran.append(items.pop() if items else "nothing")

    consumers = [asyncio.create_task(consume()) for _ in range(2)]
    await asyncio.sleep(1)
    items.append(1)
    ready.set()
    await asyncio.wait(consumers)


@pytest.mark.parametrize("order", ["random", "fifo"])
def test_a_race_shows_whatever_the_order(order: str) -> None:
    assert orders(lost_wake_up, order=order) == {(1, "nothing")}


async def meet(ran: list[Any]) -> None:
    """A chain of sleeps ends at the same time as one sleep."""
    loop = asyncio.get_running_loop()

    async def in_steps() -> None:
        for _ in range(10):
            await asyncio.sleep(0.1)
        ran.append("steps")

    steps = asyncio.create_task(in_steps())
    loop.call_later(1, ran.append, "one")
    await steps
    await asyncio.sleep(1)


def test_sums_of_delays_are_the_same_time() -> None:
    assert orders(meet) == {("steps", "one"), ("one", "steps")}


async def time_out(ran: list[Any]) -> None:
    """A time-out ends at the same time as a sleep that starts a chain of callbacks."""
    loop = asyncio.get_running_loop()

    async def chain() -> None:
        await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)
        for step in range(3):
            ran.append(step)
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future

    loop.call_later(1, ran.append, "time-out")
    await chain()
    await asyncio.sleep(1)


def test_a_timer_may_run_between_the_steps_of_another_one() -> None:
    found = orders(time_out)
    assert {order.index("time-out") for order in found} == {0, 1, 2, 3}


def test_debug_mode_changes_no_order() -> None:
    plain = orders(wake_three)

    async def in_debug_mode(ran: list[Any]) -> None:
        asyncio.get_running_loop().set_debug(True)
        await wake_three(ran)

    assert orders(in_debug_mode) == plain


async def sets_of_tasks(ran: list[Any]) -> None:
    tasks = {asyncio.create_task(note([], number), name=str(number)) for number in range(20)}
    ran.extend(task.get_name() for task in tasks)
    await asyncio.wait(tasks)


def test_sets_of_tasks_have_one_order() -> None:
    assert len(orders(sets_of_tasks)) == 1


async def bound_methods(ran: list[Any]) -> None:
    """A method of a task's is a callback like any other."""
    loop = asyncio.get_running_loop()

    class Noting(asyncio.Task[None]):
        def note(self, number: int) -> None:
            ran.append(number)

    tasks = [Noting(asyncio.sleep(1), loop=loop) for _ in range(4)]
    for number, task in enumerate(tasks):
        loop.call_soon(task.note, number)
    await asyncio.wait(tasks)


def test_methods_of_tasks_run_in_the_order_of_the_calls() -> None:
    assert orders(bound_methods) == {(0, 1, 2, 3)}
