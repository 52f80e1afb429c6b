"""asyncio.start_server, open_connection, StreamReader and StreamWriter on top of the loop."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

import pytest
from support.roles import (
    Loop,
    abort_and_wait,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    released,
    reset,
    turns,
    until,
)
from support.sockets import tcp_pair

LOCALHOST = "127.0.0.1"
LOW_WATER = 16 * 1024

# asyncio reports a handler's exception since gh-110894, and no longer fails on a cancelled handler
# since gh-113538. Both came with patch releases; Debian 12's 3.11.2 has neither.
REPORTS_HANDLER_ERRORS = (3, 11, 7) <= sys.version_info < (3, 12) or sys.version_info >= (3, 12, 1)
ALLOWS_CANCELLED = (3, 11, 8) <= sys.version_info < (3, 12) or sys.version_info >= (3, 12, 2)

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write received data back until EOF, then close."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    await close_and_wait(writer)


async def close_and_wait(writer: asyncio.StreamWriter) -> None:
    """Close *writer* and wait until its socket is closed."""
    writer.close()
    await writer.wait_closed()
    await released(writer.transport)


async def listen(handler: Handler) -> tuple[asyncio.Server, tuple[str, int]]:
    """Start a server that runs *handler* for each client, on a free port."""
    server = await asyncio.start_server(handler, LOCALHOST, 0, backlog=1000)
    return server, server.sockets[0].getsockname()


async def opened(limit: int = 65_536) -> Opened:
    """Return a reader, a writer, and the raw socket of their peer."""
    ours, peer = tcp_pair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
    return reader, writer, peer


# ── reading ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_readline_returns_lines_and_at_eof_the_rest(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    with peer:
        peer.send(b"first\nsec")
        assert await reader.readline() == b"first\n"
        reading = each_loop.create_task(reader.readline())
        await turns(3)
        assert not reading.done()
        peer.send(b"ond\nunfinished")
        peer.shutdown(socket.SHUT_WR)
        assert await reading == b"second\n"
        assert await reader.readline() == b"unfinished"
        assert await reader.readline() == b""
        assert reader.at_eof()
    await close_and_wait(writer)


@on_loop
async def test_a_stream_is_an_iterator_of_lines(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    expected = [b"%d\n" % number for number in range(1000)]
    with peer:
        peer.send(b"".join(expected))
        peer.shutdown(socket.SHUT_WR)
        assert [line async for line in reader] == expected
    await close_and_wait(writer)


@on_loop
async def test_readexactly_waits_for_every_byte(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    data = noise(200_000)
    with peer:
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        assert await reader.readexactly(3) == data[:3]
        assert await reader.readexactly(0) == b""
        assert await reader.readexactly(199_997) == data[3:]
        await sending
        reading = each_loop.create_task(reader.readexactly(10))
        peer.send(b"short")
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await reading
        assert (caught.value.partial, caught.value.expected) == (b"short", 10)
    await close_and_wait(writer)


@on_loop
async def test_readuntil_stops_after_the_separator(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    with peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r")
        reading = each_loop.create_task(reader.readuntil(b"\r\n\r\n"))
        await turns(3)
        assert not reading.done()
        peer.send(b"\nbody")
        assert await reading == b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        assert await reader.read(100) == b"body"
        peer.send(b"no separator")
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await reader.readuntil(b"|")
        assert caught.value.partial == b"no separator"
    await close_and_wait(writer)


@on_loop
async def test_the_stream_is_usable_after_a_line_beyond_the_limit(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=16)
    with peer:
        peer.send(b"x" * 40 + b"\nnext\n")
        with pytest.raises(asyncio.LimitOverrunError) as caught:
            await reader.readuntil(b"\n")
        assert caught.value.consumed > 16
        assert await reader.readexactly(41) == b"x" * 40 + b"\n"
        assert await reader.readline() == b"next\n"
        peer.send(b"y" * 40 + b"\nlast\n")
        with pytest.raises(ValueError, match="is longer than limit"):
            await reader.readline()
        assert await reader.readline() == b"last\n"
    await close_and_wait(writer)


@on_loop
async def test_read_without_a_size_reads_to_the_end(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    data = noise(3 << 20)
    with peer:
        reading = each_loop.create_task(reader.read())
        await each_loop.sock_sendall(peer, data)
        peer.shutdown(socket.SHUT_WR)
        assert await reading == data
        assert await reader.read() == b""
    await close_and_wait(writer)


@on_loop
async def test_a_slow_reader_blocks_its_sender(each_loop: Loop) -> None:
    reader, writer, peer = await opened(limit=4096)
    data = noise(16 << 20)
    with peer:
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        assert await reader.readexactly(10) == data[:10]
        for _ in range(50):
            assert not sending.done()
            await asyncio.sleep(0)
        assert isinstance(writer.transport, asyncio.Transport)
        assert not writer.transport.is_reading()
        assert await reader.readexactly(len(data) - 10) == data[10:]
        await sending
    await close_and_wait(writer)


@on_loop
async def test_a_reset_is_raised_by_the_reader(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    peer.send(b"ok")
    assert await reader.read(2) == b"ok"
    reset(peer)
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.close()
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()
    await released(writer.transport)


@on_loop
async def test_a_cancelled_read_loses_no_data(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    with peer:
        for number in range(20):
            reading = each_loop.create_task(reader.readexactly(4))
            await turns(2)
            peer.send(b"%02d" % number)
            await turns(number % 4)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            peer.send(b"..")
            assert await reader.readexactly(4) == b"%02d.." % number
    await close_and_wait(writer)


# ── writing ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_write_eof_ends_the_stream_and_keeps_reading(each_loop: Loop) -> None:
    reader, writer, peer = await opened()
    with peer:
        assert writer.can_write_eof()
        writer.write(b"question")
        writer.write_eof()
        assert await read_to_end(each_loop, peer) == b"question"
        peer.send(b"answer")
        assert await reader.readexactly(6) == b"answer"
    await close_and_wait(writer)


@on_loop
async def test_writelines_and_extra_info_pass_through(each_loop: Loop) -> None:
    _, writer, peer = await opened()
    with peer:
        writer.writelines([b"one ", b"two ", b"three"])
        await writer.drain()
        assert await read_exactly(each_loop, peer, 13) == b"one two three"
        assert writer.get_extra_info("peername") == peer.getsockname()
        assert not writer.is_closing()
    await close_and_wait(writer)
    assert writer.is_closing()


@on_loop
async def test_drain_waits_for_the_low_watermark(each_loop: Loop) -> None:
    _, writer, peer = await opened()
    with peer:
        writer.write(b"small")
        await writer.drain()
        writer.write(bytes(16 << 20))
        draining = each_loop.create_task(writer.drain())
        await turns(10)
        assert not draining.done()
        receiving = each_loop.create_task(read_exactly(each_loop, peer, 5 + (16 << 20)))
        await draining
        assert writer.transport.get_write_buffer_size() <= LOW_WATER
        await receiving
    await close_and_wait(writer)


@on_loop
async def test_several_tasks_can_drain_at_once(each_loop: Loop) -> None:
    _, writer, peer = await opened()
    with peer:
        writer.write(bytes(16 << 20))
        draining = [each_loop.create_task(writer.drain()) for _ in range(5)]
        await turns(3)
        assert not any(task.done() for task in draining)
        receiving = each_loop.create_task(read_exactly(each_loop, peer, 16 << 20))
        await asyncio.gather(*draining)
        await receiving
    await close_and_wait(writer)


@on_loop
async def test_drain_on_a_lost_connection_is_an_error(each_loop: Loop) -> None:
    _, writer, peer = await opened()
    writer.write(bytes(16 << 20))
    draining = each_loop.create_task(writer.drain())
    await turns(3)
    reset(peer)
    with pytest.raises(ConnectionError):
        await draining
    with pytest.raises(ConnectionError):
        await writer.drain()
    await released(writer.transport)


@on_loop
async def test_wait_closed_waits_for_pending_data(each_loop: Loop) -> None:
    _, writer, peer = await opened()
    data = noise(16 << 20)
    with peer:
        writer.write(data)
        writer.close()
        waiting = each_loop.create_task(writer.wait_closed())
        await turns(5)
        assert not waiting.done()
        assert await read_to_end(each_loop, peer) == data
        await waiting


# ── servers ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_server_echoes_growing_messages(each_loop: Loop) -> None:
    server, address = await listen(echo)
    reader, writer = await asyncio.open_connection(*address)
    for turn in range(100):
        piece = noise(1 + 100 * turn, turn)
        writer.write(piece)
        await writer.drain()
        assert await reader.readexactly(len(piece)) == piece
    writer.write_eof()
    assert await reader.read() == b""
    await close_and_wait(writer)
    server.close()


@on_loop
async def test_large_transfers_arrive_whole(each_loop: Loop) -> None:
    server, address = await listen(echo)
    reader, writer = await asyncio.open_connection(*address)
    data = noise(16 << 20)

    async def send() -> None:
        for start in range(0, len(data), 100_000):
            writer.write(data[start : start + 100_000])
            await writer.drain()
        writer.write_eof()

    sending = each_loop.create_task(send())
    assert await reader.read() == data
    await sending
    await close_and_wait(writer)
    server.close()


@pytest.mark.slow
@on_loop
async def test_many_clients_are_served_at_once(each_loop: Loop) -> None:
    async def converse(seed: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for turn in range(3):
            line = noise(300, seed * 3 + turn).hex().encode() + b"\n"
            writer.write(line)
            assert await reader.readline() == line
        writer.write_eof()
        assert await reader.read() == b""
        await close_and_wait(writer)

    server, address = await listen(echo)
    await asyncio.gather(*(converse(seed) for seed in range(300)))
    server.close()


@on_loop
async def test_a_plain_function_can_handle_clients(each_loop: Loop) -> None:
    seen: list[asyncio.StreamWriter] = []

    def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer)
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(handle, LOCALHOST, 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b"hello"
    await close_and_wait(writer)
    await released(seen[0].transport)
    server.close()


@pytest.mark.skipif(
    not REPORTS_HANDLER_ERRORS, reason="asyncio looks at a handler's error since 3.11.7 and 3.12.1"
)
@on_loop
async def test_an_error_in_a_handler_is_reported_and_closes_the_connection(
    each_loop: Loop,
) -> None:
    error = ValueError("handler")

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        raise error

    handler_calls = record_handler_calls(each_loop)
    server, address = await listen(fail)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"x")
    assert await reader.read() == b""
    await close_and_wait(writer)
    assert [call["message"] for call in handler_calls] == [
        "Unhandled exception in client_connected_cb"
    ]
    assert handler_calls[0]["exception"] is error
    server.close()


@on_loop
async def test_a_cancelled_handler_leaves_the_loop_running(each_loop: Loop) -> None:
    handlers: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append((asyncio.current_task(), writer))
        await reader.readexactly(1)

    handler_calls = record_handler_calls(each_loop)
    server, address = await listen(hang)
    reader, writer = await asyncio.open_connection(*address)
    await until(lambda: len(handlers) == 1)
    task, handler_writer = handlers[0]
    assert task is not None
    await turns(2)
    task.cancel()
    if ALLOWS_CANCELLED:
        assert await reader.read() == b""
        assert handler_calls == []
    elif REPORTS_HANDLER_ERRORS:
        # 3.11.7 and 3.12.1: asyncio's own callback raises CancelledError for the cancelled task.
        await until(lambda: len(handler_calls) == 1)
        assert isinstance(handler_calls[0]["exception"], asyncio.CancelledError)
        handler_writer.close()
    else:
        # Older versions do not check the task: the connection stays open.
        await until(task.cancelled)
        await turns(3)
        assert handler_calls == []
        assert not handler_writer.is_closing()
        handler_writer.close()
        assert await reader.read() == b""
    await close_and_wait(writer)
    await abort_and_wait(handler_writer.transport)
    server.close()
