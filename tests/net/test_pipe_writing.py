"""connect_write_pipe: writing, backpressure, errors, a reader that closes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

import pytest
from support.pipes import (
    CAPACITY,
    KINDS,
    PLENTY,
    Ends,
    Writer,
    a_pipe,
    device,
    drain,
    peek,
    reading,
    writing,
)
from support.roles import Loop, noise, on_loop, turns, until

import uringloop

# asyncio's threshold: it logs a warning after this many lost writes.
SILENT_WRITES = 5


# ── writing ───────────────────────────────────────────────────────────────────────────────


@KINDS
@on_loop
async def test_writes_are_sent_at_once(each_loop: Loop, make: Callable[[], Ends]) -> None:
    source, sink = make()
    async with writing(each_loop, sink) as writer:
        writer.pipe.write(b"one ")
        assert peek(source) == b"one "
        writer.pipe.writelines([b"two ", bytearray(b"three "), memoryview(b"four")])
        writer.pipe.write(b"")
        writer.pipe.writelines([])
        assert peek(source) == b"two three four"
        assert writer.pipe.get_write_buffer_size() == 0
        writer.pipe.close()
        assert await writer.lost is None
        assert writer.calls == ["connection_made", "connection_lost"]
    assert peek(source) == b""
    source.close()


@KINDS
@on_loop
async def test_large_writes_arrive_whole_with_backpressure(
    each_loop: Loop, make: Callable[[], Ends]
) -> None:
    source, sink = make()
    data = noise(PLENTY)
    async with reading(each_loop, source) as reader, writing(each_loop, sink) as writer:
        reader.pipe.pause_reading()
        sizes = [1, 100, 5_000, 70_000, 300_000, PLENTY]
        begin = 0
        for size in sizes:
            piece = bytearray(data[begin : begin + size])
            writer.pipe.write(piece)
            # The transport has copied the data, so the bytearray may change.
            piece[:] = bytes(len(piece))
            begin += size
        assert writer.calls == ["connection_made", "pause_writing"]
        assert 0 < writer.pipe.get_write_buffer_size() < PLENTY
        reader.pipe.resume_reading()
        assert await reader.received(PLENTY) == data
        await until(lambda: "resume_writing" in writer.calls)
        assert writer.calls == ["connection_made", "pause_writing", "resume_writing"]
        assert writer.pipe.get_write_buffer_size() == 0


@on_loop
async def test_the_protocol_is_paused_above_the_high_water_mark(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with writing(each_loop, sink) as writer:
        assert writer.pipe.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        writer.pipe.set_write_buffer_limits(high=1000)
        assert writer.pipe.get_write_buffer_limits() == (250, 1000)
        writer.pipe.write(bytes(CAPACITY))
        writer.pipe.write(bytes(1000))
        assert writer.pipe.get_write_buffer_size() == 1000
        assert writer.calls == ["connection_made"]
        writer.pipe.write(bytes(1))
        assert writer.calls == ["connection_made", "pause_writing"]
        with pytest.raises(ValueError, match="must be >= low"):
            writer.pipe.set_write_buffer_limits(high=1, low=2)
        assert len(peek(source) or b"") == CAPACITY
        await until(lambda: writer.calls[-1] == "resume_writing")
        assert len(peek(source) or b"") == 1001
    source.close()


@pytest.mark.parametrize("end", ["close", "write_eof"])
@on_loop
async def test_queued_bytes_are_sent_before_the_pipe_closes(each_loop: Loop, end: str) -> None:
    source, sink = a_pipe()
    data = noise(PLENTY)
    async with writing(each_loop, sink) as writer:
        writer.pipe.write(data)
        getattr(writer.pipe, end)()
        getattr(writer.pipe, end)()
        assert writer.pipe.is_closing()
        writer.pipe.write(b"too late")
        writer.pipe.writelines([b"too ", b"late"])
        await turns(5)
        assert not writer.lost.done()
        assert await drain(source) == data
        assert await writer.lost is None
    source.close()


@on_loop
async def test_abort_drops_queued_bytes(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with writing(each_loop, sink) as writer:
        writer.pipe.write(bytes(PLENTY))
        writer.pipe.abort()
        assert writer.pipe.get_write_buffer_size() == 0
        assert await writer.lost is None
    assert len(await drain(source)) == CAPACITY
    source.close()


@KINDS
@on_loop
async def test_closed_reader_closes_the_writer(each_loop: Loop, make: Callable[[], Ends]) -> None:
    source, sink = make()
    async with writing(each_loop, sink) as writer:
        await turns(3)
        source.close()
        assert await writer.lost is None
        assert writer.pipe.is_closing()


@KINDS
@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing"])
@on_loop
async def test_closed_reader_is_an_error_if_bytes_are_queued(
    each_loop: Loop, make: Callable[[], Ends], closing: bool
) -> None:
    source, sink = make()
    async with writing(each_loop, sink) as writer:
        writer.pipe.write(bytes(PLENTY))
        if closing:
            writer.pipe.close()
        await turns(3)
        source.close()
        assert isinstance(await writer.lost, BrokenPipeError)
        assert writer.calls == ["connection_made", "pause_writing", "connection_lost"]


@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing"])
@on_loop
async def test_a_half_closed_socket_closes_the_writer(each_loop: Loop, closing: bool) -> None:
    source, sink = socket.socketpair()
    async with writing(each_loop, os.fdopen(sink.detach(), "wb", 0)) as writer:
        writer.pipe.write(bytes(PLENTY))
        if closing:
            writer.pipe.close()
        await turns(3)
        source.shutdown(socket.SHUT_WR)
        assert isinstance(await writer.lost, BrokenPipeError)
    source.close()


@on_loop
async def test_received_data_on_a_socket_closes_the_writer(each_loop: Loop) -> None:
    # asyncio treats a readable descriptor as a closed reader.
    source, sink = socket.socketpair()
    async with writing(each_loop, os.fdopen(sink.detach(), "wb", 0)) as writer:
        source.send(b"x")
        assert await writer.lost is None
    source.close()


@on_loop
async def test_a_write_without_a_reader_closes_the_writer(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with writing(each_loop, sink) as writer:
        source.close()
        writer.pipe.write(b"x")
        assert writer.pipe.is_closing()
        exc = await writer.lost
        assert isinstance(exc, BrokenPipeError)
        assert exc.errno == errno.EPIPE


@on_loop
async def test_a_warning_is_logged_after_several_lost_writes(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    source, sink = a_pipe()
    async with writing(each_loop, sink) as writer:
        source.close()
        for _ in range(SILENT_WRITES):
            writer.pipe.write(b"x")
            writer.pipe.write(b"")
        assert caplog.messages == []
        writer.pipe.write(b"x")
        assert caplog.messages == ["pipe closed by peer or os.write(pipe, data) raised exception."]
        await writer.lost


@on_loop
async def test_a_view_with_gaps_is_written_without_them(loop: uringloop.Loop) -> None:
    # Issue 51. asyncio reports a BufferError and closes the pipe.
    source, sink = a_pipe()
    async with writing(loop, sink) as writer:
        writer.pipe.write(memoryview(b"g-a-p-s-")[::2])
        writer.pipe.writelines([memoryview(b"back")[::-1], b"."])
        assert source.read(9) == b"gapskcab."
    source.close()


@on_loop
async def test_writing_text_raises_type_error(loop: uringloop.Loop) -> None:
    # uringloop only: asyncio has an assertion.
    source, sink = a_pipe()
    async with writing(loop, sink) as writer:
        with pytest.raises(TypeError, match="bytes"):
            writer.pipe.write("text")  # type: ignore[arg-type]
        writer.pipe.close()
        with pytest.raises(TypeError, match="bytes"):
            writer.pipe.write("text")  # type: ignore[arg-type]
    source.close()


@on_loop
async def test_a_character_device_can_be_written_to(each_loop: Loop) -> None:
    async with writing(each_loop, device("/dev/null")) as writer:
        for _ in range(5):
            writer.pipe.write(bytes(PLENTY))
            assert writer.pipe.get_write_buffer_size() == 0
            await turns(2)
        writer.pipe.close()
        assert await writer.lost is None
        assert writer.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_a_write_error_closes_the_writer(each_loop: Loop) -> None:
    async with writing(each_loop, device("/dev/full")) as writer:
        writer.pipe.write(b"x")
        exc = await writer.lost
        assert isinstance(exc, OSError)
        assert exc.errno == errno.ENOSPC


@on_loop
async def test_resume_writing_may_fill_the_pipe_again(loop: uringloop.Loop) -> None:
    class Eager(Writer):
        def resume_writing(self) -> None:
            super().resume_writing()
            if len(self.calls) < 10:
                self.pipe.write(bytes(2 * CAPACITY))

    source, sink = a_pipe()
    transport, writer = await loop.connect_write_pipe(lambda: Eager(loop), sink)
    transport.write(bytes(2 * CAPACITY + 1))
    seen = 0
    while len(writer.calls) < 10:
        seen += len(peek(source) or b"")
        await asyncio.sleep(0)
    transport.close()
    seen += len(await drain(source))
    assert seen == 5 * 2 * CAPACITY + 1
    await writer.lost
    source.close()


@on_loop
async def test_reading_methods_raise_not_implemented_error(each_loop: Loop) -> None:
    source, sink = a_pipe()
    async with writing(each_loop, sink) as writer:
        for name in ("pause_reading", "resume_reading", "is_reading"):
            with pytest.raises(NotImplementedError):
                getattr(writer.pipe, name)()
    source.close()
