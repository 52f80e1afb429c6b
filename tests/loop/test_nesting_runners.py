"""Nested asyncio.run() and asyncio.Runner, other loops and threads, and the option `nestable`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

import pytest
from support.loops import each_ring
from support.nesting import DEPTH, give, nestable_loop

import uringloop
from uringloop._loop import nesting, options


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new nestable loop, checked for leaks afterwards."""
    yield from nestable_loop()


# ── asyncio.run() and asyncio.Runner ─────────────────────────────────────────────────────────


def test_nested_asyncio_run_uses_the_running_loop(loop: uringloop.Loop) -> None:
    async def nest(depth: int) -> int:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        return asyncio.run(nest(depth - 1)) + 1 if depth else 0

    assert loop.run_until_complete(nest(DEPTH)) == DEPTH


def test_nested_asyncio_run_accepts_any_awaitable(loop: uringloop.Loop) -> None:
    class Answer:
        def __await__(self) -> Generator[None, None, int]:
            yield
            return 4

    run: Callable[[Any], Any] = asyncio.run

    async def main() -> list[object]:
        return [
            run(asyncio.gather(give("1"), give("2"))),
            run(asyncio.ensure_future(give("3"))),
            run(Answer()),
        ]

    assert loop.run_until_complete(main()) == [["1", "2"], "3", 4]


def test_nested_asyncio_run_refuses_other_objects(loop: uringloop.Loop) -> None:
    run: Callable[[Any], Any] = asyncio.run

    async def main() -> None:
        run(42)

    with pytest.raises((ValueError, TypeError), match=r"a coroutine was expected|is required"):
        loop.run_until_complete(main())


def test_nested_uringloop_run_uses_the_running_loop(loop: uringloop.Loop) -> None:
    async def inner() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def main() -> asyncio.AbstractEventLoop:
        return uringloop.run(inner())

    assert loop.run_until_complete(main()) is loop


def test_nested_asyncio_run_does_not_cancel_other_tasks(loop: uringloop.Loop) -> None:
    async def main() -> str:
        other = loop.create_task(give("other"))
        asyncio.run(asyncio.sleep(0))
        assert not other.done()
        assert loop._default_executor is None
        return await other

    assert loop.run_until_complete(main()) == "other"


def test_nested_asyncio_run_restores_debug_mode(loop: uringloop.Loop) -> None:
    async def is_debug() -> bool:
        return loop.get_debug()

    async def main() -> list[bool]:
        return [asyncio.run(is_debug(), debug=True), await is_debug()]

    assert loop.run_until_complete(main()) == [True, False]


def test_nested_asyncio_run_raises_the_stock_exception(loop: uringloop.Loop) -> None:
    def refusal() -> tuple[type[BaseException], str]:
        try:
            asyncio.run(42)  # type: ignore[arg-type]
        except Exception as exc:
            return type(exc), str(exc)
        raise AssertionError("accepted")

    async def main() -> tuple[type[BaseException], str]:
        return refusal()

    expected = refusal()
    assert loop.run_until_complete(main()) == expected


def test_failing_nested_asyncio_run_cancels_its_task(loop: uringloop.Loop) -> None:
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cancelled.append("cancelled")

    async def main() -> None:
        loop.call_later(0.001, loop.stop)
        with pytest.raises(RuntimeError, match="stopped before Future completed"):
            asyncio.run(wait())

    loop.run_until_complete(main())
    assert cancelled == ["cancelled"]


