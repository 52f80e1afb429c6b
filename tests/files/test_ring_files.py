"""A loop with `ring_files=False`: threads do what the ring does otherwise, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from support.loops import on_io_uring

import uringloop
from uringloop import fs, tempfile

pytestmark = on_io_uring

LARGE = bytes(range(256)) * 20_000
OF_FILES = re.compile(
    r"\b(openat|close|readv?|writev?|fsync|fallocate|ftruncate|statx|renameat|unlinkat|mkdirat"
    r"|symlinkat|linkat)#"
)


async def use_files(folder: Path) -> None:
    path = folder / "file"
    async with uringloop.open(path, "wb") as file:
        await file.write(LARGE)
    forget(path)
    async with uringloop.open(path, "rb") as file:
        assert await file.read(10) == LARGE[:10]
        assert await file.read() == LARGE[10:]
    async with uringloop.open(path, "r+b", buffering=0) as file:
        assert await file.pwritev([b"ab", b"cd"], 100) == 4
        room = [bytearray(2), bytearray(4)]
        assert await file.preadv(room, 99) == 6
        assert b"".join(room) == bytes([99]) + b"abcd" + bytes([104])
        await file.truncate(1000)
        await file.fsync()
    assert (await fs.stat(path)).st_size == 1000
    await fs.write_atomic(path, b"all of it")
    assert await fs.read_bytes(path) == b"all of it"
    await fs.mkdir(folder / "below")
    await fs.rename(path, folder / "below" / "file")
    await fs.symlink("file", folder / "below" / "link")
    await fs.link(folder / "below" / "file", folder / "below" / "other")
    assert sorted(await fs.listdir(folder / "below")) == ["file", "link", "other"]
    await fs.unlink(folder / "below" / "link")
    async with tempfile.NamedTemporaryFile() as file:
        await file.write(b"x")
    with pytest.raises(FileNotFoundError):
        await fs.stat(folder / "nothing")


async def send_file(folder: Path) -> None:
    path = folder / "sent"
    path.write_bytes(LARGE)
    forget(path)
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with path.open("rb") as file:
            await asyncio.get_running_loop().sendfile(writer.transport, file)
        writer.close()
        assert await received == LARGE


def forget(path: Path) -> None:
    """Drop a file from the page cache, if its file system has one."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("ring_files", [False, True])
def test_only_threads_use_files(
    ring_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("URINGLOOP_TRACE", str(trace))
    folder = tmp_path / "folder"
    folder.mkdir()

    async def main() -> None:
        await use_files(folder)
        await send_file(folder)

    with asyncio.Runner(
        loop_factory=lambda: uringloop.Loop(backend="io_uring", ring_files=ring_files)
    ) as runner:
        runner.run(main())
    found = set(OF_FILES.findall(trace.read_text()))
    assert found if ring_files else not found


def test_the_variable_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("URINGLOOP_RING_FILES", "no")
    monkeypatch.setenv("URINGLOOP_TRACE", str(tmp_path / "trace"))
    path = tmp_path / "file"

    async def main() -> None:
        async with uringloop.open(path, "wb") as file:
            await file.write(LARGE)

    uringloop.run(main())
    assert path.read_bytes() == LARGE
    assert not OF_FILES.search((tmp_path / "trace").read_text())
