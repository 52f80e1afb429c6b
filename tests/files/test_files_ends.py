"""Files: errors, cancels, and loops that end while the kernel still uses a buffer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import functools
import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import opened
from support.processes import thread_names
from support.sources import constant

import uringloop

# A size that takes a kernel worker tens of milliseconds.
LARGE = 64 << 20
BOUNDED_WORKERS_MAX = constant("_ring/ring.pyx", "BOUNDED_WORKERS_MAX")


async def operations(file: Any, count: int) -> None:
    """Wait until *count* operations of *file* are in flight."""
    while file._operations_in_flight != count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def begun(file: Any) -> None:
    """Let tasks that were just made begin their operations; threads may perform them at once."""
    await asyncio.sleep(0)
    if isinstance(asyncio.get_running_loop(), uringloop.Loop):
        assert file._operations_in_flight


def written_before(exc: OSError) -> object:
    """Return how many bytes had been written when *exc* was raised."""
    return getattr(exc, "characters_written", None)


async def written(file: Any) -> None:
    await file.write(b"bytes")
    await file.flush()


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A file without a byte in the page cache."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, LARGE)
    return path


# ── errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_full_device_raises_enospc_with_its_name(
    each_loop: asyncio.AbstractEventLoop, buffering: int
) -> None:
    async def main() -> None:
        file = await uringloop.open("/dev/full", "wb", buffering)
        with pytest.raises(OSError, match="No space left") as caught:
            await (file.write(b"bytes") if buffering == 0 else written(file))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == "/dev/full"
        assert written_before(caught.value) == 0
        if buffering:
            with pytest.raises(OSError, match="No space left"):
                await file.close()
        await file.close()
        assert file.closed

    each_loop.run_until_complete(main())


@pytest.fixture
def small_files_only() -> Iterator[int]:
    """Have the kernel refuse to write beyond 100,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_characters_written_counts_only_the_bytes_written(
    each_loop: asyncio.AbstractEventLoop, folder: Path, small_files_only: int
) -> None:
    async def main() -> None:
        async with uringloop.open(folder / "file", "wb", buffering=0) as file:
            with pytest.raises(OSError, match="File too large") as caught:
                await file.write(b"x" * 150_000)
            assert caught.value.errno == errno.EFBIG
            assert written_before(caught.value) == small_files_only
            assert await file.tell() == small_files_only
            with pytest.raises(OSError, match="File too large") as caught:
                await file.pwrite(b"x" * 5, small_files_only)
            assert written_before(caught.value) == 0

    each_loop.run_until_complete(main())
    assert os.path.getsize(folder / "file") == small_files_only


@pytest.mark.parametrize("buffering", [0, -1])
def test_an_append_that_fails_midway_leaves_the_position_at_the_end(
    each_loop: asyncio.AbstractEventLoop, folder: Path, small_files_only: int, buffering: int
) -> None:
    path = folder / "file"
    path.write_bytes(b"before")

    async def main() -> None:
        async with uringloop.open(path, "ab", buffering) as file:
            with pytest.raises(OSError, match="File too large"):
                await file.write(b"x" * 150_000)
            assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == small_files_only
            assert await file.tell() == small_files_only

    each_loop.run_until_complete(main())
    assert os.path.getsize(path) == small_files_only


