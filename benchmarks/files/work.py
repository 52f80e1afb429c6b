"""The program of one measurement of benchmarks/files: a contender does one kind of work.

`python benchmarks/files/work.py CONTENDER WORK FOLDER SECONDS` prints one line of JSON: operations,
seconds, seconds of processor time of all threads, and by how many ms a timer was late.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

BLOCK = 4096
BIG_BLOCK = 1024 * 1024
CACHED_BYTES = 64 * BIG_BLOCK
BIG_BYTES = 1024 * BIG_BLOCK
SMALL_FILES = 1000
SMALL_BYTES = 4096
TIMER_S = 0.005
# Files of lines: bytes of a line and of the file.
LINE_SIZES = (5, 100)
LINES_BYTES = 20 * 1000 * 1000
# File work during an echo: bytes that are read in blocks, and written and synced, and the intervals
# in seconds. Each contender can keep up with this rate.
BESIDE_BYTES = 64 * 1024
BESIDE_READ_S = 0.01
BESIDE_WRITE_S = 0.05

Reader = Callable[[int], Awaitable[bytes]]


class Plain:
    """Python's own files in the loop's thread, as in a program without a loop."""

    loop = "asyncio"

    async def reader(self, path: Path) -> Reader:
        fd = os.open(path, os.O_RDONLY)

        async def read(offset: int) -> bytes:
            return os.pread(fd, BLOCK, offset)

        return read

    async def seeker(self, path: Path) -> Reader:
        file = open(path, "rb")

        async def read(offset: int) -> bytes:
            file.seek(offset)
            return file.read(BLOCK)

        return read

    async def read_whole(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    async def write_synced(self, path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    async def read_blocks(self, path: Path) -> None:
        with open(path, "rb", buffering=0) as file:
            while file.read(BIG_BLOCK):
                pass

    async def write_blocks(self, path: Path, block: bytes, count: int) -> None:
        with open(path, "wb", buffering=0) as file:
            for _ in range(count):
                file.write(block)

    async def iterate(self, path: Path, mode: str) -> int:
        with open(path, mode) as file:
            return sum(1 for _ in file)

    async def each_line(self, path: Path, mode: str) -> int:
        count = 0
        with open(path, mode) as file:
            while file.readline():
                count += 1
        return count

    async def readlines(self, path: Path, mode: str) -> int:
        with open(path, mode) as file:
            return len(file.readlines())


class Ours(Plain):
    loop = "uringloop"

    def __init__(self) -> None:
        import uringloop.fs

        self.open: Any = uringloop.open
        self.fs = uringloop.fs

    async def reader(self, path: Path) -> Reader:
        file = await self.open(path, "rb", buffering=0)

        async def read(offset: int) -> bytes:
            data: bytes = await file.pread(BLOCK, offset)
            return data

        read.file = file  # type: ignore[attr-defined]
        return read

    async def seeker(self, path: Path) -> Reader:
        file = await self.open(path, "rb")

        async def read(offset: int) -> bytes:
            await file.seek(offset)
            data: bytes = await file.read(BLOCK)
            return data

        read.file = file  # type: ignore[attr-defined]
        return read

    async def read_whole(self, path: Path) -> bytes:
        return await self.fs.read_bytes(path)

    async def write_synced(self, path: Path, data: bytes) -> None:
        async with self.open(path, "wb") as file:
            await file.write(data)
            await file.fsync()

    async def read_blocks(self, path: Path) -> None:
        async with self.open(path, "rb", buffering=0) as file:
            while await file.read(BIG_BLOCK):
                pass

    async def write_blocks(self, path: Path, block: bytes, count: int) -> None:
        async with self.open(path, "wb", buffering=0) as file:
            for _ in range(count):
                await file.write(block)

    async def iterate(self, path: Path, mode: str) -> int:
        count = 0
        async with self.open(path, mode) as file:
            async for _ in file:
                count += 1
        return count

    async def each_line(self, path: Path, mode: str) -> int:
        count = 0
        async with self.open(path, mode) as file:
            while await file.readline():
                count += 1
        return count

    async def readlines(self, path: Path, mode: str) -> int:
        async with self.open(path, mode) as file:
            return len(await file.readlines())


class Aiofiles(Plain):
    loop = "uvloop"

    def __init__(self) -> None:
        self.open: Any = importlib.import_module("aiofiles").open

    async def reader(self, path: Path) -> Reader:
        file = await self.open(path, "rb", buffering=0)

        async def read(offset: int) -> bytes:
            await file.seek(offset)
            data: bytes = await file.read(BLOCK)
            return data

        read.file = file  # type: ignore[attr-defined]
        return read

    async def read_whole(self, path: Path) -> bytes:
        async with self.open(path, "rb") as file:
            data: bytes = await file.read()
            return data

    async def write_synced(self, path: Path, data: bytes) -> None:
        async with self.open(path, "wb") as file:
            await file.write(data)
            await file.flush()
            await asyncio.get_running_loop().run_in_executor(None, os.fsync, file.fileno())

    seeker = Ours.seeker
    read_blocks = Ours.read_blocks
    write_blocks = Ours.write_blocks
    iterate = Ours.iterate
    each_line = Ours.each_line
    readlines = Ours.readlines


class Executor(Plain):
    """The calls of Plain, each in a thread of the executor."""

    loop = "uvloop"

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)

    async def reader(self, path: Path) -> Reader:
        fd = os.open(path, os.O_RDONLY)

        async def read(offset: int) -> bytes:
            data: bytes = await self._call(os.pread, fd, BLOCK, offset)
            return data

        return read

    async def seeker(self, path: Path) -> Reader:
        file = await self._call(open, path, "rb")

        async def read(offset: int) -> bytes:
            await self._call(file.seek, offset)
            data: bytes = await self._call(file.read, BLOCK)
            return data

        return read

    async def read_whole(self, path: Path) -> bytes:
        data: bytes = await self._call(path.read_bytes)
        return data

    async def write_synced(self, path: Path, data: bytes) -> None:
        def write() -> None:
            with open(path, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        await self._call(write)

    async def read_blocks(self, path: Path) -> None:
        file = await self._call(lambda: open(path, "rb", buffering=0))
        while await self._call(file.read, BIG_BLOCK):
            pass
        file.close()

    async def write_blocks(self, path: Path, block: bytes, count: int) -> None:
        file = await self._call(lambda: open(path, "wb", buffering=0))
        for _ in range(count):
            await self._call(file.write, block)
        file.close()

    async def iterate(self, path: Path, mode: str) -> int:
        file = await self._call(lambda: open(path, mode))
        count = 0
        while await self._call(file.readline):
            count += 1
        file.close()
        return count

    each_line = iterate

    async def readlines(self, path: Path, mode: str) -> int:
        def readlines() -> int:
            with open(path, mode) as file:
                return len(file.readlines())

        count: int = await self._call(readlines)
        return count


CONTENDERS: dict[str, type[Plain]] = {
    "plain": Plain,
    "uringloop": Ours,
    "aiofiles": Aiofiles,
    "executor": Executor,
}


# ── kinds of work: each returns the number of operations ─────────────────────────────────────

Work = Callable[[Plain, Path, float], Awaitable[int]]


def random_reads(concurrency: int, *, seek: bool = False) -> Work:
    """Read blocks at random places: with pread, or with seek() and read() of a buffered file."""

    async def work(contender: Plain, folder: Path, seconds: float) -> int:
        async def one(seed: int) -> int:
            reader = contender.seeker if seek else contender.reader
            read = await reader(folder / "cached")
            chance = random.Random(seed)
            offsets = [chance.randrange(CACHED_BYTES // BLOCK) * BLOCK for _ in range(1000)]
            done = 0
            while loop.time() < until:
                for offset in offsets[:100]:
                    if len(await read(offset)) != BLOCK:
                        raise RuntimeError("a short read")
                done += 100
                # A read from the page cache does not suspend: let the other tasks run.
                await asyncio.sleep(0)
            if hasattr(read, "file"):
                await read.file.close()
            return done

        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        return sum(await asyncio.gather(*(one(seed) for seed in range(concurrency))))

    return work


def small_files(concurrency: int, *, write: bool) -> Work:
    async def work(contender: Plain, folder: Path, seconds: float) -> int:
        names = [folder / ("written" if write else "small") / str(n) for n in range(SMALL_FILES)]
        data = bytes(SMALL_BYTES)

        async def some(part: list[Path]) -> None:
            for path in part:
                if write:
                    await contender.write_synced(path, data)
                elif len(await contender.read_whole(path)) != SMALL_BYTES:
                    raise RuntimeError("a short read")

        await asyncio.gather(*(some(names[n::concurrency]) for n in range(concurrency)))
        return SMALL_FILES

    return work


async def read_big(contender: Plain, folder: Path, seconds: float) -> int:
    await contender.read_blocks(folder / "big")
    return BIG_BYTES // BIG_BLOCK


async def write_big(contender: Plain, folder: Path, seconds: float) -> int:
    await contender.write_blocks(folder / "out", bytes(BIG_BLOCK), BIG_BYTES // BIG_BLOCK)
    return BIG_BYTES // BIG_BLOCK


# How lines are read: the beginning of the work's name, and the contender's method.
LINES = {"lines": "iterate", "readline": "each_line", "readlines": "readlines"}


def lines(way: str, size: int, mode: str) -> Work:
    async def work(contender: Plain, folder: Path, seconds: float) -> int:
        read = getattr(contender, LINES[way])
        # A call in a thread for each line takes 50 us, so read a shorter file.
        part = "" if way == "readlines" or type(contender) in (Plain, Ours) else "-part"
        count: int = await read(folder / f"lines-{size}{part}", mode)
        return count

    return work


class Beside:
    """File work in an echo server: reads and synced writes at fixed intervals, on request."""

    def __init__(self, contender: Plain, folder: Path) -> None:
        self.contender = contender
        self.folder = folder
        self.wanted = asyncio.Event()
        self.reads = self.writes = 0

    async def read(self) -> None:
        read = await self.contender.reader(self.folder / "cached")
        chance = random.Random(0)
        async for _ in self._paced(BESIDE_READ_S):
            start = chance.randrange((CACHED_BYTES - BESIDE_BYTES) // BLOCK) * BLOCK
            for offset in range(0, BESIDE_BYTES, BLOCK):
                await read(start + offset)
            self.reads += 1

    async def write(self) -> None:
        async for _ in self._paced(BESIDE_WRITE_S):
            await self.contender.write_synced(self.folder / "beside", bytes(BESIDE_BYTES))
            self.writes += 1

    async def _paced(self, every: float) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        while True:
            if not self.wanted.is_set():
                await self.wanted.wait()
                at = loop.time()
            yield
            # If the work is late, continue at once, but do not catch up.
            at = max(at + every, loop.time())
            await asyncio.sleep(at - loop.time())


async def beside_echo(contender: Plain, folder: Path, _seconds: float) -> int:
    """Serve echoes. A line of standard input starts or stops the file work and gets an answer."""
    loop = asyncio.get_running_loop()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.write = transport.write

        def data_received(self, data: bytes) -> None:
            self.write(data)

    def on_request() -> None:
        line = sys.stdin.readline()
        if not line:
            loop.remove_reader(sys.stdin.fileno())
            ended.set_result(None)
            return
        (beside.wanted.set if line == "work\n" else beside.wanted.clear)()
        print(json.dumps({"reads": beside.reads, "writes": beside.writes}), flush=True)

    server = await loop.create_server(Echo, "127.0.0.1", 0)
    ended = loop.create_future()
    beside = Beside(contender, folder)
    tasks = [asyncio.ensure_future(each) for each in (beside.read(), beside.write())]
    loop.add_reader(sys.stdin.fileno(), on_request)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await ended
    for task in tasks:
        task.cancel()
    server.close()
    return beside.reads + beside.writes


WORKS: dict[str, Work] = {
    "read-4k-1": random_reads(1),
    "read-4k-64": random_reads(64),
    "seek-4k-1": random_reads(1, seek=True),
    "seek-4k-16": random_reads(16, seek=True),
    "small-read-1": small_files(1, write=False),
    "small-read-64": small_files(64, write=False),
    "small-sync-1": small_files(1, write=True),
    "small-sync-64": small_files(64, write=True),
    "big-read": read_big,
    "big-write": write_big,
    **{
        f"{way}-{size}-{name}": lines(way, size, mode)
        for way in LINES
        for size in LINE_SIZES
        for name, mode in (("bytes", "rb"), ("text", "r"))
    },
    "echo": beside_echo,
}


class Ticker:
    """A timer every 5 ms that records its greatest delay."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.late = 0.0
        self.due = loop.time() + TIMER_S
        self.handle = loop.call_at(self.due, self.tick)

    def tick(self) -> None:
        now = self.loop.time()
        self.late = max(self.late, now - self.due)
        self.due = now + TIMER_S
        self.handle = self.loop.call_at(self.due, self.tick)


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "asyncio":
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = importlib.import_module(name).new_event_loop()
    return made


def main() -> None:
    name, work, folder, seconds = sys.argv[1:]
    contender = CONTENDERS[name]()
    loop = new_loop(contender.loop)
    ticker = Ticker(loop) if work.startswith(("big", *LINES)) else None
    began, cpu = time.perf_counter(), time.process_time()
    count = loop.run_until_complete(WORKS[work](contender, Path(folder), float(seconds)))
    result = {
        "operations": count,
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "late_ms": 1000 * ticker.late if ticker else 0.0,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
