"""Nested runs of a nestable loop within its own callbacks, of any kind and depth."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from support.loops import run_turns
from support.nesting import DEPTH, give, nestable_loop
from support.roles import until

import uringloop


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new nestable loop, checked for leaks afterwards."""
    yield from nestable_loop()


# ── tasks ────────────────────────────────────────────────────────────────────────────────────


def test_a_task_can_run_its_loop(loop: uringloop.Loop) -> None:
    async def nest(depth: int) -> int:
        task = asyncio.current_task()
        await asyncio.sleep(0)
        below = loop.run_until_complete(nest(depth - 1)) if depth else 0
        assert asyncio.current_task() is task
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        assert asyncio.current_task() is task
        return below + 1

    assert loop.run_until_complete(nest(DEPTH)) == DEPTH + 1
    assert not loop.is_running()


def test_a_nested_run_can_wait_for_a_task_of_the_outer_run(loop: uringloop.Loop) -> None:
    async def set_later(future: asyncio.Future[str]) -> None:
        await asyncio.sleep(0.001)
        future.set_result("set")

    async def main() -> str:
        future = loop.create_future()
        setting = loop.create_task(set_later(future))
        result = loop.run_until_complete(future)
        await setting
        return str(result)

    assert loop.run_until_complete(main()) == "set"


def test_two_tasks_can_nest_in_the_same_outer_run(loop: uringloop.Loop) -> None:
    async def nest(delay: float, value: int) -> int:
        loop.run_until_complete(asyncio.sleep(delay))
        return value

    async def main() -> list[int]:
        return list(await asyncio.gather(nest(0.02, 4), nest(0.01, 2)))

    assert loop.run_until_complete(main()) == [4, 2]


@pytest.mark.parametrize("kind", ["C", "Python"])
def test_c_and_python_tasks_can_nest(loop: uringloop.Loop, kind: str) -> None:
    def factory(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Future[Any]:
        made: asyncio.Future[Any] = getattr(asyncio.tasks, name)(coro, loop=loop, **options)
        return made

    async def nest(depth: int) -> int:
        return loop.run_until_complete(nest(depth - 1)) + 1 if depth else 0

    name = {"C": "_CTask", "Python": "_PyTask"}[kind]
    loop.set_task_factory(factory)
    assert loop.run_until_complete(nest(10)) == 10


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_a_task_can_nest_while_it_starts_eagerly(loop: uringloop.Loop) -> None:
    async def nest() -> str:
        return loop.run_until_complete(give("eager"))

    async def main() -> str:
        outer = asyncio.current_task()
        task = loop.create_task(nest())
        assert task.done()
        assert asyncio.current_task() is outer
        return await task

    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    assert loop.run_until_complete(main()) == "eager"


def test_a_timeout_of_the_outer_task_runs_in_the_nested_run(loop: uringloop.Loop) -> None:
    async def main() -> None:
        async with asyncio.timeout(0.001):
            loop.run_until_complete(asyncio.sleep(0.005))
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(main())


def test_context_variables_are_unchanged_by_a_nested_run(loop: uringloop.Loop) -> None:
    variable = contextvars.ContextVar("variable", default="none")

    async def inner() -> str:
        before = variable.get()
        variable.set("inner")
        await asyncio.sleep(0)
        return before

    async def main() -> tuple[str, str, str]:
        token = variable.set("outer")
        seen = loop.run_until_complete(inner())
        after = variable.get()
        variable.reset(token)
        return seen, after, variable.get()

    assert loop.run_until_complete(main()) == ("outer", "outer", "none")


def test_a_nested_run_can_enter_the_context_of_the_outer_callback(
    loop: uringloop.Loop,
) -> None:
    variable = contextvars.ContextVar("variable", default="none")
    context = contextvars.copy_context()

    async def inner() -> None:
        await asyncio.sleep(0)
        variable.set("inner")

    async def main() -> str:
        loop.run_until_complete(loop.create_task(inner(), context=context))
        return variable.get()

    task = loop.create_task(main(), context=context)
    assert loop.run_until_complete(task) == "inner"
    assert context[variable] == "inner"


def test_generators_of_a_nested_run_are_closed_with_the_loop(loop: uringloop.Loop) -> None:
    closed: list[str] = []

    async def generator() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closed.append("closed")

    agen = generator()

    async def inner() -> None:
        await anext(agen)

    async def main() -> None:
        loop.run_until_complete(inner())

    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert closed == ["closed"]


# ── other callbacks ──────────────────────────────────────────────────────────────────────────


def nest_by(loop: uringloop.Loop, schedule: Callable[[Callable[[], None]], object]) -> int:
    """Nest callbacks scheduled by *schedule* in one another; return how many have run."""
    ran: list[int] = []

    def called() -> None:
        future = waiting.pop()
        ran.append(len(ran))
        if len(ran) <= DEPTH:
            nest()
        future.set_result(None)

    def nest() -> None:
        future = loop.create_future()
        waiting.append(future)
        schedule(called)
        loop.run_until_complete(future)

    waiting: list[asyncio.Future[None]] = []
    nest()
    return len(ran)


def test_a_callback_can_run_its_loop(loop: uringloop.Loop) -> None:
    assert nest_by(loop, loop.call_soon) == DEPTH + 1


def test_a_timer_can_run_its_loop(loop: uringloop.Loop) -> None:
    assert nest_by(loop, lambda callback: loop.call_later(0, callback)) == DEPTH + 1


def test_a_threadsafe_call_can_run_the_loop(loop: uringloop.Loop) -> None:
    def schedule(callback: Callable[[], None]) -> None:
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(callback,))
        thread.start()
        thread.join()

    assert nest_by(loop, schedule) == DEPTH + 1


