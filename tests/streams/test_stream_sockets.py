"""Compiled streams on sockets: every byte arrives once, whatever is read, cancelled and paused."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.roles import (
    Loop,
    noise,
    on_loop,
    record_handler_calls,
    released,
    reset,
    run_script,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.streams import streams_of
from support.tls_contexts import Contexts
from support.tls_peers import no_connections_left

import uringloop

LOCALHOST = "127.0.0.1"
KINDS = ["tcp", "unix", "tls"]
# More than a transport's high-water mark and the kernel's buffers.
PLENTY = 16 << 20

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

each_kind = pytest.mark.parametrize("kind", KINDS)


@contextlib.asynccontextmanager
async def pair_of(
    loop: Loop, kind: str, contexts: Contexts, folder: Path, limit: int = 65_536
) -> AsyncIterator[tuple[Pair, Pair]]:
    """Yield a client's and a server's streams; the transports are released at the end."""
    streams = streams_of(loop)
    accepted = loop.create_future()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result((reader, writer))

    client: Pair
    if kind == "unix":
        path = str(folder / "socket")
        server = await streams.start_unix_server(connected, path, limit=limit)
        client = await streams.open_unix_connection(path, limit=limit)
    else:
        tls = kind == "tls"
        server = await streams.start_server(
            connected, LOCALHOST, 0, limit=limit, ssl=contexts.server if tls else None
        )
        client = await streams.open_connection(
            *server.sockets[0].getsockname(),
            limit=limit,
            ssl=contexts.client if tls else None,
            server_hostname="localhost" if tls else None,
        )
    served: Pair = await accepted
    server.close()
    socks = [writer.get_extra_info("socket") for _, writer in (client, served)]
    try:
        yield client, served
    finally:
        for sock, (_, writer) in zip(socks, (client, served), strict=True):
            # asyncio's transports fail if they are aborted after their end.
            if sock.fileno() != -1:
                with contextlib.suppress(AttributeError):
                    writer.transport.abort()
        await until(lambda: all(sock.fileno() == -1 for sock in socks))


async def read_somehow(reader: asyncio.StreamReader, chance: random.Random) -> bytes:
    """Read by a random method; an error that takes bytes returns them."""
    choice = chance.randrange(5)
    try:
        if choice == 0:
            return await reader.readexactly(chance.choice([1, 2, 3, 5, 100, 5000]))
        if choice == 1:
            return await reader.readuntil(chance.choice([b"\0", b"ab", b"\n", b"a"]))
        return await reader.read(chance.choice([1, 2, 3, 7, 1000, 100_000]))
    except asyncio.IncompleteReadError as exc:
        return exc.partial
    except asyncio.LimitOverrunError:
        return b""


async def read_all_somehow(
    loop: Loop, reader: asyncio.StreamReader, chance: random.Random, taken: list[bytes]
) -> None:
    """Read to the end, and cancel a third of the reads, after up to four turns."""
    while not reader.at_eof():
        task = loop.create_task(read_somehow(reader, chance))
        if chance.random() < 0.3:
            await turns(chance.randrange(5))
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            taken.append(await task)


async def send_somehow(writer: asyncio.StreamWriter, data: bytes, chance: random.Random) -> None:
    """Write *data* in pieces of random sizes, with random pauses."""
    start = 0
    while start < len(data):
        size = chance.choice([1, 2, 3, 10, 1000, 20_000])
        piece = data[start : start + size]
        if chance.random() < 0.5:
            writer.write(piece)
        else:
            writer.writelines([piece[:1], bytearray(piece[1:])])
        start += size
        await turns(chance.choice([0, 0, 1, 3]))
        await writer.drain()


# ── nothing is lost ───────────────────────────────────────────────────────────────────────


@each_kind
@pytest.mark.parametrize("limit", [1, 2, 3, 100, 65_536])
@on_loop
async def test_random_reads_get_every_byte_once(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str, limit: int
) -> None:
    chance = random.Random(f"{kind} {limit}")
    data = noise(20_000 if limit < 100 else 400_000, limit)
    taken: list[bytes] = []
    async with pair_of(each_loop, kind, contexts, tmp_path, limit) as ((reader, _), (_, writer)):
        reading = each_loop.create_task(read_all_somehow(each_loop, reader, chance, taken))
        await send_somehow(writer, data, chance)
        writer.close()
        await reading
    assert b"".join(taken) == data


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("limit", [1, 3, 65_536])
@on_loop
async def test_both_directions_at_once_and_half_closes(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str, limit: int
) -> None:
    chance = random.Random(limit)
    data = [noise(50_000, 1), noise(50_000, 2)]
    taken: list[list[bytes]] = [[], []]
    async with pair_of(each_loop, kind, contexts, tmp_path, limit) as sides:

        async def send(side: int) -> None:
            await send_somehow(sides[side][1], data[side], chance)
            sides[side][1].write_eof()

        await asyncio.gather(
            send(0),
            send(1),
            read_all_somehow(each_loop, sides[0][0], chance, taken[0]),
            read_all_somehow(each_loop, sides[1][0], chance, taken[1]),
        )
    assert b"".join(taken[0]) == data[1]
    assert b"".join(taken[1]) == data[0]


@pytest.mark.parametrize("limit", [1, 3, 65_536])
@on_loop
async def test_what_is_read_before_a_reset_is_what_was_sent(each_loop: Loop, limit: int) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        data = noise(5000, seed)
        taken: list[bytes] = []
        ours, peer = tcp_pair()
        reader, writer = await streams_of(each_loop).open_connection(sock=ours, limit=limit)
        reading = each_loop.create_task(read_all_somehow(each_loop, reader, chance, taken))
        await each_loop.sock_sendall(peer, data[: chance.randrange(5000)])
        await turns(chance.randrange(5))
        reset(peer)
        with pytest.raises(ConnectionResetError):
            await reading
        assert data.startswith(b"".join(taken))
        with pytest.raises(ConnectionResetError):
            await writer.drain()
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()
        await released(writer.transport)


# ── large messages ────────────────────────────────────────────────────────────────────────


@each_kind
@pytest.mark.parametrize("size", [100_000, 1 << 20, 5 << 20])
@on_loop
async def test_large_messages_in_each_method(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str, size: int
) -> None:
    message = noise(size, size).replace(b"\n", b" ") + b"\n"
    count = len(message)
    async with pair_of(each_loop, kind, contexts, tmp_path, 2 * size) as (client, served):
        reader, writer = client[0], served[1]
        for _ in range(2):
            writer.write(message)
            assert await reader.readline() == message
            writer.write(message)
            assert await reader.readuntil(b"\n") == message
            writer.write(message)
            assert await reader.readexactly(count) == message
            writer.write(message)
            assert await anext(reader) == message
            writer.write(message)
            parts: list[bytes] = []
            while sum(map(len, parts)) < count:
                parts.append(await reader.read(count - sum(map(len, parts))))
            assert b"".join(parts) == message
        writer.write(message)
        writer.close()
        assert await reader.read() == message


@each_kind
@on_loop
async def test_a_small_limit_is_no_limit_for_readexactly(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str
) -> None:
    message = noise(3 << 20, 7)
    async with pair_of(each_loop, kind, contexts, tmp_path, 100) as (client, served):
        sending = each_loop.create_task(send_all(served[1], message))
        assert await client[0].readexactly(1000) == message[:1000]
        assert await client[0].readexactly(200_000) == message[1000:201_000]
        rest = len(message) - 201_000
        assert await client[0].readexactly(rest) == message[201_000:]
        await sending


async def send_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@on_loop
async def test_a_reader_of_small_limit_blocks_its_sender(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    reader, writer = await streams_of(each_loop).open_connection(sock=ours, limit=1)
    with peer:
        data = noise(PLENTY)
        sending = each_loop.create_task(each_loop.sock_sendall(peer, data))
        assert await reader.read(1) == data[:1]
        for _ in range(50):
            await turns(1)
            assert not sending.done()
        assert not writer.transport.is_reading()
        assert await reader.readexactly(len(data) - 1) == data[1:]
        await sending
    writer.close()
    await released(writer.transport)


# ── writing ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@on_loop
async def test_drain_waits_while_much_is_queued(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str
) -> None:
    async with pair_of(each_loop, kind, contexts, tmp_path) as ((reader, _), (_, writer)):
        writer.write(b"small")
        await writer.drain()
        writer.write(bytes(PLENTY))
        draining = [each_loop.create_task(writer.drain()) for _ in range(3)]
        await turns(10)
        assert not any(task.done() for task in draining)
        draining.pop().cancel()
        await reader.readexactly(5 + PLENTY)
        await asyncio.gather(*draining)
        await writer.drain()


@each_kind
@on_loop
async def test_drain_of_a_closed_writer_raises(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str
) -> None:
    async with pair_of(each_loop, kind, contexts, tmp_path) as ((reader, _), (_, writer)):
        writer.close()
        await until(lambda: reader.at_eof())
        await writer.wait_closed()
        for _ in range(2):
            with pytest.raises(ConnectionResetError, match="Connection lost"):
                await writer.drain()


@on_loop
async def test_one_drain_can_be_awaited_in_many_ways(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    _, writer = await streams_of(each_loop).open_connection(sock=ours)
    with peer:
        drain = writer.drain()
        assert asyncio.iscoroutine(drain)
        await drain
        await asyncio.gather(writer.drain(), writer.drain())
        await asyncio.wait_for(writer.drain(), 5)
        await asyncio.shield(writer.drain())
        await each_loop.create_task(writer.drain())
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.drain())
        task = each_loop.create_task(writer.drain())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    writer.close()
    await released(writer.transport)


# ── TLS later ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server_first", [False, True])
@pytest.mark.parametrize("limit", [3, 65_536])
@on_loop
async def test_start_tls_in_both_directions(
    each_loop: Loop, contexts: Contexts, server_first: bool, limit: int
) -> None:
    if limit == 3 and not isinstance(each_loop, uringloop.Loop) and sys.version_info >= (3, 14):
        pytest.skip("asyncio 3.14.7 waits for ever in readexactly()")
    streams = streams_of(each_loop)
    data = noise(300_000)
    ended: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"ask\n"
        writer.write(b"go\n")
        await writer.drain()
        await writer.start_tls(contexts.server)
        if server_first:
            writer.write(data)
        ended.append(await reader.readexactly(len(data)))
        if not server_first:
            writer.write(data)
        await writer.drain()
        writer.close()

    server = await streams.start_server(serve, LOCALHOST, 0, limit=limit)
    reader, writer = await streams.open_connection(*server.sockets[0].getsockname(), limit=limit)
    sock = writer.get_extra_info("socket")
    writer.write(b"ask\n")
    await writer.drain()
    assert await reader.readexactly(3) == b"go\n"
    await writer.start_tls(contexts.client, server_hostname="localhost")
    assert writer.get_extra_info("ssl_object") is not None
    writer.write(data)
    await writer.drain()
    assert await reader.readexactly(len(data)) == data
    assert await reader.read() == b""
    assert ended == [data]
    writer.close()
    server.close()
    await until(lambda: sock.fileno() == -1)
    await no_connections_left(server)


# ── servers ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_handler_that_raises_is_reported_and_its_connection_closed(
    each_loop: Loop,
) -> None:
    streams = streams_of(each_loop)
    error = ValueError("handler")
    transports: list[asyncio.BaseTransport] = []

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transports.append(writer.transport)
        await reader.readexactly(1)
        raise error

    calls = record_handler_calls(each_loop)
    server = await streams.start_server(fail, LOCALHOST, 0)
    reader, writer = await streams.open_connection(*server.sockets[0].getsockname())
    writer.write(b"x")
    assert await reader.read() == b""
    (call,) = calls
    assert call["message"] == "Unhandled exception in client_connected_cb"
    assert call["exception"] is error
    assert call["transport"] is transports[0]
    writer.close()
    await released(writer.transport)
    server.close()


@on_loop
async def test_a_plain_function_that_raises_is_reported_as_in_asyncio(each_loop: Loop) -> None:
    """Its connection is closed on Pythons whose asyncio closes it."""
    streams = streams_of(each_loop)
    closes = "Exception" in asyncio.StreamReaderProtocol.connection_made.__code__.co_names
    error = ValueError("function")
    transports: list[asyncio.WriteTransport] = []

    def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transports.append(writer.transport)
        raise error

    calls = record_handler_calls(each_loop)
    server = await streams.start_server(fail, LOCALHOST, 0)
    reader, writer = await streams.open_connection(*server.sockets[0].getsockname())
    await until(lambda: bool(calls))
    (call,) = calls
    assert call["exception"] is error
    assert transports[0].is_closing() == closes
    if closes:
        assert call["message"] == "Unhandled exception in client_connected_cb"
        assert call["transport"] is transports[0]
        assert await reader.read() == b""
    else:
        assert "connection_made" in str(call["message"])
        transports[0].abort()
    writer.close()
    await released(writer.transport)
    server.close()
    await no_connections_left(server)


@on_loop
async def test_a_cancelled_handler_closes_its_connection(loop: Loop) -> None:
    """As with asyncio's classes of Python 3.13, on each version."""
    streams = streams_of(loop)
    tasks: list[asyncio.Task[Any] | None] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await reader.readexactly(1)

    server = await streams.start_server(hang, LOCALHOST, 0)
    reader, writer = await streams.open_connection(*server.sockets[0].getsockname())
    await until(lambda: bool(tasks))
    assert tasks[0] is not None
    tasks[0].cancel()
    assert await reader.read() == b""
    writer.close()
    await released(writer.transport)
    server.close()


