"""Debug mode: switching it on, slow callbacks, tracebacks of creation, coroutine origins."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import re
import socket
import subprocess
import sys
import textwrap
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.loops import LoopFactory, run_turns

import uringloop

SOCKET_TYPES = {
    "stream": socket.SOCK_STREAM,
    "datagram": socket.SOCK_DGRAM,
    "pipe": socket.SOCK_STREAM,
}
KINDS = ["asyncio.SelectorEventLoop", "uringloop.new_event_loop"]


def callback() -> None:
    """A callback with a source line."""


def slow_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of asyncio's logger about slow callbacks."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "asyncio" and record.levelno == logging.WARNING
    ]


@pytest.fixture
def origin_depth() -> Iterator[int]:
    """Set an origin tracking depth that no other code uses, and restore the old one."""
    before = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(3)
    yield 3
    sys.set_coroutine_origin_tracking_depth(before)


# ── switching it on ──────────────────────────────────────────────


def test_debug_mode_is_off_until_it_is_set(each_loop: AbstractEventLoop) -> None:
    assert each_loop.get_debug() is False
    each_loop.set_debug(True)
    assert each_loop.get_debug() is True
    each_loop.set_debug(False)
    assert each_loop.get_debug() is False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ([], None, "False"),
        ([], "", "False"),
        ([], "1", "True"),
        (["-X", "dev"], None, "True"),
        (["-E"], "1", "False"),
    ],
)
def test_interpreter_options_switch_debug_mode_on(
    kind: str, options: list[str], variable: str | None, expected: str
) -> None:
    script = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        import asyncio
        import uringloop
        loop = {kind}()
        print(loop.get_debug())
        loop.close()
    """
    environment = {**os.environ, "PYTHONASYNCIODEBUG": variable or ""}
    if variable is None:
        del environment["PYTHONASYNCIODEBUG"]
    command = [sys.executable, *options, "-c", textwrap.dedent(script)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == f"{expected}\n"


def test_program_runs_the_same_in_debug_mode(each_loop: AbstractEventLoop) -> None:
    async def main() -> list[int]:
        each_loop.call_soon(callback)
        each_loop.call_later(0, callback)
        each_loop.call_soon_threadsafe(callback)
        await asyncio.sleep(0.001)
        await asyncio.to_thread(callback)
        return await asyncio.gather(*(asyncio.sleep(0, value) for value in range(100)))

    each_loop.set_debug(True)
    assert each_loop.run_until_complete(main()) == list(range(100))


@pytest.mark.parametrize("method", ["close", "abort"])
@pytest.mark.parametrize("kind", ["stream", "datagram", "pipe"])
def test_debug_mode_refuses_closing_a_transport_in_another_thread(
    each_loop: AbstractEventLoop, kind: str, method: str
) -> None:
    if (kind, method) == ("pipe", "abort"):
        pytest.skip("a transport that only reads has no abort()")
    ours, theirs = socket.socketpair(socket.AF_UNIX, SOCKET_TYPES[kind])

    async def main() -> None:
        if kind == "stream":
            made: Any = await each_loop.create_connection(asyncio.Protocol, sock=ours)
        elif kind == "datagram":
            made = await each_loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=ours)
        else:
            made = await each_loop.connect_read_pipe(asyncio.Protocol, ours)
        transport = made[0]
        with pytest.raises(RuntimeError, match="Non-thread-safe operation invoked"):
            await asyncio.to_thread(getattr(transport, method))
        if not isinstance(each_loop, uringloop.Loop):
            # asyncio has closed the transport half-way: finish that.
            transport._call_connection_lost(None)
        else:
            assert not transport.is_closing()
            transport.close()
            # Closing it again is allowed in any thread.
            await asyncio.to_thread(transport.close)
        await asyncio.sleep(0.001)

    each_loop.set_debug(True)
    with ours, theirs:
        each_loop.run_until_complete(main())


# ── slow callbacks ───────────────────────────────────────────────


def test_slow_callback_duration_is_100_ms_by_default(each_loop: AbstractEventLoop) -> None:
    assert each_loop.slow_callback_duration == 0.1
    each_loop.slow_callback_duration = 2.5
    assert each_loop.slow_callback_duration == 2.5