def test_a_signal_handler_can_run_its_loop(loop: uringloop.Loop) -> None:
    def schedule(callback: Callable[[], None]) -> None:
        loop.add_signal_handler(signal.SIGUSR1, callback)
        os.kill(os.getpid(), signal.SIGUSR1)

    try:
        assert nest_by(loop, schedule) == DEPTH + 1
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def test_timers_due_together_with_a_nesting_timer_run_once(loop: uringloop.Loop) -> None:
    ran: list[str] = []

    def nest() -> None:
        ran.append("nest")
        loop.run_until_complete(asyncio.sleep(0.001))
        ran.append("nested")

    when = loop.time()
    loop.call_at(when, nest)
    for name in ("second", "third"):
        loop.call_at(when, ran.append, name)
    loop.run_until_complete(asyncio.sleep(0.005))
    assert ran == ["nest", "second", "third", "nested"]


def test_a_reader_can_run_its_loop(loop: uringloop.Loop) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)

    def schedule(callback: Callable[[], None]) -> None:
        def read() -> None:
            assert left.recv(1) == b"x"
            callback()

        loop.add_reader(left, read)
        right.send(b"x")

    with left, right:
        assert nest_by(loop, schedule) == DEPTH + 1
        loop.remove_reader(left)


def test_a_reader_is_called_again_within_its_own_call(loop: uringloop.Loop) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    calls: list[int] = []

    def read() -> None:
        assert left.recv(1) == b"x"
        calls.append(len(calls))
        if len(calls) <= DEPTH:
            right.send(b"x")
            nested(len(calls))

    def nested(count: int) -> None:
        loop.run_until_complete(until(lambda: len(calls) > count))

    with left, right:
        loop.add_reader(left, read)
        right.send(b"x")
        nested(0)
        loop.remove_reader(left)
    assert len(calls) == DEPTH + 1


def test_readers_ready_together_with_a_nesting_reader_are_called_once(
    loop: uringloop.Loop,
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    read: list[bytes] = []

    def receive(sock: socket.socket) -> None:
        # Raises BlockingIOError if the loop calls this when the socket is not readable.
        read.append(sock.recv(1))
        if len(read) == 1:
            loop.run_until_complete(everything_read())

    def everything_read() -> Coroutine[Any, Any, None]:
        return until(lambda: len(read) == len(pairs))

    handler_calls: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: handler_calls.append(context))
    for left, right in pairs:
        left.setblocking(False)
        loop.add_reader(left, receive, left)
        right.send(b"x")
    loop.run_until_complete(everything_read())
    run_turns(loop, 3)
    for left, right in pairs:
        loop.remove_reader(left)
        left.close()
        right.close()
    assert read == [b"x"] * 3
    assert handler_calls == []


def test_a_nested_run_can_follow_a_file_operation(loop: uringloop.Loop, tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * DEPTH)

    async def read(depth: int) -> bytes:
        async with uringloop.open(path, "rb", buffering=0) as file:
            data: bytes = await file.pread(1, depth - 1)
            await file.fsync()
            return data + loop.run_until_complete(read(depth - 1)) if depth > 1 else data

    assert loop.run_until_complete(read(DEPTH)) == b"x" * DEPTH


def test_a_nested_run_can_wait_for_a_process(loop: uringloop.Loop) -> None:
    async def run() -> tuple[bytes, int | None]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('out')", stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out, process.returncode

    async def main() -> tuple[bytes, int | None]:
        return loop.run_until_complete(run())

    assert loop.run_until_complete(main()) == (b"out\n", 0)


# ── ends of runs ─────────────────────────────────────────────────────────────────────────────


def test_stop_ends_the_nested_run_only(loop: uringloop.Loop) -> None:
    seen: list[str] = []

    async def main() -> str:
        loop.call_soon(loop.stop)
        loop.run_forever()
        seen.append("run_forever")
        loop.call_soon(loop.stop)
        with pytest.raises(RuntimeError, match="Event loop stopped before Future completed"):
            loop.run_until_complete(give("never"))
        seen.append("run_until_complete")
        return await give("outer")

    assert loop.run_until_complete(main()) == "outer"
    assert seen == ["run_forever", "run_until_complete"]


