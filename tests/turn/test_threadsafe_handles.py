"""Handles of call_soon_threadsafe, which one thread makes and another runs and frees."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import random
import threading
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

import pytest
from support.loops import LoopFactory, run_turns
from support.roles import in_thread

import uringloop
from uringloop._cpython import gil

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")

# Closes the reference cycle.
Closing = Callable[[AbstractEventLoop, "Program"], None]


class Program:
    """An object that its callback keeps alive."""

    handle: object = None

    def call(self) -> None:
        """Do nothing."""

    def fail(self) -> None:
        raise ZeroDivisionError

    def keep(self, _: AbstractEventLoop, report: dict[str, Any]) -> None:
        self.handle = report["handle"]


# ── contexts ─────────────────────────────────────────────────────


def test_a_callback_runs_in_the_context_that_its_handle_gives(each_loop: AbstractEventLoop) -> None:
    handle: Any = in_thread(lambda: each_loop.call_soon_threadsafe(VAR.set, "set by the callback"))
    context = handle._context
    assert context is handle._context
    run_turns(each_loop)
    assert context[VAR] == "set by the callback"
    assert VAR.get() == "unset"


def test_a_callback_of_a_thread_with_variables_sees_them(each_loop: AbstractEventLoop) -> None:
    seen: list[str] = []

    def schedule() -> None:
        VAR.set("of the thread")
        each_loop.call_soon_threadsafe(lambda: seen.append(VAR.get()))
        VAR.set("changed afterwards")

    in_thread(schedule)
    run_turns(each_loop)
    assert seen == ["of the thread"]


def test_callbacks_do_not_share_a_context(each_loop: AbstractEventLoop) -> None:
    seen: list[str] = []

    def look() -> None:
        seen.append(VAR.get())
        VAR.set("changed by the callback")

    in_thread(lambda: [each_loop.call_soon_threadsafe(look) for _ in range(3)])
    run_turns(each_loop)
    assert seen == ["unset"] * 3


# ── order ────────────────────────────────────────────────────────


def schedule_each(
    schedule: Callable[..., object], callback: Callable[[int], None], numbers: range
) -> None:
    for number in numbers:
        schedule(callback, number)


@pytest.mark.parametrize("before", [0, 1, 63, 64, 200])
def test_calls_keep_their_order_in_a_queue_that_wraps_and_grows(
    each_loop: AbstractEventLoop, before: int
) -> None:
    ran: list[int] = []
    for number in range(before):
        each_loop.call_soon(ran.append, number)
    run_turns(each_loop)
    ran.clear()
    # Other threads' handles and the loop's own, in turns of different sizes.
    scheduled = 0
    for size in (1, 2, 62, 63, 64, 65, 500):
        for schedule in (each_loop.call_soon_threadsafe, each_loop.call_soon):
            numbers = range(scheduled, scheduled + size)
            in_thread(functools.partial(schedule_each, schedule, ran.append, numbers))
            scheduled += size
    run_turns(each_loop)
    assert ran == list(range(scheduled))


# ── what a handle keeps alive ────────────────────────────────────


def test_a_cancelled_handle_does_not_run(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    handle = in_thread(lambda: each_loop.call_soon_threadsafe(ran.append, 1))
    handle.cancel()
    run_turns(each_loop)
    assert ran == []
    assert handle.cancelled()


def test_a_handle_that_a_program_runs_reports_to_the_loop(each_loop: AbstractEventLoop) -> None:
    reports: list[dict[str, Any]] = []
    each_loop.set_exception_handler(lambda _, report: reports.append(report))

    def run_it() -> None:
        handle: Any = in_thread(lambda: each_loop.call_soon_threadsafe(Program().fail))
        handle._run()
        handle.cancel()

    each_loop.call_soon(run_it)
    run_turns(each_loop)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]


def test_a_handle_may_be_used_after_its_run(each_loop: AbstractEventLoop) -> None:
    program = Program()
    handle = in_thread(lambda: each_loop.call_soon_threadsafe(program.call))
    run_turns(each_loop)
    assert not handle.cancelled()
    assert repr(handle).startswith(("<Handle", "<_ThreadSafeHandle"))
    handle.cancel()
    assert handle.cancelled()


def call_of_a_thread(loop: AbstractEventLoop, program: Program) -> None:
    program.handle = in_thread(lambda: loop.call_soon_threadsafe(program.call))


def cancelled_call(loop: AbstractEventLoop, program: Program) -> None:
    handle = in_thread(lambda: loop.call_soon_threadsafe(program.call))
    handle.cancel()
    program.handle = handle


def failing_call(loop: AbstractEventLoop, program: Program) -> None:
    loop.set_exception_handler(program.keep)
    in_thread(lambda: loop.call_soon_threadsafe(program.fail))


@pytest.mark.parametrize("closing", [call_of_a_thread, cancelled_call, failing_call])
def test_a_program_that_keeps_its_handle_is_collected_after_the_run(
    loop_factory: LoopFactory, closing: Closing
) -> None:
    loop = loop_factory()
    program = Program()
    watch = weakref.ref(program)
    closing(loop, program)
    run_turns(loop)
    assert program.handle is not None
    loop.close()
    del loop, program
    gc.collect()
    assert watch() is None


@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
def test_an_abandoned_loop_is_collected_with_calls_that_refer_to_it(
    loop_factory: LoopFactory,
) -> None:
    class Owner(Program):
        loop: AbstractEventLoop

    owner = Owner()
    watch = weakref.ref(owner)
    owner.loop = loop = loop_factory()
    run_turns(loop)
    # One waits in the inbox, the other was moved to the ready queue.
    in_thread(lambda: loop.call_soon_threadsafe(owner.call))
    loop.call_soon(owner.call)
    in_thread(lambda: loop.call_soon_threadsafe(owner.call))
    loop = owner = None  # type: ignore[assignment]
    gc.collect()
    assert watch() is None


def test_a_call_keeps_its_callback_and_arguments_until_it_runs(
    each_loop: AbstractEventLoop,
) -> None:
    seen: list[object] = []
    watches: list[weakref.ref[Program]] = []

    def schedule() -> None:
        for _ in range(100):
            program = Program()
            watches.append(weakref.ref(program))
            each_loop.call_soon_threadsafe(lambda *args: seen.extend(args), program, 1)

    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join()
    gc.collect()
    assert all(watch() is not None for watch in watches)
    run_turns(each_loop)
    assert seen[1::2] == [1] * 100
    assert all(isinstance(item, Program) for item in seen[::2])
    seen.clear()
    gc.collect()
    assert all(watch() is None for watch in watches)


# ── timers ───────────────────────────────────────────────────────


@pytest.mark.skipif(not gil.free_threaded(), reason="as unsafe as on asyncio with a GIL")
def test_timers_of_other_threads_run_or_are_cancelled(loop: uringloop.Loop) -> None:
    threads, calls = 4, 500
    ran: list[int] = []
    expected: list[list[int]] = [[] for _ in range(threads)]

    def schedule(thread: int) -> None:
        chance = random.Random(thread)
        for number in range(thread * calls, (thread + 1) * calls):
            timer = loop.call_later(chance.uniform(0, 0.05), ran.append, number)
            far = loop.call_at(loop.time() + 3600, ran.append, -1)
            if chance.random() < 0.5:
                expected[thread].append(number)
            else:
                timer.cancel()
            far.cancel()

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(schedule, number) for number in range(threads)))
        await asyncio.sleep(0.2)

    loop.run_until_complete(main())
    # A timer may have run before its thread cancelled it.
    assert len(ran) == len(set(ran))
    assert set(ran) >= {number for numbers in expected for number in numbers}
    assert -1 not in ran
    # Those that wait are counted right.
    assert loop.stats()["timers_pending"] == 0
    loop.call_later(3600, int)
    assert loop.stats()["timers_pending"] == 1


@pytest.mark.skipif(not gil.free_threaded(), reason="as on asyncio, it waits for another event")
def test_a_timer_of_another_thread_wakes_the_loop(loop: uringloop.Loop) -> None:
    reached: list[float] = []

    def schedule() -> None:
        reached.append(loop.time())
        loop.call_later(0.01, loop.stop)

    timer = threading.Timer(0.05, schedule)
    timer.start()
    loop.run_forever()
    timer.join()
    assert 0.01 <= loop.time() - reached[0] < 5


# ── size ─────────────────────────────────────────────────────────


@pytest.mark.skipif(not gil.free_threaded(), reason="with a GIL, handles have other sizes")
def test_a_handle_fits_a_block_of_the_allocator(each_loop: AbstractEventLoop) -> None:
    """Blocks of mimalloc above 128 bytes have 160."""
    handle = each_loop.call_soon_threadsafe(int)
    assert type(handle).__basicsize__ <= 128