def test_the_first_interrupt_cancels_the_task_of_a_nested_asyncio_run(loop: uringloop.Loop) -> None:
    async def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(wait())
        seen.append("interrupted")

    seen: list[str] = []
    loop.run_until_complete(main())
    assert seen == ["cancelled", "interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_interrupt_ends_a_nested_asyncio_run_at_once(loop: uringloop.Loop) -> None:
    async def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
        loop.call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(wait())
        seen.append("interrupted")

    seen: list[str] = []
    loop.run_until_complete(main())
    assert seen == ["cancelled", "interrupted"]


def test_a_runner_has_a_loop_of_its_own(loop: uringloop.Loop) -> None:
    async def inner() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(0.001)
        return asyncio.get_running_loop()

    async def main() -> None:
        task = asyncio.current_task()
        for factory in (asyncio.SelectorEventLoop, uringloop.Loop):
            with asyncio.Runner(loop_factory=factory) as runner:
                used = runner.run(inner())
                assert used is runner.get_loop() is not loop
                assert type(used) is factory
            assert used.is_closed()
            assert asyncio.get_running_loop() is loop
            assert asyncio.current_task() is task
        await asyncio.sleep(0)

    loop.run_until_complete(main())


def test_a_runner_can_run_within_its_own_run() -> None:
    async def nest(depth: int) -> int:
        await asyncio.sleep(0)
        return runner.run(nest(depth - 1)) + 1 if depth else 0

    with asyncio.Runner(loop_factory=lambda: uringloop.Loop(nestable=True)) as runner:
        assert runner.run(nest(DEPTH)) == DEPTH


# ── other loops and threads ──────────────────────────────────────────────────────────────────


def test_two_nestable_loops_nest_alternately(loop: uringloop.Loop) -> None:
    other = uringloop.Loop(nestable=True)

    async def nest(depth: int) -> int:
        mine, next_one = (loop, other) if depth % 2 else (other, loop)
        assert asyncio.get_running_loop() is mine
        await asyncio.sleep(0)
        task = asyncio.current_task()
        below = next_one.run_until_complete(nest(depth - 1)) + 1 if depth else 0
        assert asyncio.current_task() is task
        return below

    with pytest.MonkeyPatch.context():
        assert loop.run_until_complete(nest(11)) == 11
    other.close()


def test_a_non_nestable_loop_runs_within_a_nestable_loop(loop: uringloop.Loop) -> None:
    other = uringloop.Loop(nestable=False)

    async def main() -> str:
        return other.run_until_complete(give("other"))

    assert loop.run_until_complete(main()) == "other"
    other.close()


def refusals(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return the messages of RuntimeError when a task of *loop* runs that loop or another one."""

    async def nothing() -> None:
        pass

    async def main() -> list[str]:
        messages: list[str] = []
        with asyncio.Runner() as runner:
            runner.get_loop()
            attempts = (loop.run_until_complete, asyncio.run, runner.run)
            for attempt in attempts:
                coro = nothing()
                with pytest.raises(RuntimeError) as refusal:
                    attempt(coro)
                coro.close()
                messages.append(str(refusal.value))
            with pytest.raises(RuntimeError) as refusal:
                loop.run_forever()
            messages.append(str(refusal.value))
            # Runner.close() would run the loop, which is refused too: close the loop directly.
            created = runner.get_loop()
            runner._loop = None  # type: ignore[attr-defined]
            runner._state = type(runner._state).CLOSED  # type: ignore[attr-defined]
            created.close()
        return messages

    return loop.run_until_complete(main())


def test_other_loops_still_refuse_nested_runs(
    loop: uringloop.Loop, each_loop: asyncio.AbstractEventLoop
) -> None:
    assert refusals(each_loop) == [
        "This event loop is already running",
        "asyncio.run() cannot be called from a running event loop",
        "Runner.run() cannot be called from a running event loop",
        "This event loop is already running",
    ]


def test_another_thread_cannot_run_a_running_loop(loop: uringloop.Loop) -> None:
    def run() -> str:
        try:
            loop.run_forever()
        except RuntimeError as exc:
            return str(exc)
        return "ran"

    async def main() -> str:
        return await loop.run_in_executor(None, run)

    message = loop.run_until_complete(main())
    assert message == "This event loop is already running"


def test_asyncio_run_in_another_thread_has_its_own_loop(loop: uringloop.Loop) -> None:
    async def inner() -> bool:
        return asyncio.get_running_loop() is not loop

    async def main() -> bool:
        return await asyncio.to_thread(lambda: asyncio.run(inner()))

    assert loop.run_until_complete(main())


def test_a_nestable_loop_nests_in_another_thread() -> None:
    async def nest(depth: int) -> int:
        await asyncio.sleep(0)
        return asyncio.run(nest(depth - 1)) + 1 if depth else 0

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: uringloop.Loop(nestable=True)) as runner:
            results.append(runner.run(nest(DEPTH)))

    results: list[int] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [DEPTH]


# ── nestable loops ───────────────────────────────────────────────────────────────────────────


@each_ring
def test_nesting_is_off_by_default(backend: Literal["io_uring", "soft"]) -> None:
    loop = uringloop.Loop(backend=backend)
    assert not nesting.allows_nested_runs(loop)
    assert loop._runs is None
    loop.close()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("0", False), ("no", False), ("Off", False), ("1", True)],
)
def test_the_environment_makes_loops_nestable(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv(options.NESTABLE.variable, raising=False)
    if value is not None:
        monkeypatch.setenv(options.NESTABLE.variable, value)
    for option, nestable in ((None, expected), (True, True), (False, False)):
        loop = uringloop.Loop(nestable=option)
        assert nesting.allows_nested_runs(loop) is nestable
        loop.close()


def test_asyncio_is_unpatched_until_a_nestable_loop_is_created() -> None:
    program = """
import asyncio, sys
import uringloop
before = asyncio.run, asyncio.Runner.run, asyncio.Runner.close
uringloop.Loop().close()
assert (asyncio.run, asyncio.Runner.run, asyncio.Runner.close) == before
assert not hasattr(asyncio, "_nest_patched")
for _ in range(2):
    uringloop.Loop(nestable=True).close()
    assert asyncio.run.__wrapped__ is before[0] is asyncio.runners.run.__wrapped__
    assert asyncio.Runner.run.__wrapped__ is before[1]
    assert asyncio._nest_patched
print(asyncio.run(asyncio.sleep(0, "done")))
"""
    environment = {**os.environ, options.NESTABLE.variable: "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_nestable_loop_has_the_attribute_of_nest_asyncio(loop: uringloop.Loop) -> None:
    assert hasattr(loop, "_nest_patched")
    other = uringloop.Loop(nestable=False)
    assert not hasattr(other, "_nest_patched")
    other.close()


def test_debug_mode_reports_the_callback_that_nests(
    loop: uringloop.Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.set_debug(True)
    loop.slow_callback_duration = 0.001

    def nest_and_report() -> None:
        loop.run_until_complete(asyncio.sleep(0.002))
        loop.call_exception_handler({"message": "reported"})

    loop.call_soon(nest_and_report)
    loop.run_until_complete(give("later"))
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == 1
    assert "Object created at" in messages[0] or "nest_and_report" in messages[0]
    assert sys.get_coroutine_origin_tracking_depth() == 0