# The same in a new process, as its last lines depend on when objects are released.
HANDLER_ENDS = """
    import asyncio, gc, uringloop
    from uringloop import streams as compiled

    async def main(streams):
        async def serve(reader, writer):
            assert await reader.readline() == b"question\\n"
            writer.write(b"answer\\n")
            await writer.drain()

        server = await streams.start_server(serve, "127.0.0.1", 0)
        reader, writer = await streams.open_connection(*server.sockets[0].getsockname())
        writer.write(b"question\\n")
        assert await reader.readline() == b"answer\\n"
        for _ in range(5):
            await asyncio.sleep(0.01)
        print("closed" if reader.at_eof() else "open")
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(0.01)

    import warnings
    warnings.simplefilter("ignore", ResourceWarning)
    asyncio.run(main(asyncio.streams))
    uringloop.run(main(compiled))
"""


def test_a_connection_whose_handler_ends_without_a_close_is_left_as_by_asyncio() -> None:
    done = run_script(HANDLER_ENDS)
    assert done.stderr == ""
    stock, compiled = done.stdout.split()
    assert compiled == stock


# ── what is left ──────────────────────────────────────────────────────────────────────────

DROPPED = """
    import asyncio, gc, sys, warnings, uringloop
    from uringloop import streams as compiled

    async def main(streams):
        server = await streams.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        reader, writer = await streams.open_connection(*server.sockets[0].getsockname())
        if CLOSE:
            writer.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del reader, writer
            gc.collect()
        print([str(w.message).split(" transport")[0] for w in caught
               if "StreamWriter" in str(w.message)])
        server.close()
        await asyncio.sleep(0.01)

    warnings.simplefilter("ignore", ResourceWarning)
    for CLOSE in (False, True):
        asyncio.run(main(asyncio.streams))
        uringloop.run(main(compiled))
"""


def test_a_writer_that_is_dropped_open_warns_as_asyncio_s() -> None:
    done = run_script(DROPPED)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[1] == lines[0]
    assert lines[3] == lines[2]


@each_kind
@on_loop
async def test_wait_closed_returns_after_the_last_byte(
    each_loop: Loop, contexts: Contexts, tmp_path: Path, kind: str
) -> None:
    data = noise(1 << 20)
    async with pair_of(each_loop, kind, contexts, tmp_path) as ((reader, _), (_, writer)):
        writer.write(data)
        writer.close()
        assert writer.is_closing()
        waiting = each_loop.create_task(writer.wait_closed())
        assert await reader.read() == data
        await waiting
