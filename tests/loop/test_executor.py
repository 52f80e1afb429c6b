"""run_in_executor(), to_thread(), and the default executor with its shutdown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine

import pytest
from support.leaks import threads_left
from support.loops import LoopFactory, run_turns

import uringloop

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")

# Seconds. No wait in these tests takes a second; a failing test must not block the suite.
PATIENCE = 20.0


def fail() -> None:
    raise ZeroDivisionError("from the executor")


def thread_name() -> str:
    return threading.current_thread().name


def shutdown(loop: AbstractEventLoop, timeout: float | None) -> Coroutine[object, object, None]:
    """Call shutdown_default_executor() with a timeout, which the type stubs do not declare."""
    ending: Callable[[float | None], Coroutine[object, object, None]]
    ending = loop.shutdown_default_executor  # type: ignore[assignment]
    return ending(timeout)


# ── run_in_executor ──────────────────────────────────────────────


def test_function_runs_in_a_thread_of_the_default_executor(each_loop: AbstractEventLoop) -> None:
    async def main() -> str:
        future = each_loop.run_in_executor(None, thread_name)
        assert isinstance(future, asyncio.Future)
        return await future

    assert each_loop.run_until_complete(main()).startswith("asyncio_")


def test_function_receives_its_arguments(each_loop: AbstractEventLoop) -> None:
    async def main() -> int:
        return await each_loop.run_in_executor(None, max, 1, 3, 2)

    assert each_loop.run_until_complete(main()) == 3


def test_exception_of_the_function_reaches_the_awaiter(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="from the executor"):
            await each_loop.run_in_executor(None, fail)

    each_loop.run_until_complete(main())


def test_result_wakes_an_idle_loop(each_loop: AbstractEventLoop) -> None:
    for value in range(50):
        future = each_loop.run_in_executor(None, abs, -value)
        assert each_loop.run_until_complete(future) == value


def test_hundred_functions_at_once_all_finish(each_loop: AbstractEventLoop) -> None:
    async def main() -> list[str]:
        return await asyncio.gather(
            *(each_loop.run_in_executor(None, hex, value) for value in range(100))
        )

    assert each_loop.run_until_complete(main()) == [hex(value) for value in range(100)]


def test_executor_may_be_given(each_loop: AbstractEventLoop) -> None:
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        future = each_loop.run_in_executor(executor, thread_name)
        assert each_loop.run_until_complete(future) == "mine_0"


def test_cancelling_a_queued_function_keeps_it_from_running(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(PATIENCE)

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        holding = each_loop.run_in_executor(executor, hold)
        assert entered.wait(PATIENCE)
        queued = each_loop.run_in_executor(executor, ran.append, "ran")
        assert queued.cancel()
        run_turns(each_loop, 2)
        release.set()
        each_loop.run_until_complete(holding)
    assert queued.cancelled()
    assert ran == []


def test_result_after_cancellation_is_dropped(each_loop: AbstractEventLoop) -> None:
    handler_calls: list[dict[str, object]] = []
    each_loop.set_exception_handler(lambda _loop, context: handler_calls.append(context))
    entered, release = threading.Event(), threading.Event()

    def hold() -> str:
        entered.set()
        release.wait(PATIENCE)
        return "late"

    future = each_loop.run_in_executor(None, hold)
    assert entered.wait(PATIENCE)
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        each_loop.run_until_complete(future)
    release.set()
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    run_turns(each_loop, 2)
    assert handler_calls == []


def test_result_after_close_is_dropped(loop_factory: LoopFactory) -> None:
    release = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        with contextlib.closing(loop_factory()) as loop:
            future = loop.run_in_executor(executor, release.wait, PATIENCE)
        release.set()
    assert not future.done()


def test_close_does_not_wait_for_the_default_executor(loop_factory: LoopFactory) -> None:
    entered, release, left = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(PATIENCE)
        left.set()

    loop = loop_factory()
    threads = set(threading.enumerate())
    loop.run_in_executor(None, hold)
    assert entered.wait(PATIENCE)
    loop.close()
    assert not left.is_set()
    release.set()
    assert not threads_left(threads)
    assert left.is_set()


def test_closed_loop_refuses_functions(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.run_in_executor(None, fail)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        pytest.raises(RuntimeError, match=r"^Event loop is closed$"),
    ):
        each_loop.run_in_executor(executor, fail)


def test_debug_mode_refuses_coroutines_and_non_callables(each_loop: AbstractEventLoop) -> None:
    async def coroutine_function() -> None: ...

    each_loop.set_debug(True)
    run: Callable[[None, object], object] = each_loop.run_in_executor  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^coroutines cannot be used with run_in_executor\(\)$"):
        run(None, coroutine_function)
    wording = r"^a callable object was expected by run_in_executor\(\), got 'spam'$"
    with pytest.raises(TypeError, match=wording):
        run(None, "spam")


# ── to_thread ────────────────────────────────────────────────────


def test_to_thread_passes_keywords_and_the_context(each_loop: AbstractEventLoop) -> None:
    def inside(first: str, *, second: str) -> tuple[str, str, str]:
        value = VAR.get()
        VAR.set("changed in the thread")
        return first, second, value

    async def main() -> None:
        VAR.set("of the task")
        assert await asyncio.to_thread(inside, "a", second="b") == ("a", "b", "of the task")
        assert VAR.get() == "of the task"

    each_loop.run_until_complete(main())


def test_to_thread_raises_the_exception_of_the_function(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="from the executor"):
            await asyncio.to_thread(fail)

    each_loop.run_until_complete(main())


def test_loop_keeps_running_while_threads_work(each_loop: AbstractEventLoop) -> None:
    release = threading.Event()

    async def main() -> bool:
        waiting = asyncio.ensure_future(asyncio.to_thread(release.wait, PATIENCE))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        release.set()
        return await waiting

    assert each_loop.run_until_complete(main()) is True


# ── the default executor ─────────────────────────────────────────


def test_default_executor_may_be_set(each_loop: AbstractEventLoop) -> None:
    executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine")
    each_loop.set_default_executor(executor)
    assert each_loop.run_until_complete(asyncio.to_thread(thread_name)) == "mine_0"
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(thread_name)


def test_default_executor_must_be_a_thread_pool(each_loop: AbstractEventLoop) -> None:
    wrong = concurrent.futures.Executor()
    for executor in (wrong, None):
        with pytest.raises(TypeError, match=r"^executor must be ThreadPoolExecutor instance$"):
            each_loop.set_default_executor(executor)  # type: ignore[arg-type]


def test_close_shuts_the_default_executor_down(each_loop: AbstractEventLoop) -> None:
    executor = concurrent.futures.ThreadPoolExecutor(1)
    each_loop.set_default_executor(executor)
    each_loop.close()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(thread_name)


def test_shutdown_waits_for_running_functions_and_ends_the_threads(
    each_loop: AbstractEventLoop,
) -> None:
    threads = set(threading.enumerate())
    entered, release = threading.Event(), threading.Event()
    finished: list[str] = []

    def hold() -> None:
        entered.set()
        release.wait(PATIENCE)
        finished.append("held")

    async def main() -> None:
        holding = each_loop.run_in_executor(None, hold)
        assert entered.wait(PATIENCE)
        each_loop.call_soon(release.set)
        await each_loop.shutdown_default_executor()
        assert finished == ["held"]
        await holding

    each_loop.run_until_complete(main())
    assert not set(threading.enumerate()) - threads


def test_default_executor_is_refused_after_its_shutdown(each_loop: AbstractEventLoop) -> None:
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    with pytest.raises(RuntimeError, match=r"^Executor shutdown has been called$"):
        each_loop.run_in_executor(None, thread_name)
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        future = each_loop.run_in_executor(executor, thread_name)
        assert each_loop.run_until_complete(future) == "mine_0"


def test_shutdown_gives_up_after_its_timeout(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 13) and not isinstance(each_loop, uringloop.Loop):
        pytest.skip("3.11 has no timeout, and 3.12.1 waits for the threads all the same")
    threads = set(threading.enumerate())
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(PATIENCE)

    future = each_loop.run_in_executor(None, hold)
    assert entered.wait(PATIENCE)
    wording = r"^The executor did not finishing joining its threads within 0\.01 seconds\.$"
    with pytest.warns(RuntimeWarning, match=wording):
        each_loop.run_until_complete(shutdown(each_loop, 0.01))
    release.set()
    assert not threads_left(threads)
    each_loop.run_until_complete(future)


def test_shutdown_within_its_timeout_is_quiet(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 12) and not isinstance(each_loop, uringloop.Loop):
        pytest.skip("stock shutdown_default_executor has a timeout since 3.12")
    each_loop.run_until_complete(each_loop.run_in_executor(None, thread_name))
    each_loop.run_until_complete(shutdown(each_loop, PATIENCE))
    with pytest.raises(RuntimeError, match=r"^Executor shutdown has been called$"):
        each_loop.run_in_executor(None, thread_name)