def test_an_outer_run_whose_future_is_done_ends_after_the_nested_run(
    loop: uringloop.Loop,
) -> None:
    order: list[str] = []
    outer = loop.create_future()

    def nest() -> None:
        loop.call_soon(outer.set_result, "outer")
        order.append(loop.run_until_complete(give("inner")))

    loop.call_soon(nest)
    order.append(loop.run_until_complete(outer))
    assert order == ["inner", "outer"]
    # The stop of the outer run does not end a later run.
    assert loop.run_until_complete(give("later")) == "later"


def test_a_future_done_before_a_nested_run_ends_only_the_outer_run(
    loop: uringloop.Loop,
) -> None:
    order: list[str] = []
    outer = loop.create_future()

    def nest() -> None:
        # This schedules the callbacks of `outer`, which then run in the nested run.
        outer.set_result("outer")
        order.append(loop.run_until_complete(give("inner")))

    loop.call_soon(nest)
    order.append(loop.run_until_complete(outer))
    assert order == ["inner", "outer"]


def test_a_nested_stop_and_an_outer_end_in_one_turn_both_take_effect(loop: uringloop.Loop) -> None:
    outer = loop.create_future()
    order: list[str] = []

    def nest() -> None:
        async def both() -> None:
            outer.set_result("outer")
            # stop() is called in the turn that ends the outer run, before and after its callbacks.
            loop.call_soon(loop.stop)
            await asyncio.sleep(60)

        inner = loop.create_task(both())
        with pytest.raises(RuntimeError, match="stopped before Future completed"):
            loop.run_until_complete(inner)
        order.append("inner stopped")
        inner.cancel()

    loop.call_soon(nest)
    order.append(loop.run_until_complete(outer))
    assert order == ["inner stopped", "outer"]


def test_a_stop_before_a_nested_run_ends_the_outer_run(
    loop: uringloop.Loop,
) -> None:
    order: list[str] = []

    def nest() -> None:
        loop.stop()
        order.append(loop.run_until_complete(give("inner")))

    loop.call_soon(nest)
    loop.run_forever()
    assert order == ["inner"]


def test_runs_end_from_the_innermost_whatever_future_is_done_first(loop: uringloop.Loop) -> None:
    futures = [loop.create_future() for _ in range(DEPTH)]
    ended: list[int] = []

    def nest(index: int) -> None:
        if index < DEPTH:
            loop.call_soon(nest, index + 1)
            loop.run_until_complete(futures[index])
            ended.append(index)
        else:
            for number, future in enumerate(futures):
                loop.call_later(0.0001 * number, future.set_result, None)

    nest(0)
    assert ended == list(reversed(range(DEPTH)))


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_nested_run_can_be_caught_by_the_outer_task(
    loop: uringloop.Loop, exception: type[BaseException]
) -> None:
    def interrupt() -> None:
        raise exception

    async def main() -> str:
        loop.call_soon(interrupt)
        task = loop.create_task(give("pending"))
        with pytest.raises(exception):
            loop.run_until_complete(task)
        assert asyncio.get_running_loop() is loop
        assert not task.done()
        return await task

    assert loop.run_until_complete(main()) == "pending"


def test_an_uncaught_interrupt_ends_all_runs(loop: uringloop.Loop) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def nest(depth: int) -> None:
        loop.run_until_complete(nest(depth - 1) if depth else interrupt())

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(nest(10))
    assert not loop.is_running()
    assert loop.run_until_complete(give("next")) == "next"


def test_an_interrupted_outer_task_ends_its_own_run(
    loop: uringloop.Loop,
) -> None:
    async def interrupt() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    caught: list[str] = []

    def nest() -> None:
        try:
            loop.run_until_complete(asyncio.sleep(60))
        except KeyboardInterrupt:
            caught.append("nested")

    loop.call_soon(nest)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupt())
    assert caught == ["nested"]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    run_turns(loop, 2)


def test_an_exception_of_a_nested_run_is_raised_to_its_caller(loop: uringloop.Loop) -> None:
    async def fail() -> None:
        raise LookupError("inner")

    async def main() -> str:
        with pytest.raises(LookupError, match="inner"):
            loop.run_until_complete(fail())
        return "outer"

    assert loop.run_until_complete(main()) == "outer"


def test_a_loop_cannot_be_closed_in_a_nested_run(loop: uringloop.Loop) -> None:
    async def close() -> None:
        with pytest.raises(RuntimeError, match="Cannot close a running event loop"):
            loop.close()

    async def main() -> None:
        loop.run_until_complete(close())

    loop.run_until_complete(main())
