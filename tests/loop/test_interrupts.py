"""Protocol methods that raise KeyboardInterrupt or SystemExit: the next run continues the work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.datagrams import Mailbox, drained, endpoint, fill_receiver, unix_pair
from support.interrupts import LEAVING, leave_in, runs
from support.pipes import Reader, Writer, a_pipe, drain, writing
from support.processes import Recorder
from support.protocols import Collector
from support.roles import PATIENCE, Loop, link, noise, until
from support.tls_contexts import Contexts
from support.tls_peers import Filler, tls_link

import uringloop

T = TypeVar("T")


def run(loop: Loop, awaitable: Awaitable[T]) -> T:
    """Run *awaitable* with a timeout."""

    async def limited() -> T:
        return await asyncio.wait_for(awaitable, PATIENCE)

    return loop.run_until_complete(limited())


# ── pause_writing ─────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def linked(
    loop: Loop, protocol: Collector, contexts: Contexts | None
) -> AsyncIterator[tuple[asyncio.Transport, Collector]]:
    """Connect *protocol* to a collector; use TLS if *contexts* is not None."""
    other = Collector(loop)
    if contexts is None:
        connecting = link(loop, protocol, other)
    else:
        connecting = tls_link(loop, protocol, other, contexts)
    async with connecting as (transport, _):
        yield transport, other


@LEAVING
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [4000, 1_000_000])
@pytest.mark.parametrize("how", ["write", "writelines"])
def test_written_data_is_sent_after_pause_writing_ended_the_run(
    each_loop: Loop,
    contexts: Contexts,
    leaving: type[BaseException],
    secure: bool,
    size: int,
    how: str,
) -> None:
    async def write() -> None:
        for number in range(100_000_000 // size):
            data = noise(size, number)
            written.extend(data)
            if how == "write":
                transport.write(data)
            else:
                transport.writelines([data[:1], data[1:]])

    async def finish() -> bytes:
        transport.write(b"the last words")
        transport.close()
        await other.lost
        return bytes(other.data)

    stock = not isinstance(each_loop, uringloop.Loop)
    if stock and how == "writelines" and not secure and sys.version_info >= (3, 12):
        pytest.skip("asyncio's writelines() does not pause the protocol in 3.12.0 and 3.13.0")
    protocol = Collector(each_loop)
    written = bytearray()
    stack = contextlib.AsyncExitStack()
    connecting = linked(each_loop, protocol, contexts if secure else None)
    transport, other = run(each_loop, stack.enter_async_context(connecting))
    transport.set_write_buffer_limits(high=1)
    leave_in(protocol, "pause_writing", leaving)
    with pytest.raises(leaving):
        each_loop.run_until_complete(write())
    assert run(each_loop, finish()) == written + b"the last words"
    assert protocol.calls.count("pause_writing") >= 1
    run(each_loop, stack.aclose())


def left_while_writing(
    loop: Loop,
    protocol: Collector,
    stack: contextlib.AsyncExitStack,
    leaving: type[BaseException],
) -> tuple[asyncio.Transport, Collector]:
    """Write 20 MB in a run that ends because pause_writing() raises *leaving*."""

    async def write() -> None:
        transport.write(bytes(20_000_000))

    transport, other = run(loop, stack.enter_async_context(linked(loop, protocol, None)))
    leave_in(protocol, "pause_writing", leaving)
    with pytest.raises(leaving):
        loop.run_until_complete(write())
    return transport, other


@LEAVING
def test_written_data_is_sent_before_resume_writing_is_called(
    each_loop: Loop, leaving: type[BaseException]
) -> None:
    protocol = Collector(each_loop)
    stack = contextlib.AsyncExitStack()
    _, other = left_while_writing(each_loop, protocol, stack, leaving)
    run(each_loop, until(lambda: len(other.data) == 20_000_000))
    run(each_loop, until(lambda: "resume_writing" in protocol.calls))
    assert protocol.calls == ["connection_made", "pause_writing", "resume_writing"]
    run(each_loop, stack.aclose())


@LEAVING
def test_write_eof_after_pause_writing_ended_the_run_is_sent_last(
    each_loop: Loop, leaving: type[BaseException]
) -> None:
    async def finish() -> None:
        transport.write_eof()
        await other.eof

    stack = contextlib.AsyncExitStack()
    transport, other = left_while_writing(each_loop, Collector(each_loop), stack, leaving)
    run(each_loop, finish())
    assert len(other.data) == 20_000_000
    run(each_loop, stack.aclose())


@LEAVING
@pytest.mark.parametrize("how", ["write", "writelines"])
def test_data_written_to_a_pipe_is_sent_after_pause_writing_ended_the_run(
    each_loop: Loop, leaving: type[BaseException], how: str
) -> None:
    async def write(writer: Writer) -> None:
        if how == "write":
            writer.pipe.write(data)
        else:
            writer.pipe.writelines([data[:1], data[1:]])

    data = noise(1_000_000)
    reader, file = a_pipe()
    stack = contextlib.AsyncExitStack()
    writer = run(each_loop, stack.enter_async_context(writing(each_loop, file)))
    leave_in(writer, "pause_writing", leaving)
    with reader:
        with pytest.raises(leaving):
            each_loop.run_until_complete(write(writer))
        writer.pipe.write_eof()
        assert run(each_loop, drain(reader)) == data
        run(each_loop, stack.aclose())


@LEAVING
def test_datagrams_are_sent_after_pause_writing_ended_the_run(
    each_loop: Loop, tmp_path: Path, leaving: type[BaseException]
) -> None:
    async def send(transport: Any) -> None:
        transport.sendto(bytes(100))

    ours, peer = unix_pair(tmp_path)
    count = fill_receiver(ours)
    box = Mailbox()
    stack = contextlib.AsyncExitStack()
    with peer:
        transport, _ = run(
            each_loop, stack.enter_async_context(endpoint(each_loop, box, sock=ours))
        )
        transport.set_write_buffer_limits(high=99, low=50)
        leave_in(box, "pause_writing", leaving)
        with pytest.raises(leaving):
            each_loop.run_until_complete(send(transport))
        found = drained(peer)
        run(each_loop, until(lambda: "resume_writing" in box.calls))
        found += drained(peer)
        assert found[count:] == [bytes(100)]
        assert box.calls[1:] == ["pause_writing", "resume_writing"]
        run(each_loop, stack.aclose())


# ── every method of a protocol ────────────────────────────────────────────────────────────


async def conversation(loop: Loop, protocol: Any, contexts: Contexts | None) -> None:
    """Write more than the socket takes, receive two messages, and then EOF from the peer."""
    async with linked(loop, protocol, contexts) as (transport, other):
        other.transport.pause_reading()
        if contexts is None:
            transport.set_write_buffer_limits(high=10_000_000, low=9_000_000)
        else:
            # The limits apply to the bytes that the transport below does not accept.
            transport.set_write_buffer_limits(high=1)
        transport.write(bytes(20_000_000))
        transport.write(bytes(1_000_000))
        other.transport.resume_reading()
        await until(lambda: len(other.data) == 21_000_000)
        for message in (b"one", b"onetwo"):
            other.transport.write(message[-3:])
            await until(lambda: protocol.data == message)  # noqa: B023
        other.transport.write_eof() if contexts is None else other.transport.close()
        await protocol.lost
        await other.lost


class Noting(Collector):
    """A collector whose eof_received() only records the call."""

    def eof_received(self) -> None:
        self.calls.append("eof_received")


class NotingBuffer(Filler):
    """The same as a BufferedProtocol, with a buffer of two bytes."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop, 2)


