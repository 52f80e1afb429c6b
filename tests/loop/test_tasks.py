"""create_task(), task factories, and asyncio's functions and classes that use tasks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import weakref
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest
from support.loops import run_turns

import uringloop

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")

# The type of a factory: (loop, coroutine, **options) -> a future.
Factory = Callable[..., Any]


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def read_var() -> str:
    return VAR.get()


async def fail_at_once() -> None:
    raise ZeroDivisionError("from the task")


# ── create_task ──────────────────────────────────────────────────


def test_create_task_makes_an_asyncio_task(each_loop: AbstractEventLoop) -> None:
    task = each_loop.create_task(number(42))
    assert type(task) is asyncio.Task
    assert task.get_loop() is each_loop
    assert not task.done()
    assert each_loop.run_until_complete(task) == 42


def test_task_has_the_name_it_was_given(each_loop: AbstractEventLoop) -> None:
    named = each_loop.create_task(number(1), name="mine")
    unnamed = each_loop.create_task(number(2))
    nameless = each_loop.create_task(number(3), name=None)
    assert named.get_name() == "mine"
    assert unnamed.get_name().startswith("Task-")
    assert nameless.get_name().startswith("Task-")
    assert unnamed.get_name() != nameless.get_name()
    each_loop.run_until_complete(asyncio.wait([named, unnamed, nameless]))


def test_task_runs_in_a_copy_of_the_context_by_default(each_loop: AbstractEventLoop) -> None:
    async def change() -> None:
        assert VAR.get() == "outside"
        VAR.set("inside")

    context = contextvars.copy_context()
    context.run(VAR.set, "outside")
    task = context.run(each_loop.create_task, change())
    each_loop.run_until_complete(task)
    assert context[VAR] == "outside"


def test_task_runs_in_the_context_it_was_given(each_loop: AbstractEventLoop) -> None:
    async def change() -> str:
        before = VAR.get()
        await asyncio.sleep(0)
        VAR.set("changed")
        return before

    context = contextvars.copy_context()
    context.run(VAR.set, "given")
    task = each_loop.create_task(change(), context=context)
    assert each_loop.run_until_complete(task) == "given"
    assert context[VAR] == "changed"


def test_create_task_refuses_an_object_that_is_not_a_coroutine(
    each_loop: AbstractEventLoop,
) -> None:
    create: Callable[[object], object] = each_loop.create_task  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a coroutine was expected, got 42"):
        create(42)


def test_create_task_refuses_wrong_arguments(each_loop: AbstractEventLoop) -> None:
    create: Callable[..., object] = each_loop.create_task
    coroutine = number(1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'coro'"):
        create()
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        create(coroutine, "name")
    with pytest.raises(TypeError, match="got multiple values for argument 'coro'"):
        create(coroutine, coro=coroutine)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'other'|for Task\(\)"):
        create(coroutine, other=1)
    coroutine.close()
    coroutine = number(1)
    task = create(coro=coroutine, name=7)
    assert isinstance(task, asyncio.Task)
    assert task.get_name() == "7"
    assert each_loop.run_until_complete(task) == 1


def test_create_task_makes_tasks_of_the_class_that_has_replaced_asyncio_s(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replacement(asyncio.Task[Any]):
        """As nest_asyncio does, which replaces the class by the one in Python."""

    async def main() -> list[type]:
        types = [type(asyncio.create_task(number(1)))]
        monkeypatch.setattr("asyncio.tasks.Task", Replacement)
        tasks = [asyncio.create_task(number(1), name="named"), each_loop.create_task(number(1))]
        monkeypatch.undo()
        return [*types, *map(type, tasks), type(asyncio.create_task(number(1)))]

    plain = asyncio.Task
    assert each_loop.run_until_complete(main()) == [plain, Replacement, Replacement, plain]


def test_tasks_made_in_a_row_share_nothing(each_loop: AbstractEventLoop) -> None:
    async def main() -> list[str]:
        var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="none")

        async def read(told: str) -> str:
            before = var.get()
            var.set(told)
            await asyncio.sleep(0)
            return f"{before} {var.get()}"

        own = contextvars.Context()
        tasks = [
            each_loop.create_task(read("one")),
            each_loop.create_task(read("two"), name="named"),
            each_loop.create_task(read("three"), name=None, context=None),
            each_loop.create_task(read("four"), context=own),
            each_loop.create_task(read("five")),
        ]
        assert [task.get_name() for task in tasks].count("named") == 1
        assert len({task.get_name() for task in tasks}) == 5
        assert all(task.get_loop() is each_loop for task in tasks)
        return await asyncio.gather(*tasks)

    assert each_loop.run_until_complete(main()) == [
        f"none {told}" for told in ("one", "two", "three", "four", "five")
    ]


def test_create_task_without_a_class_of_tasks_raises_attribute_error(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    coroutine = number(1)
    monkeypatch.delattr("asyncio.tasks.Task")
    with pytest.raises(AttributeError, match="has no attribute 'Task'"):
        each_loop.create_task(coroutine)
    monkeypatch.undo()
    task = each_loop.create_task(coroutine)
    assert type(task) is asyncio.Task
    assert each_loop.run_until_complete(task) == 1


# Without a GIL the loop watches a dictionary for changes; CPython allows a process few watchers.
WITHOUT_WATCHERS = """
import asyncio, ctypes, sys
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)
ignore = kind(lambda *arguments: 0)
if sys.version_info >= (3, 12):
    try:
        while ctypes.pythonapi.PyDict_AddWatcher(ignore) >= 0:
            pass
    except RuntimeError:
        pass  # There are no more.
