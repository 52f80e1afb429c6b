"""Threads: waking a loop, moving it between threads, and several loops at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import gc
import os
import socket
import sys
import threading
from asyncio import AbstractEventLoop
from typing import TypeVar

import pytest
from support.loops import LoopFactory, run_turns
from support.protocols import Echo
from support.roles import in_thread, running_in_thread

import uringloop

T = TypeVar("T")

# Seconds. No wait in these tests takes a second; a failing test must not block the suite.
PATIENCE = 20.0


# ── call_soon_threadsafe ─────────────────────────────────────────


def test_idle_loop_is_woken_by_every_call(each_loop: AbstractEventLoop) -> None:
    with running_in_thread(each_loop):
        for _ in range(1000):
            reached = threading.Event()
            each_loop.call_soon_threadsafe(reached.set)
            assert reached.wait(PATIENCE)


def test_loop_asleep_until_a_far_deadline_is_woken(each_loop: AbstractEventLoop) -> None:
    far = each_loop.call_later(3600, each_loop.stop)
    with running_in_thread(each_loop):
        reached = threading.Event()
        each_loop.call_soon_threadsafe(reached.set)
        assert reached.wait(PATIENCE)
    far.cancel()


def test_calls_of_eight_threads_arrive_in_order_and_none_is_lost(
    each_loop: AbstractEventLoop,
) -> None:
    threads, calls = 8, 2000
    seen: list[list[int]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads)
    done = threading.Event()

    def post(number: int) -> None:
        barrier.wait()
        for call in range(calls):
            each_loop.call_soon_threadsafe(seen[number].append, call)

    with running_in_thread(each_loop):
        posters = [threading.Thread(target=post, args=(n,)) for n in range(threads)]
        for poster in posters:
            poster.start()
        for poster in posters:
            poster.join(PATIENCE)
        each_loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE)
    assert seen == [list(range(calls))] * threads


def test_calls_made_before_the_run_are_kept(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    in_thread(lambda: each_loop.call_soon_threadsafe(ran.append, "early"))
    assert ran == []
    run_turns(each_loop)
    assert ran == ["early"]


def test_thousands_of_calls_before_the_run_are_kept(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []

    def post() -> None:
        for number in range(20_000):
            each_loop.call_soon_threadsafe(ran.append, number)

    in_thread(post)
    run_turns(each_loop)
    assert ran == list(range(20_000))


def test_threadsafe_call_from_the_loop_itself_runs_in_the_next_turn(
    each_loop: AbstractEventLoop,
) -> None:
    ran: list[str] = []
    each_loop.call_soon(each_loop.call_soon_threadsafe, ran.append, "next")
    run_turns(each_loop)
    assert ran == []
    run_turns(each_loop)
    assert ran == ["next"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="a promise of Python 3.14")
@pytest.mark.parametrize("question", ["cancel", "cancelled"])
def test_cancelling_a_running_threadsafe_call_waits_for_its_end(
    each_loop: AbstractEventLoop, question: str
) -> None:
    began, ended = threading.Event(), threading.Event()

    def callback() -> None:
        began.set()
        # Time for the other thread to return too early.
        ended.wait(0.1)
        ended.set()

    def ask() -> bool:
        handle = each_loop.call_soon_threadsafe(callback)
        assert type(handle).__name__.endswith("ThreadSafeHandle")
        assert isinstance(handle, asyncio.events._ThreadSafeHandle)  # type: ignore[attr-defined]
        assert began.wait(PATIENCE)
        getattr(handle, question)()
        found = ended.is_set()
        each_loop.call_soon_threadsafe(each_loop.stop)
        return found

    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        each_loop.run_forever()
        assert asked.result(PATIENCE)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="a promise of Python 3.14")
def test_a_running_threadsafe_call_may_cancel_itself(each_loop: AbstractEventLoop) -> None:
    asked: list[bool] = []

    def callback() -> None:
        handle.cancel()
        asked.append(handle.cancelled())

    handle = each_loop.call_soon_threadsafe(callback)
    run_turns(each_loop, 2)
    assert asked == [True]
    assert "cancelled" in repr(handle)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="a promise of Python 3.14")
def test_the_destructor_of_a_cancelled_callback_may_use_its_handle(
    each_loop: AbstractEventLoop,
) -> None:
    asked: list[bool] = []

    class Callback:
        def __call__(self) -> None: ...

        def __del__(self) -> None:
            handle.cancel()
            asked.append(handle.cancelled())

    handle = in_thread(lambda: each_loop.call_soon_threadsafe(Callback()))
    handle.cancel()
    gc.collect()
    assert asked == [True]


def test_threadsafe_call_may_be_cancelled_by_its_handle(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    handle = in_thread(lambda: each_loop.call_soon_threadsafe(ran.append, "cancelled"))
    handle.cancel()
    run_turns(each_loop, 2)
    assert ran == []


def test_closed_loop_refuses_calls_from_other_threads(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        in_thread(lambda: each_loop.call_soon_threadsafe(print))


def test_closing_while_a_thread_posts_refuses_the_late_calls_only(
    loop_factory: LoopFactory,
) -> None:
    for _ in range(20):
        loop = loop_factory()
        going = threading.Event()
        refusals: list[str] = []

        def post(
            loop: AbstractEventLoop = loop,
            going: threading.Event = going,
            refusals: list[str] = refusals,
        ) -> None:
            while not refusals:
                try:
                    loop.call_soon_threadsafe(int)
                except RuntimeError as error:
                    refusals.append(str(error))
                going.set()

        poster = threading.Thread(target=post)
        poster.start()
        assert going.wait(PATIENCE)
        run_turns(loop, 3)
        loop.close()
        poster.join(PATIENCE)
        assert refusals == ["Event loop is closed"]


# ── run_coroutine_threadsafe ─────────────────────────────────────


def test_coroutine_from_another_thread_returns_its_result(each_loop: AbstractEventLoop) -> None:
    async def main(value: int) -> int:
        assert asyncio.get_running_loop() is each_loop
        await asyncio.sleep(0)
        return value * 2

    with running_in_thread(each_loop):
        futures = [asyncio.run_coroutine_threadsafe(main(n), each_loop) for n in range(100)]
        assert [future.result(PATIENCE) for future in futures] == [n * 2 for n in range(100)]


def test_coroutine_from_another_thread_raises_its_exception(each_loop: AbstractEventLoop) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("in the loop's thread")

    with running_in_thread(each_loop):
        future = asyncio.run_coroutine_threadsafe(fail(), each_loop)
        with pytest.raises(ZeroDivisionError, match="in the loop's thread"):
            future.result(PATIENCE)


def test_cancelling_from_another_thread_cancels_the_task(each_loop: AbstractEventLoop) -> None:
    entered = threading.Event()
    cancelled = threading.Event()

    async def wait() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with running_in_thread(each_loop):
        future = asyncio.run_coroutine_threadsafe(wait(), each_loop)
        assert entered.wait(PATIENCE)
        assert future.cancel()
        assert cancelled.wait(PATIENCE)


# ── a loop moves between threads ─────────────────────────────────


def test_loop_created_in_one_thread_runs_in_another(each_loop: AbstractEventLoop) -> None:
    async def main() -> int:
        await asyncio.sleep(0.001)
        assert asyncio.get_running_loop() is each_loop
        return threading.get_ident()

    assert in_thread(lambda: each_loop.run_until_complete(main())) != threading.get_ident()


def test_loop_created_in_another_thread_runs_in_the_main_thread(loop_factory: LoopFactory) -> None:
    loop = in_thread(loop_factory)
    with contextlib.closing(loop):
        assert loop.run_until_complete(asyncio.sleep(0.001, "here")) == "here"


def test_loop_runs_in_one_thread_then_another_and_back(each_loop: AbstractEventLoop) -> None:
    idents: list[int] = []

    def run() -> None:
        each_loop.call_later(0.001, each_loop.stop)
        each_loop.call_soon(lambda: idents.append(threading.get_ident()))
        each_loop.run_forever()

    run()
    with concurrent.futures.ThreadPoolExecutor(1) as first:
        first.submit(run).result(PATIENCE)
        with concurrent.futures.ThreadPoolExecutor(1) as second:
            second.submit(run).result(PATIENCE)
            first.submit(run).result(PATIENCE)
        # The second thread has ended by now.
        first.submit(run).result(PATIENCE)
    run()
    main, one, two, three, four, five = idents
    assert main == five == threading.get_ident()
    assert one == three == four
    assert len({main, one, two}) == 3


def test_loop_runs_after_ten_of_its_threads_have_ended(each_loop: AbstractEventLoop) -> None:
    # A new thread may get the identifier of an ended one, but is another thread.
    for _ in range(10):
        slept = in_thread(lambda: each_loop.run_until_complete(asyncio.sleep(0.001, "there")))
        assert slept == "there"
    assert each_loop.run_until_complete(asyncio.sleep(0.001, "here")) == "here"


def test_loop_that_moved_can_still_be_woken(each_loop: AbstractEventLoop) -> None:
    for _ in range(5):
        with running_in_thread(each_loop):
            for _ in range(20):
                reached = threading.Event()
                each_loop.call_soon_threadsafe(reached.set)
                assert reached.wait(PATIENCE)


def test_tasks_and_timers_move_with_their_loop(each_loop: AbstractEventLoop) -> None:
    idents: list[int] = []

    async def walk() -> None:
        for _ in range(3):
            idents.append(threading.get_ident())
            each_loop.stop()
            await asyncio.sleep(0.001)

    task = each_loop.create_task(walk())
    each_loop.run_forever()
    in_thread(each_loop.run_forever)
    each_loop.run_forever()
    in_thread(lambda: each_loop.run_until_complete(task))
    here = threading.get_ident()
    assert [ident == here for ident in idents] == [True, False, True]


def test_executor_result_reaches_the_loop_in_its_new_thread(each_loop: AbstractEventLoop) -> None:
    release = threading.Event()

    async def start() -> asyncio.Future[bool]:
        return each_loop.run_in_executor(None, release.wait, PATIENCE)

    future = in_thread(lambda: each_loop.run_until_complete(start()))
    each_loop.call_soon(release.set)
    assert each_loop.run_until_complete(future) is True


def test_running_loop_cannot_be_run_by_a_second_thread(each_loop: AbstractEventLoop) -> None:
    if isinstance(each_loop, asyncio.SelectorEventLoop) and sys.version_info[:2] == (3, 13):
        pytest.skip("3.13.0 forgets the first run when it refuses the second")
    with running_in_thread(each_loop):
        with pytest.raises(RuntimeError, match=r"^This event loop is already running$"):
            each_loop.run_forever()
        assert each_loop.is_running()
        assert asyncio._get_running_loop() is None


def test_loop_may_be_closed_by_another_thread(loop_factory: LoopFactory) -> None:
    never_run = loop_factory()
    in_thread(never_run.close)
    assert never_run.is_closed()
    run_here = loop_factory()
    run_here.run_until_complete(asyncio.sleep(0.001))
    in_thread(run_here.close)
    assert run_here.is_closed()
    run_there = loop_factory()
    in_thread(lambda: run_there.run_until_complete(asyncio.sleep(0.001)))
    run_there.close()
    assert run_there.is_closed()


def test_loop_may_be_closed_by_several_threads() -> None:
    for _ in range(20):
        loop = uringloop.new_event_loop()
        run_turns(loop)
        together = threading.Barrier(4)

        def close(loop: uringloop.Loop, together: threading.Barrier) -> None:
            together.wait(PATIENCE)
            loop.close()

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            closings = [pool.submit(close, loop, together) for _ in range(3)]
            together.wait(PATIENCE)
            # Would get the number of a descriptor that is closed twice.
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
            for closing in closings:
                closing.result()
        for file in files:
            os.close(file)
        assert loop.is_closed()


def test_running_loop_cannot_be_closed_by_another_thread(each_loop: AbstractEventLoop) -> None:
    with running_in_thread(each_loop):
        with pytest.raises(RuntimeError, match=r"^Cannot close a running event loop$"):
            each_loop.close()
        assert not each_loop.is_closed()


# ── connections move with their loop ─────────────────────────────


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of an echo server on streams."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def receive(client: socket.socket, count: int) -> bytes:
    """Read exactly *count* bytes from a blocking socket."""
    data = bytearray()
    while len(data) < count:
        chunk = client.recv(count - len(data))
        assert chunk, f"the connection ended after {len(data)} of {count} bytes"
        data += chunk
    return bytes(data)


def connect(server: asyncio.Server) -> socket.socket:
    return socket.create_connection(server.sockets[0].getsockname()[:2], timeout=PATIENCE)


def shut(loop: AbstractEventLoop, server: asyncio.Server) -> None:
    """Close *server*, and let the connections that its clients closed end."""

    async def shut_and_drain() -> None:
        server.close()
        await server.wait_closed()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*waiting)

    loop.run_until_complete(shut_and_drain())
    run_turns(loop, 5)


def test_connection_and_listener_continue_in_the_next_thread(each_loop: AbstractEventLoop) -> None:
    server = in_thread(
        lambda: each_loop.run_until_complete(asyncio.start_server(echo_stream, "127.0.0.1", 0))
    )
    clients: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for number in range(4):
            with running_in_thread(each_loop):
                clients.append(stack.enter_context(connect(server)))
                for client in clients:
                    client.sendall(b"while running %d" % number)
                    assert receive(client, 15) == b"while running %d" % number
            # No thread runs the loop now; data that arrives waits for the next run.
            clients.append(stack.enter_context(connect(server)))
            for client in clients:
                client.sendall(b"in between")
            with running_in_thread(each_loop):
                for client in clients:
                    assert receive(client, 10) == b"in between"
    shut(each_loop, server)


def test_protocol_connections_continue_in_the_next_thread(each_loop: AbstractEventLoop) -> None:
    server = each_loop.run_until_complete(each_loop.create_server(Echo, "127.0.0.1", 0))
    with connect(server) as client:
        for number in range(6):
            with running_in_thread(each_loop):
                client.sendall(b"%d" % number * 1000)
                assert receive(client, 1000) == b"%d" % number * 1000
        client.shutdown(socket.SHUT_WR)
        with running_in_thread(each_loop):
            assert client.recv(1) == b""
    shut(each_loop, server)


@pytest.mark.slow
def test_no_byte_is_lost_while_the_loop_changes_threads(each_loop: AbstractEventLoop) -> None:
    sent = b"".join(b"%07d\n" % number for number in range(512 * 1024))
    server = each_loop.run_until_complete(asyncio.start_server(echo_stream, "127.0.0.1", 0))
    hand_overs = 0
    with connect(server) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        sending = pool.submit(client.sendall, sent)
        receiving = pool.submit(receive, client, len(sent))
        while not receiving.done():
            in_thread(lambda: run_turns(each_loop, 5))
            hand_overs += 1
        sending.result(PATIENCE)
        assert receiving.result(PATIENCE) == sent
    assert hand_overs >= 2
    shut(each_loop, server)


def test_server_closed_in_another_thread_refuses_connections_at_once(
    each_loop: AbstractEventLoop,
) -> None:
    async def close(server: asyncio.Server) -> None:
        server.close()
        await server.wait_closed()

    for _ in range(20):
        # Of this test alone: on 127.0.0.1 another program may get the port at once.
        server = in_thread(
            lambda: each_loop.run_until_complete(each_loop.create_server(Echo, "127.1.2.3", 0))
        )
        address = server.sockets[0].getsockname()
        in_thread(lambda closing=server: each_loop.run_until_complete(close(closing)))  # type: ignore[misc]
        with socket.socket() as client:
            assert client.connect_ex(address) == errno.ECONNREFUSED


# ── many loops at once ───────────────────────────────────────────


def test_loops_in_several_threads_do_not_disturb_each_other(loop_factory: LoopFactory) -> None:
    async def talk(number: int) -> bytes:
        server = await asyncio.start_server(echo_stream, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(50):
            message = b"%d" % number * 100
            writer.write(message)
            assert await reader.readexactly(100) == message
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*waiting)
        return b"%d" % number

    def work(number: int) -> bytes:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(talk(number))

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [b"%d" % number for number in range(6)]


def test_two_loops_wake_each_other(each_loop: AbstractEventLoop, loop_factory: LoopFactory) -> None:
    finished = threading.Event()
    with contextlib.closing(loop_factory()) as other:

        def ping(left: int) -> None:
            each_loop.call_soon_threadsafe(pong, left)

        def pong(left: int) -> None:
            if left:
                other.call_soon_threadsafe(ping, left - 1)
            else:
                finished.set()

        with running_in_thread(each_loop), running_in_thread(other):
            other.call_soon_threadsafe(ping, 500)
            assert finished.wait(PATIENCE)


def test_running_loop_belongs_to_its_thread(each_loop: AbstractEventLoop) -> None:
    with running_in_thread(each_loop):
        with pytest.raises(RuntimeError, match=r"^no running event loop$"):
            asyncio.get_running_loop()
        assert each_loop.is_running()
    assert not each_loop.is_running()


# ── the wrong thread, in debug mode ──────────────────────────────

WRONG_THREAD = r"^Non-thread-safe operation invoked on an event loop other than the current one$"


def test_debug_mode_refuses_plain_scheduling_from_another_thread(
    each_loop: AbstractEventLoop,
) -> None:
    each_loop.set_debug(True)
    with running_in_thread(each_loop):
        with pytest.raises(RuntimeError, match=WRONG_THREAD):
            each_loop.call_soon(print)
        with pytest.raises(RuntimeError, match=WRONG_THREAD):
            each_loop.call_later(1, print)
        with pytest.raises(RuntimeError, match=WRONG_THREAD):
            each_loop.call_at(1, print)
        reached = threading.Event()
        each_loop.call_soon_threadsafe(reached.set)
        assert reached.wait(PATIENCE)


def test_debug_mode_allows_any_thread_to_schedule_on_a_stopped_loop(
    each_loop: AbstractEventLoop,
) -> None:
    each_loop.set_debug(True)
    ran: list[str] = []
    in_thread(lambda: each_loop.call_soon(ran.append, "there"))
    each_loop.call_soon(ran.append, "here")
    run_turns(each_loop)
    assert ran == ["there", "here"]


def test_without_debug_the_thread_is_not_checked(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    release = threading.Event()
    entered = threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(PATIENCE)

    with running_in_thread(each_loop):
        each_loop.call_soon_threadsafe(hold)
        assert entered.wait(PATIENCE)
        # The loop's thread is inside a callback, so there is no race.
        each_loop.call_soon(ran.append, "unchecked")
        release.set()
    assert ran == ["unchecked"]
