"""connect_read_pipe, and pipes with a transport at both ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.leaks import open_fds
from support.loops import LoopFactory
from support.pipes import (
    CAPACITY,
    KINDS,
    PLENTY,
    Ends,
    Reader,
    Writer,
    a_pipe,
    device,
    is_closed,
    peek,
    reading,
    terminal,
    writing,
)
from support.roles import Loop, in_thread, noise, on_loop, record_handler_calls, turns, until
from support.sources import constant

import uringloop
from uringloop._turn import watchers

READ_MAX = constant("_turn/turn.pxd", "SCRATCH_SIZE")


def is_reading(reader: Reader, *, otherwise: bool) -> bool:
    """Return is_reading() of the pipe, or *otherwise* if asyncio's transport has none (3.11.2)."""
    theirs = asyncio.unix_events._UnixReadPipeTransport  # type: ignore[attr-defined]
    if isinstance(reader.pipe, theirs) and "is_reading" not in vars(theirs):
        return otherwise
    return reader.pipe.is_reading()


# ── reading ───────────────────────────────────────────────────────────────────────────────


@KINDS
@on_loop
async def test_a_reader_gets_every_byte_and_then_eof(
    each_loop: Loop, make: Callable[[], Ends]
) -> None:
    source, sink = make()
    async with reading(each_loop, source) as reader:
        sink.write(b"one")
        assert await reader.received(3) == b"one"
        sink.write(b"two")
        assert await reader.received(6) == b"onetwo"
        sink.close()
        assert await reader.lost is None
        expected = ["connection_made", "data_received", "eof_received", "connection_lost"]
        assert reader.calls == expected
        assert reader.pipe.is_closing()


@on_loop
async def test_bytes_written_before_connect_read_pipe_are_read(each_loop: Loop) -> None:
    source, sink = a_pipe()
    sink.write(b"early")
    sink.close()
    async with reading(each_loop, source) as reader:
        await reader.lost
        assert reader.data == b"early"


@on_loop
async def test_nothing_is_read_before_the_pipe_is_handed_out(each_loop: Loop) -> None:
    order: list[str] = []

    class Reader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            order.append("data")
            received.set_result(data)

    received = each_loop.create_future()
    source, sink = a_pipe()
    sink.write(b"early")
    transport, _ = await each_loop.connect_read_pipe(Reader, source)
    order.append("connected")
    assert await received == b"early"
    assert order == ["connected", "data"]
    transport.close()
    sink.close()
    await turns()


@on_loop
async def test_a_terminal_is_read_until_its_other_side_closes(each_loop: Loop) -> None:
    master, slave = terminal()
    async with reading(each_loop, master) as reader:
        slave.write(b"to the master")
        assert await reader.received(13) == b"to the master"
        slave.close()
        # read() fails with EIO then; the loop reports nothing to the exception handler.
        exc = await reader.lost
        assert isinstance(exc, OSError)
        assert exc.errno == errno.EIO
        assert "eof_received" not in reader.calls


@on_loop
async def test_a_terminal_carries_bytes_both_ways(each_loop: Loop) -> None:
    master, slave = terminal()
    copies = [os.fdopen(os.dup(side.fileno()), "wb", 0) for side in (master, slave)]
    async with (
        reading(each_loop, master) as at_master,
        reading(each_loop, slave) as at_slave,
        writing(each_loop, copies[0]) as from_master,
        writing(each_loop, copies[1]) as from_slave,
    ):
        from_master.pipe.write(b"down")
        from_slave.pipe.write(b"up")
        assert await at_slave.received(4) == b"down"
        assert await at_master.received(2) == b"up"


@on_loop
async def test_a_character_device_can_be_read(loop: uringloop.Loop) -> None:
    # uringloop only: epoll refuses such a device.
    async with reading(loop, device("/dev/zero")) as reader:
        data = await reader.received(READ_MAX)
        reader.pipe.close()
        # A read may be short: the kernel ends it early when the process has other work to do.
        assert len(data) >= READ_MAX
        assert not any(data)


