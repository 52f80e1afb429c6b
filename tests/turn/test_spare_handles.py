"""Handles that have run are used again, and no program can tell."""

from __future__ import annotations

import contextvars
import gc
import random
import threading
import weakref
from asyncio import AbstractEventLoop, Handle
from collections.abc import Callable
from typing import Any

import pytest
from support.loops import run_turns, run_until

import uringloop

Schedule = Callable[..., Handle]


def nothing() -> None:
    """A callback with a name for reports."""


def other() -> None:
    """Another callback."""


@pytest.fixture(params=["call_soon", "call_later"])
def schedule(request: pytest.FixtureRequest, each_loop: AbstractEventLoop) -> Schedule:
    """A method that schedules a callback of one of the next two turns, with or without a timer."""
    if request.param == "call_soon":
        return each_loop.call_soon

    def later(*call: Any, **options: Any) -> Handle:
        return each_loop.call_later(0, *call, **options)

    return later


def run(loop: AbstractEventLoop) -> None:
    """Run what is scheduled."""
    run_turns(loop, 3)


def test_a_handle_that_the_program_holds_stays_as_it_is(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    ran: list[int] = []
    held = [schedule(ran.append, number) for number in range(10)]
    run(each_loop)
    later = [schedule(ran.append, number) for number in range(10, 20)]
    assert not set(map(id, held)) & set(map(id, later))
    for handle in held:
        handle.cancel()
    assert not any(handle.cancelled() for handle in later)
    run(each_loop)
    assert ran == list(range(20))


def test_a_handle_that_is_referred_to_weakly_is_not_used_again(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    watches = [weakref.ref(schedule(nothing)) for _ in range(10)]
    assert all(watch() is not None for watch in watches)
    run(each_loop)
    handles = [schedule(nothing) for _ in range(10)]
    assert [watch() for watch in watches] == [None] * 10
    assert all(isinstance(handle, Handle) for handle in handles)


def test_what_a_callback_refers_to_is_dropped_when_it_has_run(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    class Value:
        """An argument, or the value of a variable."""

    variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable")
    argument, value = Value(), Value()
    context = contextvars.Context()
    context.run(variable.set, value)
    watches = [weakref.ref(argument), weakref.ref(value)]
    schedule(id, argument, context=context)
    del argument, value, context
    run(each_loop)
    gc.collect()
    assert [watch() for watch in watches] == [None, None]


def test_a_report_of_a_failed_callback_keeps_its_handle(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    reports: list[dict[str, Any]] = []
    each_loop.set_exception_handler(lambda _loop, report: reports.append(report))

    def fails(number: int) -> None:
        raise ValueError(number)

    for number in range(3):
        schedule(fails, number)
    run(each_loop)
    handles = [report["handle"] for report in reports]
    assert [str(report["exception"]) for report in reports] == ["0", "1", "2"]
    later = [schedule(nothing) for _ in range(10)]
    assert len({id(handle) for handle in (*handles, *later)}) == 13
    assert all("fails" in repr(handle) for handle in handles)
    assert all(handle in gc.get_objects() for handle in handles)
    run(each_loop)


def test_a_handle_after_a_cancelled_one_runs(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    ran: list[int] = []
    for number in range(1000):
        schedule(ran.append, -1).cancel()
        if number % 10 == 0:
            run(each_loop)
        assert not schedule(ran.append, number).cancelled()
    run(each_loop)
    assert ran == list(range(1000))


def test_a_deadline_that_is_no_float_is_forgotten(each_loop: AbstractEventLoop) -> None:
    now = int(each_loop.time())
    assert type(each_loop.call_at(now, nothing).when()) is int
    run(each_loop)
    assert type(each_loop.call_at(float(now), nothing).when()) is float
    run(each_loop)


def test_a_destructor_of_an_argument_may_schedule_callbacks(
    each_loop: AbstractEventLoop, schedule: Schedule
) -> None:
    ran: list[int] = []

    class Argument:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            if self.number:
                for _ in range(2):
                    schedule(ran.append, self.number)
                schedule(id, Argument(self.number - 1))

    for _ in range(100):
        schedule(id, Argument(3))
    for _ in range(10):
        run(each_loop)
    assert sorted(ran) == sorted([1, 2, 3] * 200)


def test_handles_at_random_run_once_each(each_loop: AbstractEventLoop, schedule: Schedule) -> None:
    chance = random.Random(27)
    expected: list[int] = []
    ran: list[int] = []
    held: list[Handle] = []
    for number in range(20_000):
        handle = schedule(ran.append, number)
        if chance.random() < 0.2:
            handle.cancel()
        else:
            expected.append(number)
        if chance.random() < 0.2:
            held.append(handle)
        if chance.random() < 0.05 and held:
            # Those that have run, and some that wait, which do not run then.
            dropped = held.pop(chance.randrange(len(held)))
            if not dropped.cancelled() and dropped._args is not None:
                argument = dropped._args[0]
                dropped.cancel()
                if argument not in ran:
                    expected.remove(argument)
        del handle
        if chance.random() < 0.002:
            run(each_loop)
    run(each_loop)
    assert ran == expected


def test_a_loop_that_runs_in_another_thread_makes_handles_there(loop: uringloop.Loop) -> None:
    ran: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for number in range(50):
            loop.call_soon(ran.append, (thread, number))
            loop.call_later(0, ran.append, (thread, number))
        run_turns(loop, 3)
        for number in range(50, 100):
            loop.call_soon(ran.append, (thread, number))
        run_turns(loop, 3)

    for index in range(3):
        thread = threading.Thread(target=work, args=(index,))
        thread.start()
        thread.join()
        work(-index - 1)
    every = [(thread, number) for thread in (0, -1, 1, -2, 2, -3) for number in range(100)]
    assert sorted(ran) == sorted(every + [item for item in every if item[1] < 50])


def test_timers_that_are_cancelled_in_numbers_are_used_again(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    for number in range(3000):
        each_loop.call_later(1e6, ran.append, -1).cancel()
        if number % 3 == 0:
            each_loop.call_later(0.001, ran.append, number)
    run_until(each_loop, each_loop.time() + 0.05)
    assert ran == list(range(0, 3000, 3))


def test_nested_calls_find_handles_of_their_own(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []

    def call(depth: int) -> None:
        ran.append(depth)
        if depth:
            for _ in range(2):
                each_loop.call_soon(call, depth - 1)

    each_loop.call_soon(call, 8)
    run_turns(each_loop, 12)
    assert ran == [depth for depth in range(8, -1, -1) for _ in range(2 ** (8 - depth))]


def test_a_handle_that_has_run_still_names_its_callback(each_loop: AbstractEventLoop) -> None:
    handle: Any = each_loop.call_soon(other)
    assert handle._callback is other
    assert handle._args == ()
    run(each_loop)
    assert handle._callback is other


def test_a_call_from_a_thread_without_variables_runs_in_a_context_of_its_own(
    each_loop: AbstractEventLoop,
) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    def call() -> None:
        seen.append(variable.get())
        variable.set(1)

    def work() -> None:
        for _ in range(3):
            each_loop.call_soon_threadsafe(call)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    run(each_loop)
    assert seen == [0, 0, 0]
