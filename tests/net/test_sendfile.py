"""loop.sendfile and loop.sock_sendfile: offset and count, slow readers, writes around, errors."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

import pytest
from support.protocols import Collector, Echo
from support.roles import (
    Loop,
    link,
    noise,
    on_disk,
    on_loop,
    pair,
    read_exactly,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.tls_contexts import Contexts
from support.tls_peers import tls_stream

import uringloop
from uringloop._cpython import stdlib
from uringloop._net import sendfile

SIZE = 200_000
NARROW = 16 * 1024
# More than two narrow socket buffers hold.
PLENTY = 2 * 1024 * 1024
HUGE = 20 * 1024 * 1024


# ── offset and count ─────────────────────────────────────────────────────────────────────────


def skip_where_asyncio_corrupts(loop: Loop) -> None:
    """Skip stock asyncio from 3.12 on: its fallback reuses a buffer that is still being sent."""
    if sys.version_info >= (3, 12) and not isinstance(loop, uringloop.Loop):
        pytest.skip("from 3.12 on asyncio's write() keeps a view of a buffer that is reused")


@pytest.mark.parametrize(
    ("offset", "count"),
    [
        (0, None),
        (5000, None),
        (0, 1),
        (0, 70_000),
        (123, 70_000),
        (SIZE - 10, 50),
        (SIZE + 1, None),
    ],
)
@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_sendfile_sends_the_given_part_of_a_file(
    each_loop: Loop, tmp_path: Path, offset: int, count: int | None, memory: bool
) -> None:
    content = noise(SIZE)
    expected = content[offset:] if count is None else content[offset : offset + count]

    @on_loop
    async def check(each_loop: Loop) -> None:
        async with stream(each_loop, Echo()) as (transport, peer):
            with io.BytesIO(content) if memory else on_disk(tmp_path, content) as file:
                sending = each_loop.sendfile(transport, file, offset, count)
                got, sent = await asyncio.gather(
                    read_exactly(each_loop, peer, len(expected)), sending
                )
                assert sent == len(expected)
                assert got == expected
                if expected:
                    assert file.tell() == offset + len(expected)
            transport.write(b"after")
            assert await read_exactly(each_loop, peer, 5) == b"after"

    check(each_loop=each_loop)


@pytest.mark.parametrize(
    ("offset", "count"), [(0, None), (5000, None), (0, 70_000), (123, 70_000), (SIZE - 10, 50)]
)
@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_sock_sendfile_sends_the_given_part_of_a_file(
    each_loop: Loop, tmp_path: Path, offset: int, count: int | None, memory: bool
) -> None:
    content = noise(SIZE)
    expected = content[offset:] if count is None else content[offset : offset + count]

    @on_loop
    async def check(each_loop: Loop) -> None:
        with (
            pair() as (ours, peer),
            io.BytesIO(content) if memory else on_disk(tmp_path, content) as file,
        ):
            sending = each_loop.sock_sendfile(ours, file, offset, count)
            got, sent = await asyncio.gather(read_exactly(each_loop, peer, len(expected)), sending)
            assert sent == len(expected)
            assert got == expected
            assert file.tell() == offset + len(expected)

    check(each_loop=each_loop)


@pytest.mark.parametrize("data", [b"", b"something"])
def test_an_empty_file_sends_nothing(each_loop: Loop, tmp_path: Path, data: bytes) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        async with stream(each_loop, Echo()) as (transport, peer):
            with on_disk(tmp_path, b"") as file:
                transport.write(data)
                assert await each_loop.sendfile(transport, file) == 0
                transport.write(b".")
                assert await read_exactly(each_loop, peer, len(data) + 1) == data + b"."
        with pair() as (ours, _), on_disk(tmp_path, b"") as file:
            assert await each_loop.sock_sendfile(ours, file) == 0

    check(each_loop=each_loop)


@on_loop
async def test_the_position_of_a_file_after_sending_nothing_is_that_of_asyncio(
    each_loop: Loop, tmp_path: Path
) -> None:
    with pair() as (ours, _), on_disk(tmp_path, b"0123456789") as file:
        file.seek(3)
        assert await each_loop.sock_sendfile(ours, file, 1000) == 0
        place = 1000 if stdlib.SENDFILE_ALWAYS_MOVES else 3
        assert file.tell() == os.lseek(file.fileno(), 0, os.SEEK_CUR) == place
        file.seek(3)
        async with stream(each_loop, Echo()) as (transport, _):
            assert await each_loop.sendfile(transport, file, 1000) == 0
            assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == place
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await each_loop.sock_sendfile(ours, file, fallback=False)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == (3 if place == 3 else 0)


@on_loop
async def test_a_file_of_proc_has_size_zero_and_sends_nothing(each_loop: Loop) -> None:
    async with stream(each_loop, Echo()) as (transport, peer):
        with os.fdopen(os.open("/proc/self/stat", os.O_RDONLY), "rb") as file:
            assert await each_loop.sendfile(transport, file) == 0
        transport.write(b"after")
        assert await read_exactly(each_loop, peer, 5) == b"after"


@on_loop
async def test_a_pipe_is_read_if_a_count_is_given(each_loop: Loop) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("from 3.14 on asyncio's fallback treats the position of a pipe differently")
    out, into = os.pipe()
    with os.fdopen(out, "rb", 0) as file, os.fdopen(into, "wb", 0) as feeder:
        feeder.write(b"through a pipe")
        async with stream(each_loop, Echo()) as (transport, peer):
            assert await each_loop.sendfile(transport, file) == 0
            with pytest.raises(asyncio.SendfileNotAvailableError):
                await each_loop.sendfile(transport, file, 0, 14, fallback=False)
            # The fallback sends, and then fails to set a pipe's position.
            with pytest.raises(OSError, match=f"{os.strerror(errno.ESPIPE)}|not seekable"):
                await each_loop.sendfile(transport, file, 0, 14)
            assert await read_exactly(each_loop, peer, 14) == b"through a pipe"


# ── slow readers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sendfile", "sock_sendfile"])
def test_a_slow_reader_gets_every_byte(each_loop: Loop, tmp_path: Path, method: str) -> None:
    content = noise(HUGE)

    async def read_slowly(loop: Loop, peer: socket.socket) -> bytes:
        data = bytearray()
        while len(data) < HUGE:
            data += await loop.sock_recv(peer, 100_000)
            await turns(1)
        return bytes(data)

    @on_loop
    async def check(each_loop: Loop) -> None:
        with on_disk(tmp_path, content) as file:
            if method == "sock_sendfile":
                with pair(256 * 1024) as (ours, peer):
                    sending = each_loop.sock_sendfile(ours, file)
                    got, sent = await asyncio.gather(read_slowly(each_loop, peer), sending)
            else:
                async with stream(each_loop, Echo(), buffer_size=256 * 1024) as (it, peer):
                    sending = each_loop.sendfile(it, file)
                    got, sent = await asyncio.gather(read_slowly(each_loop, peer), sending)
            assert sent == HUGE
            assert got == content
            assert file.tell() == HUGE

    check(each_loop=each_loop)


@on_loop
async def test_the_fallback_waits_for_a_slow_reader(each_loop: Loop) -> None:
    skip_where_asyncio_corrupts(each_loop)
    content = noise(PLENTY)
    left = Collector(each_loop)
    async with stream(each_loop, left, buffer_size=NARROW) as (transport, peer):
        sending = each_loop.create_task(each_loop.sendfile(transport, io.BytesIO(content)))
        await turns(300)
        assert not sending.done()
        assert transport.get_write_buffer_size() < PLENTY // 4
        assert await read_exactly(each_loop, peer, PLENTY) == content
        assert await sending == PLENTY
        assert transport.get_protocol() is left


def test_sock_sendfile_lets_the_loop_run_between_slices(
    loop: uringloop.Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # uringloop only: stock asyncio waits for the selector after each system call.
    monkeypatch.setattr(sendfile, "SLICE", 1000)
    passed = 0

    async def count_turns() -> None:
        nonlocal passed
        while True:
            await turns(1)
            passed += 1

    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        counting = loop.create_task(count_turns())
        with pair() as (ours, peer), on_disk(tmp_path, noise(20_000)) as file:
            # All of it fits into the socket: nothing but the slices ends a turn.
            assert await loop.sock_sendfile(ours, file) == 20_000
            assert passed >= 19
            assert await read_exactly(loop, peer, 20_000) == noise(20_000)
        counting.cancel()

    check(loop=loop)


# ── writing and reading around sendfile ──────────────────────────────────────────────────────


@pytest.mark.parametrize("before", [10, 300_000, PLENTY])
@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_data_written_before_sendfile_is_sent_first(
    each_loop: Loop, tmp_path: Path, before: int, memory: bool
) -> None:
    skip_where_asyncio_corrupts(each_loop)
    first, content = noise(before, 1), noise(SIZE, 2)

    @on_loop
    async def check(each_loop: Loop) -> None:
        async with stream(each_loop, Echo(), buffer_size=NARROW) as (transport, peer):
            with io.BytesIO(content) if memory else on_disk(tmp_path, content) as file:
                transport.write(first)
                sending = each_loop.create_task(each_loop.sendfile(transport, file))
                assert await read_exactly(each_loop, peer, before + SIZE) == first + content
                assert await sending == SIZE
            transport.write(b"after")
            assert await read_exactly(each_loop, peer, 5) == b"after"

    check(each_loop=each_loop)


@on_loop
async def test_several_files_are_sent_in_order(each_loop: Loop, tmp_path: Path) -> None:
    content = noise(SIZE)
    async with stream(each_loop, Echo(), buffer_size=NARROW) as (transport, peer):
        reading = each_loop.create_task(read_exactly(each_loop, peer, 3 * (SIZE + 1)))
        with on_disk(tmp_path, content) as file:
            for _ in range(3):
                assert await each_loop.sendfile(transport, file) == SIZE
                transport.write(b"\n")
        assert await reading == (content + b"\n") * 3


@on_loop
async def test_writing_during_sendfile_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    content = noise(PLENTY)
    async with stream(each_loop, Echo(), buffer_size=NARROW) as (transport, peer):
        with on_disk(tmp_path, content) as file:
            sending = each_loop.create_task(each_loop.sendfile(transport, file))
            await turns(5)
            with pytest.raises(RuntimeError, match=r"^unable to write; sendfile is in progress$"):
                transport.write(b"no")
            assert await read_exactly(each_loop, peer, PLENTY) == content
            assert await sending == PLENTY


@on_loop
async def test_a_concurrent_sendfile_is_refused(loop: uringloop.Loop, tmp_path: Path) -> None:
    # uringloop only: stock asyncio fails with a KeyError of its own.
    content = noise(PLENTY)
    async with stream(loop, Echo(), buffer_size=NARROW) as (transport, peer):
        with on_disk(tmp_path, content) as file:
            sending = loop.create_task(loop.sendfile(transport, file))
            await turns(5)
            with pytest.raises(RuntimeError, match=r"^Empty waiter is already set$"):
                await loop.sendfile(transport, file)
            with pytest.raises(RuntimeError, match=r"^unable to write; sendfile is in progress$"):
                transport.write(b"no")
            assert not transport.is_reading()
            assert await read_exactly(loop, peer, PLENTY) == content
            assert await sending == PLENTY
            assert transport.is_reading()


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_reading_pauses_during_sendfile(each_loop: Loop, tmp_path: Path, memory: bool) -> None:
    skip_where_asyncio_corrupts(each_loop)
    content = noise(PLENTY)

    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with stream(each_loop, left, buffer_size=NARROW) as (transport, peer):
            with io.BytesIO(content) if memory else on_disk(tmp_path, content) as file:
                sending = each_loop.create_task(each_loop.sendfile(transport, file))
                await turns(5)
                assert not transport.is_reading()
                peer.send(b"are you there?")
                await turns(20)
                assert not left.data
                assert await read_exactly(each_loop, peer, PLENTY) == content
                await sending
            assert transport.is_reading()
            assert await left.received(14) == b"are you there?"

    check(each_loop=each_loop)


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_sendfile_leaves_a_transport_paused(each_loop: Loop, tmp_path: Path, memory: bool) -> None:
    content = noise(SIZE)

    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with stream(each_loop, left) as (transport, peer):
            transport.pause_reading()
            peer.send(b"later")
            with io.BytesIO(content) if memory else on_disk(tmp_path, content) as file:
                sending = each_loop.create_task(each_loop.sendfile(transport, file))
                assert await read_exactly(each_loop, peer, SIZE) == content
                await sending
            await turns(5)
            assert not transport.is_reading()
            assert not left.data
            transport.resume_reading()
            assert await left.received(5) == b"later"

    check(each_loop=each_loop)


@on_loop
async def test_a_file_is_echoed_whole(each_loop: Loop, tmp_path: Path) -> None:
    content = noise(PLENTY)
    left = Collector(each_loop)
    async with link(each_loop, left, Echo()) as (transport, _):
        with on_disk(tmp_path, content) as file:
            assert await each_loop.sendfile(transport, file) == PLENTY
        assert await left.received(PLENTY) == content


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server_side", [False, True])
def test_a_tls_transport_sends_a_file(
    each_loop: Loop, tmp_path: Path, contexts: Contexts, server_side: bool
) -> None:
    content = noise(SIZE)

    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        link = tls_stream(each_loop, left, contexts, server_side=server_side, buffer_size=NARROW)
        async with link as (transport, peer):
            with on_disk(tmp_path, content) as file:
                transport.write(b"before")
                sending = each_loop.create_task(each_loop.sendfile(transport, file, 100, 150_000))
                assert await peer.read_exactly(150_006) == b"before" + content[100:150_100]
                assert await sending == 150_000
                assert file.tell() == 150_100
                message = r"^fallback is disabled and native sendfile is not supported"
                with pytest.raises(RuntimeError, match=message):
                    await each_loop.sendfile(transport, file, fallback=False)
            transport.write(b"after")
            assert await peer.read_exactly(5) == b"after"

    check(each_loop=each_loop)


# ── errors ───────────────────────────────────────────────────────────────────────────────────

Send = Callable[..., Awaitable[int]]


@on_loop
async def test_wrong_arguments_are_refused(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"content")
    async with stream(each_loop, Echo()) as (transport, peer):
        with pair() as (ours, _), path.open("rb") as file, path.open() as text:
            ways: list[tuple[Send, object]] = [
                (each_loop.sendfile, transport),
                (each_loop.sock_sendfile, ours),
            ]
            for send, to in ways:
                await check_arguments(send, to, file)
                with pytest.raises(ValueError, match=r"^file should be opened in binary mode$"):
                    await send(to, text)
        # The transport still takes writes, and no byte of the file was sent.
        transport.write(b".")
        assert await read_exactly(each_loop, peer, 1) == b"."
        peer.send(b"ping")
        assert await read_exactly(each_loop, peer, 4) == b"ping"


async def check_arguments(send: Send, to: object, file: IO[bytes]) -> None:
    for count in (0, -1):
        with pytest.raises(
            ValueError, match=rf"^count must be a positive integer \(got {count}\)$"
        ):
            await send(to, file, 0, count)
    with pytest.raises(TypeError, match=r"^count must be a positive integer \(got 1\.5\)$"):
        await send(to, file, 0, 1.5)
    with pytest.raises(ValueError, match=r"^offset must be a non-negative integer \(got -1\)$"):
        await send(to, file, -1)
    with pytest.raises(TypeError, match=r"^offset must be a non-negative integer \(got 1\.5\)$"):
        await send(to, file, 1.5)


@on_loop
async def test_wrong_sockets_are_refused(
    each_loop: Loop, tmp_path: Path, contexts: Contexts
) -> None:
    with on_disk(tmp_path, b"content") as file, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        datagram.setblocking(False)
        with pytest.raises(ValueError, match=r"^only SOCK_STREAM type sockets are supported$"):
            await each_loop.sock_sendfile(datagram, file)
        left, right = tcp_pair()
        wrapped = contexts.client.wrap_socket(
            left, server_hostname="localhost", do_handshake_on_connect=False
        )
        refused = pytest.raises(TypeError, match=r"^Socket cannot be of type SSLSocket$")
        with wrapped, right, refused:
            await each_loop.sock_sendfile(wrapped, file)


def test_a_blocking_socket_is_refused_in_debug_mode(each_loop: Loop, tmp_path: Path) -> None:
    each_loop.set_debug(True)

    @on_loop
    async def check(each_loop: Loop) -> None:
        with on_disk(tmp_path, b"content") as file, pair() as (ours, _):
            ours.setblocking(True)
            with pytest.raises(ValueError, match=r"^the socket must be non-blocking$"):
                await each_loop.sock_sendfile(ours, file)

    check(each_loop=each_loop)


@on_loop
async def test_a_file_in_memory_without_fallback_is_an_error(each_loop: Loop) -> None:
    file = io.BytesIO(b"content")
    async with stream(each_loop, Echo()) as (transport, peer):
        unavailable = asyncio.SendfileNotAvailableError
        with pytest.raises(unavailable, match=r"^not a regular file$"):
            await each_loop.sendfile(transport, file, fallback=False)
        with pair() as (ours, _), pytest.raises(unavailable, match=r"^not a regular file$"):
            await each_loop.sock_sendfile(ours, file, fallback=False)
        assert transport.is_reading()
        transport.write(b".")
        assert await read_exactly(each_loop, peer, 1) == b"."


@on_loop
async def test_a_closing_transport_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    with on_disk(tmp_path, b"content") as file:
        async with stream(each_loop, Echo()) as (transport, _):
            transport.close()
            with pytest.raises(RuntimeError, match=r"^Transport is closing$"):
                await each_loop.sendfile(transport, file)


@on_loop
async def test_a_foreign_transport_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    class Foreign(asyncio.Transport):
        def is_closing(self) -> bool:
            return False

    refused = pytest.raises(RuntimeError, match=r"^sendfile is not supported for transport")
    with on_disk(tmp_path, b"content") as file, refused:
        await each_loop.sendfile(Foreign(), file)


@on_loop
async def test_a_socket_of_a_transport_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    ours, theirs = tcp_pair()
    with theirs, on_disk(tmp_path, b"content") as file:
        transport, _ = await each_loop.create_connection(Echo, sock=ours)
        with pytest.raises(RuntimeError, match=r"is used by transport"):
            await each_loop.sock_sendfile(ours, file)
        transport.close()
        await until(lambda: ours.fileno() == -1)