@on_loop
async def test_a_regular_file_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with device(tmp_path / "file") as file:
        with pytest.raises(ValueError, match=r"^Pipe transport is for pipes/sockets only\.$"):
            await each_loop.connect_read_pipe(lambda: Reader(each_loop), file)
        with pytest.raises(
            ValueError, match=r"^Pipe transport is only for pipes, sockets and character devices$"
        ):
            await each_loop.connect_write_pipe(lambda: Writer(each_loop), file)
        # The file stays open and blocking.
        assert not file.closed
        assert os.get_blocking(file.fileno())


@on_loop
async def test_a_paused_reader_gets_nothing_until_it_resumes(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with reading(each_loop, source) as reader:
        reader.pipe.pause_reading()
        assert not is_reading(reader, otherwise=False)
        sink.write(b"wait")
        sink.close()
        await turns(10)
        assert reader.calls == ["connection_made"]
        reader.pipe.resume_reading()
        assert is_reading(reader, otherwise=True)
        await reader.lost
        assert reader.data == b"wait"


@on_loop
async def test_pausing_in_data_received_holds_the_rest_back(each_loop: Loop) -> None:
    class Hesitant(Reader):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.pipe.pause_reading()

    source, sink = a_pipe()
    transport, reader = await each_loop.connect_read_pipe(lambda: Hesitant(each_loop), source)
    for count in range(1, 10):
        sink.write(b"x")
        await reader.received(count)
        if count < 9:
            sink.write(b"y")
            await turns(5)
            assert len(reader.data) == count
            peek(source)
        # Repeated calls change nothing.
        transport.pause_reading()
        transport.resume_reading()
        transport.resume_reading()
    sink.close()
    await reader.lost
    assert reader.data == b"x" * 9
    await until(lambda: is_closed(transport))


@on_loop
async def test_close_ends_a_reader_without_eof_received(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with reading(each_loop, source) as reader:
        sink.write(b"unread")
        reader.pipe.close()
        reader.pipe.close()
        assert reader.pipe.is_closing()
        assert not is_reading(reader, otherwise=False)
        assert await reader.lost is None
        assert reader.calls == ["connection_made", "connection_lost"]
    with pytest.raises(BrokenPipeError):
        sink.write(b"x")
    sink.close()


@on_loop
async def test_a_reader_goes_on_after_an_exception_of_its_protocol(each_loop: Loop) -> None:
    class Clumsy(Reader):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data == b"1":
                raise ZeroDivisionError

    source, sink = a_pipe()
    transport, reader = await each_loop.connect_read_pipe(lambda: Clumsy(each_loop), source)
    handler_calls = record_handler_calls(each_loop)
    sink.write(b"1")
    await reader.received(1)
    await until(lambda: bool(handler_calls))
    sink.write(b"2")
    assert await reader.received(2) == b"12"
    assert [type(call["exception"]) for call in handler_calls] == [ZeroDivisionError]
    sink.close()
    await reader.lost
    await until(lambda: is_closed(transport))


@on_loop
async def test_a_read_error_is_reported_and_closes_the_reader(each_loop: Loop) -> None:
    # The write end of a pipe becomes readable when the read end is closed, and read() fails.
    reading_end, wrong_end = a_pipe()
    async with reading(each_loop, wrong_end) as reader:
        handler_calls = record_handler_calls(each_loop)
        reading_end.close()
        exc = await reader.lost
        assert isinstance(exc, OSError)
        assert exc.errno == errno.EBADF
        assert [call["message"] for call in handler_calls] == ["Fatal read error on pipe transport"]
        assert handler_calls[0]["exception"] is exc
        assert handler_calls[0]["transport"] is reader.pipe


@on_loop
async def test_extra_info_and_protocol_of_both_ends(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with reading(each_loop, source) as reader, writing(each_loop, sink) as writer:
        assert reader.pipe.get_extra_info("pipe") is source
        assert writer.pipe.get_extra_info("pipe") is sink
        assert reader.pipe.get_extra_info("nothing", 7) == 7
        assert not os.get_blocking(source.fileno())
        assert not os.get_blocking(sink.fileno())
        assert reader.pipe.get_protocol() is reader
        assert writer.pipe.get_protocol() is writer
        assert writer.pipe.can_write_eof()
        assert not reader.pipe.is_closing()
        other = Reader(each_loop)
        reader.pipe.set_protocol(other)
        other.calls.append("set")
        writer.pipe.write(b"to the new one")
        assert await other.received(14) == b"to the new one"
        assert not reader.data
        reader.pipe.set_protocol(reader)


@on_loop
async def test_the_repr_of_a_reader_says_whether_it_reads(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with reading(each_loop, source) as reader:
        await turns(2)
        assert repr(reader.pipe).endswith(" polling>")
        reader.pipe.pause_reading()
        assert repr(reader.pipe).endswith(" idle>")
        reader.pipe.resume_reading()
        assert repr(reader.pipe).endswith(" polling>")
        sink.close()
        await reader.lost


@on_loop
async def test_repr_shows_the_state(loop: uringloop.Loop) -> None:
    source, sink = a_pipe()
    fds = source.fileno(), sink.fileno()
    async with reading(loop, source) as reader, writing(loop, sink) as writer:
        assert repr(reader.pipe) == f"<ReadPipeTransport open fd={fds[0]} polling>"
        assert repr(writer.pipe) == f"<WritePipeTransport open fd={fds[1]} idle bufsize=0>"
        reader.pipe.pause_reading()
        assert repr(reader.pipe) == f"<ReadPipeTransport open fd={fds[0]} idle>"
        writer.pipe.write(bytes(CAPACITY + 5))
        assert repr(writer.pipe) == f"<WritePipeTransport open fd={fds[1]} polling bufsize=5>"
        reader.pipe.close()
        assert repr(reader.pipe).startswith(f"<ReadPipeTransport closing fd={fds[0]}")
        await reader.lost
        await until(lambda: is_closed(reader.pipe))
        assert repr(reader.pipe) == "<ReadPipeTransport closed fd=-1 idle>"


@on_loop
async def test_add_reader_refuses_a_pipe_of_a_transport(loop: uringloop.Loop) -> None:
    source, sink = a_pipe()
    async with reading(loop, source) as reader, writing(loop, sink):
        for fd in (source.fileno(), sink.fileno()):
            with pytest.raises(RuntimeError, match=f"File descriptor {fd} is used by transport"):
                loop.add_reader(fd, print)
        fd = source.fileno()
        reader.pipe.close()
        await until(lambda: is_closed(reader.pipe))
        assert watchers.transport_of(loop, fd) is None


@pytest.mark.parametrize("method", ["connect_read_pipe", "connect_write_pipe"])
@on_loop
async def test_a_cancelled_connect_closes_the_pipe(each_loop: Loop, method: str) -> None:
    source, sink = a_pipe()
    ours, other = (source, sink) if method == "connect_read_pipe" else (sink, source)
    role = Reader if ours is source else Writer
    task = each_loop.create_task(getattr(each_loop, method)(lambda: role(each_loop), ours))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: ours.closed)
    other.close()


# ── both ends ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_streams_work_on_pipes(each_loop: Loop) -> None:
    source, sink = a_pipe()
    stream = asyncio.StreamReader(loop=each_loop)
    reading_end, _ = await each_loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream, loop=each_loop), source
    )
    writing_end, protocol = await each_loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=each_loop), sink
    )
    writer = asyncio.StreamWriter(writing_end, protocol, None, each_loop)
    lines = [b"%d\n" % number for number in range(20_000)]

    async def produce() -> None:
        for line in lines:
            writer.write(line)
            await writer.drain()
        writer.write_eof()

    produced = asyncio.ensure_future(produce())
    assert [line async for line in stream] == lines
    await produced
    await until(lambda: is_closed(reading_end) and is_closed(writing_end))


