"""Cached files: calls that do not suspend, and calls that take several turns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import opened
from support.roles import kernel_version

import uringloop

SHARE = 1 << 20
CONTENT = os.urandom(SHARE) * 5 + b"the end"


class Suspended(AssertionError):
    """A call suspended that was not to."""


def at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a call that does not suspend; fail if it does."""
    try:
        call.send(None)
    except StopIteration as ended:
        return ended.value
    call.close()
    raise Suspended(call)


async def in_one_turn(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return the result of a call that does not suspend while its turn has time for files.

    The time runs on while the processor runs other programs, so another turn may be needed. A call
    that waits for one has done nothing yet.
    """
    for _ in range(100):
        await asyncio.sleep(0)
        with contextlib.suppress(Suspended):
            return at_once(begin())
    return at_once(begin())


@pytest.fixture
def large(folder: Path) -> Path:
    path = folder / "large"
    path.write_bytes(CONTENT)
    return path


async def turns_during(call: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """Return the result of *call*, and the number of turns that it took."""
    task = asyncio.ensure_future(call)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return task.result(), turns


def test_reads_of_cached_bytes_do_not_suspend(loop: uringloop.Loop, large: Path) -> None:
    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            cached = await in_one_turn(lambda: file.pread(100, SHARE))
            assert cached == CONTENT[SHARE : SHARE + 100]
            assert await in_one_turn(lambda: file.read(10)) == CONTENT[:10]
            assert await in_one_turn(lambda: file.pread(100, len(CONTENT) - 3)) == b"end"
            assert await in_one_turn(lambda: file.pread(100, len(CONTENT))) == b""

    loop.run_until_complete(main())


def test_a_large_cached_read_takes_several_turns(loop: uringloop.Loop, large: Path) -> None:
    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            data, turns = await turns_during(file.pread(len(CONTENT) + 1, 0))
            assert data == CONTENT
            assert turns >= 5
            buffer = bytearray(len(CONTENT))
            assert await file.readinto(buffer) == len(CONTENT)
            assert buffer == CONTENT
            assert await file.tell() == len(CONTENT)

    loop.run_until_complete(main())


def test_concurrent_large_reads_return_all_their_bytes(loop: uringloop.Loop, large: Path) -> None:
    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            calls = [file.pread(2 * SHARE, number * SHARE // 5) for number in range(20)]
            for number, data in enumerate(await asyncio.gather(*calls)):
                start = number * SHARE // 5
                assert data == CONTENT[start : start + 2 * SHARE]

    loop.run_until_complete(main())


def test_a_reader_does_not_yield_while_no_other_work_waits(
    loop: uringloop.Loop, large: Path
) -> None:
    if loop.backend != "io_uring":
        pytest.skip("the software ring does not know whether other work waits")

    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            await asyncio.sleep(0.001)
            for number in range(5):
                assert at_once(file.read(SHARE)) == CONTENT[number * SHARE : (number + 1) * SHARE]
                assert len(at_once(file.pread(SHARE, 3))) == SHARE
            assert at_once(file.tell()) == 5 * SHARE

    loop.run_until_complete(main())


async def call_soon(calls: list[int]) -> None:
    asyncio.get_running_loop().call_soon(calls.append, 1)


async def call_later(calls: list[int]) -> None:
    asyncio.get_running_loop().call_later(1e-9, calls.append, 1)


async def call_from_a_thread(calls: list[int]) -> None:
    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(calls.append, 1))
    thread.start()
    thread.join()


async def be_sent_a_byte(calls: list[int]) -> None:
    near, far = socket.socketpair()
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        loop.remove_reader(near)
        near.close()
        calls.append(1)

    loop.add_reader(near, on_readable)
    await asyncio.sleep(0.001)
    far.send(b"x")
    far.close()


@pytest.mark.parametrize(
    "begin", [call_soon, call_later, call_from_a_thread, be_sent_a_byte], ids=lambda f: f.__name__
)
def test_a_reader_yields_to_other_work(
    loop: uringloop.Loop, large: Path, begin: Callable[[list[int]], Awaitable[None]]
) -> None:
    async def main() -> int:
        async with uringloop.open(large, "rb", buffering=0) as file:
            for _ in range(3):
                await file.pread(SHARE, 0)
            calls: list[int] = []
            await begin(calls)
            reads = 0
            while not calls:
                await file.pread(SHARE, 0)
                reads += 1
            return reads

    # The software ring polls for events every 100 us, and a read takes as long.
    assert loop.run_until_complete(main()) <= (3 if loop.backend == "io_uring" else 6)


def test_a_reader_does_not_keep_a_loop_from_stopping(loop: uringloop.Loop, large: Path) -> None:
    reads = 0

    async def main() -> None:
        nonlocal reads
        async with uringloop.open(large, "rb", buffering=0) as file:
            loop.stop()
            while reads < 100:
                await file.pread(SHARE, 0)
                reads += 1

    task = loop.create_task(main())
    loop.run_forever()
    assert reads <= 2
    loop.run_until_complete(task)
    assert reads == 100


def test_close_waits_for_a_read_that_waits_for_a_turn(loop: uringloop.Loop, large: Path) -> None:
    async def main() -> None:
        file = await opened(large, "rb")
        read = asyncio.ensure_future(file.pread(len(CONTENT), 0))
        await asyncio.sleep(0)
        assert not read.done()
        await file.close()
        assert await read == CONTENT

    loop.run_until_complete(main())


def test_a_read_may_be_cancelled_between_two_turns(loop: uringloop.Loop, large: Path) -> None:
    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            read = asyncio.ensure_future(file.read(len(CONTENT)))
            await asyncio.sleep(0)
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            assert await file.tell() == 0
            assert file._operations_in_flight == 0
            assert await file.read(10) == CONTENT[:10]

    loop.run_until_complete(main())


def test_a_read_of_a_file_that_shrinks_meanwhile_ends_at_the_new_end(
    loop: uringloop.Loop, large: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(large, "rb", buffering=0) as file:
            read = asyncio.ensure_future(file.pread(len(CONTENT), 0))
            await asyncio.sleep(0)
            os.truncate(large, 3 * SHARE + 10)
            assert await read == CONTENT[: 3 * SHARE + 10]

    loop.run_until_complete(main())


@pytest.mark.parametrize("folder", ["memory"], indirect=True)
def test_writes_and_syncs_of_a_file_in_memory_do_not_suspend(
    loop: uringloop.Loop, folder: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(folder / "file", "w+b", buffering=0) as file:
            assert await in_one_turn(lambda: file.write(b"0123456789")) == 10
            assert await in_one_turn(lambda: file.pwrite(b"x", 3)) == 1
            await in_one_turn(file.fsync)
            await in_one_turn(file.fdatasync)
            assert await in_one_turn(lambda: file.pread(20, 0)) == b"012x456789"
        async with uringloop.open(folder / "file", "ab") as file:
            await in_one_turn(lambda: file.write(b"end"))
            await in_one_turn(file.fsync)
            assert (folder / "file").read_bytes() == b"012x456789end"

    loop.run_until_complete(main())


@pytest.mark.parametrize("folder", ["memory"], indirect=True)
def test_large_writes_to_a_file_in_memory_take_several_turns(
    loop: uringloop.Loop, folder: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(folder / "file", "wb", buffering=0) as file:
            block = CONTENT[:SHARE]

            async def write() -> None:
                for _ in range(5):
                    assert await file.write(block) == SHARE

            _, turns = await turns_during(write())
            assert turns >= 4
            parts = [file.pwrite(block, (5 + number) * SHARE) for number in range(5)]
            assert await asyncio.gather(*parts) == [SHARE] * 5
            assert await file.write(CONTENT) == len(CONTENT)
        assert (folder / "file").read_bytes() == block * 5 + CONTENT

    loop.run_until_complete(main())


def test_a_close_without_data_to_write_back_does_not_suspend(
    loop: uringloop.Loop, folder: Path
) -> None:
    if kernel_version() < (6, 8):
        pytest.skip("before Linux 6.8 it is not known whether a file system is local")

    async def main() -> None:
        file = await opened(folder / "file", "wb")
        await file.write(b"some")
        await file.fsync()
        at_once(file.close())
        file = await opened(folder / "file", "r+b")
        at_once(file.close())
        file = await opened(folder / "file", "rb")
        assert await file.read() == b"some"
        at_once(file.close())

    loop.run_until_complete(main())


def test_a_close_that_may_write_back_is_left_to_a_worker(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    if os.major(os.stat(tmp_path).st_dev) == 0:
        pytest.skip("the files are on no block device")

    async def written(file: Any) -> None:
        await file.write(b"some")

    async def synced_before(file: Any) -> None:
        await written(file)
        await file.fsync()
        await written(file)

    async def synced_beside(file: Any) -> None:
        # The sync may not cover the write.
        await asyncio.gather(file.pwrite(b"x" * SHARE, 0), file.fsync())

    async def cut(file: Any) -> None:
        await file.truncate(2 * SHARE)

    async def main() -> None:
        for number, change in enumerate((written, synced_before, synced_beside, cut)):
            file = await uringloop.open(tmp_path / str(number), "wb", buffering=0)
            await change(file)
            close = file.close()
            waiter = close.send(None)
            assert waiter is not None
            close.close()
            assert file.closed

    loop.run_until_complete(main())
