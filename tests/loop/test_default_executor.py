"""The threads of the default executor: their number and order, ends, exceptions, references."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import os
import re
import sys
import sysconfig
import threading
import traceback
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from concurrent.futures.thread import BrokenThreadPool
from typing import Any, TypeVar

import pytest
from support import seccomp
from support.leaks import threads_left
from support.loops import LoopFactory, run_turns
from support.roles import refuse_thread

import uringloop
from uringloop._loop.executors import ThreadPool
from uringloop._loop.jobs import JobQueue
from uringloop._turn import stats

T = TypeVar("T")
PATIENCE = 20.0
THREADS_MAX = min(32, len(os.sched_getaffinity(0)) + 4)


class Gate:
    """Calls that wait until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def pass_through(self, value: T) -> T:
        self.entered.release()
        assert self.opened.wait(PATIENCE)
        return value

    def await_entered(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def run(loop: AbstractEventLoop, function: Callable[..., T], *args: Any) -> T:
    """Run *function* in the default executor and return its result."""
    return loop.run_until_complete(loop.run_in_executor(None, function, *args))


def pool_of(loop: AbstractEventLoop) -> Any:
    pool = loop._default_executor  # type: ignore[attr-defined]
    assert isinstance(pool, concurrent.futures.ThreadPoolExecutor)
    return pool


def pool_like_that_of(loop: AbstractEventLoop, size: int) -> concurrent.futures.ThreadPoolExecutor:
    kind = ThreadPool if isinstance(loop, uringloop.Loop) else concurrent.futures.ThreadPoolExecutor
    return kind(size)


def has_gil() -> bool:
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


def thread_name() -> str:
    return threading.current_thread().name


# ── threads ──────────────────────────────────────────────────────────────────────────────────


def test_an_idle_thread_runs_the_next_call(each_loop: AbstractEventLoop) -> None:
    names = {run(each_loop, thread_name) for _ in range(100)}
    # A thread is not idle yet at the very moment at which it returns a result.
    assert (
        len(names) == 1 if isinstance(each_loop, uringloop.Loop) and has_gil() else len(names) < 5
    )


def test_calls_that_wait_get_threads_up_to_a_maximum(
    each_loop: AbstractEventLoop, gate: Gate
) -> None:
    waiting = [each_loop.run_in_executor(None, gate.pass_through, n) for n in range(64)]
    assert len(pool_of(each_loop)._threads) == THREADS_MAX
    gate.await_entered(THREADS_MAX)
    assert pool_of(each_loop)._work_queue.qsize() == 64 - THREADS_MAX
    gate.opened.set()
    assert each_loop.run_until_complete(asyncio.gather(*waiting)) == list(range(64))
    assert pool_of(each_loop)._work_queue.qsize() == 0
    # The threads are idle now, and wait for calls that come together, too.
    again = [each_loop.run_in_executor(None, abs, -n) for n in range(64)]
    assert each_loop.run_until_complete(asyncio.gather(*again)) == list(range(64))
    assert len(pool_of(each_loop)._threads) == THREADS_MAX


def test_a_call_that_waits_does_not_keep_others_from_idle_threads(
    each_loop: AbstractEventLoop, gate: Gate
) -> None:
    run_together = [each_loop.run_in_executor(None, gate.pass_through, n) for n in range(3)]
    gate.opened.set()
    each_loop.run_until_complete(asyncio.gather(*run_together))
    gate.opened.clear()
    gate.await_entered(3)
    waiting = [each_loop.run_in_executor(None, gate.pass_through, n) for n in range(2)]
    assert run(each_loop, max, 1, 2) == 2
    gate.opened.set()
    assert each_loop.run_until_complete(asyncio.gather(*waiting)) == [0, 1]


def test_threads_keep_their_local_values(each_loop: AbstractEventLoop) -> None:
    local = threading.local()
    each_loop.set_default_executor(ThreadPool(1))

    def count() -> int:
        local.count = getattr(local, "count", 0) + 1
        return int(local.count)

    assert [run(each_loop, count) for _ in range(3)] == [1, 2, 3]


def test_a_call_sees_the_context_of_its_thread(each_loop: AbstractEventLoop) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    assert run(each_loop, variable.get) == "unset"
    each_loop.set_default_executor(ThreadPool(1))
    variable.set("set")
    # Since 3.14 a thread may begin with the context in which it is started.
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    assert run(each_loop, variable.get) == ("set" if inherits else "unset")
    variable.set("changed")
    assert run(each_loop, variable.get) == ("set" if inherits else "unset")


def test_the_executor_takes_other_calls_as_well(each_loop: AbstractEventLoop) -> None:
    assert run(each_loop, abs, -1) == 1
    pool = pool_of(each_loop)
    assert pool._max_workers == THREADS_MAX
    assert pool.submit(pow, 2, exp=3).result(PATIENCE) == 8
    assert list(pool.map(abs, [-1, -2], timeout=PATIENCE)) == [1, 2]
    assert run(each_loop, abs, -1) == 1


def find_no_memory(thread: threading.Thread) -> None:
    raise MemoryError("no memory for a thread")


@pytest.mark.parametrize(
    ("refuse", "error", "words"),
    [
        (refuse_thread, RuntimeError, "can't start new thread"),
        (find_no_memory, MemoryError, "no memory"),
    ],
)
def test_no_thread_can_be_started(
    each_loop: AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[[threading.Thread], None],
    error: type[Exception],
    words: str,
) -> None:
    ran: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(error, match=words):
            each_loop.run_in_executor(None, ran.append, "refused")
    assert run(each_loop, len, "after") == 5
    if isinstance(each_loop, uringloop.Loop):
        # On asyncio it runs, although its caller got an exception.
        assert not ran


@pytest.mark.parametrize("refuse", [refuse_thread, find_no_memory])
def test_one_thread_is_enough_if_no_other_can_be_started(
    loop: uringloop.Loop,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[[threading.Thread], None],
) -> None:
    first = loop.run_in_executor(None, gate.pass_through, 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = loop.run_in_executor(None, gate.pass_through, 2)
    gate.opened.set()
    assert loop.run_until_complete(first) == 1
    assert loop.run_until_complete(second) == 2


# ── the end of a call ────────────────────────────────────────────────────────────────────────


class Special(BaseException):
    """An exception that is no Exception."""


@pytest.mark.parametrize("kind", [ValueError, Special, KeyboardInterrupt, SystemExit])
def test_every_exception_reaches_the_caller(
    each_loop: AbstractEventLoop, kind: type[BaseException]
) -> None:
    def fail() -> None:
        raise kind("from the thread")

    future = each_loop.run_in_executor(None, fail)
    while not future.done():
        run_turns(each_loop, 1)
    exception = future.exception()
    assert type(exception) is kind
    assert exception.args == ("from the thread",)
    assert traceback.extract_tb(exception.__traceback__)[-1].name == "fail"
    # The thread goes on.
    assert run(each_loop, thread_name).startswith("asyncio_")


def test_a_call_handles_no_exception(each_loop: AbstractEventLoop) -> None:
    def fail() -> None:
        assert sys.exc_info() == (None, None, None)
        raise ValueError

    run(each_loop, len, "")
    for _ in range(3):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            run(each_loop, fail)
        assert caught.value.__context__ is None


def test_a_raised_cancelled_error_does_not_cancel_the_future(
    each_loop: AbstractEventLoop,
) -> None:
    def fail() -> None:
        raise asyncio.CancelledError("why")

    async def main() -> BaseException | None:
        future = each_loop.run_in_executor(None, fail)
        [outcome] = await asyncio.gather(future, return_exceptions=True)
        assert not future.cancelled()
        return outcome

    exception = each_loop.run_until_complete(main())
    assert isinstance(exception, asyncio.CancelledError)
    assert exception.args == ("why",)


def test_exceptions_of_concurrent_futures_become_those_of_asyncio(
    each_loop: AbstractEventLoop,
) -> None:
    def cancelled() -> None:
        raise concurrent.futures.CancelledError("from the thread")

    def invalid() -> None:
        raise concurrent.futures.InvalidStateError("from the thread")

    with pytest.raises(asyncio.CancelledError):
        run(each_loop, cancelled)
    with pytest.raises(asyncio.InvalidStateError, match="from the thread"):
        run(each_loop, invalid)


def test_stop_iteration_is_an_error(loop: uringloop.Loop) -> None:
    # On asyncio before 3.12 the caller waits for ever.
    kind = RuntimeError if sys.version_info >= (3, 12) else TypeError
    with pytest.raises(kind, match="StopIteration"):
        run(loop, next, iter(()))


def test_a_cancelled_call_does_not_run(each_loop: AbstractEventLoop, gate: Gate) -> None:
    ran: list[str] = []
    waiting = [each_loop.run_in_executor(None, gate.pass_through, n) for n in range(THREADS_MAX)]
    gate.await_entered(THREADS_MAX)
    cancelled = each_loop.run_in_executor(None, ran.append, "cancelled")
    kept = each_loop.run_in_executor(None, ran.append, "kept")
    assert cancelled.cancel()
    run_turns(each_loop, 2)
    gate.opened.set()
    each_loop.run_until_complete(asyncio.gather(kept, *waiting))
    assert cancelled.cancelled()
    assert ran == ["kept"]


def test_callbacks_of_a_call_come_before_its_result(each_loop: AbstractEventLoop) -> None:
    order: list[str] = []

    def call_back() -> None:
        each_loop.call_soon_threadsafe(order.append, "callback")

    async def main() -> None:
        await each_loop.run_in_executor(None, call_back)
        order.append("result")

    for _ in range(20):
        each_loop.run_until_complete(main())
    # Without a GIL, asyncio may find the call ended before it waits for it.
    if has_gil() or isinstance(each_loop, uringloop.Loop):
        assert order == ["callback", "result"] * 20


def test_calls_work_in_debug_mode(each_loop: AbstractEventLoop) -> None:
    each_loop.set_debug(True)
    assert run(each_loop, max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        run(each_loop, divmod, 1, 0)


def test_a_caller_may_block_until_its_call_has_begun(each_loop: AbstractEventLoop) -> None:
    begun = threading.Event()

    async def main() -> None:
        future = each_loop.run_in_executor(None, begun.set)
        assert begun.wait(PATIENCE)
        await future

    each_loop.run_until_complete(main())


class Argument:
    """What a call gets, and can be referred to weakly."""


def test_nothing_is_kept_of_a_call(each_loop: AbstractEventLoop) -> None:
    def take(argument: Argument) -> Argument:
        return argument

    argument: Argument | None = Argument()
    reference = weakref.ref(argument)
    assert run(each_loop, take, argument) is argument
    del argument
    # On asyncio the future of the last call is in a cycle.
    gc.collect()
    assert reference() is None


def test_a_hundred_thousand_calls(each_loop: AbstractEventLoop) -> None:
    count = 100_000 if isinstance(each_loop, uringloop.Loop) else 1000

    async def main() -> None:
        futures = [each_loop.run_in_executor(None, abs, -n) for n in range(count)]
        assert await asyncio.gather(*futures) == list(range(count))

    each_loop.run_until_complete(main())


def test_calls_are_submitted_if_submit_is_replaced(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    original = concurrent.futures.ThreadPoolExecutor.submit

    def submit(pool: Any, function: Callable[..., T], /, *args: Any) -> Any:
        submitted.append(function)
        return original(pool, function, *args)

    assert run(each_loop, len, "") == 0
    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", submit)
    assert run(each_loop, len, "") == 0
    pool_of(each_loop).submit = lambda *call: submit(pool_of(each_loop), *call)
    assert run(each_loop, len, "") == 0
    assert submitted == [len, len]


class Wrapper:
    """A function with another before it, as wrapt makes it: it passes on what is asked of it."""

    def __init__(self, wrapped: Any, calls: list[object]) -> None:
        self.wrapped = wrapped
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __get__(self, target: object, kind: type) -> Any:
        return Wrapper(self.wrapped.__get__(target, kind), self.calls)

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args[0])
        return self.wrapped(*args)


def test_calls_are_submitted_if_submit_is_wrapped(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    assert run(each_loop, len, "") == 0
    for kind in (concurrent.futures.ThreadPoolExecutor, type(pool_of(each_loop))):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "submit", Wrapper(kind.submit, calls))
            assert run(each_loop, len, "") == 0
    assert calls == [len, len]


def test_calls_are_submitted_if_the_code_of_submit_is_another(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(self: Any, function: Any, /, *args: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result("traced")
        return future

    original = concurrent.futures.ThreadPoolExecutor.submit
    monkeypatch.setitem(original.__globals__, "concurrent", concurrent)
    monkeypatch.setattr(original, "__code__", submit.__code__)
    assert str(run(each_loop, len, "")) == "traced"


def test_functions_in_c_do_not_keep_the_loop_from_running(each_loop: AbstractEventLoop) -> None:
    numbers = list(range(100_000))

    async def main() -> int:
        # One thread, so that the loop has a rival for the GIL, and no core for itself.
        await each_loop.run_in_executor(None, int)
        calls = [each_loop.run_in_executor(None, sum, numbers) for _ in range(500)]
        await asyncio.sleep(0.01)
        left = sum(not call.done() for call in calls)
        await asyncio.wait(calls)
        return left

    each_loop.set_default_executor(pool_like_that_of(each_loop, 1))
    assert each_loop.run_until_complete(main()) > 0


def test_calls_work_while_callbacks_are_timed(loop: uringloop.Loop) -> None:
    stats.keep_histograms(loop)
    assert run(loop, max, 1, 2) == 2


# ── shutdown ─────────────────────────────────────────────────────────────────────────────────


def test_shutdown_may_cancel_what_waits(each_loop: AbstractEventLoop, gate: Gate) -> None:
    ran: list[str] = []
    threads = set(threading.enumerate())
    begun = [each_loop.run_in_executor(None, gate.pass_through, n) for n in range(THREADS_MAX)]
    gate.await_entered(THREADS_MAX)
    queued = [each_loop.run_in_executor(None, ran.append, "ran") for _ in range(3)]
    pool_of(each_loop).shutdown(wait=False, cancel_futures=True)
    outcome = each_loop.run_until_complete(asyncio.gather(*queued, return_exceptions=True))
    assert [type(one) for one in outcome] == [asyncio.CancelledError] * 3
    with pytest.raises(RuntimeError, match=r"^cannot schedule new futures after shutdown$"):
        each_loop.run_in_executor(None, len, "")
    gate.opened.set()
    assert each_loop.run_until_complete(asyncio.gather(*begun)) == list(range(THREADS_MAX))
    assert not threads_left(threads)
    assert not ran


def test_close_lets_queued_calls_run(loop_factory: LoopFactory, gate: Gate) -> None:
    ran: list[int] = []
    threads = set(threading.enumerate())
    loop = loop_factory()
    for n in range(THREADS_MAX):
        loop.run_in_executor(None, gate.pass_through, n)
    gate.await_entered(THREADS_MAX)
    for n in range(100):
        loop.run_in_executor(None, ran.append, n)
    loop.close()
    assert not ran
    gate.opened.set()
    assert not threads_left(threads)
    assert sorted(ran) == list(range(100))


def test_a_pool_whose_threads_cannot_begin_is_broken(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("from the initializer")

    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "disabled", True)
    loop.set_default_executor(ThreadPool(1, initializer=fail))
    for _ in range(3):
        with pytest.raises(BrokenThreadPool):
            run(loop, len, "")


def test_no_thread_is_started_after_shutdown(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    pool = ThreadPool(1)
    loop.set_default_executor(pool)
    has_threads = pool._has_threads

    def shut_down_first() -> bool:
        pool.shutdown()
        return has_threads()

    monkeypatch.setattr(pool, "_has_threads", shut_down_first)
    with pytest.raises(RuntimeError, match=r"^cannot schedule new futures after shutdown$"):
        loop.run_in_executor(None, ran.append, "ran")
    assert not pool._threads
    assert not ran


@pytest.mark.skipif("TSAN_OPTIONS" in os.environ, reason="its own stack is too small for it")
def test_a_long_queue_may_be_dropped() -> None:
    queue = JobQueue()
    for _ in range(300_000):
        queue.put(object())
    item = queue.get_nowait()
    assert queue.qsize() == 299_999
    del queue, item


def test_a_job_that_is_cancelled_twice_is_cancelled(loop: uringloop.Loop) -> None:
    queue = JobQueue()
    future = queue.add_job(loop, len, ("",))
    assert future is not None
    job = queue.get_nowait()
    job.future.cancel()
    job.future.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(future)


def test_loops_may_share_an_executor(loop_factory: LoopFactory) -> None:
    with ThreadPool(2) as pool:
        first, second = loop_factory(), loop_factory()
        for loop in (first, second):
            loop.set_default_executor(pool)
        results = [
            [loop.run_in_executor(None, abs, -n) for n in range(50)] for loop in (first, second)
        ]
        for loop, futures in zip((first, second), results, strict=True):
            assert [loop.run_until_complete(future) for future in futures] == list(range(50))
        second.close()
        first.close()


def test_an_executor_that_is_dropped_ends_its_threads(loop_factory: LoopFactory) -> None:
    threads = set(threading.enumerate())
    loop = loop_factory()
    pool = ThreadPool(2)
    loop.set_default_executor(pool)
    assert run(loop, abs, -1) == 1
    loop.set_default_executor(ThreadPool(1))
    del pool
    gc.collect()
    assert not threads_left(threads)
    loop.close()


# ── the end of the process ───────────────────────────────────────────────────────────────────


def test_the_interpreter_ends_after_the_calls_that_wait() -> None:
    script = """
    import asyncio, os, time
    import uringloop

    def say(number):
        time.sleep(0.01)
        os.write(1, b"%d\\n" % number)

    async def main():
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.run_in_executor(None, say, number)

    loop = uringloop.new_event_loop()
    loop.run_until_complete(main())
    """
    assert sorted(map(int, seccomp.lines_of(script, "-W", "ignore"))) == list(range(20))


def test_no_call_is_taken_at_the_end_of_the_interpreter() -> None:
    script = """
    import threading
    import uringloop

    loop = uringloop.new_event_loop()
    loop.run_until_complete(loop.run_in_executor(None, len, ""))

    def call():
        threading.main_thread().join()
        try:
            loop.run_in_executor(None, len, "")
        except RuntimeError as exc:
            print(exc)
        loop.close()

    threading.Thread(target=call).start()
    """
    # The pool's thread notes the shutdown when it ends.
    [said] = seccomp.lines_of(script)
    assert re.fullmatch("cannot schedule new futures after( interpreter)? shutdown", said)


def test_a_call_may_fork_and_exit() -> None:
    script = """
    import asyncio, os, sys, warnings
    import uringloop

    warnings.simplefilter("ignore")

    def fork():
        pid = os.fork()
        if not pid:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def main():
        loop = asyncio.get_running_loop()
        print(await asyncio.gather(*[loop.run_in_executor(None, fork) for _ in range(10)]))
        print(await loop.run_in_executor(None, len, "abc"))
        try:
            await loop.run_in_executor(None, sys.exit, 3)
        except SystemExit as exc:
            print(exc.code)

    uringloop.run(main())
    """
    assert seccomp.lines_of(script) == [str([7] * 10), "3", "3"]


@pytest.mark.parametrize("count", [1, 6, 24])
def test_a_forked_child_knows_that_the_threads_are_gone(count: int) -> None:
    script = f"""
    import multiprocessing, threading, time, warnings
    import uringloop
    from uringloop._loop.executors import ThreadPool

    warnings.simplefilter("ignore")
    loop = uringloop.new_event_loop()
    loop.set_default_executor(ThreadPool({count} + 1))
    waiting = [loop.run_in_executor(None, time.sleep, 0.05) for _ in range({count})]
    for future in waiting:
        loop.run_until_complete(future)

    def child():
        for _ in range(3):
            threads = [threading.Thread(target=len, args=("",)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # None of the threads is there, so a new one runs the call.
        print(loop._default_executor.submit(len, "abc").result(5), flush=True)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    print(process.exitcode)
    print(loop.run_until_complete(loop.run_in_executor(None, len, "abc")))
    loop.close()
    """
    assert seccomp.lines_of(script) == ["3", "0", "3"]


def test_a_forked_child_has_an_executor_of_its_own() -> None:
    script = """
    import asyncio, os, warnings
    import uringloop

    warnings.simplefilter("ignore")
    loop = uringloop.new_event_loop()
    loop.run_until_complete(loop.run_in_executor(None, len, ""))
    if not os.fork():
        async def main():
            print(await asyncio.to_thread(len, "abc"), flush=True)

        uringloop.run(main())
        os._exit(0)
    os.wait()
    loop.close()
    """
    assert seccomp.lines_of(script) == ["3"]


# ── what stats() tells ───────────────────────────────────────────────────────────────────────


def load_of(loop: uringloop.Loop) -> tuple[int, int, float]:
    stats = loop.stats()
    return stats["executor_threads"], stats["executor_queue"], stats["executor_wait"]


def test_stats_tell_threads_queue_and_wait(loop: uringloop.Loop, gate: Gate) -> None:
    assert load_of(loop) == (0, 0, 0.0)

    async def main() -> None:
        calls = [loop.run_in_executor(None, gate.pass_through, n) for n in range(THREADS_MAX + 3)]
        gate.await_entered(THREADS_MAX)
        await asyncio.sleep(0.02)
        first = load_of(loop)
        assert first[:2] == (THREADS_MAX, 3)
        # The first call in the queue waits longer with each moment.
        assert 0.02 <= first[2] < load_of(loop)[2]
        # Items of submit() count, too.
        submitted = pool_of(loop).submit(gate.pass_through, 0)
        assert load_of(loop)[:2] == (THREADS_MAX, 4)
        gate.opened.set()
        await asyncio.gather(*calls, asyncio.wrap_future(submitted))
        assert load_of(loop)[:2] == (THREADS_MAX, 0)
        await loop.run_in_executor(None, int)
        assert load_of(loop)[2] > 0.0

    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    assert load_of(loop) == (0, 0, 0.0)
    loop.close()
    assert load_of(loop) == (0, 0, 0.0)


def test_stats_tell_what_outlives_shutdown(loop: uringloop.Loop, gate: Gate) -> None:
    async def main() -> None:
        calls = [loop.run_in_executor(None, gate.pass_through, n) for n in range(THREADS_MAX + 2)]
        gate.await_entered(THREADS_MAX)
        with pytest.warns(RuntimeWarning, match="did not finishing joining") as warned:
            await loop.shutdown_default_executor(0.01)
        assert warned[0].filename == __file__
        assert load_of(loop)[:2] == (THREADS_MAX, 2)
        threads = list(pool_of(loop)._threads)
        gate.opened.set()
        await asyncio.gather(*calls)
        for thread in threads:
            thread.join(10.0)
        # What has ended the threads is no call.
        assert load_of(loop) == (0, 0, 0.0)

    loop.run_until_complete(main())


def test_stats_tell_threads_and_queue_of_an_executor_of_the_program(
    loop: uringloop.Loop, gate: Gate
) -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    loop.set_default_executor(pool)

    async def main() -> None:
        calls = [loop.run_in_executor(None, gate.pass_through, number) for number in range(3)]
        gate.await_entered(1)
        assert load_of(loop) == (1, 2, 0.0)
        gate.opened.set()
        await asyncio.gather(*calls)

    loop.run_until_complete(main())