def test_pipes_go_on_when_the_loop_changes_threads(each_loop: Loop) -> None:
    data = noise(PLENTY)
    source, sink = a_pipe()

    async def connect() -> tuple[Reader, Writer]:
        _, reader = await each_loop.connect_read_pipe(lambda: Reader(each_loop), source)
        _, writer = await each_loop.connect_write_pipe(lambda: Writer(each_loop), sink)
        await turns(3)
        return reader, writer

    async def fill_up(reader: Reader, writer: Writer) -> None:
        os.write(sink.fileno(), data[:5])
        await reader.received(5)
        reader.pipe.pause_reading()
        writer.pipe.write(data[5:])
        await turns(3)

    async def finish(reader: Reader, writer: Writer) -> None:
        reader.pipe.resume_reading()
        assert await reader.received(PLENTY) == data

    async def part(reader: Reader, writer: Writer) -> None:
        reader.pipe.close()
        await reader.lost
        assert await writer.lost is None
        await until(lambda: is_closed(reader.pipe) and is_closed(writer.pipe))

    ends = in_thread(lambda: each_loop.run_until_complete(connect()))
    in_thread(lambda: each_loop.run_until_complete(fill_up(*ends)))
    each_loop.run_until_complete(finish(*ends))
    in_thread(lambda: each_loop.run_until_complete(part(*ends)))