PLAIN = [
    (Noting, "connection_made"),
    (Noting, "data_received"),
    (Noting, "eof_received"),
    (Noting, "resume_writing"),
    (Noting, "connection_lost"),
    (NotingBuffer, "get_buffer"),
    (NotingBuffer, "buffer_updated"),
    (NotingBuffer, "eof_received"),
    (NotingBuffer, "connection_lost"),
]
SECURE = [
    (Noting, "data_received"),
    (Noting, "resume_writing"),
    (Noting, "connection_lost"),
    (NotingBuffer, "buffer_updated"),
    (NotingBuffer, "connection_lost"),
]
# With these methods asyncio hangs, so that they are tested on this loop only.
SECURE_HERE = [
    (Noting, "connection_made"),
    (Noting, "eof_received"),
    (NotingBuffer, "get_buffer"),
    (NotingBuffer, "eof_received"),
]


@LEAVING
@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_stream_continues_after_a_method_ended_the_run(
    each_loop: Loop, leaving: type[BaseException], kind: Callable[[Loop], Any], name: str
) -> None:
    protocol = kind(each_loop)
    leave_in(protocol, name, leaving)
    assert runs(each_loop, conversation(each_loop, protocol, None), leaving) == 1
    assert protocol.data == b"onetwo"


@LEAVING
@pytest.mark.parametrize(("kind", "name"), SECURE)
def test_tls_continues_on_both_loops_after_a_method_ended_the_run(
    each_loop: Loop,
    contexts: Contexts,
    leaving: type[BaseException],
    kind: Callable[[Loop], Any],
    name: str,
) -> None:
    protocol = kind(each_loop)
    leave_in(protocol, name, leaving)
    assert runs(each_loop, conversation(each_loop, protocol, contexts), leaving) == 1
    assert protocol.data == b"onetwo"


