"""What the methods of a compiled StreamReader and StreamWriter return is used as coroutines are."""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import contextvars
import gc
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.roles import Loop, Token, on_loop, record_handler_calls, turns
from support.streams import streams_of
from support.virtual_time import Stopwatch

import uringloop
from uringloop import testing
from uringloop.streams import StreamReader

MESSAGE = b"answer\n"
READS: dict[str, Callable[[asyncio.StreamReader], Coroutine[Any, Any, bytes]]] = {
    "read": lambda reader: reader.read(100),
    "readexactly": lambda reader: reader.readexactly(len(MESSAGE)),
    "readuntil": lambda reader: reader.readuntil(),
    "readline": lambda reader: reader.readline(),
}
each_read = pytest.mark.parametrize("name", READS)


def new_reader(loop: Loop, limit: int = 65_536) -> asyncio.StreamReader:
    made: asyncio.StreamReader = streams_of(loop).StreamReader(limit=limit, loop=loop)
    return made


def feed_later(loop: Loop, reader: asyncio.StreamReader, data: bytes = MESSAGE) -> None:
    """Feed *data* in two parts, with some turns before each of them."""

    def after(count: int, part: bytes, rest: bytes) -> None:
        if count:
            loop.call_soon(after, count - 1, part, rest)
            return
        reader.feed_data(part)
        if rest:
            after(10, rest, b"")

    after(10, data[:3], data[3:])


def first_of(name: str) -> bytes:
    """Return what a waiting read gets of a message that `feed_later` feeds."""
    return MESSAGE[:3] if name == "read" else MESSAGE


# ── awaiting ──────────────────────────────────────────────────────────────────────────────