@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
def test_an_unclosed_pipe_warns_and_is_closed(loop_factory: LoopFactory) -> None:
    fds = open_fds()
    source, sink = a_pipe()

    async def forget() -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: Reader(loop), source)
        await loop.connect_write_pipe(lambda: Writer(loop), sink)

    loop: Loop | None = loop_factory()
    assert loop is not None
    loop.run_until_complete(forget())
    loop.close()
    loop = None
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    for name in ("ReadPipeTransport", "WritePipeTransport"):
        assert (
            sum(bool(re.match(f"unclosed transport <\\w*{name}", text)) for text in messages) == 1
        )
    assert source.closed
    assert sink.closed
    assert open_fds() == fds


@on_loop
async def test_many_pipes_leave_no_descriptor_and_no_operation(loop: uringloop.Loop) -> None:
    fds = open_fds()
    for _ in range(200):
        source, sink = a_pipe()
        async with reading(loop, source) as reader, writing(loop, sink) as writer:
            writer.pipe.write(b"x")
            await reader.received(1)
    assert open_fds() == fds
    await until(lambda: loop._operations_in_flight == 0)


@on_loop
async def test_debug_mode_logs_connecting_pausing_and_closing(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncio")
    each_loop.set_debug(True)
    source, sink = a_pipe()
    async with reading(each_loop, source) as reader, writing(each_loop, sink) as writer:
        reader.pipe.pause_reading()
        reader.pipe.resume_reading()
        writer.pipe.close()
        await reader.lost
    ends = [message.partition(" ")[0] for message in caplog.messages if "connected" in message]
    assert ends == ["Read", "Write"]
    log = " ".join(caplog.messages)
    for what in ("pauses reading", "resumes reading", "was closed by peer"):
        assert what in log
    each_loop.set_debug(False)


def test_the_reader_of_a_pipe_may_be_a_thread(each_loop: Loop) -> None:
    source, sink = a_pipe()
    data = noise(PLENTY)
    got = bytearray()

    def read_all() -> None:
        while piece := os.read(source.fileno(), 1 << 20):
            got.extend(piece)

    async def write_all() -> None:
        async with writing(each_loop, sink) as writer:
            for begin in range(0, PLENTY, 10_000):
                writer.pipe.write(data[begin : begin + 10_000])
            writer.pipe.close()
            assert await writer.lost is None

    thread = threading.Thread(target=read_all)
    thread.start()
    each_loop.run_until_complete(write_all())
    thread.join(10)
    assert got == data
    assert stat.S_ISFIFO(os.fstat(source.fileno()).st_mode)
    source.close()