import uringloop

class Replacement(asyncio.tasks.Task):
    pass

async def main():
    task = asyncio.create_task(asyncio.sleep(0, 1))
    asyncio.tasks.Task = Replacement
    other = asyncio.create_task(asyncio.sleep(0, 2))
    print(type(other).__name__, await task, await other)

uringloop.run(main())
"""


def test_create_task_works_in_a_process_without_watchers_to_spare() -> None:
    command = [sys.executable, "-P", "-c", WITHOUT_WATCHERS]
    assert subprocess.check_output(command, text=True) == "Replacement 1 2\n"


def test_closed_loop_refuses_tasks(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    coroutine = number(1)
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.create_task(coroutine)
    coroutine.close()


def test_task_begins_in_the_turn_after_its_creation(each_loop: AbstractEventLoop) -> None:
    order: list[str] = []

    async def begin() -> None:
        order.append("task")

    async def main() -> None:
        task = each_loop.create_task(begin())
        each_loop.call_soon(order.append, "callback")
        order.append("main")
        await task

    each_loop.run_until_complete(main())
    assert order == ["main", "task", "callback"]


def test_tasks_take_turns(each_loop: AbstractEventLoop) -> None:
    steps: list[str] = []

    async def walk(name: str) -> None:
        for step in range(3):
            steps.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(walk("a"), walk("b"))

    each_loop.run_until_complete(main())
    assert steps == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_future_done_before_a_callback_steps_its_task_before_it(
    each_loop: AbstractEventLoop,
) -> None:
    order: list[str] = []

    async def wait(future: Awaitable[str]) -> None:
        order.append(await future)

    async def main() -> None:
        future = each_loop.create_future()
        waiter = asyncio.ensure_future(wait(future))
        await asyncio.sleep(0)
        future.set_result("future")
        each_loop.call_soon(order.append, "callback")
        await waiter

    each_loop.run_until_complete(main())
    assert order == ["future", "callback"]


def test_current_task_and_all_tasks_know_the_tasks_of_the_loop(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> None:
        me = asyncio.current_task()
        assert me is not None
        other = each_loop.create_task(asyncio.sleep(0))
        assert asyncio.all_tasks() == {me, other}
        assert asyncio.current_task(each_loop) is me
        await other

    each_loop.run_until_complete(main())
    assert asyncio.all_tasks(each_loop) == set()


def test_finished_task_is_released_without_garbage_collection(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        await asyncio.sleep(0)

    task = each_loop.create_task(main())
    watch = weakref.ref(task)
    each_loop.run_until_complete(task)
    gc.disable()
    try:
        del task
        assert watch() is None
    finally:
        gc.enable()


def test_ten_thousand_tasks_finish(each_loop: AbstractEventLoop) -> None:
    async def main() -> int:
        return sum(await asyncio.gather(*(number(value) for value in range(10_000))))

    assert each_loop.run_until_complete(main()) == sum(range(10_000))


# ── task factories ───────────────────────────────────────────────


def test_task_factory_is_none_by_default(each_loop: AbstractEventLoop) -> None:
    assert each_loop.get_task_factory() is None


def test_factory_creates_every_task(each_loop: AbstractEventLoop) -> None:
    class Special(asyncio.Task[Any]):
        """A subclass by which the test recognizes the factory's tasks."""

    loops: list[AbstractEventLoop] = []

    def make(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        loops.append(loop)
        return Special(coroutine, loop=loop, **options)

    factory: Factory = make
    each_loop.set_task_factory(factory)
    assert each_loop.get_task_factory() is factory

    async def main() -> type:
        inner = asyncio.ensure_future(number(2))
        assert isinstance(inner, Special)
        assert await inner == 2
        return type(asyncio.current_task())

    assert each_loop.run_until_complete(main()) is Special
    assert loops == [each_loop, each_loop]
    each_loop.set_task_factory(None)
    assert each_loop.get_task_factory() is None
    task = each_loop.create_task(number(3))
    assert type(task) is asyncio.Task
    assert each_loop.run_until_complete(task) == 3


def test_factory_of_two_arguments_is_enough_without_options(each_loop: AbstractEventLoop) -> None:
    made: list[object] = []

    def make(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop)

    factory: Factory = make
    each_loop.set_task_factory(factory)
    coroutine = number(42)
    assert each_loop.run_until_complete(coroutine) == 42
    assert made == [coroutine]


def test_task_of_a_factory_gets_its_name_and_context(each_loop: AbstractEventLoop) -> None:
    def make(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return asyncio.Task(coroutine, loop=loop, **options)

    factory: Factory = make
    each_loop.set_task_factory(factory)
    context = contextvars.copy_context()
    context.run(VAR.set, "given")
    task = each_loop.create_task(read_var(), name="mine", context=context)
    assert task.get_name() == "mine"
    assert each_loop.run_until_complete(task) == "given"


def test_task_of_a_factory_keeps_its_own_name(loop: uringloop.Loop) -> None:
    # Python 3.13.0 calls set_name(None), and its tasks are named "None".
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop, name="own"))
    task = loop.create_task(number(1))
    assert task.get_name() == "own"
    loop.run_until_complete(task)