@each_read
@on_loop
async def test_a_read_is_a_coroutine_for_asyncio(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    read: Any = READS[name](reader)
    assert read.__qualname__ == f"StreamReader.{name}"
    assert read.__name__ == name
    assert asyncio.iscoroutine(read)
    assert inspect.isawaitable(read)
    assert isinstance(read, collections.abc.Coroutine)
    read.close()


@each_read
@on_loop
async def test_each_way_to_wait_for_a_read(each_loop: Loop, name: str) -> None:
    start = READS[name]
    reader = new_reader(each_loop)

    async def by_timeout(read: Coroutine[Any, Any, bytes]) -> bytes:
        async with asyncio.timeout(5):
            return await read

    async def by_group(read: Coroutine[Any, Any, bytes]) -> bytes:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(read)
        return task.result()

    async def by_gather(read: Coroutine[Any, Any, bytes]) -> bytes:
        (result,) = await asyncio.gather(read)
        return result

    async def by_wait(read: Coroutine[Any, Any, bytes]) -> bytes:
        done, _ = await asyncio.wait({asyncio.ensure_future(read)})
        return done.pop().result()

    async def by_as_completed(read: Coroutine[Any, Any, bytes]) -> bytes:
        (completed,) = asyncio.as_completed([read])
        return await completed

    async def by_thread(read: Coroutine[Any, Any, bytes]) -> bytes:
        future = asyncio.run_coroutine_threadsafe(read, each_loop)
        return await asyncio.wrap_future(future)

    ways: list[Callable[[Any], Any]] = [
        each_loop.create_task,
        asyncio.create_task,
        asyncio.ensure_future,
        asyncio.shield,
        lambda read: read,
        lambda read: asyncio.wait_for(read, 5),
        lambda read: asyncio.wait_for(read, None),
        by_timeout,
        by_group,
        by_gather,
        by_wait,
        by_as_completed,
        by_thread,
    ]
    for way in ways:
        # Once with the message there, once waiting for it.
        reader.feed_data(MESSAGE)
        assert await way(start(reader)) == MESSAGE
        feed_later(each_loop, reader)
        assert await way(start(reader)) == first_of(name)
        if name == "read":
            assert await reader.readexactly(len(MESSAGE) - 3) == MESSAGE[3:]


@each_read
def test_a_read_can_be_the_main_task(loop_factory: Callable[[], Loop], name: str) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        reader = new_reader(loop)
        reader.feed_data(MESSAGE)
        assert runner.run(READS[name](reader)) == MESSAGE
        feed_later(loop, reader)
        assert loop.run_until_complete(READS[name](reader)) == first_of(name)


@each_read
@on_loop
async def test_a_read_that_is_never_awaited_warns(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(MESSAGE)
    start = READS[name]
    with pytest.warns(RuntimeWarning) as caught:
        start(reader)  # type: ignore[unused-coroutine]
    (warning,) = caught
    assert str(warning.message) == f"coroutine 'StreamReader.{name}' was never awaited"
    assert warning.filename == __file__
    # Nothing was read.
    assert await reader.read(100) == MESSAGE


@on_loop
async def test_a_read_that_is_closed_or_cancelled_before_its_start_does_not_warn(
    each_loop: Loop,
) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(MESSAGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.readline().close()
        task = each_loop.create_task(reader.readline())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(KeyError):
            reader.readline().throw(KeyError("x"))
        gc.collect()
    assert await reader.readline() == MESSAGE


@each_read
@on_loop
async def test_a_read_can_be_awaited_once(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(MESSAGE * 2)
    read = READS[name](reader)
    assert MESSAGE in await read
    for use in (lambda: read.send(None), lambda: read.throw(KeyError("x"))):
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            use()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await read
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await each_loop.create_task(read)
    read.close()


@each_read
@on_loop
async def test_a_read_that_a_task_waits_in_cannot_be_awaited_by_another(
    each_loop: Loop, name: str
) -> None:
    reader = new_reader(each_loop)
    read = READS[name](reader)
    task = each_loop.create_task(read)
    await turns(2)
    with pytest.raises(RuntimeError, match="coroutine is being awaited already"):
        await wrapped(read)
    # The first one goes on.
    reader.feed_data(MESSAGE)
    assert await task == MESSAGE


@on_loop
async def test_the_bytes_of_a_read_live_no_longer_than_the_program_needs(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    data = bytes(range(200))
    reader.feed_data(b"first")
    assert await reader.read(1000) == b"first"
    before = sys.getrefcount(data)
    reader.feed_data(data)
    assert len(await reader.read(1000)) == len(data)
    # From Python 3.12 on the result comes in an exception that is kept.
    assert sys.getrefcount(data) == before


async def wrapped(read: Coroutine[Any, Any, bytes]) -> bytes:
    return await read


@each_read
@on_loop
async def test_a_closed_read_has_taken_nothing(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    read = READS[name](reader)
    assert read.send(None) is not None
    reader.feed_data(MESSAGE[:3])
    read.close()
    reader.feed_data(MESSAGE[3:])
    assert await READS[name](reader) == MESSAGE


@each_read
@on_loop
async def test_an_exception_thrown_into_a_read_is_raised_and_takes_nothing(
    each_loop: Loop, name: str
) -> None:
    reader = new_reader(each_loop)
    for thrown in (KeyError("x"), KeyError, GeneratorExit()):
        read = READS[name](reader)
        read.send(None)
        reader.feed_data(MESSAGE[:3])
        with pytest.raises((KeyError, GeneratorExit)) as caught:
            read.throw(thrown)
        if isinstance(thrown, BaseException):
            assert caught.value is thrown
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            read.send(None)
        reader.feed_data(MESSAGE[3:])
        assert await READS[name](reader) == MESSAGE


@on_loop
async def test_anext_returns_the_default_at_the_end(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    feed_later(each_loop, reader)
    assert await anext(reader) == MESSAGE
    each_loop.call_soon(reader.feed_eof)
    assert await anext(reader, b"end") == b"end"
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


# ── cancellation ──────────────────────────────────────────────────────────────────────────


@each_read
@on_loop
async def test_a_timeout_loses_no_bytes(each_virtual_loop: Loop, name: str) -> None:
    reader = new_reader(each_virtual_loop)
    for fed in range(len(MESSAGE)):
        if name == "read" and fed:
            break
        watch = Stopwatch(each_virtual_loop)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await READS[name](reader)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(READS[name](reader), 60)
        assert watch.shows(120)
        reader.feed_data(MESSAGE[fed : fed + 1])
    if name == "read":
        reader.feed_data(MESSAGE[1:])
    assert await READS[name](reader) == MESSAGE


@each_read
@pytest.mark.parametrize("virtual_loop", range(20), indirect=True)
@on_loop
async def test_a_timeout_at_the_instant_of_the_bytes_loses_none(
    virtual_loop: testing.Loop, name: str
) -> None:
    def feed(reader: asyncio.StreamReader) -> None:
        reader.feed_data(MESSAGE[:3])
        virtual_loop.call_later(0, reader.feed_data, MESSAGE[3:])

    for _ in range(50):
        reader = new_reader(virtual_loop)
        virtual_loop.call_later(1, feed, reader)
        received = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                received = await READS[name](reader)
        await asyncio.sleep(1)
        reader.feed_eof()
        assert received + await reader.read() == MESSAGE


@each_read
@on_loop
async def test_a_cancelled_task_has_the_message_of_cancel(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(READS[name](reader))
    await turns(2)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == ("enough",)


@each_read
@on_loop
async def test_a_cancelled_read_that_is_awaited_by_shield_goes_on(
    each_loop: Loop, name: str
) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(READS[name](reader))

    async def wait() -> bytes:
        return await asyncio.shield(task)

    outer = each_loop.create_task(wait())
    await turns(3)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    reader.feed_data(MESSAGE)
    assert await task == MESSAGE


@on_loop
async def test_a_task_that_swallows_its_cancellation_reads_on(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    cancels: list[int] = []

    async def stubborn() -> bytes:
        while True:
            try:
                return await reader.readexactly(6)
            except asyncio.CancelledError:
                cancels.append(1)

    task = each_loop.create_task(stubborn())
    for part in (b"a", b"bc", b"d"):
        await turns(2)
        reader.feed_data(part)
        task.cancel()
    await turns(2)
    reader.feed_data(b"efg")
    assert await task == b"abcdef"
    assert len(cancels) == 3
    assert await reader.read(10) == b"g"


# ── what is left ──────────────────────────────────────────────────────────────────────────


@each_read
def test_a_reader_whose_task_waits_is_collected_with_it(
    loop_factory: Callable[[], Loop], name: str
) -> None:
    loop = loop_factory()
    reader = new_reader(loop)
    task = loop.create_task(READS[name](reader))
    loop.run_until_complete(turns(3))
    reader.feed_data(b"an")
    references: list[weakref.ref[Any]] = [weakref.ref(reader), weakref.ref(task)]
    handler_calls = record_handler_calls(loop)
    del reader, task
    loop.run_until_complete(turns(3))
    loop.close()
    gc.collect()
    messages = {str(call["message"]) for call in handler_calls}
    assert messages <= {"Task was destroyed but it is pending!"}
    # From Python 3.15 on a weak reference outlives the finalizer, which passes the task on.
    handler_calls.clear()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@each_read
@on_loop
async def test_a_reader_is_released_at_once_after_a_read_that_waited(
    each_loop: Loop, name: str
) -> None:
    gc.disable()
    try:
        reader = new_reader(each_loop)
        task = each_loop.create_task(READS[name](reader))
        await turns(2)
        reader.feed_data(MESSAGE)
        assert await task == MESSAGE
        del task
        reference = weakref.ref(reader)
        del reader
        await turns(2)
        assert reference() is None
    finally:
        gc.enable()


@on_loop
async def test_a_reader_keeps_no_context_of_a_task_that_has_read(each_loop: Loop) -> None:
    variable: contextvars.ContextVar[Token] = contextvars.ContextVar("variable")
    reader = new_reader(each_loop)

    async def read() -> weakref.ref[Token]:
        token = Token()
        variable.set(token)
        assert await reader.readline() == MESSAGE
        return weakref.ref(token)

    task = each_loop.create_task(read())
    await turns(2)
    reader.feed_data(MESSAGE)
    reference = await task
    del task
    await turns(2)
    gc.collect()
    assert reference() is None
    assert not reader.at_eof()


@on_loop
async def test_a_task_reads_in_its_own_context(each_loop: Loop) -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    reader = new_reader(each_loop)

    async def read() -> str:
        variable.set("inside")
        await reader.readline()
        return variable.get()

    task = each_loop.create_task(read())
    await turns(2)
    feed_later(each_loop, reader)
    assert await task == "inside"
    assert variable.get() == "outside"


# ── debugging ─────────────────────────────────────────────────────────────────────────────


@each_read
@on_loop
async def test_debug_mode_changes_no_result(each_loop: Loop, name: str) -> None:
    each_loop.set_debug(True)
    reader = new_reader(each_loop)
    feed_later(each_loop, reader)
    assert await asyncio.wait_for(READS[name](reader), 5) == first_of(name)
    if name == "read":
        assert await reader.readexactly(4) == MESSAGE[3:]
    # Turned off and on while a task waits.
    for enabled in (False, True):
        task = each_loop.create_task(READS[name](reader))
        await turns(2)
        each_loop.set_debug(enabled)
        reader.feed_data(MESSAGE)
        assert await task == MESSAGE
    task = each_loop.create_task(READS[name](reader))
    await turns(2)
    task.cancel()
    reader.feed_data(MESSAGE)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await READS[name](reader) == MESSAGE
    each_loop.set_debug(False)


@each_read
@on_loop
async def test_the_repr_of_a_task_names_the_read(each_loop: Loop, name: str) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(READS[name](reader), name="reading")
    await turns(2)
    assert f"StreamReader.{name}()" in repr(task)
    assert "wait_for=" in repr(task)
    assert len(task.get_stack()) <= 1
    assert f"StreamReader.{name}" in repr(task.get_coro())
    reader.feed_data(MESSAGE)
    assert await task == MESSAGE


@on_loop
async def test_the_repr_of_a_reader_tells_what_asyncio_tells(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    assert repr(reader) == "<StreamReader>"
    task = each_loop.create_task(reader.readexactly(5))
    await turns(2)
    reader.feed_data(b"abc")
    await turns(2)
    assert repr(reader).startswith("<StreamReader 3 bytes waiter=<")
    reader.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await task
    assert repr(reader) == "<StreamReader eof>"


# ── other loops and threads ───────────────────────────────────────────────────────────────


def uvloop_loop() -> Loop:
    return pytest.importorskip("uvloop").new_event_loop()  # type: ignore[no-any-return]


@each_read
@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop_loop])
def test_a_compiled_reader_works_on_other_loops(factory: Callable[[], Loop], name: str) -> None:
    loop = factory()

    async def main() -> None:
        reader = StreamReader(loop=loop)
        feed_later(loop, reader)
        assert await READS[name](reader) == first_of(name)
        if name == "read":
            assert await reader.readexactly(4) == MESSAGE[3:]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(READS[name](reader), 0.001)
        loop.call_soon(reader.feed_eof)
        assert await reader.read() == b""

    loop.run_until_complete(main())
    loop.close()


@on_loop
async def test_a_reader_can_be_fed_by_a_thread_through_the_loop(each_loop: Loop) -> None:
    reader = new_reader(each_loop)

    def feed() -> None:
        for number in range(1000):
            each_loop.call_soon_threadsafe(reader.feed_data, b"%d\n" % number)
        each_loop.call_soon_threadsafe(reader.feed_eof)

    thread = threading.Thread(target=feed)
    thread.start()
    assert [line async for line in reader] == [b"%d\n" % number for number in range(1000)]
    thread.join()


@on_loop
async def test_a_read_of_another_running_loop_is_an_error(each_loop: Loop) -> None:
    """A task takes a future of its own loop only."""
    with_other = uringloop.new_event_loop()
    reader = new_reader(with_other)
    task = each_loop.create_task(reader.readline())
    with pytest.raises(RuntimeError, match="attached to a different loop"):
        await task
    with_other.close()


def test_feeding_a_reader_whose_loop_is_closed_raises(loop_factory: Callable[[], Loop]) -> None:
    loop = loop_factory()
    reader = new_reader(loop)
    read = reader.readline()

    async def wait() -> None:
        await read

    task = loop.create_task(wait())
    loop.run_until_complete(turns(2))
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        reader.feed_data(MESSAGE)
    # Says nothing when it is collected.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@each_read
@on_loop
async def test_an_eager_task_reads_what_is_there_without_a_turn(each_loop: Loop, name: str) -> None:
    each_loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    reader = new_reader(each_loop)
    reader.feed_data(MESSAGE)
    task = each_loop.create_task(READS[name](reader))
    assert task.done()
    assert task.result() == MESSAGE
    task = each_loop.create_task(READS[name](reader))
    assert not task.done()
    reader.feed_data(MESSAGE)
    assert await task == MESSAGE
