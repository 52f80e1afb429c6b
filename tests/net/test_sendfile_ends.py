"""sendfile that does not complete: resets, cancellation, close() and abort(); uncached files."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import mmap
import os
import socket
import time
from pathlib import Path

import pytest
from support.protocols import Collector
from support.roles import (
    Loop,
    noise,
    on_disk,
    on_loop,
    pair,
    read_exactly,
    read_to_end,
    reset,
    stream,
    turns,
    until,
)

import uringloop
from uringloop._net import page_cache

SIZE = 200_000
NARROW = 16 * 1024
# More than two narrow socket buffers hold.
PLENTY = 2 * 1024 * 1024
# How often a test tries what another part of the machine may prevent.
TRIES = 5


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_a_reset_during_sendfile_is_an_error(each_loop: Loop, tmp_path: Path, memory: bool) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with stream(each_loop, left, buffer_size=NARROW) as (transport, peer):
            content = noise(PLENTY)
            with io.BytesIO(content) if memory else on_disk(tmp_path, content) as file:
                sending = each_loop.create_task(each_loop.sendfile(transport, file))
                await read_exactly(each_loop, peer, 50_000)
                reset(peer)
                with pytest.raises(ConnectionError):
                    await sending
                assert 50_000 <= file.tell() < PLENTY

    check(each_loop=each_loop)


@on_loop
async def test_a_reset_during_sock_sendfile_is_an_error(each_loop: Loop, tmp_path: Path) -> None:
    with pair(NARROW) as (ours, peer), on_disk(tmp_path, noise(PLENTY)) as file:
        sending = each_loop.create_task(each_loop.sock_sendfile(ours, file))
        await read_exactly(each_loop, peer, 50_000)
        reset(peer)
        with pytest.raises(ConnectionError):
            await sending
        assert 50_000 <= file.tell() < PLENTY


@on_loop
async def test_cancelling_sendfile_midway_leaves_a_usable_connection(
    each_loop: Loop, tmp_path: Path
) -> None:
    content = noise(PLENTY)
    left = Collector(each_loop)
    async with stream(each_loop, left, buffer_size=NARROW) as (transport, peer):
        with on_disk(tmp_path, content) as file:
            sending = each_loop.create_task(each_loop.sendfile(transport, file))
            head = await read_exactly(each_loop, peer, 100_000)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            transport.write(b"END")
            transport.close()
            data = head + await read_to_end(each_loop, peer)
            assert data.endswith(b"END")
            assert len(data) < PLENTY
            assert data[:-3] == content[: len(data) - 3]
            if isinstance(each_loop, uringloop.Loop):
                # Stock asyncio does not set the position.
                assert file.tell() == len(data) - 3


@on_loop
async def test_cancelling_sendfile_before_the_first_byte_leaves_a_usable_connection(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    # uringloop only: stock asyncio refuses every later write.
    left = Collector(loop)
    first = noise(PLENTY, 1)
    async with stream(loop, left, buffer_size=NARROW) as (transport, peer):
        with on_disk(tmp_path, noise(SIZE)) as file:
            transport.write(first)
            sending = loop.create_task(loop.sendfile(transport, file))
            await turns(5)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert file.tell() == 0
        assert transport.is_reading()
        transport.write(b"END")
        transport.close()
        assert await read_to_end(loop, peer) == first + b"END"


@on_loop
async def test_a_cancelled_sock_sendfile_leaves_a_usable_socket(
    each_loop: Loop, tmp_path: Path
) -> None:
    content = noise(PLENTY)
    with pair(NARROW) as (ours, peer), on_disk(tmp_path, content) as file:
        sending = each_loop.create_task(each_loop.sock_sendfile(ours, file))
        head = await read_exactly(each_loop, peer, 100_000)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        reading = each_loop.create_task(read_to_end(each_loop, peer))
        await each_loop.sock_sendall(ours, b"END")
        ours.shutdown(socket.SHUT_WR)
        data = head + await reading
        assert data[:-3] == content[: len(data) - 3]
        assert data.endswith(b"END")


@pytest.mark.parametrize("method", ["close", "abort"])
@pytest.mark.parametrize("blocked", [False, True], ids=["in the file", "before the file"])
def test_close_and_abort_end_sendfile(
    loop: uringloop.Loop, tmp_path: Path, method: str, blocked: bool
) -> None:
    # uringloop only: on stock asyncio sendfile() never returns if the socket was full.
    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        left = Collector(loop)
        async with stream(loop, left, buffer_size=NARROW) as (transport, peer):
            with on_disk(tmp_path, noise(PLENTY)) as file:
                if blocked:
                    transport.write(noise(PLENTY))
                sending = loop.create_task(loop.sendfile(transport, file))
                await turns(5)
                getattr(transport, method)()
                if blocked and method == "close":
                    # Data written before sendfile() is still sent.
                    await read_exactly(loop, peer, PLENTY)
                with pytest.raises(ConnectionError, match=r"^Connection is closed by peer$"):
                    await sending
                await left.lost
                # The socket is closed without waiting for the peer, which gets the bytes in flight.
                with contextlib.suppress(ConnectionResetError):
                    assert len(await read_to_end(loop, peer)) < PLENTY
        await until(lambda: loop._operations_in_flight == 0)

    check(loop=loop)


def resident_pages(fd: int) -> int:
    """Return how many pages of a file are in the page cache, by mincore(2), which loads none."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as mapped:
        residency = (ctypes.c_ubyte * (-(-len(mapped) // mmap.PAGESIZE)))()
        at = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(at)), ctypes.c_size_t(len(mapped)), residency
        )
        del at
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
    return sum(each & 1 for each in residency)


def made_cold(fd: int) -> bool:
    """Drop a file from the page cache; return False if it stays there, as files on tmpfs do."""
    os.fsync(fd)
    for _ in range(100):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not resident_pages(fd):
            return True
        # Pages may still be on a processor's own list, from which they are not dropped.
        time.sleep(0.01)
    return False


def test_uncached_parts_of_a_file_are_read_by_a_worker(
    loop: uringloop.Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(3 * 1024 * 1024 + 5)
    path = tmp_path / "cold"
    path.write_bytes(data)
    ahead: list[int] = []
    read_ahead = page_cache.read_ahead

    async def counted(loop: uringloop.Loop, fd: int, offset: int, size: int) -> None:
        ahead.append(offset)
        await read_ahead(loop, fd, offset, size)

    monkeypatch.setattr(page_cache, "read_ahead", counted)

    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        with pair() as (left, right), open(path, "rb") as file:  # noqa: ASYNC230
            sending = loop.create_task(loop.sock_sendfile(left, file))
            assert await read_exactly(loop, right, len(data)) == data
            assert await sending == len(data)

    with open(path, "rb") as file:
        # The question whether bytes are in the page cache has the kernel read them. From a fast
        # disk, such as an emulated one, they may be there before the answer.
        for _ in range(TRIES):
            cold = made_cold(file.fileno())
            check(loop=loop)
            assert page_cache.has(file.fileno(), 0, len(data))
            if ahead or not cold:
                break
    assert bool(ahead) == cold
