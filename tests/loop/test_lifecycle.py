"""Creation of loops, runners, exceptions that end a run, asynchronous generators, close()."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import subprocess
import sys
import threading
import weakref
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Callable

import pytest
from support.leaks import open_fds
from support.loops import LoopFactory, run_turns
from support.protocols import Collector, Echo
from support.roles import Token, in_thread, resident_bytes, run_script, wait_until

import uringloop


class Unusual(BaseException):
    """A BaseException that is neither KeyboardInterrupt nor SystemExit."""


def callback() -> None:
    """Do nothing."""


# ── states ───────────────────────────────────────────────────────


def test_new_loop_is_neither_running_nor_closed(each_loop: AbstractEventLoop) -> None:
    assert isinstance(each_loop, asyncio.AbstractEventLoop)
    assert each_loop.is_running() is False
    assert each_loop.is_closed() is False
    assert each_loop.get_debug() is False


def test_loop_is_running_during_a_run_only(each_loop: AbstractEventLoop) -> None:
    seen: list[bool] = []
    each_loop.call_soon(lambda: seen.append(each_loop.is_running()))
    run_turns(each_loop)
    assert seen == [True]
    assert each_loop.is_running() is False


def test_close_is_idempotent(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    each_loop.close()
    assert each_loop.is_closed() is True
    assert each_loop.is_running() is False


def test_running_loop_cannot_be_closed(each_loop: AbstractEventLoop) -> None:
    async def main() -> str:
        with pytest.raises(RuntimeError, match=r"^Cannot close a running event loop$"):
            each_loop.close()
        assert not each_loop.is_closed()
        return await asyncio.sleep(0.001, "goes on")

    assert each_loop.run_until_complete(main()) == "goes on"


def test_a_refused_close_does_not_affect_the_running_loop(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> tuple[bytes, int]:
        child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
        left, right = socket.socketpair()
        left.setblocking(False)
        with left, right:
            readable = asyncio.Event()
            each_loop.add_reader(left, readable.set)
            with pytest.raises(RuntimeError, match=r"^Cannot close a running event loop$"):
                each_loop.close()
            right.send(b"x")
            assert child.stdin is not None
            child.stdin.close()
            async with asyncio.timeout(10):
                await readable.wait()
                code = await child.wait()
            assert each_loop.remove_reader(left)
            return left.recv(1), code

    assert each_loop.run_until_complete(main()) == (b"x", 0)


def test_repr_shows_the_state(each_loop: AbstractEventLoop) -> None:
    name = type(each_loop).__name__
    ring = f" backend={each_loop.backend}" if isinstance(each_loop, uringloop.Loop) else ""
    assert repr(each_loop) == f"<{name} running=False closed=False debug=False{ring}>"
    seen: list[str] = []
    each_loop.set_debug(True)
    each_loop.call_soon(lambda: seen.append(repr(each_loop)))
    run_turns(each_loop)
    assert seen == [f"<{name} running=True closed=False debug=True{ring}>"]
    each_loop.close()
    assert repr(each_loop) == f"<{name} running=False closed=True debug=True{ring}>"


def test_closed_loop_refuses_work(each_loop: AbstractEventLoop) -> None:
    async def main() -> None: ...

    each_loop.close()
    coroutine = main()
    refusals: list[Callable[[], object]] = [
        each_loop.run_forever,
        lambda: each_loop.run_until_complete(coroutine),
        lambda: each_loop.create_task(coroutine),
        lambda: each_loop.call_soon(callback),
        lambda: each_loop.call_soon_threadsafe(callback),
        lambda: each_loop.call_later(1, callback),
        lambda: each_loop.call_at(1, callback),
        lambda: each_loop.run_in_executor(None, callback),
    ]
    for refused in refusals:
        with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
            refused()
    coroutine.close()


def test_stopping_a_closed_loop_is_harmless(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    each_loop.stop()
    assert each_loop.is_closed()


# ── the object ───────────────────────────────────────────────────


def test_loop_can_be_weakly_referenced_and_hashed(loop_factory: LoopFactory) -> None:
    loop = loop_factory()
    watch = weakref.ref(loop)
    assert watch() is loop
    assert {loop: "found"}[loop] == "found"
    loop.close()
    del loop
    gc.collect()
    assert watch() is None


def test_loop_can_be_subclassed(loop_factory: LoopFactory) -> None:
    with contextlib.closing(loop_factory()) as plain:
        kind = type(plain)
    turns: list[str] = []

    def call_soon(self: AbstractEventLoop, *args: object, **kwargs: object) -> object:
        turns.append("call_soon")
        plain_call_soon: Callable[..., object] = kind.call_soon
        return plain_call_soon(self, *args, **kwargs)

    custom = type("Custom", (kind,), {"call_soon": call_soon, "answer": 42})
    loop = custom()
    loop.own = "attribute"
    assert (loop.answer, loop.own) == (42, "attribute")
    assert repr(loop).startswith("<Custom running=False")
    assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    loop.call_soon(callback)
    assert turns[-1] == "call_soon"
    loop.close()


@pytest.mark.slow
def test_thousand_loops_leave_memory_and_fds_flat() -> None:
    def cycle(count: int) -> None:
        for _ in range(count):
            with contextlib.closing(uringloop.new_event_loop()) as created:
                created.run_until_complete(asyncio.sleep(0))

    cycle(100)
    gc.collect()
    fds, resident = open_fds(), resident_bytes()
    cycle(1000)
    gc.collect()
    assert open_fds() == fds
    assert resident_bytes() - resident < 4 * 1024 * 1024


# ── runners ──────────────────────────────────────────────────────


def test_runner_runs_and_closes_the_loop_of_its_factory(loop_factory: LoopFactory) -> None:
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("wait")
            raise

    async def main() -> AbstractEventLoop:
        tasks.append(asyncio.ensure_future(wait()))
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    tasks: list[asyncio.Future[None]] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        assert runner.run(main()) is loop
        assert runner.run(main()) is loop
        assert not loop.is_closed()
    assert loop.is_closed()
    assert cancelled == ["wait", "wait"]


def test_runner_in_debug_mode_runs_the_loop_in_debug_mode(loop_factory: LoopFactory) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    with asyncio.Runner(debug=True, loop_factory=loop_factory) as runner:
        assert runner.run(main()) is True


def test_runner_shuts_down_threads_and_generators(loop_factory: LoopFactory) -> None:
    finished: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            finished.append("generator")

    async def main() -> str:
        kept.append(numbers())
        await anext(kept[0])
        return await asyncio.to_thread(threading.current_thread().__class__.__name__.upper)

    kept: list[AsyncGenerator[int, None]] = []
    threads = set(threading.enumerate())
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == "_MAINTHREAD"
    assert finished == ["generator"]
    assert not set(threading.enumerate()) - threads


def test_asyncio_run_takes_the_loop_factory(loop_factory: LoopFactory) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("asyncio.run has loop_factory since 3.12")

    async def main() -> AbstractEventLoop:
        await asyncio.sleep(0.001)
        return asyncio.get_running_loop()

    loop = asyncio.run(main(), loop_factory=loop_factory)
    assert loop.is_closed()
    with contextlib.closing(loop_factory()) as other:
        assert type(loop) is type(other)


# ── exceptions that end a run ────────────────────────────────────


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exception_that_ends_the_run_does_not_lose_other_callbacks(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        raise leaving("on purpose")

    ran: list[str] = []
    each_loop.call_soon(ran.append, "before")
    each_loop.call_soon(leave)
    each_loop.call_soon(ran.append, "after")
    with pytest.raises(leaving, match="on purpose"):
        each_loop.run_forever()
    assert ran == ["before"]
    assert not each_loop.is_running()
    run_turns(each_loop)
    assert ran == ["before", "after"]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exception_of_a_timer_ends_the_run(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        raise leaving("on purpose")

    ran: list[str] = []
    each_loop.call_later(-1, leave)
    each_loop.call_later(0, ran.append, "after")
    with pytest.raises(leaving, match="on purpose"):
        each_loop.run_forever()
    assert ran == []
    run_turns(each_loop)
    assert ran == ["after"]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exception_of_a_task_ends_the_run_and_is_set_on_the_task(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        raise leaving("on purpose")

    task = each_loop.create_task(leave())
    with pytest.raises(leaving, match="on purpose"):
        each_loop.run_forever()
    assert isinstance(task.exception(), leaving)
    with pytest.raises(leaving, match="on purpose"):
        each_loop.run_until_complete(leave())
    assert each_loop.run_until_complete(asyncio.sleep(0.001, "again")) == "again"


def test_other_base_exceptions_of_callbacks_are_reported(each_loop: AbstractEventLoop) -> None:
    def fail() -> None:
        raise Unusual("on purpose")

    handler_calls: list[dict[str, object]] = []
    each_loop.set_exception_handler(lambda _loop, context: handler_calls.append(context))
    each_loop.call_soon(fail)
    run_turns(each_loop)
    (call,) = handler_calls
    assert isinstance(call["exception"], Unusual)


def test_other_base_exceptions_of_tasks_are_set_on_the_task(each_loop: AbstractEventLoop) -> None:
    async def fail() -> None:
        raise Unusual("on purpose")

    async def main() -> str:
        with pytest.raises(Unusual, match="on purpose"):
            await asyncio.ensure_future(fail())
        return "goes on"

    assert each_loop.run_until_complete(main()) == "goes on"
    with pytest.raises(Unusual, match="on purpose"):
        each_loop.run_until_complete(fail())


# ── asynchronous generators ──────────────────────────────────────


async def pair(log: list[str]) -> AsyncGenerator[int, None]:
    """Yield twice, and record the end in *log*."""
    try:
        yield 1
        yield 2
    finally:
        await asyncio.sleep(0)
        log.append("closed")


def test_shutdown_asyncgens_closes_open_generators(each_loop: AbstractEventLoop) -> None:
    log: list[str] = []
    generators = [pair(log) for _ in range(3)]

    async def start() -> None:
        for generator in generators:
            assert await anext(generator) == 1

    each_loop.run_until_complete(start())
    assert log == []
    each_loop.run_until_complete(each_loop.shutdown_asyncgens())
    assert log == ["closed"] * 3
    each_loop.run_until_complete(each_loop.shutdown_asyncgens())


def test_generator_started_after_the_shutdown_warns(each_loop: AbstractEventLoop) -> None:
    log: list[str] = []

    async def exhaust() -> list[int]:
        return [number async for number in pair(log)]

    each_loop.run_until_complete(each_loop.shutdown_asyncgens())
    wording = r"^asynchronous generator .* was scheduled after loop\.shutdown_asyncgens\(\) call$"
    with pytest.warns(ResourceWarning, match=wording):
        assert each_loop.run_until_complete(exhaust()) == [1, 2]
    assert log == ["closed"]


def test_dropped_generator_is_closed_by_the_loop(each_loop: AbstractEventLoop) -> None:
    log: list[str] = []

    async def drop() -> None:
        generator = pair(log)
        assert await anext(generator) == 1
        del generator
        gc.collect()
        await asyncio.sleep(0)

    each_loop.run_until_complete(drop())
    run_turns(each_loop, 5)
    assert log == ["closed"]


def test_generator_dropped_by_another_thread_is_closed_by_the_loop(
    each_loop: AbstractEventLoop,
) -> None:
    log: list[str] = []
    kept: list[AsyncGenerator[int, None]] = []

    async def main() -> None:
        kept.append(pair(log))
        assert await anext(kept[0]) == 1
        await asyncio.to_thread(kept.clear)

    each_loop.run_until_complete(main())
    run_turns(each_loop, 5)
    assert log == ["closed"]


def test_generator_that_fails_to_close_is_reported(each_loop: AbstractEventLoop) -> None:
    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise ZeroDivisionError

    async def start() -> None:
        assert await anext(generator) == 1

    handler_calls: list[dict[str, object]] = []
    each_loop.set_exception_handler(lambda _loop, context: handler_calls.append(context))
    generator = stubborn()
    each_loop.run_until_complete(start())
    each_loop.run_until_complete(each_loop.shutdown_asyncgens())
    (call,) = handler_calls
    assert call["asyncgen"] is generator
    assert isinstance(call["exception"], ZeroDivisionError)
    wording = f"an error occurred during closing of asynchronous generator {generator!r}"
    assert call["message"] == wording


def test_asyncgen_hooks_are_set_during_a_run_and_restored(
    each_loop: AbstractEventLoop,
) -> None:
    def mine(_generator: AsyncGenerator[object, object]) -> None: ...

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=mine, finalizer=mine)
    inside: list[object] = []
    try:
        each_loop.call_soon(lambda: inside.extend(sys.get_asyncgen_hooks()))
        run_turns(each_loop)
        restored = sys.get_asyncgen_hooks()
    finally:
        sys.set_asyncgen_hooks(*before)
    assert tuple(restored) == (mine, mine)
    assert None not in inside
    assert mine not in inside


# ── closing ──────────────────────────────────────────────────────


def test_close_drops_pending_callbacks_and_timers(each_loop: AbstractEventLoop) -> None:
    tokens = [Token() for _ in range(3)]
    watches = [weakref.ref(token) for token in tokens]
    ran: list[object] = []
    each_loop.call_soon(ran.append, tokens[0])
    each_loop.call_later(0, ran.append, tokens[1])
    each_loop.call_soon_threadsafe(ran.append, tokens[2])
    tokens.clear()
    each_loop.close()
    gc.collect()
    assert ran == []
    assert [watch() for watch in watches] == [None, None, None]


def test_close_in_another_thread_fails_on_signal_handlers_but_closes_the_rest(
    loop_factory: LoopFactory,
) -> None:
    before = open_fds()
    threads = threading.active_count()
    loop = loop_factory()
    try:
        loop.add_signal_handler(signal.SIGUSR1, callback)
        loop.run_until_complete(loop.run_in_executor(None, callback))
        with pytest.raises(ValueError, match="main thread of the main interpreter"):
            in_thread(loop.close)
        assert loop.is_closed()
        wait_until(lambda: threading.active_count() == threads)
        assert open_fds() == before
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        loop.close()


def test_handle_may_be_cancelled_after_its_loop_is_closed(each_loop: AbstractEventLoop) -> None:
    handles = [each_loop.call_soon(callback), each_loop.call_later(1, callback)]
    each_loop.close()
    for handle in handles:
        handle.cancel()
        assert handle.cancelled()


def test_future_of_a_closed_loop_may_still_be_cancelled(each_loop: AbstractEventLoop) -> None:
    future = each_loop.create_future()
    each_loop.close()
    assert future.cancel()
    with pytest.raises(asyncio.CancelledError):
        future.result()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_close_closes_the_fds_of_open_transports_and_servers(loop: uringloop.Loop) -> None:
    fds = open_fds()

    async def main() -> None:
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        for _ in range(10):
            _, client = await loop.create_connection(lambda: Collector(loop), *address)
            client.transport.write(b"hello")
            assert await client.received(5) == b"hello"
        client.transport.write(b"never read" * 100_000)

    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert open_fds() <= fds


def test_closed_transports_leave_no_operation_and_no_buffer_behind(loop: uringloop.Loop) -> None:
    async def main() -> None:
        served: list[Collector] = []

        def accept() -> Collector:
            served.append(Collector(loop))
            return served[-1]

        server = await loop.create_server(accept, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        clients: list[Collector] = []
        for _ in range(20):
            _, client = await loop.create_connection(lambda: Collector(loop), *address)
            client.transport.write(b"x" * 100_000)
            clients.append(client)
        for peer in served:
            assert await peer.received(100_000) == b"x" * 100_000
        for client in clients:
            client.transport.close()
        server.close()
        await server.wait_closed()
        for protocol in clients + served:
            assert await protocol.lost is None

    loop.run_until_complete(main())
    run_turns(loop)
    assert loop._operations_in_flight == 0
    assert loop._buffers_out == 0


def test_forked_child_may_close_the_loop_and_run_its_own() -> None:
    script = """
        import asyncio
        import os
        import uringloop

        loop = uringloop.new_event_loop()
        loop.run_until_complete(asyncio.sleep(0.001))
        pid = os.fork()
        if pid == 0:
            loop.close()
            with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
                os._exit(runner.run(asyncio.sleep(0.001, 7)))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        loop.call_soon_threadsafe(print, "woken")
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
    """
    ended = run_script(script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\nwoken\n", "")


# ── types that only a loop creates ───────────────────────────────────────────────────────────


def test_transports_and_handles_cannot_be_instantiated(loop: uringloop.Loop) -> None:
    """Without a loop, their methods would use uninitialized memory."""

    async def main() -> list[type]:
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        stream, _ = await loop.create_connection(Echo, *server.sockets[0].getsockname())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagrams, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=ours)
        ends = socket.socketpair()
        reading, _ = await loop.connect_read_pipe(asyncio.Protocol, ends[0])
        writing, _ = await loop.connect_write_pipe(asyncio.Protocol, ends[1])
        handles = [loop.call_soon(callback), loop.call_soon_threadsafe(callback)]
        timer = loop.call_later(60, callback)
        timer.cancel()
        made = [stream, datagrams, reading, writing]
        for transport in made:
            transport.close()
        server.close()
        await server.wait_closed()
        theirs.close()
        return [type(one) for one in (*made, *handles, timer)]

    for cls in loop.run_until_complete(main()):
        for arguments in ((), (callback, (), loop)):
            with pytest.raises(TypeError, match=f"cannot create '{cls.__name__}' instances"):
                cls(*arguments)