def test_bytes_that_a_failed_flush_left_are_written_later(
    each_loop: asyncio.AbstractEventLoop, folder: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        async with uringloop.open(folder / "file", "wb") as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
            try:
                await file.write(b"0123456")
                with pytest.raises(OSError, match="File too large"):
                    await file.flush()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    each_loop.run_until_complete(main())
    assert (folder / "file").read_bytes() == b"0123456"


@pytest.mark.parametrize(("mode", "buffering"), [("rb", 0), ("rb", -1), ("r+b", 0), ("r", -1)])
def test_close_raises_ebadf_if_the_descriptor_was_closed_elsewhere(
    each_loop: asyncio.AbstractEventLoop, folder: Path, mode: str, buffering: int
) -> None:
    path = folder / "file"
    path.touch()

    async def main() -> None:
        file: Any = await uringloop.open(path, mode, buffering)
        os.close(file.fileno())
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            await file.close()
        assert caught.value.errno == errno.EBADF
        assert file.closed
        await file.close()

    each_loop.run_until_complete(main())


def test_the_number_of_workers_is_bounded(loop: uringloop.Loop, tmp_path: Path) -> None:
    # In a thread of its own: the kernel's workers belong to a thread and outlive its loops, and an
    # earlier test may have left an unbounded worker, which has its own limit.
    def workers() -> int:
        kernels = f"iou-wrk-{threading.get_native_id()}"
        name = kernels if loop.backend == "io_uring" else "uringloop-files"
        return list(thread_names().values()).count(name)

    async def write(number: int) -> None:
        async with uringloop.open(tmp_path / str(number), "wb") as file:
            await file.write(b"x" * 100_000)
            await file.fsync()

    async def main() -> int:
        writes = asyncio.gather(*map(write, range(100)))
        most = 0
        while not writes.done():
            await asyncio.sleep(0)
            most = max(most, workers())
        await writes
        return most

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        most = threads.submit(loop.run_until_complete, main()).result()
    assert 1 < most <= BOUNDED_WORKERS_MAX


# ── cancelling ───────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_read_of_a_pipe_loses_no_byte(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        async with uringloop.open(reading, "rb") as file:
            task = asyncio.ensure_future(file.read(10))
            os.write(writing, b"0123")
            await asyncio.sleep(0.05)
            task.cancel()
            # A thread cannot be stopped: under another loop it ends when it has read the bytes.
            os.write(writing, b"456789")
            os.close(writing)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await file.read() == b"0123456789"

    each_loop.run_until_complete(main())


def test_a_cancelled_read_leaves_the_position_unchanged(
    each_loop: asyncio.AbstractEventLoop, sparse: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(sparse, "rb") as file:
            task = asyncio.ensure_future(file.read(LARGE))
            await begun(file)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await file.tell() == 0
            assert await file.read(3) == bytes(3)

    each_loop.run_until_complete(main())


def test_a_cancelled_pread_into_returns_once_the_buffer_is_free(
    each_loop: asyncio.AbstractEventLoop, sparse: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(sparse, "rb") as file:
            buffer = bytearray(b"x" * LARGE)
            task = asyncio.ensure_future(file.pread_into(buffer, 0))
            await begun(file)
            task.cancel()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert file._operations_in_flight == 0
            buffer[:] = b"y" * LARGE
            await asyncio.sleep(0.05)
            assert buffer.count(b"y") == LARGE

    each_loop.run_until_complete(main())


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_cancelled_flush_writes_nothing_twice(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: Any
) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "file", mode, buffering=LARGE) as file:
            await file.write(b"x" * LARGE)
            task = asyncio.ensure_future(file.flush())
            await begun(file)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await file.write(b"end")

    each_loop.run_until_complete(main())
    content = (tmp_path / "file").read_bytes()
    assert len(content) == LARGE + 3
    assert content.endswith(b"xend")


def test_a_call_that_waits_for_the_file_can_be_cancelled(
    each_loop: asyncio.AbstractEventLoop, sparse: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(sparse, "rb") as file:
            first = asyncio.ensure_future(file.read(LARGE))
            await begun(file)
            second, third = (asyncio.ensure_future(file.tell()) for _ in range(2))
            await asyncio.sleep(0)
            second.cancel()
            assert len(await first) == LARGE
            assert await third == LARGE
            assert second.cancelled()

    each_loop.run_until_complete(main())


def test_close_waits_for_operations_in_flight(
    each_loop: asyncio.AbstractEventLoop, sparse: Path
) -> None:
    async def main() -> None:
        file = await uringloop.open(sparse, "r+b")
        tasks = [asyncio.ensure_future(file.pwrite(b"x" * 1_000_000, 0)) for _ in range(9)]
        detached = asyncio.ensure_future(file.pread(LARGE, 0))
        await begun(file)
        detached.cancel()
        await file.close()
        assert file.closed
        assert file._operations_in_flight == 0
        assert await asyncio.gather(*tasks) == [1_000_000] * 9

    each_loop.run_until_complete(main())


# ── writes that are synced ───────────────────────────────────────────────────────────────────


def test_a_sync_writes_buffered_data_first(
    each_loop: asyncio.AbstractEventLoop, folder: Path
) -> None:
    path = folder / "file"

    async def main() -> None:
        async with uringloop.open(path, "wb", 1 << 20) as file:
            await file.write(b"one")
            await file.fsync()
            assert path.read_bytes() == b"one"
            await file.write(b"two")
            await file.fdatasync()
            assert path.read_bytes() == b"onetwo"
            await file.fsync()
            assert await file.tell() == 6
            await file.write(b"three")
        assert path.read_bytes() == b"onetwothree"
        async with uringloop.open(path, "ab", 1 << 20) as file:
            await file.write(b"four")
            await asyncio.gather(file.fsync(), file.fsync(), file.write(b"five"))
        assert path.read_bytes() == b"onetwothreefourfive"

    each_loop.run_until_complete(main())


def test_a_write_and_its_sync_are_one_submission(loop: uringloop.Loop, tmp_path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "file", "wb", 1 << 20) as file:
            for _ in range(300):
                # Each enter submits two linked requests, also across the end of the queue.
                await file.write(b"some")
                await file.fsync()
        assert (tmp_path / "file").read_bytes() == b"some" * 300

    loop.run_until_complete(main())


def test_a_short_write_before_a_sync_loses_no_data(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = """
import resource, signal, sys, uringloop
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
async def main():
    async with uringloop.open(sys.argv[1], "wb", 1 << 20) as file:
        await file.write(bytes(range(250)) * 600)
        for call in file.fsync, file.fdatasync:
            try:
                await call()
            except OSError as exc:
                print(exc.errno)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await file.fsync()
uringloop.run(main())
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(errno.EFBIG)] * 2
    assert path.read_bytes() == bytes(range(250)) * 600


# ── the end of runs and loops ────────────────────────────────────────────────────────────────


def test_the_end_of_a_run_waits_for_writes(loop: uringloop.Loop, sparse: Path) -> None:
    # So little that the slowest disk writes it while the end of the run waits.
    size = LARGE // 16
    file = loop.run_until_complete(opened(sparse, "r+b"))
    task = loop.create_task(file.pwrite(b"x" * size, 0))
    loop.run_until_complete(operations(file, 1))
    assert file._operations_in_flight == 0
    # The task continues in another thread, with another ring.
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(loop.run_until_complete(task)))
    thread.start()
    thread.join()
    assert results == [size]
    loop.run_until_complete(file.close())


def test_a_read_of_a_pipe_continues_in_another_thread(loop: uringloop.Loop) -> None:
    reading, writing = os.pipe()
    file = loop.run_until_complete(opened(reading, "rb"))
    task = loop.create_task(file.read())
    loop.run_until_complete(operations(file, 1))
    os.write(writing, b"bytes")
    os.close(writing)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(loop.run_until_complete(task)))
    thread.start()
    thread.join()
    assert results == [b"bytes"]
    loop.run_until_complete(file.close())


@pytest.mark.parametrize(
    "factory",
    [asyncio.new_event_loop, functools.partial(uringloop.Loop, ring_files=False)],
    ids=["asyncio", "threads"],
)
def test_a_file_can_be_closed_while_a_thread_works_for_a_closed_loop(
    factory: Callable[[], asyncio.AbstractEventLoop], sparse: Path
) -> None:
    loop = factory()
    file = loop.run_until_complete(opened(sparse, "r+b"))

    async def begin() -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(file.pread_into(bytearray(LARGE), 0))
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    # It will never be resumed; suppress asyncio's report of that.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()

    async def close() -> None:
        await asyncio.wait_for(file.close(), 20)

    asyncio.run(close())
    assert file.closed


def test_a_loop_can_be_closed_with_reads_and_writes_in_flight(sparse: Path) -> None:
    loop = uringloop.new_event_loop()
    file = loop.run_until_complete(opened(sparse, "r+b"))

    async def begin() -> list[asyncio.Task[Any]]:
        buffer = bytearray(LARGE)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.ensure_future(file.pread_into(buffer, 0)),
            asyncio.ensure_future(file.pwrite(b"x" * LARGE, 0)),
        ]
        await operations(file, 2)
        return tasks

    tasks = loop.run_until_complete(begin())
    loop.close()
    for task in tasks:
        # They will never be resumed; suppress asyncio's report of that.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, tasks
    gc.collect()
    asyncio.run(file.close())
    assert file.closed