def test_exception_of_a_factory_propagates(each_loop: AbstractEventLoop) -> None:
    def refuse(_loop: AbstractEventLoop, _coroutine: object, **_options: object) -> Any:
        raise ZeroDivisionError("no task today")

    factory: Factory = refuse
    each_loop.set_task_factory(factory)
    coroutine = number(1)
    with pytest.raises(ZeroDivisionError, match="no task today"):
        each_loop.create_task(coroutine)
    coroutine.close()
    each_loop.set_task_factory(None)


def test_factory_that_is_not_callable_is_refused(each_loop: AbstractEventLoop) -> None:
    with pytest.raises(TypeError, match=r"^task factory must be a callable or None$"):
        each_loop.set_task_factory("spam")  # type: ignore[arg-type]
    assert each_loop.get_task_factory() is None


def test_eager_factory_runs_a_task_up_to_its_first_wait(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("asyncio.eager_task_factory is new in 3.12")
    events: list[str] = []

    async def at_once() -> str:
        events.append("at once")
        return "result"

    async def waits() -> None:
        events.append("before the wait")
        await asyncio.sleep(0)
        events.append("after the wait")

    async def main() -> None:
        first = asyncio.create_task(at_once(), name="eager")
        assert first.done()
        assert first.result() == "result"
        assert first.get_name() == "eager"
        second = asyncio.create_task(waits())
        assert not second.done()
        events.append("created")
        await second

    factory: Factory = asyncio.eager_task_factory
    each_loop.set_task_factory(factory)
    each_loop.run_until_complete(main())
    assert events == ["at once", "before the wait", "created", "after the wait"]


def test_eager_factory_passes_exceptions_and_contexts(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("asyncio.create_eager_task_factory is new in 3.12")

    async def main() -> None:
        failed = asyncio.create_task(fail_at_once())
        assert failed.done()
        with pytest.raises(ZeroDivisionError):
            await failed
        context = contextvars.copy_context()
        context.run(VAR.set, "given")
        assert await asyncio.create_task(read_var(), context=context) == "given"
        assert asyncio.current_task() in asyncio.all_tasks()

    factory: Factory = asyncio.create_eager_task_factory(asyncio.Task)
    each_loop.set_task_factory(factory)
    each_loop.run_until_complete(main())


def test_eager_start_is_passed_on_to_the_task(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 14):
        pytest.skip("asyncio.create_task has eager_start since 3.14")

    async def main() -> None:
        eager = each_loop.create_task(number(1), eager_start=True)
        lazy = each_loop.create_task(read_var(), eager_start=False)
        done = asyncio.create_task(read_var(), eager_start=True)
        assert done.done()
        assert not lazy.done()
        assert await eager == 1
        assert await lazy == "unset"

    each_loop.run_until_complete(main())


# ── gather, groups, queues, locks ────────────────────────────────


def test_gather_keeps_the_order_and_passes_exceptions(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        assert await asyncio.gather(*map(number, (1, 2, 3))) == [1, 2, 3]
        one, error, three = await asyncio.gather(
            number(1), fail_at_once(), number(3), return_exceptions=True
        )
        assert (one, three) == (1, 3)
        assert isinstance(error, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await asyncio.gather(number(1), fail_at_once())

    each_loop.run_until_complete(main())


def test_as_completed_yields_in_order_of_completion(each_loop: AbstractEventLoop) -> None:
    gates = [each_loop.create_future() for _ in range(3)]

    async def wait(index: int) -> int:
        await gates[index]
        return index

    async def main() -> list[int]:
        order: list[int] = []
        opening = iter((2, 0, 1))
        gates[next(opening)].set_result(None)
        for earliest in asyncio.as_completed([wait(index) for index in range(3)]):
            order.append(await earliest)
            for index in opening:
                gates[index].set_result(None)
                break
        return order

    assert each_loop.run_until_complete(main()) == [2, 0, 1]


def test_wait_separates_done_and_pending(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        slow = each_loop.create_task(asyncio.Event().wait())
        quick = each_loop.create_task(number(1))
        tasks: list[asyncio.Task[Any]] = [slow, quick]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({quick}, {slow})
        done, pending = await asyncio.wait([slow], timeout=0.001)
        assert (done, pending) == (set(), {slow})
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    each_loop.run_until_complete(main())


async def group_with_a_failure(log: list[str]) -> None:
    """Run a group in which one task waits for ever and the other fails."""

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        group.create_task(fail_at_once())


def test_task_group_waits_for_its_tasks_and_cancels_them_on_failure(
    each_loop: AbstractEventLoop,
) -> None:
    log: list[str] = []

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(number(value), name=f"n{value}") for value in range(5)]
        assert [task.result() for task in tasks] == list(range(5))
        with pytest.raises(ExceptionGroup) as caught:
            await group_with_a_failure(log)
        (error,) = caught.value.exceptions
        assert isinstance(error, ZeroDivisionError)

    each_loop.run_until_complete(main())
    assert log == ["cancelled"]


def test_cancelled_task_unwinds_and_is_cancelled(each_loop: AbstractEventLoop) -> None:
    log: list[str] = []

    async def wait() -> None:
        try:
            await each_loop.create_future()
        finally:
            await asyncio.sleep(0)
            log.append("unwound")

    task = each_loop.create_task(wait())
    run_turns(each_loop)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        each_loop.run_until_complete(task)
    assert task.cancelled()
    assert log == ["unwound"]


def test_shielded_task_survives_the_cancellation_of_its_waiter(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> None:
        gate = each_loop.create_future()
        inner = asyncio.ensure_future(asyncio.wait_for(gate, None))
        outer = asyncio.ensure_future(asyncio.shield(inner))
        await asyncio.sleep(0)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        gate.set_result("survived")
        assert await inner == "survived"

    each_loop.run_until_complete(main())


def test_queue_passes_all_items_from_producers_to_consumers(each_loop: AbstractEventLoop) -> None:
    async def produce(queue: asyncio.Queue[int], start: int) -> None:
        for value in range(start, start + 100):
            await queue.put(value)

    async def consume(queue: asyncio.Queue[int], taken: list[int]) -> None:
        for _ in range(100):
            taken.append(await queue.get())
            queue.task_done()

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(3)
        taken: list[int] = []
        async with asyncio.TaskGroup() as group:
            for start in (0, 100, 200):
                group.create_task(produce(queue, start))
                group.create_task(consume(queue, taken))
        await queue.join()
        return taken

    assert sorted(each_loop.run_until_complete(main())) == list(range(300))


def test_lock_event_and_condition_wake_their_waiters(each_loop: AbstractEventLoop) -> None:
    async def main() -> list[str]:
        log: list[str] = []
        lock, event, condition = asyncio.Lock(), asyncio.Event(), asyncio.Condition()

        async def walk(name: str) -> None:
            await event.wait()
            async with lock:
                log.append(f"{name} in")
                await asyncio.sleep(0)
                log.append(f"{name} out")
            async with condition:
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(walk(name))
            await asyncio.sleep(0)
            event.set()
            async with condition:
                await condition.wait_for(lambda: len(log) == 4)
        return log

    assert each_loop.run_until_complete(main()) == ["a in", "a out", "b in", "b out"]


def test_asynchronous_iteration_and_contexts_run(each_loop: AbstractEventLoop) -> None:
    class Countdown:
        async def __aenter__(self) -> Countdown:
            await asyncio.sleep(0)
            return self

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0)

        async def __aiter__(self) -> AsyncIterator[int]:
            for value in (3, 2, 1):
                await asyncio.sleep(0)
                yield value

    async def main() -> list[int]:
        async with Countdown() as countdown:
            return [value async for value in countdown]

    assert each_loop.run_until_complete(main()) == [3, 2, 1]


def test_future_may_be_awaited_by_hand_written_awaitables(each_loop: AbstractEventLoop) -> None:
    class Twice:
        def __init__(self, future: asyncio.Future[int]) -> None:
            self.future = future

        def __await__(self) -> Generator[Any, None, int]:
            result = yield from self.future
            return result * 2

    async def main() -> int:
        future: asyncio.Future[int] = each_loop.create_future()
        each_loop.call_soon(future.set_result, 21)
        return await Twice(future)

    assert each_loop.run_until_complete(main()) == 42
