"""The software ring's threads for files: their number, blocking calls, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import subprocess
import time
import tty
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.leaks import open_fds
from support.processes import thread_names
from support.roles import PATIENCE, fill, in_thread, on_loop, turns, until, wait_until
from support.software_ring import compile_with_ring, output, room_for
from support.sources import constant

import uringloop

BOUNDED_WORKERS_MAX = constant("_ring/ring.pyx", "BOUNDED_WORKERS_MAX")


@pytest.fixture(autouse=True)
def software_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URINGLOOP_BACKEND", "soft")


def workers() -> int:
    """Return how many threads for files this process has."""
    return list(thread_names().values()).count("uringloop-files")


@pytest.fixture(autouse=True)
def no_thread_before() -> None:
    """Wait until the threads of earlier tests, whose loops are closed, have ended."""
    wait_until(lambda: workers() == 0)


@on_loop
async def test_the_two_ends_of_a_fifo_are_opened_together(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    # One idle thread exists now; the two opens need two.
    assert await uringloop.fs.exists(tmp_path / "none") is False
    reader, writer = await asyncio.gather(uringloop.open(path, "rb"), uringloop.open(path, "wb"))
    async with reader, writer:
        await writer.write(b"through")
        await writer.flush()
        assert await reader.read(7) == b"through"


@on_loop
async def test_a_partial_write_to_a_terminal_does_not_block_the_loop(
    loop: uringloop.Loop,
) -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        os.set_blocking(slave, False)
        os.set_blocking(master, False)
        fill(lambda data: os.write(slave, data))
        os.set_blocking(slave, True)
        file = await uringloop.open(slave, "wb", 0, closefd=False)
        writing = loop.create_task(file.write(b"y" * 4000))
        await turns(5)
        # Make room for a part only: writing all of it would block.
        os.read(master, 1000)
        ticks = 0
        while not writing.done():
            ticks += 1
            await asyncio.sleep(0.001)
            if ticks > 20:
                with contextlib.suppress(BlockingIOError):
                    os.read(master, 65536)
        assert 0 < await writing <= 4000
        await file.close()
    finally:
        os.close(slave)
        os.close(master)


@on_loop
async def test_files_are_closed_when_no_descriptor_is_left_for_the_threads(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    file = await uringloop.open(path, "rb")
    fds = open_fds()
    with room_for(0):
        assert await file.read() == b"content"
        await file.close()
    assert len(open_fds() - fds) <= 1
    assert file.closed


def test_cancelled_operations_of_files_leave_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    chance = random.Random(1)
    fds = open_fds()
    (tmp_path / "file").write_bytes(bytes(100_000))

    async def use(number: int) -> None:
        path = tmp_path / (f"new{number}" if number % 3 else "file")
        async with uringloop.open(path, "wb" if number % 3 else "rb") as file:
            if number % 3:
                await file.write(bytes(50_000))
            else:
                await file.read()
        await uringloop.fs.stat(tmp_path)

    async def main() -> None:
        running = asyncio.get_running_loop()
        for _ in range(10):
            tasks = [running.create_task(use(number)) for number in range(60)]
            for task in chance.sample(tasks, 40):
                await turns(chance.randrange(3))
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                assert result is None or isinstance(result, asyncio.CancelledError)

    uringloop.run(main())
    # A thread that executes a cancelled open closes the descriptor itself, after the loop's end.
    wait_until(lambda: workers() == 0)
    assert open_fds() == fds


@pytest.mark.slow
@on_loop
async def test_threads_end_after_some_time_without_work(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    await asyncio.gather(*(uringloop.fs.mkdir(tmp_path / str(n)) for n in range(100)))
    assert 0 < workers() <= BOUNDED_WORKERS_MAX
    began = time.monotonic()
    while workers():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert time.monotonic() - began < 8
    # They are started again when there is work.
    await uringloop.fs.mkdir(tmp_path / "one more")


@pytest.mark.slow
def test_close_with_all_threads_blocked_and_operations_queued_leaks_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fds = open_fds()
    loop = uringloop.Loop(backend="soft")

    def begin(operation: Coroutine[Any, Any, object]) -> None:
        task = loop.create_task(operation)
        # The loop is closed before the task ends.
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def main() -> None:
        for _ in range(BOUNDED_WORKERS_MAX + 8):
            begin(uringloop.open(fifo, "rb").__aenter__())
        for number in range(8):
            begin(uringloop.fs.mkdir(tmp_path / f"later{number}"))
        await until(lambda: workers() == BOUNDED_WORKERS_MAX)

    loop.run_until_complete(main())
    loop.close()
    # Queued operations start when a thread becomes free, or never.
    wait_until(lambda: workers() == 0)
    assert open_fds() == fds


@pytest.mark.slow
@on_loop
async def test_a_terminal_read_whose_data_another_reader_took_can_be_cancelled(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        async with uringloop.open(slave, "rb", 0, closefd=False) as file:
            opens = [
                loop.create_task(uringloop.open(fifo, "rb").__aenter__())
                for _ in range(BOUNDED_WORKERS_MAX)
            ]
            await until(lambda: workers() == BOUNDED_WORKERS_MAX)
            reading = loop.create_task(file.read(10))
            await turns(5)
            # The terminal is ready, but no thread is free.
            os.write(master, b"taken")
            await turns(5)
            assert os.read(slave, 10) == b"taken"
            for task in opens:
                task.cancel()
            await asyncio.gather(*opens, return_exceptions=True)
            await asyncio.sleep(0.05)
            assert not reading.done()
            reading.cancel()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(asyncio.CancelledError):
                    await reading
            # The cancelled read has not taken the bytes that come next.
            os.write(master, b"later")
            assert await file.read(10) == b"later"
    finally:
        os.close(slave)
        os.close(master)


def open_fifo(loop: uringloop.Loop, fifo: Path) -> asyncio.Task[Any]:
    """Run the loop in this thread until a thread of the ring is blocked in an open."""

    async def begin() -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = loop.create_task(uringloop.open(fifo, "rb").__aenter__())
        await until(lambda: workers() == 1)
        return task

    os.mkfifo(fifo)
    return loop.run_until_complete(begin())


def test_a_loop_can_be_closed_by_a_thread_that_has_not_run_it(tmp_path: Path) -> None:
    fds = open_fds()
    loop = uringloop.Loop()
    task = in_thread(lambda: open_fifo(loop, tmp_path / "fifo"))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    wait_until(lambda: workers() == 0)
    assert open_fds() == fds


def test_an_open_continues_when_the_loop_changes_threads(tmp_path: Path) -> None:
    fds = open_fds()
    fifo = tmp_path / "fifo"
    with contextlib.closing(uringloop.Loop()) as loop:
        task = in_thread(lambda: open_fifo(loop, fifo))

        def write() -> bool:
            try:
                peer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                # ENXIO: no thread is blocked in the open.
                return False
            os.write(peer, b"through")
            os.close(peer)
            return True

        async def use() -> bytes:
            # The earlier thread ends meanwhile.
            await asyncio.sleep(0.1)
            await until(write)
            assert workers() == 1
            async with await task as file:
                data: bytes = await file.read()
                return data

        assert loop.run_until_complete(use()) == b"through"
    wait_until(lambda: workers() == 0)
    assert open_fds() == fds


def test_an_open_that_a_thread_begins_during_its_cancel_ends(tmp_path: Path) -> None:
    source = Path(__file__).with_name("cancelled_while_it_starts.c")
    wrapped = ("pthread_mutex_unlock", "pthread_cond_timedwait")
    program = compile_with_ring(source, tmp_path / "program", *wrapped)
    fifos = [tmp_path / "first", tmp_path / "second"]
    for fifo in fifos:
        os.mkfifo(fifo)
    command = [str(program), *map(str, fifos)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == f"{-errno.ECANCELED}\n"


def test_a_process_exits_while_a_thread_is_blocked_in_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert output(f"""
        import asyncio, os, uringloop
        async def main():
            asyncio.ensure_future(read())
            await asyncio.sleep(0.05)
            print(len(os.listdir("/proc/self/task")))
        async def read():
            await uringloop.open({str(tmp_path / "fifo")!r}, "rb")
        loop = uringloop.new_event_loop()
        loop.run_until_complete(main())
        # Like a program that ends with an error: the loop is not closed, no task is cancelled.
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        """).split() == ["2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without threads")
def test_files_use_the_loops_thread_when_no_thread_can_be_started() -> None:
    assert output("""
        import asyncio, os, resource, tempfile, threading, uringloop
        # Import now: the other user may not be able to read the installation.
        import uringloop.files.open, uringloop.fs
        async def main(folder):
            path = os.path.join(folder, "file")
            async with uringloop.open(path, "w+b") as file:
                await file.write(b"x" * 100_000)
                await file.flush()
                await file.seek(0)
                print(len(await file.read()))
            await asyncio.gather(*(uringloop.fs.mkdir(f"{path}{n}") for n in range(100)))
            print(len(os.listdir(folder)))
            print(len(os.listdir("/proc/self/task")))
        os.setresgid(54321, 54321, 54321)
        os.setresuid(54321, 54321, 54321)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            threading.Thread(target=print).start()
            print("a thread")
        except RuntimeError:
            print("no thread")
        with tempfile.TemporaryDirectory() as folder:
            uringloop.run(main(folder))
        """).split("\n")[:-1] == ["no thread", "100000", "101", "1"]
