"""Private attributes of asyncio's loops that other programs read: they have asyncio's values."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio import base_events
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.loops import run_turns
from support.tls_contexts import Contexts

import uringloop


def test_root_task_has_the_done_callback_of_asyncio(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def root() -> list[object]:
        task = asyncio.current_task()
        return [callback for callback, _ in task._callbacks]  # type: ignore[union-attr]

    found = each_loop.run_until_complete(root())
    assert found == [base_events._run_until_complete_cb]  # type: ignore[attr-defined]


def test_keyboard_interrupt_in_the_root_task_does_not_stop_the_next_run(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def later() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        each_loop.run_until_complete(interrupted())
    assert each_loop.run_until_complete(later()) == "done"


def test_ready_lists_callbacks_in_their_order(each_loop: asyncio.AbstractEventLoop) -> None:
    assert not each_loop._ready  # type: ignore[attr-defined]
    # More than the queue's initial capacity, after its head has moved.
    run_turns(each_loop, 3)
    handles = [each_loop.call_soon(int) for _ in range(100)]
    ready = each_loop._ready  # type: ignore[attr-defined]
    assert len(ready) == 100
    assert list(ready) == handles
    run_turns(each_loop)
    assert len(each_loop._ready) == 0  # type: ignore[attr-defined]


def test_scheduled_lists_the_nearest_timer_first(each_loop: asyncio.AbstractEventLoop) -> None:
    assert not each_loop._scheduled  # type: ignore[attr-defined]
    now = each_loop.time()
    timers = [each_loop.call_at(now + 1000 - index, int, index) for index in range(200)]
    scheduled = each_loop._scheduled  # type: ignore[attr-defined]
    assert len(scheduled) == 200
    assert set(map(id, scheduled)) == set(map(id, timers))
    assert scheduled[0] is timers[-1]
    assert scheduled[0]._when == timers[-1].when()  # type: ignore[attr-defined]
    assert all(isinstance(timer, asyncio.TimerHandle) for timer in scheduled)
    for timer in timers:
        timer.cancel()
    run_turns(each_loop)
    assert not each_loop._scheduled  # type: ignore[attr-defined]


def test_scheduled_includes_due_timers_that_have_not_run(loop: uringloop.Loop) -> None:
    lengths: list[int] = []
    # All are due in the same turn: each sees itself and those that follow.
    now = loop.time()
    for _ in range(3):
        loop.call_at(now, lambda: lengths.append(len(loop._scheduled)))
    loop.call_later(0.001, loop.stop)
    loop.run_forever()
    assert lengths == [3, 2, 1]


def test_ready_and_scheduled_are_copies(loop: uringloop.Loop) -> None:
    ran: list[str] = []
    timer = loop.call_later(0.001, ran.append, "timer")
    loop._scheduled.clear()
    loop.call_soon(ran.append, "soon")
    assert isinstance(loop._ready, tuple)
    loop.call_later(0.002, loop.stop)
    loop.run_forever()
    assert ran == ["soon", "timer"]
    assert not timer.cancelled()


def test_thread_id_is_set_while_the_loop_runs(each_loop: asyncio.AbstractEventLoop) -> None:
    assert each_loop._thread_id is None  # type: ignore[attr-defined]
    thread_ids: list[int | None] = []
    each_loop.call_soon(lambda: thread_ids.append(each_loop._thread_id))  # type: ignore[attr-defined]
    run_turns(each_loop, 2)
    assert thread_ids == [threading.get_ident()]
    assert each_loop._thread_id is None  # type: ignore[attr-defined]


# From 3.12 on Python warns of a fork beside threads, which earlier tests may have left.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_thread_id_is_none_in_a_forked_child(loop: uringloop.Loop) -> None:
    statuses: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if loop._thread_id is None else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    loop.call_soon(fork)
    run_turns(loop, 2)
    assert statuses == [0]


def test_default_executor_is_set_by_its_first_use(each_loop: asyncio.AbstractEventLoop) -> None:
    assert each_loop._default_executor is None  # type: ignore[attr-defined]
    each_loop.run_until_complete(each_loop.run_in_executor(None, int))
    assert each_loop._default_executor is not None  # type: ignore[attr-defined]


def test_default_executor_may_be_shut_down_and_forgotten(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    loop: Any = each_loop
    loop.run_until_complete(loop.run_in_executor(None, int))
    first = loop._default_executor
    first.shutdown(wait=True)
    loop._default_executor = None
    loop.run_until_complete(loop.run_in_executor(None, int))
    assert loop._default_executor is not first
    loop._default_executor.shutdown(wait=True)
    loop.run_until_complete(loop.shutdown_default_executor())
    assert loop._default_executor is not None


def test_saved_signal_handlers_can_be_restored(each_loop: asyncio.AbstractEventLoop) -> None:
    calls: list[str] = []

    def called(name: str) -> None:
        calls.append(name)
        each_loop.stop()

    each_loop.add_signal_handler(signal.SIGUSR1, called, "first")
    before = each_loop._signal_handlers.get(signal.SIGUSR1)  # type: ignore[attr-defined]
    each_loop.add_signal_handler(signal.SIGUSR1, called, "second")
    each_loop.remove_signal_handler(signal.SIGUSR1)
    assert signal.SIGUSR1 not in each_loop._signal_handlers  # type: ignore[attr-defined]
    each_loop.add_signal_handler(signal.SIGUSR1, before._callback, *before._args)
    each_loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    each_loop.run_forever()
    assert calls == ["first"]
    each_loop.remove_signal_handler(signal.SIGUSR1)


def test_other_private_attributes_have_the_values_of_asyncio(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        pass

    async def generate() -> None:
        async def generator() -> AsyncGenerator[int, None]:
            yield 1

        agen = generator()
        await anext(agen)
        assert list(each_loop._asyncgens) == [agen]  # type: ignore[attr-defined]
        await agen.aclose()

    assert each_loop._closed is False  # type: ignore[attr-defined]
    assert each_loop._debug is False  # type: ignore[attr-defined]
    assert each_loop._exception_handler is None  # type: ignore[attr-defined]
    assert each_loop._task_factory is None  # type: ignore[attr-defined]
    each_loop.set_exception_handler(handler)
    assert each_loop._exception_handler is handler  # type: ignore[attr-defined]
    each_loop.set_exception_handler(None)
    each_loop.run_until_complete(generate())
    each_loop._check_closed()
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    each_loop.close()
    assert each_loop._closed is True
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        each_loop._check_closed()


def test_server_has_the_private_attributes_of_asyncio(
    each_loop: asyncio.AbstractEventLoop, contexts: Contexts
) -> None:
    async def look() -> None:
        plain: Any = await each_loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        secure: Any = await each_loop.create_server(
            asyncio.Protocol,
            "127.0.0.1",
            0,
            ssl=contexts.server,
            ssl_handshake_timeout=3.0,
            ssl_shutdown_timeout=4.0,
        )
        for server, context, handshake, shutdown in (
            (plain, None, None, None),
            (secure, contexts.server, 3.0, 4.0),
        ):
            assert server._protocol_factory is asyncio.Protocol
            assert server._backlog == 100
            assert server._ssl_context is context
            assert server._ssl_handshake_timeout == handshake
            assert server._ssl_shutdown_timeout == shutdown
            server.close()
            await server.wait_closed()

    each_loop.run_until_complete(look())