@LEAVING
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("kind", "name"), SECURE_HERE)
def test_tls_continues_where_asyncio_hangs_after_a_method_ended_the_run(
    loop: uringloop.Loop,
    contexts: Contexts,
    leaving: type[BaseException],
    debug: bool,
    kind: Callable[[Loop], Any],
    name: str,
) -> None:
    loop.set_debug(debug)
    protocol = kind(loop)
    leave_in(protocol, name, leaving)
    assert runs(loop, conversation(loop, protocol, contexts), leaving) == 1
    assert protocol.data == b"onetwo"


@LEAVING
@pytest.mark.parametrize("end", ["close", "write_eof"])
def test_close_and_eof_follow_after_resume_writing_ended_the_run(
    loop: uringloop.Loop, leaving: type[BaseException], end: str
) -> None:
    async def write() -> None:
        async with linked(loop, protocol, None) as (transport, other):
            transport.set_write_buffer_limits(high=0)
            transport.write(bytes(20_000_000))
            getattr(transport, end)()
            await other.eof
            assert len(other.data) == 20_000_000

    protocol = Collector(loop)
    leave_in(protocol, "resume_writing", leaving)
    assert runs(loop, write(), leaving) == 1


@LEAVING
@pytest.mark.parametrize(
    "name", ["connection_made", "data_received", "eof_received", "connection_lost"]
)
def test_read_pipe_continues_after_a_method_ended_the_run(
    each_loop: Loop, leaving: type[BaseException], name: str
) -> None:
    async def read() -> None:
        with writer:
            await each_loop.connect_read_pipe(lambda: protocol, file)
            for message in (b"one", b"onetwo"):
                os.write(writer.fileno(), message[-3:])
                await until(lambda: bytes(protocol.data) == message)  # noqa: B023
        await protocol.lost
        await until(lambda: file.closed)

    file, writer = a_pipe()
    protocol = Reader(each_loop)
    leave_in(protocol, name, leaving)
    assert runs(each_loop, read(), leaving) == 1
    assert protocol.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]


async def write_all(loop: Loop, protocol: Writer) -> None:
    """Write more than a pipe holds, and then close it."""
    reader, file = a_pipe()
    with reader:
        transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
        transport.set_write_buffer_limits(high=200_000, low=150_000)
        transport.write(bytes(1_000_000))
        transport.write_eof()
        assert await drain(reader) == bytes(1_000_000)
    await protocol.lost
    await until(lambda: file.closed)


@LEAVING
@pytest.mark.parametrize("name", ["connection_made", "connection_lost"])
def test_write_pipe_continues_after_a_method_ended_the_run(
    each_loop: Loop, leaving: type[BaseException], name: str
) -> None:
    protocol = Writer(each_loop)
    leave_in(protocol, name, leaving)
    assert runs(each_loop, write_all(each_loop, protocol), leaving) == 1


@LEAVING
def test_write_pipe_continues_after_resume_writing_ended_the_run(
    loop: uringloop.Loop, leaving: type[BaseException]
) -> None:
    # On asyncio this hangs.
    protocol = Writer(loop)
    leave_in(protocol, "resume_writing", leaving)
    assert runs(loop, write_all(loop, protocol), leaving) == 1


@LEAVING
def test_resume_writing_is_called_after_error_received_ended_the_run(
    each_loop: Loop, tmp_path: Path, leaving: type[BaseException]
) -> None:
    async def send() -> None:
        async with endpoint(each_loop, box, sock=ours) as (transport, _):
            transport.set_write_buffer_limits(high=99, low=50)
            transport.sendto(bytes(100))
            peer.close()
            await until(lambda: "resume_writing" in box.calls)

    box = Mailbox()
    leave_in(box, "error_received", leaving)
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    assert runs(each_loop, send(), leaving) == 1
    assert box.calls[1:3] == ["pause_writing", "resume_writing"]
    assert len(box.errors) == 1


@LEAVING
@pytest.mark.parametrize(
    "name",
    [
        "connection_made",
        "pipe_data_received",
        "pipe_connection_lost",
        "process_exited",
        "connection_lost",
    ],
)
def test_process_continues_after_a_method_ended_the_run(
    each_loop: Loop, leaving: type[BaseException], name: str
) -> None:
    async def start() -> None:
        transport, _ = await each_loop.subprocess_exec(lambda: protocol, "echo", "words")
        await protocol.exited
        await protocol.lost
        transport.close()

    protocol = Recorder(each_loop)
    leave_in(protocol, name, leaving)
    assert runs(each_loop, start(), leaving) == 1
    assert protocol.calls.count("process_exited") == protocol.calls.count("connection_lost") == 1
