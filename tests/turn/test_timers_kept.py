"""Lifetime of timers that are cancelled, dropped or held, and of what they refer to."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import sys
import weakref
from asyncio import AbstractEventLoop

import pytest
from support.loops import run_turns, run_until

import uringloop


def callback() -> None:
    """A callback with a place in the source."""


def test_cancelling_a_timer_releases_its_callback_and_arguments(
    each_loop: AbstractEventLoop,
) -> None:
    argument = asyncio.Event()
    watch = weakref.ref(argument)
    handle = each_loop.call_later(1e6, id, argument)
    del argument
    assert watch() is not None
    handle.cancel()
    assert watch() is None
    assert handle.cancelled()


def test_timer_rescheduled_a_thousand_times_runs_once(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    handle = each_loop.call_later(0.001, ran.append, -1)
    for number in range(1000):
        handle.cancel()
        handle = each_loop.call_later(0.001, ran.append, number)
    run_until(each_loop, handle.when() + 0.001)
    assert ran == [999]


def test_cancelled_timers_do_not_pile_up(each_loop: AbstractEventLoop) -> None:
    watches: list[weakref.ref[asyncio.TimerHandle]] = []
    keep = [each_loop.call_later(1e6, callback) for _ in range(50)]
    for _ in range(20):
        for _ in range(1000):
            handle = each_loop.call_later(1e6, callback)
            watches.append(weakref.ref(handle))
            handle.cancel()
        run_turns(each_loop)
    del handle
    assert sum(watch() is not None for watch in watches) <= 50 + 100
    assert not any(handle.cancelled() for handle in keep)


def test_timers_cancelled_at_random_leave_the_others_in_order(
    each_loop: AbstractEventLoop,
) -> None:
    chance = random.Random(11)
    ran: list[float] = []
    wanted: list[float] = []
    start = each_loop.time() + 0.01
    waiting: list[tuple[float, asyncio.TimerHandle]] = []
    for round_number in range(20):
        for _ in range(500):
            when = start + round_number * 0.002 + chance.random() * 0.02
            waiting.append((when, each_loop.call_at(when, ran.append, when)))
        chance.shuffle(waiting)
        for _, handle in waiting[:350]:
            handle.cancel()
        wanted += [when for when, handle in waiting[350:450]]
        waiting = waiting[450:]
    wanted += [when for when, _ in waiting]
    run_until(each_loop, start + 0.1)
    assert ran == sorted(wanted)


def test_destructor_run_by_a_cancelled_timer_may_create_timers(
    each_loop: AbstractEventLoop,
) -> None:
    class Ends:
        def __del__(self) -> None:
            if not each_loop.is_closed():
                ended.append(each_loop.call_later(1e6, callback))

    var: contextvars.ContextVar[Ends] = contextvars.ContextVar("var")
    ended: list[asyncio.TimerHandle] = []

    def schedule() -> asyncio.TimerHandle:
        # The handle's context holds the object, and is dropped with the handle.
        var.set(Ends())
        return each_loop.call_later(1e6, callback)

    for _ in range(2000):
        contextvars.Context().run(schedule).cancel()
    ran: list[int] = []
    for number in range(100):
        each_loop.call_later(0, ran.append, number)
    run_until(each_loop, each_loop.time() + 0.01)
    assert sorted(ran) == list(range(100))
    assert len(ended) >= 1000
    assert all(handle.when() > each_loop.time() for handle in ended)


@pytest.mark.slow
def test_half_a_million_cancelled_timers_leave_memory_flat(loop: uringloop.Loop) -> None:
    def churn() -> None:
        for _ in range(10):
            handles = [loop.call_later(3600, callback) for _ in range(5000)]
            for handle in handles:
                handle.cancel()
            run_turns(loop)

    def resident_pages() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1])

    churn()
    before = resident_pages()
    for _ in range(10):
        churn()
    assert (resident_pages() - before) * 4096 < 4 * 1024 * 1024


def test_closing_the_loop_releases_its_timers(each_loop: AbstractEventLoop) -> None:
    argument = asyncio.Event()
    watch = weakref.ref(argument)
    each_loop.call_later(1e6, id, argument)
    del argument
    each_loop.close()
    gc.collect()
    assert watch() is None


class Keeper:
    """An object that holds the handle of its own timer."""

    handle: asyncio.TimerHandle

    def tick(self) -> None:
        pass


@pytest.mark.parametrize("end", ["runs", "is cancelled"])
def test_timer_held_by_its_callback_is_collected_after_its_end(
    each_loop: AbstractEventLoop, end: str
) -> None:
    keeper = Keeper()
    watch = weakref.ref(keeper)
    keeper.handle = each_loop.call_later(0, keeper.tick)
    if end == "is cancelled":
        # cancel() drops the callback, but not the context.
        var: contextvars.ContextVar[Keeper] = contextvars.ContextVar("var")
        context = contextvars.Context()
        context.run(var.set, keeper)
        keeper.handle.cancel()
        keeper.handle = each_loop.call_later(0.001, keeper.tick, context=context)
        keeper.handle.cancel()
        del context
    else:
        gc.collect()
        assert keeper.handle.when() > 0
    run_until(each_loop, each_loop.time() + 0.01)
    assert watch() is not None
    del keeper
    gc.collect()
    assert watch() is None


@pytest.mark.filterwarnings("ignore:unclosed event loop")
@pytest.mark.parametrize("has_run", [False, True])
def test_unreferenced_loop_is_collected_with_its_timers(
    each_loop: AbstractEventLoop, has_run: bool
) -> None:
    class Program:
        def __init__(self, loop: AbstractEventLoop) -> None:
            self.loop = loop

        def tick(self) -> None:
            pass

    forgotten = type(each_loop)()
    program = Program(forgotten)
    watch = weakref.ref(program)
    for _ in range(200):
        forgotten.call_later(1e6, program.tick)
    past = forgotten.time() - 1
    if has_run:
        run_turns(forgotten)
        # The second timer is due, and is left over when the first one ends the run.
        forgotten.call_at(past, sys.exit)
        forgotten.call_at(past, program.tick)
        with pytest.raises(SystemExit):
            forgotten.run_forever()
    del program, forgotten
    gc.collect()
    assert watch() is None
