"""The private names of asyncio's streams that programs use, and classes derived from them."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import deque
from typing import Any

import pytest
from support.roles import Loop, on_loop, released, turns, until
from support.sockets import tcp_pair
from support.streams import PausingTransport, streams_of

# The classes have the private names of asyncio's, which typeshed does not know.
Reader = Any
Writer = Any


def new_reader(loop: Loop, limit: int = 65_536) -> Reader:
    return streams_of(loop).StreamReader(limit=limit, loop=loop)


async def connected(loop: Loop) -> tuple[Reader, Writer, socket.socket]:
    ours, peer = tcp_pair()
    reader, writer = await streams_of(loop).open_connection(sock=ours)
    return reader, writer, peer


async def closed(writer: Writer) -> None:
    writer.close()
    await released(writer.transport)


# ── _buffer ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_the_buffer_is_a_bytearray_of_the_unread_bytes(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    assert reader._buffer == bytearray()
    reader.feed_data(b"abc")
    assert type(reader._buffer) is bytearray
    assert reader._buffer == b"abc"
    assert await reader.read(1) == b"a"
    assert reader._buffer == b"bc"
    reader.feed_data(b"def")
    assert reader._buffer == b"bcdef"
    assert await reader.readexactly(5) == b"bcdef"
    assert not reader._buffer


@on_loop
async def test_a_program_that_changes_the_buffer_changes_the_stream(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(b"abc\nd")
    del reader._buffer[:2]
    assert await reader.readline() == b"c\n"
    reader._buffer[:0] = b"pushed back "
    reader.feed_data(b"e\n")
    assert await reader.readline() == b"pushed back de\n"
    reader._buffer += b"more\n"
    assert await reader.readline() == b"more\n"
    reader._buffer = bytearray(b"another one")
    assert await reader.read(100) == b"another one"
    reader.feed_data(b"x")
    reader._buffer.clear()
    reader.feed_eof()
    assert reader.at_eof()
    assert await reader.read() == b""


@on_loop
async def test_a_buffer_that_a_program_keeps_has_the_unread_bytes(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(b"a")
    kept = reader._buffer
    reader.feed_data(b"bc")
    assert kept == b"abc"
    assert await reader.read(2) == b"ab"
    assert kept == b"c"
    assert await reader.read(2) == b"c"
    assert kept == b""
    reader.feed_data(b"d")
    assert kept == b"d"
    task = each_loop.create_task(reader.readexactly(4))
    await turns(2)
    reader.feed_data(b"ef")
    await turns(2)
    assert kept == b"def"
    reader.feed_data(b"gh")
    assert await task == b"defg"
    assert kept == b"h"
    assert reader._buffer is kept


@on_loop
async def test_the_buffer_is_whole_while_a_task_waits_for_more(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(reader.readexactly(6))
    for data in (b"a", b"b", b"c"):
        await turns(2)
        reader.feed_data(data)
    await turns(2)
    assert reader._buffer == b"abc"
    reader.feed_data(b"d")
    await turns(2)
    assert reader._buffer == b"abcd"
    assert not reader.at_eof()
    reader._buffer[:1] = b"X"
    reader.feed_data(b"ef")
    assert await task == b"Xbcdef"


@on_loop
async def test_a_view_of_the_buffer_makes_changes_fail_and_loses_nothing(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    reader.feed_data(b"abc")
    with memoryview(reader._buffer), pytest.raises(BufferError):
        reader.feed_data(b"d")
    reader.feed_data(b"d")
    assert await reader.read(10) == b"abcd"


# ── _waiter and other fields ──────────────────────────────────────────────────────────────


@on_loop
async def test_the_waiter_is_there_while_a_task_waits(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    assert reader._waiter is None
    task = each_loop.create_task(reader.readexactly(2))
    await turns(2)
    waiter = reader._waiter
    assert asyncio.isfuture(waiter)
    assert not waiter.done()
    assert not waiter.cancelled()
    assert waiter._loop is each_loop
    done: list[object] = []
    waiter.add_done_callback(lambda _: done.append("never"))
    assert waiter.remove_done_callback(done.append) == 0
    waiter.add_done_callback(done.append)
    assert waiter.remove_done_callback(done.append) == 1
    reader.feed_data(b"ab")
    assert reader._waiter is None
    assert await task == b"ab"
    assert done == ["never"]


@on_loop
async def test_a_program_can_wake_a_read(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(reader.readline())
    await turns(2)
    reader._buffer += b"line\n"
    reader._waiter.set_result(None)
    assert await task == b"line\n"
    task = each_loop.create_task(reader.readline())
    await turns(2)
    reader._buffer += b"line\n"
    reader._wakeup_waiter()
    assert await task == b"line\n"
    task = each_loop.create_task(reader.readline())
    await turns(2)
    reader._waiter.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        await task
    task = each_loop.create_task(reader.readline())
    await turns(2)
    reader._waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@on_loop
async def test_a_read_that_is_woken_without_data_returns_nothing(each_loop: Loop) -> None:
    """Also if another task has read what this one was woken for, as in asyncio."""
    reader = new_reader(each_loop)
    task = each_loop.create_task(reader.read(10))
    await turns(2)
    reader._wakeup_waiter()
    assert await task == b""
    task = each_loop.create_task(reader.read(10))
    await turns(2)
    reader.feed_data(b"abc")
    assert await reader.read(10) == b"abc"
    assert await task == b""


@on_loop
async def test_a_program_can_wait_for_data(each_loop: Loop) -> None:
    reader = new_reader(each_loop, limit=2)
    transport = PausingTransport()
    reader.set_transport(transport)
    reader.feed_data(b"abcde")
    assert reader._paused
    task = each_loop.create_task(reader._wait_for_data("mine"))
    await turns(2)
    assert not reader._paused
    assert asyncio.isfuture(reader._waiter)
    with pytest.raises(RuntimeError, match=r"readuntil\(\) called while another coroutine is"):
        await reader.readuntil(b"no such separator")
    reader.feed_data(b"f")
    await task
    assert reader._waiter is None
    assert reader._buffer == b"abcdef"


@on_loop
async def test_data_after_the_end_fails_an_assertion(each_loop: Loop) -> None:
    reader = new_reader(each_loop)
    reader.feed_eof()
    reader.feed_eof()
    with pytest.raises(AssertionError, match="feed_data after feed_eof"):
        reader.feed_data(b"late")
    with pytest.raises(AssertionError, match="feed_data after feed_eof"):
        reader.feed_data(b"")


@on_loop
async def test_a_program_that_waits_for_data_beside_a_woken_read_takes_nothing_from_it(
    each_loop: Loop,
) -> None:
    reader = new_reader(each_loop)
    task = each_loop.create_task(reader.readexactly(3))
    await turns(2)
    reader.feed_data(b"a")
    reader.feed_data(b"bc\n")
    # The task is awake, and has not run.
    reader._waiter = None
    assert await reader.readline() == b"abc\n"
    await turns(2)
    assert not task.done()
    reader.feed_data(b"def")
    assert await task == b"def"


@on_loop
async def test_the_fields_are_asyncio_s_and_can_be_set(each_loop: Loop) -> None:
    reader = new_reader(each_loop, limit=4)
    transport = PausingTransport()
    assert (reader._limit, reader._eof, reader._exception) == (4, False, None)
    assert (reader._transport, reader._paused, reader._loop) == (None, False, each_loop)
    reader.set_transport(transport)
    assert reader._transport is transport
    with pytest.raises(AssertionError, match="Transport already set"):
        reader.set_transport(transport)
    reader._transport = None
    reader.set_transport(transport)
    reader._limit = 2
    reader.feed_data(b"abcde")
    assert reader._paused
    assert transport.paused
    reader._limit = 100
    reader._maybe_resume_transport()
    assert not transport.paused
    reader._eof = True
    assert await reader.read() == b"abcde"
    assert reader.at_eof()
    error = KeyError("x")
    reader._exception = error
    assert reader.exception() is error
    with pytest.raises(KeyError):
        await reader.read(1)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(loop_factory: Any, limit: int) -> None:
    loop = loop_factory()
    with pytest.raises(ValueError, match="Limit cannot be <= 0"):
        new_reader(loop, limit)
    loop.close()


@on_loop
async def test_a_limit_can_be_infinite(each_loop: Loop) -> None:
    reader = new_reader(each_loop, float("inf"))  # type: ignore[arg-type]
    transport = PausingTransport()
    reader.set_transport(transport)
    reader.feed_data(bytes(1_000_000) + b"\n")
    assert not transport.paused
    assert len(await reader.readline()) == 1_000_001


# ── the writer and the protocol ───────────────────────────────────────────────────────────


@on_loop
async def test_the_fields_of_a_writer_are_asyncio_s(each_loop: Loop) -> None:
    reader, writer, peer = await connected(each_loop)
    protocol = writer._protocol
    with peer:
        assert writer._transport is writer.transport
        assert writer._reader is reader
        assert writer._loop is each_loop
        assert writer._complete_fut.result() is None
        assert protocol._stream_reader is reader
        assert protocol._stream_reader_wr() is reader
        assert (protocol._connection_lost, protocol._paused) == (False, False)
        assert protocol._over_ssl is False
        assert isinstance(protocol._drain_waiters, deque)
        assert not protocol._closed.done()
        assert protocol._get_close_waiter(writer) is protocol._closed
        await protocol._drain_helper()
        await closed(writer)
    assert protocol._connection_lost
    await writer.wait_closed()
    assert protocol._closed.done()
    with pytest.raises(ConnectionResetError, match="Connection lost"):
        await protocol._drain_helper()


@on_loop
async def test_a_program_can_pause_a_writer(each_loop: Loop) -> None:
    _, writer, peer = await connected(each_loop)
    with peer:
        writer._protocol.pause_writing()
        assert writer._protocol._paused
        task = each_loop.create_task(writer.drain())
        await turns(2)
        assert not task.done()
        writer._protocol.resume_writing()
        await task
        writer._protocol._paused = True
        task = each_loop.create_task(writer.drain())
        await turns(2)
        assert not task.done()
        writer._protocol.resume_writing()
        await task
        await closed(writer)


@on_loop
async def test_a_writer_can_have_other_objects(each_loop: Loop) -> None:
    """As of programs that make a StreamWriter for a transport of their own."""
    written: list[bytes] = []

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            written.append(data)

        def is_closing(self) -> bool:
            return self.closing

        closing = False

    class Protocol(asyncio.streams.FlowControlMixin):
        drained = 0

        async def _drain_helper(self) -> None:
            self.drained += 1

    transport, protocol = Transport(), Protocol(loop=each_loop)
    writer = streams_of(each_loop).StreamWriter(transport, protocol, None, each_loop)
    writer.write(b"abc")
    writer.writelines([b"d", b"e"])
    await writer.drain()
    assert b"".join(written) == b"abcde"
    assert protocol.drained == 1
    # Replaced, as start_tls() and some servers do.
    other = Transport()
    writer._transport = other
    writer._transport.closing = True
    assert writer.is_closing()
    await writer.drain()
    assert protocol.drained == 2
    transport.closing = True
    with pytest.raises(AssertionError):
        streams_of(each_loop).StreamWriter(transport, protocol, object(), each_loop)
    gc.collect()


@on_loop
async def test_drain_raises_the_exception_of_the_reader(each_loop: Loop) -> None:
    reader, writer, peer = await connected(each_loop)
    with peer:
        error = KeyError("x")
        reader.set_exception(error)
        with pytest.raises(KeyError) as caught:
            await writer.drain()
        assert caught.value is error
        await closed(writer)


@on_loop
async def test_a_protocol_that_was_made_for_a_dropped_reader_drops_data(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    with peer:
        reader, writer = await streams_of(each_loop).open_connection(sock=ours)
        writer._reader = None
        del reader
        gc.collect()
        assert writer._protocol._stream_reader is None
        peer.send(b"for nobody")
        await turns(3)
        await closed(writer)


@on_loop
async def test_a_protocol_can_have_no_reader(each_loop: Loop) -> None:
    seen: list[Any] = []
    streams = streams_of(each_loop)
    ours, peer = tcp_pair()
    with peer:
        transport, _ = await each_loop.create_connection(
            lambda: streams.StreamReaderProtocol(
                None, lambda *pair: seen.append(pair), loop=each_loop
            ),
            sock=ours,
        )
        ((reader, writer),) = seen
        assert reader is None
        assert writer.transport is transport
        peer.send(b"for nobody")
        await turns(3)
        await closed(writer)


# ── derived classes ───────────────────────────────────────────────────────────────────────


def derived(loop: Loop, calls: list[str]) -> tuple[type[Any], type[Any], type[Any]]:
    """Return a reader, a protocol and a writer that note the calls of the methods they replace."""
    streams = streams_of(loop)

    class Reader(streams.StreamReader):  # type: ignore[misc, name-defined]
        def feed_data(self, data: bytes) -> None:
            calls.append("feed_data")
            super().feed_data(data.upper())

        def feed_eof(self) -> None:
            calls.append("feed_eof")
            super().feed_eof()

        async def read(self, n: int = -1) -> bytes:
            calls.append("read")
            data: bytes = await super().read(n)
            return data

        async def readuntil(self, separator: bytes = b"\n") -> bytes:
            calls.append("readuntil")
            data: bytes = await super().readuntil(separator)
            return data

    class Protocol(streams.StreamReaderProtocol):  # type: ignore[misc, name-defined]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            calls.append("connection_made")
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            calls.append("data_received")
            super().data_received(data)

        def eof_received(self) -> Any:
            calls.append("eof_received")
            return super().eof_received()

        def connection_lost(self, exc: Exception | None) -> None:
            calls.append("connection_lost")
            super().connection_lost(exc)

        async def _drain_helper(self) -> None:
            calls.append("_drain_helper")
            await super()._drain_helper()

    class Writer(streams.StreamWriter):  # type: ignore[misc, name-defined]
        def write(self, data: bytes) -> None:
            calls.append("write")
            super().write(data)

        async def drain(self) -> None:
            calls.append("drain")
            await super().drain()

    return Reader, Protocol, Writer


@on_loop
async def test_replaced_methods_are_called(each_loop: Loop) -> None:
    calls: list[str] = []
    reader_class, protocol_class, writer_class = derived(each_loop, calls)
    ours, peer = tcp_pair()
    with peer:
        reader = reader_class(loop=each_loop)
        protocol = protocol_class(reader, loop=each_loop)
        transport, _ = await each_loop.create_connection(lambda: protocol, sock=ours)
        writer = writer_class(transport, protocol, reader, each_loop)
        writer.write(b"question")
        await writer.drain()
        assert calls == ["connection_made", "write", "drain", "_drain_helper"]
        calls.clear()
        peer.send(b"answer")
        assert await reader.read(100) == b"ANSWER"
        assert calls == ["read", "data_received", "feed_data"]
        calls.clear()
        peer.send(b"one\ntwo\nthree\nfour")
        peer.shutdown(socket.SHUT_WR)
        await until(lambda: reader._eof)
        assert calls == ["data_received", "feed_data", "eof_received", "feed_eof"]
        calls.clear()
        assert await reader.readuntil() == b"ONE\n"
        assert await reader.readline() == b"TWO\n"
        assert await anext(reader) == b"THREE\n"
        assert calls == ["readuntil"] * 3
        calls.clear()
        assert await reader.read() == b"FOUR"
        assert set(calls) == {"read"}
        calls.clear()
        await closed(writer)
        assert calls == ["connection_lost", "feed_eof"]


@on_loop
async def test_a_replaced_readline_is_used_by_async_for(each_loop: Loop) -> None:
    class Reader(streams_of(each_loop).StreamReader):  # type: ignore[misc]
        async def readline(self) -> bytes:
            line: bytes = await super().readline()
            return line.rstrip(b"\n")

    reader = Reader(loop=each_loop)
    reader.feed_data(b"one\ntwo\n\n")
    reader.feed_eof()
    assert [line async for line in reader] == [b"one", b"two"]


@on_loop
async def test_a_reader_with_its_own_exception_method(each_loop: Loop) -> None:
    class Reader(streams_of(each_loop).StreamReader):  # type: ignore[misc]
        def exception(self) -> Exception:
            return KeyError("x")

    ours, peer = tcp_pair()
    with peer:
        reader = Reader(loop=each_loop)
        streams = streams_of(each_loop)
        protocol = streams.StreamReaderProtocol(reader, loop=each_loop)
        transport, _ = await each_loop.create_connection(lambda: protocol, sock=ours)
        writer = streams.StreamWriter(transport, protocol, reader, each_loop)
        with pytest.raises(KeyError):
            await writer.drain()
        await closed(writer)
