"""Callbacks: their order, arguments and contexts, their handles, and how a run starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import sys
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator

import pytest
from support.loops import LoopFactory, on_io_uring, run_turns
from support.roles import record_handler_calls

import uringloop

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


class Token:
    """An object that can be weakly referenced."""

    def method(self, argument: object) -> None:
        """A callback that keeps its owner alive."""


async def nothing() -> None:
    """A coroutine that returns at once."""


def callback() -> None:
    """A callback with a place in the source."""


def is_stock(loop: AbstractEventLoop) -> bool:
    return isinstance(loop, asyncio.SelectorEventLoop)


# ── order and arguments ──────────────────────────────────────────


def test_callbacks_run_in_the_order_they_were_scheduled(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    for number in range(10_000):
        each_loop.call_soon(ran.append, number)
    run_turns(each_loop)
    assert ran == list(range(10_000))


def test_callback_receives_its_arguments(each_loop: AbstractEventLoop) -> None:
    calls: list[tuple[object, ...]] = []

    def collect(*args: object) -> None:
        calls.append(args)

    each_loop.call_soon(collect)
    each_loop.call_soon(collect, None)
    each_loop.call_soon(collect, 1, "two", [3])
    each_loop.call_soon(collect, *range(20))
    run_turns(each_loop)
    assert calls == [(), (None,), (1, "two", [3]), tuple(range(20))]


def test_callback_scheduled_by_a_callback_runs_in_the_next_turn(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        each_loop.call_soon(ran.append, "third")

    each_loop.call_soon(first)
    each_loop.call_soon(ran.append, "second")
    run_turns(each_loop)
    assert ran == ["first", "second"]
    run_turns(each_loop)
    assert ran == ["first", "second", "third"]


def test_threadsafe_and_plain_callbacks_share_one_queue(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    for number in range(100):
        schedule = each_loop.call_soon_threadsafe if number % 2 else each_loop.call_soon
        schedule(ran.append, number)
    run_turns(each_loop)
    assert ran == list(range(100))


def test_one_callback_scheduled_twice_runs_twice(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    first = each_loop.call_soon(ran.append, 1)
    second = each_loop.call_soon(ran.append, 1)
    assert first is not second
    run_turns(each_loop)
    assert ran == [1, 1]


def test_chain_of_ten_thousand_callbacks_takes_a_turn_each(each_loop: AbstractEventLoop) -> None:
    left = 10_000

    def step() -> None:
        nonlocal left
        left -= 1
        if left:
            each_loop.call_soon(step)
        else:
            each_loop.stop()

    each_loop.call_soon(step)
    each_loop.run_forever()
    assert left == 0


def test_callback_left_by_a_stopped_run_runs_in_the_next(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    each_loop.call_soon(each_loop.call_soon, ran.append, "later")
    run_turns(each_loop)
    assert ran == []
    run_turns(each_loop)
    assert ran == ["later"]


def test_finished_callback_releases_its_arguments(each_loop: AbstractEventLoop) -> None:
    token = Token()
    watch = weakref.ref(token)
    each_loop.call_soon(id, token)
    del token
    assert watch() is not None
    run_turns(each_loop)
    assert watch() is None


# ── contexts ─────────────────────────────────────────────────────


def test_callback_runs_in_a_copy_of_the_context_that_scheduled_it(
    each_loop: AbstractEventLoop,
) -> None:
    seen: list[str] = []

    def look() -> None:
        seen.append(VAR.get())
        VAR.set("changed by the callback")

    outer = contextvars.copy_context()
    outer.run(VAR.set, "scheduled")
    outer.run(each_loop.call_soon, look)
    outer.run(VAR.set, "changed afterwards")
    outer.run(each_loop.call_soon_threadsafe, look)
    run_turns(each_loop)
    assert seen == ["scheduled", "changed afterwards"]
    assert outer[VAR] == "changed afterwards"
    assert VAR.get() == "unset"


def test_callbacks_given_one_context_share_its_changes(each_loop: AbstractEventLoop) -> None:
    seen: list[str] = []
    context = contextvars.copy_context()
    each_loop.call_soon(VAR.set, "shared", context=context)
    each_loop.call_soon(lambda: seen.append(VAR.get()), context=context)
    each_loop.call_soon_threadsafe(lambda: seen.append(VAR.get()), context=context)
    each_loop.call_soon(lambda: seen.append(VAR.get()))
    run_turns(each_loop)
    assert seen == ["shared", "shared", "unset"]
    assert context[VAR] == "shared"


def test_context_is_restored_after_a_callback_that_raises(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    seen: list[str] = []

    def fail() -> None:
        VAR.set("left behind")
        raise ZeroDivisionError

    each_loop.call_soon(fail)
    each_loop.call_soon(lambda: seen.append(VAR.get()))
    run_turns(each_loop)
    assert seen == ["unset"]
    assert len(handler_calls) == 1


def test_context_that_is_already_entered_is_logged(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    context = contextvars.copy_context()

    def reenter() -> None:
        each_loop.call_soon(callback, context=context)
        run_turns(each_loop)

    context.run(reenter)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)
    assert "already entered" in str(record.exc_info[1])


# ── refused callbacks ────────────────────────────────────────────


@pytest.mark.parametrize("method", ["call_soon", "call_soon_threadsafe"])
def test_debug_mode_refuses_non_callables(each_loop: AbstractEventLoop, method: str) -> None:
    each_loop.set_debug(True)
    schedule: Callable[[object], object] = getattr(each_loop, method)
    for wrong in (None, 42, "name"):
        wording = f"a callable object was expected by {method}(), got {wrong!r}"
        with pytest.raises(TypeError, match=f"^{re.escape(wording)}$"):
            schedule(wrong)


@pytest.mark.parametrize("method", ["call_soon", "call_soon_threadsafe"])
def test_debug_mode_refuses_coroutines(each_loop: AbstractEventLoop, method: str) -> None:
    each_loop.set_debug(True)
    schedule: Callable[[object], object] = getattr(each_loop, method)
    wording = re.escape(f"coroutines cannot be used with {method}()")
    with pytest.raises(TypeError, match=f"^{wording}$"):
        schedule(nothing)
    coroutine = nothing()
    with pytest.raises(TypeError, match=f"^{wording}$"):
        schedule(coroutine)
    coroutine.close()


def test_without_debug_mode_a_non_callable_is_reported_when_it_runs(
    each_loop: AbstractEventLoop,
) -> None:
    handler_calls = record_handler_calls(each_loop)
    schedule: Callable[[object], object] = each_loop.call_soon  # type: ignore[assignment]
    schedule(None)
    run_turns(each_loop)
    (call,) = handler_calls
    assert isinstance(call["exception"], TypeError)
    assert call["message"] == "Exception in callback None()"


@pytest.mark.parametrize("method", ["call_soon", "call_soon_threadsafe"])
def test_closed_loop_refuses_callbacks(each_loop: AbstractEventLoop, method: str) -> None:
    each_loop.close()
    schedule: Callable[[object], object] = getattr(each_loop, method)
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        schedule(callback)


# ── handles ──────────────────────────────────────────────────────


def test_handle_is_an_asyncio_handle(each_loop: AbstractEventLoop) -> None:
    for handle in (each_loop.call_soon(callback), each_loop.call_soon_threadsafe(callback)):
        assert isinstance(handle, asyncio.Handle)
        assert not isinstance(handle, asyncio.TimerHandle)
        assert handle.cancelled() is False


def test_cancelled_handle_does_not_run(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    handles = [each_loop.call_soon(ran.append, number) for number in range(4)]
    handles[1].cancel()
    handles[1].cancel()
    assert [handle.cancelled() for handle in handles] == [False, True, False, False]
    run_turns(each_loop)
    assert ran == [0, 2, 3]


def test_callback_may_cancel_another_of_the_same_turn(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    victims: list[asyncio.Handle] = []
    each_loop.call_soon(lambda: victims[0].cancel())
    victims.append(each_loop.call_soon(ran.append, "second"))
    each_loop.call_soon(ran.append, "third")
    run_turns(each_loop)
    assert ran == ["third"]


def test_callback_may_cancel_its_own_handle(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    ran: list[str] = []

    def once() -> None:
        handle.cancel()
        ran.append("once")

    handle = each_loop.call_soon(once)
    run_turns(each_loop, 2)
    assert ran == ["once"]
    assert handler_calls == []


def test_cancel_after_the_callback_ran_changes_only_the_handle(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[int] = []
    handle = each_loop.call_soon(ran.append, 1)
    run_turns(each_loop)
    handle.cancel()
    assert handle.cancelled()
    run_turns(each_loop)
    assert ran == [1]


def test_cancel_releases_the_callback_and_its_arguments(each_loop: AbstractEventLoop) -> None:
    argument, owner = Token(), Token()
    watches = [weakref.ref(argument), weakref.ref(owner)]
    handle = each_loop.call_soon(owner.method, argument)
    del argument, owner
    assert None not in [watch() for watch in watches]
    handle.cancel()
    assert [watch() for watch in watches] == [None, None]


def test_handle_can_be_weakly_referenced(each_loop: AbstractEventLoop) -> None:
    handle = each_loop.call_soon(callback)
    watch = weakref.ref(handle)
    assert watch() is handle
    del handle
    run_turns(each_loop)
    assert watch() is None


def test_handle_repr_names_the_callback_and_its_source(each_loop: AbstractEventLoop) -> None:
    handle = each_loop.call_soon(callback)
    line = callback.__code__.co_firstlineno
    assert repr(handle) == f"<Handle callback() at {__file__}:{line}>"
    handle.cancel()
    assert repr(handle) == "<Handle cancelled>"


def test_handle_repr_in_debug_mode_survives_cancel(each_loop: AbstractEventLoop) -> None:
    each_loop.set_debug(True)
    handle = each_loop.call_soon(callback)
    created = f"created at {__file__}:{sys._getframe().f_lineno - 1}"
    source = f"callback() at {__file__}:{callback.__code__.co_firstlineno}"
    assert repr(handle) == f"<Handle {source} {created}>"
    handle.cancel()
    assert repr(handle) == f"<Handle cancelled {source} {created}>"


def test_handle_gives_its_context(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("Handle.get_context is new in 3.12")
    context = contextvars.copy_context()
    assert each_loop.call_soon(callback, context=context).get_context() is context
    copied = each_loop.call_soon(callback).get_context()
    assert isinstance(copied, contextvars.Context)
    assert copied is not context


# ── starting and stopping a run ──────────────────────────────────


def test_stop_before_the_run_lets_one_turn_happen(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    each_loop.call_soon(each_loop.call_soon, ran.append, "second turn")
    each_loop.call_soon(ran.append, "first turn")
    each_loop.stop()
    each_loop.run_forever()
    assert ran == ["first turn"]


def test_stop_inside_a_callback_finishes_the_turn(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    each_loop.call_soon(each_loop.stop)
    each_loop.call_soon(ran.append, "same turn")
    each_loop.call_soon(each_loop.stop)
    each_loop.call_soon(each_loop.call_soon, ran.append, "next turn")
    each_loop.run_forever()
    assert ran == ["same turn"]


def test_stop_does_not_outlive_its_run(each_loop: AbstractEventLoop) -> None:
    each_loop.stop()
    each_loop.stop()
    each_loop.run_forever()
    assert each_loop.run_until_complete(asyncio.sleep(0, "finished")) == "finished"


def test_loop_runs_forever_many_times(each_loop: AbstractEventLoop) -> None:
    running: list[bool] = []
    for _ in range(100):
        each_loop.call_soon(lambda: running.append(each_loop.is_running()))
        run_turns(each_loop)
        assert not each_loop.is_running()
    assert running == [True] * 100


def test_run_until_complete_inside_a_run_is_refused(each_loop: AbstractEventLoop) -> None:
    async def main() -> str:
        inner = nothing()
        with pytest.raises(RuntimeError, match=r"^This event loop is already running$"):
            each_loop.run_until_complete(inner)
        inner.close()
        assert asyncio.get_running_loop() is each_loop
        return await asyncio.sleep(0, "outer goes on")

    assert each_loop.run_until_complete(main()) == "outer goes on"


def test_run_forever_inside_a_run_is_refused(each_loop: AbstractEventLoop) -> None:
    if is_stock(each_loop) and sys.version_info[:2] == (3, 13):
        pytest.skip("3.13.0 forgets the outer run when it refuses the inner one")

    async def main() -> str:
        with pytest.raises(RuntimeError, match=r"^This event loop is already running$"):
            each_loop.run_forever()
        assert asyncio.get_running_loop() is each_loop
        assert each_loop.is_running()
        return await asyncio.sleep(0, "outer goes on")

    assert each_loop.run_until_complete(main()) == "outer goes on"


def test_running_another_loop_inside_a_run_is_refused(
    each_loop: AbstractEventLoop, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        inner = nothing()
        wording = "^Cannot run the event loop while another loop is running$"
        with contextlib.closing(loop_factory()) as other:
            with pytest.raises(RuntimeError, match=wording):
                other.run_until_complete(inner)
            assert not other.is_running()
        inner.close()
        assert asyncio.get_running_loop() is each_loop

    each_loop.run_until_complete(main())


def test_loops_of_both_kinds_alternate_in_one_thread(each_loop: AbstractEventLoop) -> None:
    with contextlib.closing(asyncio.SelectorEventLoop()) as other:
        for _ in range(10):
            assert each_loop.run_until_complete(asyncio.sleep(0, 1)) == 1
            assert other.run_until_complete(asyncio.sleep(0, 2)) == 2


def test_run_until_complete_returns_the_result(each_loop: AbstractEventLoop) -> None:
    class Answer:
        def __await__(self) -> Generator[object, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 42

    future: asyncio.Future[int] = each_loop.create_future()
    each_loop.call_soon(future.set_result, 42)
    assert each_loop.run_until_complete(future) == 42
    assert each_loop.run_until_complete(future) == 42
    assert each_loop.run_until_complete(Answer()) == 42
    assert each_loop.run_until_complete(asyncio.sleep(0, 42)) == 42


def test_run_until_complete_raises_the_exception(each_loop: AbstractEventLoop) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("from the coroutine")

    with pytest.raises(ZeroDivisionError, match="from the coroutine"):
        each_loop.run_until_complete(fail())
    future: asyncio.Future[None] = each_loop.create_future()
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        each_loop.run_until_complete(future)


def test_run_until_complete_refuses_the_future_of_another_loop(
    each_loop: AbstractEventLoop, loop_factory: LoopFactory
) -> None:
    with contextlib.closing(loop_factory()) as other:
        future = other.create_future()
        with pytest.raises(ValueError, match="belongs to a different loop"):
            each_loop.run_until_complete(future)


def test_run_until_complete_refuses_what_cannot_be_awaited(each_loop: AbstractEventLoop) -> None:
    run: Callable[[object], object] = each_loop.run_until_complete  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"An asyncio.Future, a coroutine or an awaitable"):
        run("not awaitable")


def test_run_until_complete_that_is_stopped_raises(each_loop: AbstractEventLoop) -> None:
    future: asyncio.Future[str] = each_loop.create_future()
    each_loop.call_soon(each_loop.stop)
    wording = r"^Event loop stopped before Future completed\.$"
    with pytest.raises(RuntimeError, match=wording):
        each_loop.run_until_complete(future)
    # The future no longer stops the loop: the second callback runs in a later turn.
    ran: list[str] = []
    future.set_result("late")
    each_loop.call_soon(each_loop.call_soon, each_loop.call_soon, each_loop.stop)
    each_loop.call_soon(each_loop.call_soon, ran.append, "later turn")
    each_loop.run_forever()
    assert ran == ["later turn"]


def test_closed_loop_does_not_run(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.run_forever()
    coroutine = nothing()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.run_until_complete(coroutine)
    coroutine.close()
    assert not each_loop.is_running()


# ── the running loop ─────────────────────────────────────────────


def test_running_loop_is_known_inside_callbacks_and_coroutines_only(
    each_loop: AbstractEventLoop,
) -> None:
    seen: list[AbstractEventLoop] = []

    async def main() -> AbstractEventLoop:
        return asyncio.get_running_loop()

    assert asyncio._get_running_loop() is None
    each_loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
    assert each_loop.run_until_complete(main()) is each_loop
    assert seen == [each_loop]
    assert asyncio._get_running_loop() is None


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_running_loop_is_forgotten_when_an_exception_ends_the_run(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        raise leaving

    each_loop.call_soon(leave)
    with pytest.raises(leaving):
        each_loop.run_forever()
    assert asyncio._get_running_loop() is None
    assert not each_loop.is_running()


# ── clock, futures, kernel entries ───────────────────────────────


def test_time_is_the_monotonic_clock_now(each_loop: AbstractEventLoop) -> None:
    def check() -> None:
        for _ in range(1000):
            before = time.monotonic()
            now = each_loop.time()
            assert before <= now <= time.monotonic()

    assert isinstance(each_loop.time(), float)
    check()
    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon(check)
    run_turns(each_loop)
    assert handler_calls == []


def test_create_future_makes_an_asyncio_future_of_the_loop(each_loop: AbstractEventLoop) -> None:
    future = each_loop.create_future()
    assert type(future) is asyncio.Future
    assert future.get_loop() is each_loop
    assert not future.done()


@on_io_uring
def test_turns_without_submissions_do_not_enter_the_kernel(loop: uringloop.Loop) -> None:
    async def spin() -> None:
        for _ in range(100_000):
            await asyncio.sleep(0)

    before = loop._kernel_entries
    loop.run_until_complete(spin())
    assert loop._kernel_entries - before < 100