def test_slow_callback_is_logged_with_its_handle_and_duration(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.set_debug(True)
    each_loop.slow_callback_duration = 0.0
    each_loop.call_soon(callback)
    line = sys._getframe().f_lineno - 1
    run_turns(each_loop)
    source = re.escape(f"{__file__}:{callback.__code__.co_firstlineno}")
    created = re.escape(f"{__file__}:{line}")
    first = slow_warnings(caplog)[0]
    pattern = (
        rf"Executing <Handle callback\(\) at {source} created at {created}> took 0\.\d{{3}} seconds"
    )
    assert re.fullmatch(pattern, first)


def test_slow_timer_is_logged(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.set_debug(True)
    each_loop.slow_callback_duration = 0.0
    each_loop.call_later(-1, callback)
    run_turns(each_loop)
    assert any(
        re.match(r"Executing <TimerHandle when=\d+\.\d+ callback\(\) at ", message)
        for message in slow_warnings(caplog)
    )


def test_slow_step_of_a_task_is_logged_with_the_task(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def step() -> None: ...

    each_loop.set_debug(True)
    each_loop.slow_callback_duration = 0.0
    each_loop.run_until_complete(each_loop.create_task(step(), name="sluggish"))
    pattern = r"Executing <Task finished name='sluggish' coro=<.*step\(\) done, .* took 0\.\d{3} "
    assert any(re.match(pattern, message) for message in slow_warnings(caplog))


def test_only_callbacks_over_slow_callback_duration_are_logged(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def linger() -> None:
        end = each_loop.time() + 0.01
        while each_loop.time() < end:
            pass

    each_loop.set_debug(True)
    each_loop.slow_callback_duration = 0.009
    each_loop.call_soon(linger)
    run_turns(each_loop)
    (message,) = (text for text in slow_warnings(caplog) if "linger" in text)
    match = re.search(r"took (\d+\.\d{3}) seconds$", message)
    assert match is not None
    assert float(match[1]) >= 0.01
    caplog.clear()
    each_loop.slow_callback_duration = 60.0
    each_loop.call_soon(linger)
    run_turns(each_loop)
    assert slow_warnings(caplog) == []


def test_slow_callbacks_are_not_logged_without_debug_mode(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.slow_callback_duration = 0.0
    each_loop.call_soon(callback)
    each_loop.run_until_complete(asyncio.sleep(0.001))
    assert slow_warnings(caplog) == []


def test_set_debug_in_a_callback_applies_to_later_callbacks(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.slow_callback_duration = 0.0
    each_loop.call_soon(each_loop.set_debug, True)
    run_turns(each_loop)
    caplog.clear()
    each_loop.call_soon(callback)
    run_turns(each_loop)
    assert any("callback()" in message for message in slow_warnings(caplog))


# ── tracebacks of creation ───────────────────────────────────────


@pytest.mark.parametrize(
    "schedule",
    [
        lambda loop: loop.call_soon(callback),
        lambda loop: loop.call_soon_threadsafe(callback),
        lambda loop: loop.call_later(1, callback),
        lambda loop: loop.call_at(1, callback),
    ],
    ids=["call_soon", "call_soon_threadsafe", "call_later", "call_at"],
)
def test_handle_knows_the_line_that_created_it(
    each_loop: AbstractEventLoop, schedule: Callable[[AbstractEventLoop], asyncio.Handle]
) -> None:
    assert "created at" not in repr(schedule(each_loop))
    each_loop.set_debug(True)
    line = schedule.__code__.co_firstlineno
    assert f" created at {__file__}:{line}>" in repr(schedule(each_loop))


def test_future_and_task_know_the_line_that_created_them(each_loop: AbstractEventLoop) -> None:
    async def step() -> None: ...

    each_loop.set_debug(True)
    future = each_loop.create_future()
    task = each_loop.create_task(step())
    line = sys._getframe().f_lineno - 1
    # Stock asyncio names the line in its own create_future() here.
    assert re.match(r"<Future pending created at .+:\d+>$", repr(future))
    assert f"created at {__file__}:{line}>" in repr(task)
    each_loop.run_until_complete(task)


def test_handle_of_a_partial_shows_the_function_inside(each_loop: AbstractEventLoop) -> None:
    each_loop.set_debug(True)
    handle = each_loop.call_soon(functools.partial(sorted, [2, 1], reverse=True))
    assert repr(handle).startswith("<Handle sorted([2, 1], reverse=True)() created at ")


def test_report_of_a_task_has_the_line_that_created_it(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    each_loop.set_debug(True)
    each_loop.create_task(broken())
    line = sys._getframe().f_lineno - 1
    run_turns(each_loop, 2)
    gc.collect()
    (message,) = (r.getMessage() for r in caplog.records if "never retrieved" in r.getMessage())
    assert message.startswith("Task exception was never retrieved\n")
    assert "source_traceback: Object created at (most recent call last):\n" in message
    assert f'File "{__file__}", line {line}, in test_report_of_a_task' in message


# ── origins of coroutines ────────────────────────────────────────


def test_origins_are_tracked_during_a_debug_run_only(
    each_loop: AbstractEventLoop, origin_depth: int
) -> None:
    depths: list[int] = []

    def look() -> None:
        depths.append(sys.get_coroutine_origin_tracking_depth())

    each_loop.call_soon(look)
    run_turns(each_loop)
    assert depths == [origin_depth]
    each_loop.set_debug(True)
    assert sys.get_coroutine_origin_tracking_depth() == origin_depth
    each_loop.call_soon(look)
    run_turns(each_loop)
    assert depths[1] > origin_depth
    assert sys.get_coroutine_origin_tracking_depth() == origin_depth


def test_origins_follow_set_debug_during_a_run(
    each_loop: AbstractEventLoop, origin_depth: int
) -> None:
    async def main() -> list[bool]:
        tracked = []
        for enabled in (True, False, True):
            each_loop.set_debug(enabled)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tracked.append(sys.get_coroutine_origin_tracking_depth() > origin_depth)
        return tracked

    assert each_loop.run_until_complete(main()) == [True, False, True]
    assert sys.get_coroutine_origin_tracking_depth() == origin_depth


def test_origins_are_restored_after_an_exception(
    each_loop: AbstractEventLoop, origin_depth: int
) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    each_loop.set_debug(True)
    each_loop.call_soon(leave)
    with pytest.raises(KeyboardInterrupt):
        each_loop.run_forever()
    assert sys.get_coroutine_origin_tracking_depth() == origin_depth


def test_warning_of_a_coroutine_never_awaited_has_its_origin(
    each_loop: AbstractEventLoop,
) -> None:
    async def forgotten() -> None: ...

    async def main() -> None:
        coroutine = forgotten()
        del coroutine
        gc.collect()

    each_loop.set_debug(True)
    wording = r"(?s)forgotten' was never awaited\nCoroutine created at .*in main"
    with pytest.warns(RuntimeWarning, match=wording):
        each_loop.run_until_complete(main())


def test_runner_option_debug_overrides_the_loops_default(loop_factory: LoopFactory) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    for debug in (True, False):
        with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
            assert runner.run(main()) is debug
