"""Timers: order, handles, cancelling, and asyncio's functions that use timers."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import operator
import random
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

import pytest
from support.loops import run_turns, run_until
from support.virtual_time import Stopwatch

import uringloop

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")
CLOCK_RESOLUTION = time.get_clock_info("monotonic").resolution


def callback() -> None:
    """A callback with a place in the source."""


async def expire(deadline: float) -> None:
    """Wait for ever, inside a timeout at *deadline*."""
    async with asyncio.timeout_at(deadline):
        await asyncio.Event().wait()


async def expire_early() -> None:
    """Wait for ever, inside a timeout that is shortened on the way."""
    async with asyncio.timeout(3600) as shortened:
        shortened.reschedule(asyncio.get_running_loop().time() + 60)
        await asyncio.Event().wait()


# ── order ────────────────────────────────────────────────────────


def test_timers_run_in_the_order_of_their_deadlines(each_loop: AbstractEventLoop) -> None:
    start = each_loop.time()
    deadlines = [start + number * 0.0001 for number in range(500)]
    shuffled = random.Random(7).sample(deadlines, len(deadlines))
    ran: list[float] = []
    for deadline in shuffled:
        each_loop.call_at(deadline, ran.append, deadline)
    run_until(each_loop, deadlines[-1] + 0.001)
    assert ran == deadlines


def test_timers_that_are_due_together_run_in_the_order_of_their_deadlines(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[int] = []
    past = each_loop.time() - 1
    for number in random.Random(7).sample(range(1000), 1000):
        each_loop.call_at(past + number * 1e-6, ran.append, number)
    run_turns(each_loop)
    assert ran == list(range(1000))


def test_timers_with_one_deadline_run_in_the_order_they_were_scheduled(
    loop: uringloop.Loop,
) -> None:
    # Stock asyncio leaves the order of equal deadlines open.
    ran: list[int] = []
    when = loop.time() + 0.001
    for number in range(1000):
        loop.call_at(when, ran.append, number)
    run_until(loop, when + 0.001)
    assert ran == list(range(1000))


def test_negative_and_past_deadlines_run_in_the_next_turn(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    each_loop.call_later(-0.001, ran.append, "recent")
    each_loop.call_later(-1e9, ran.append, "ancient")
    each_loop.call_at(0, ran.append, "epoch")
    each_loop.call_later(float("-inf"), ran.append, "always")
    run_turns(each_loop)
    assert sorted(ran) == ["always", "ancient", "epoch", "recent"]
    assert ran[-1] == "recent"


def test_zero_delay_runs_in_a_later_turn_than_its_caller(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []

    def first() -> None:
        each_loop.call_later(0, ran.append, "second")
        ran.append("first")

    each_loop.call_soon(first)
    run_turns(each_loop)
    assert ran == ["first"]
    run_turns(each_loop, 2)
    assert ran == ["first", "second"]


def test_timers_never_fire_early(each_loop: AbstractEventLoop) -> None:
    early: list[float] = []
    handles: dict[int, asyncio.TimerHandle] = {}

    def check(number: int) -> None:
        if each_loop.time() < handles[number].when() - CLOCK_RESOLUTION:
            early.append(handles[number].when())

    for number in range(300):
        handles[number] = each_loop.call_later(number * 0.000317, check, number)
    run_until(each_loop, handles[299].when() + 0.001)
    assert early == []


def test_endless_callbacks_do_not_hold_timers_back(each_loop: AbstractEventLoop) -> None:
    def again() -> None:
        each_loop.call_soon(again)

    each_loop.call_soon(again)
    each_loop.call_later(0.005, each_loop.stop)
    each_loop.run_forever()


def test_endless_zero_delay_timers_do_not_hold_callbacks_back(
    each_loop: AbstractEventLoop,
) -> None:
    started = threading.Event()

    def again() -> None:
        started.set()
        each_loop.call_later(0, again)

    def stop() -> None:
        started.wait()
        each_loop.call_soon_threadsafe(each_loop.stop)

    thread = threading.Thread(target=stop)
    thread.start()
    each_loop.call_later(0, again)
    each_loop.run_forever()
    thread.join()
    run_turns(each_loop)


def test_timer_shorter_than_a_millisecond_is_not_rounded_up(loop: uringloop.Loop) -> None:
    async def shortest() -> float:
        lengths = []
        for _ in range(50):
            start = loop.time()
            await asyncio.sleep(0.0001)
            lengths.append(loop.time() - start)
        return min(lengths)

    assert 0.0001 - CLOCK_RESOLUTION <= loop.run_until_complete(shortest()) < 0.001


# ── arguments, contexts, refusals ────────────────────────────────


def test_timer_callback_receives_its_arguments(each_loop: AbstractEventLoop) -> None:
    calls: list[tuple[object, ...]] = []

    def collect(*args: object) -> None:
        calls.append(args)

    each_loop.call_later(-2, collect, 1, "two")
    each_loop.call_later(-1, collect)
    each_loop.call_at(each_loop.time(), collect, None)
    run_turns(each_loop)
    assert calls == [(1, "two"), (), (None,)]


def test_timer_runs_in_the_context_that_scheduled_it(each_loop: AbstractEventLoop) -> None:
    seen: list[str] = []

    def look() -> None:
        seen.append(VAR.get())

    context = contextvars.copy_context()
    context.run(VAR.set, "mine")
    context.run(each_loop.call_later, -4, look)
    context.run(each_loop.call_at, each_loop.time() - 3, look)
    each_loop.call_later(-2, look, context=context)
    each_loop.call_at(each_loop.time() - 1, look, context=context)
    each_loop.call_later(0, look)
    run_turns(each_loop)
    assert seen == ["mine", "mine", "mine", "mine", "unset"]


def test_delay_of_none_is_refused(each_loop: AbstractEventLoop) -> None:
    later: Callable[[object, Callable[[], None]], object] = each_loop.call_later  # type: ignore[assignment]
    at: Callable[[object, Callable[[], None]], object] = each_loop.call_at  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^delay must not be None$"):
        later(None, callback)
    with pytest.raises(TypeError, match=r"^when cannot be None$"):
        at(None, callback)
    with pytest.raises(TypeError, match=r"unsupported operand|must be real number"):
        later("1", callback)


def test_debug_mode_refuses_non_callables_and_coroutines_as_timers(
    each_loop: AbstractEventLoop,
) -> None:
    async def coroutine_function() -> None: ...

    each_loop.set_debug(True)
    at: Callable[[float, object], object] = each_loop.call_at  # type: ignore[assignment]
    later: Callable[[float, object], object] = each_loop.call_later  # type: ignore[assignment]
    # Stock asyncio's call_later calls call_at, which its messages name.
    for schedule, name in ((at, "call_at"), (later, "call_(at|later)")):
        with pytest.raises(TypeError, match=rf"^a callable object was expected by {name}\(\), got"):
            schedule(0, "not callable")
        with pytest.raises(TypeError, match=rf"^coroutines cannot be used with {name}\(\)$"):
            schedule(0, coroutine_function)


def test_closed_loop_refuses_timers(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.call_later(0, callback)
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.call_at(0, callback)


# ── far deadlines ────────────────────────────────────────────────


@pytest.mark.parametrize("delay", [25 * 3600.0, 1e9, 1e12, 1e18, 1e300, float("inf")])
def test_far_deadline_does_not_hold_other_timers_back(
    each_loop: AbstractEventLoop, delay: float
) -> None:
    ran: list[str] = []
    handle = each_loop.call_later(delay, ran.append, "far")
    each_loop.call_later(0.001, ran.append, "near")
    run_until(each_loop, each_loop.time() + 0.005)
    assert ran == ["near"]
    assert handle.when() >= delay
    handle.cancel()
    run_turns(each_loop)
    assert ran == ["near"]


def test_loop_that_only_has_a_far_deadline_sleeps_and_wakes(each_loop: AbstractEventLoop) -> None:
    each_loop.call_later(1e10, callback)
    thread = threading.Thread(target=each_loop.call_soon_threadsafe, args=(each_loop.stop,))
    each_loop.call_soon(thread.start)
    each_loop.run_forever()
    thread.join()


# ── handles ──────────────────────────────────────────────────────


def test_timer_handle_is_an_asyncio_timer_handle(each_loop: AbstractEventLoop) -> None:
    for handle in (each_loop.call_later(5, callback), each_loop.call_at(5, callback)):
        assert isinstance(handle, asyncio.TimerHandle)
        assert isinstance(handle, asyncio.Handle)
        assert handle.cancelled() is False


def test_when_returns_the_deadline(each_loop: AbstractEventLoop) -> None:
    for when in (0, 1.5, 123456789.000000001, each_loop.time(), float("inf")):
        assert each_loop.call_at(when, callback).when() == when
    before = each_loop.time()
    handle = each_loop.call_later(10, callback)
    assert before + 10 <= handle.when() <= each_loop.time() + 10
    handle.cancel()
    assert before + 10 <= handle.when() <= each_loop.time() + 10


def test_timer_handles_are_ordered_by_their_deadlines(each_loop: AbstractEventLoop) -> None:
    early = each_loop.call_at(100.0, callback)
    late = each_loop.call_at(200.0, callback)
    also_late = each_loop.call_at(200.0, callback)
    other = each_loop.call_at(200.0, each_loop.stop)
    assert early < late <= also_late
    assert early <= late
    assert late > early
    assert late >= also_late >= early
    assert not late < also_late
    assert not late > also_late
    # Equal deadlines with different callbacks are neither less nor equal.
    assert not late <= other
    assert not late >= other
    assert sorted([late, early]) == [early, late]


def test_timer_handles_are_equal_if_deadline_callback_and_state_are(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[int] = []
    handle = each_loop.call_at(100.0, ran.append, 1)
    assert handle == each_loop.call_at(100.0, ran.append, 1)
    assert handle != each_loop.call_at(100.5, ran.append, 1)
    assert handle != each_loop.call_at(100.0, ran.append, 2)
    assert handle != each_loop.call_at(100.0, callback)
    cancelled = each_loop.call_at(100.0, ran.append, 1)
    cancelled.cancel()
    assert handle != cancelled
    assert handle != "not a handle"
    assert handle != 100.0
    assert hash(handle) == hash(cancelled) == hash(100.0)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_timer_handle_is_not_ordered_against_other_types(
    each_loop: AbstractEventLoop, compare: Callable[[object, object], bool]
) -> None:
    handle = each_loop.call_at(100.0, callback)
    with pytest.raises(TypeError, match="not supported between instances"):
        compare(handle, 100.0)
    with pytest.raises(TypeError, match="not supported between instances"):
        compare(handle, each_loop.call_soon(callback))


def test_timer_handle_repr_names_deadline_callback_and_source(
    each_loop: AbstractEventLoop,
) -> None:
    source = f"{__file__}:{callback.__code__.co_firstlineno}"
    handle = each_loop.call_at(123.5, callback)
    assert repr(handle) == f"<TimerHandle when=123.5 callback() at {source}>"
    handle.cancel()
    assert repr(handle) == "<TimerHandle cancelled when=123.5>"


def test_timer_handle_repr_in_debug_mode_shows_where_it_was_created(
    each_loop: AbstractEventLoop,
) -> None:
    each_loop.set_debug(True)
    at = each_loop.call_at(123.5, callback)
    later = each_loop.call_later(5, callback)
    line = sys._getframe().f_lineno
    assert f"created at {__file__}:{line - 2}>" in repr(at)
    assert f"created at {__file__}:{line - 1}>" in repr(later)
    at.cancel()
    assert repr(at).startswith("<TimerHandle cancelled when=123.5 callback() at ")


# ── cancelling ───────────────────────────────────────────────────


def test_cancelled_timer_never_runs(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    handles = [each_loop.call_later(-10 + number, ran.append, number) for number in range(5)]
    for number in (0, 2, 4):
        handles[number].cancel()
        handles[number].cancel()
    assert [handle.cancelled() for handle in handles] == [True, False, True, False, True]
    run_turns(each_loop, 2)
    assert ran == [1, 3]


def test_timer_cancelled_by_another_of_the_same_turn_does_not_run(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[str] = []
    victim = each_loop.call_later(-1, ran.append, "victim")
    each_loop.call_later(-2, victim.cancel)
    run_turns(each_loop, 2)
    assert ran == []


def test_timer_cancelled_by_a_callback_of_its_turn_does_not_run(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[str] = []
    victim = each_loop.call_later(0.001, ran.append, "victim")

    def cancel_when_due() -> None:
        while each_loop.time() <= victim.when():
            pass
        victim.cancel()

    each_loop.call_soon(cancel_when_due)
    run_until(each_loop, victim.when() + 0.001)
    assert ran == []


def test_cancelling_a_timer_that_ran_changes_only_the_handle(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    handle = each_loop.call_later(-1, ran.append, "once")
    run_turns(each_loop)
    handle.cancel()
    assert handle.cancelled()
    run_turns(each_loop)
    assert ran == ["once"]


# ── rescheduling ─────────────────────────────────────────────────


def test_timer_may_reschedule_itself(each_loop: AbstractEventLoop) -> None:
    times: list[float] = []

    def tick(when: float) -> None:
        times.append(each_loop.time())
        if len(times) == 20:
            each_loop.stop()
        else:
            each_loop.call_at(when + 0.001, tick, when + 0.001)

    start = each_loop.time()
    each_loop.call_at(start, tick, start)
    each_loop.run_forever()
    assert all(now >= start + number * 0.001 for number, now in enumerate(times))
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))


def test_exception_in_a_timer_does_not_stop_the_others(each_loop: AbstractEventLoop) -> None:
    handler_calls: list[dict[str, object]] = []
    each_loop.set_exception_handler(lambda _loop, context: handler_calls.append(context))
    ran: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    failing = each_loop.call_later(-2, fail)
    each_loop.call_later(-1, ran.append, "next")
    run_turns(each_loop)
    assert ran == ["next"]
    (call,) = handler_calls
    assert call["handle"] is failing
    assert isinstance(call["exception"], ZeroDivisionError)


# ── sleep, wait_for, timeout ─────────────────────────────────────


def test_sleep_returns_its_result_after_the_delay(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        start = each_loop.time()
        assert await asyncio.sleep(0.01, "slept") == "slept"
        assert each_loop.time() - start >= 0.01 - CLOCK_RESOLUTION
        assert await asyncio.sleep(-1, "at once") == "at once"

    each_loop.run_until_complete(main())


def test_sleeps_end_in_the_order_of_their_deadlines(each_virtual_loop: AbstractEventLoop) -> None:
    ended: list[tuple[int, float]] = []
    began = each_virtual_loop.time()

    async def doze(number: int) -> None:
        await asyncio.sleep(number * 600)
        ended.append((number, each_virtual_loop.time() - began))

    async def main() -> None:
        await asyncio.gather(*(doze(number) for number in (3, 1, 4, 2, 5)))

    each_virtual_loop.run_until_complete(main())
    assert [number for number, _ in ended] == [1, 2, 3, 4, 5]
    assert [passed for _, passed in ended] == pytest.approx([600, 1200, 1800, 2400, 3000], abs=1e-6)


def test_wait_for_raises_timeout_error_and_cancels(each_virtual_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        watch = Stopwatch(each_virtual_loop)
        future = each_virtual_loop.create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 600)
        assert watch.shows(600)
        assert future.cancelled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(each_virtual_loop.create_future(), 0)
        assert await asyncio.wait_for(asyncio.sleep(0, "in time"), 60) == "in time"
        assert watch.shows(0)
        assert await asyncio.wait_for(asyncio.sleep(59, "in time"), 60) == "in time"
        assert watch.shows(59)

    each_virtual_loop.run_until_complete(main())


def test_timeout_cancels_its_body_and_raises_timeout_error(
    each_virtual_loop: AbstractEventLoop,
) -> None:
    async def main() -> None:
        watch = Stopwatch(each_virtual_loop)
        with pytest.raises(TimeoutError):
            await expire(each_virtual_loop.time() + 600)
        assert watch.shows(600)
        with pytest.raises(TimeoutError):
            await expire(each_virtual_loop.time() - 1)
        assert watch.shows(0)

    each_virtual_loop.run_until_complete(main())


def test_timeout_may_be_rescheduled_and_lifted(each_virtual_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        watch = Stopwatch(each_virtual_loop)
        async with asyncio.timeout(60) as lifted:
            lifted.reschedule(None)
            await asyncio.sleep(600)
        assert not lifted.expired()
        assert watch.shows(600)
        with pytest.raises(TimeoutError):
            await expire_early()
        assert watch.shows(60)
        async with asyncio.timeout(None):
            await asyncio.sleep(600)
        assert watch.shows(600)

    each_virtual_loop.run_until_complete(main())


def test_thousand_timeouts_do_not_expire_after_their_body(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> int:
        count = 0
        for _ in range(1000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0)
                count += 1
        return count

    assert each_loop.run_until_complete(main()) == 1000
