"""Files: no descriptor is lost when an open or a close is cancelled, or its loop is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import opened
from support.loops import LoopFactory, drain_executor
from support.processes import thread_names
from support.roles import wait_until

import uringloop

MANY = 20


def descriptors() -> dict[str, str]:
    """Return the open descriptors and their targets, without that of the listing itself."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def opener_threads() -> int:
    """Return the number of threads that may open files, including the software ring's."""
    return sum(not name.startswith("iou-") for name in thread_names().values())


@pytest.fixture(autouse=True)
def no_descriptor_is_lost() -> Iterator[None]:
    gc.collect()
    before, begun = descriptors(), opener_threads()
    yield
    gc.collect()
    # A kernel worker may still be at its last operation, and a thread may open files until it ends.
    until = time.monotonic() + 5
    while time.monotonic() < until:
        ended = opener_threads() <= begun
        if (left := descriptors()) == before and ended:
            break
        time.sleep(0.01)
        gc.collect()
    assert left == before
    assert ended


def suppress_pending_report(task: asyncio.Task[Any]) -> None:
    """Suppress the report that *task* was destroyed while pending."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def close_after_start(factory: LoopFactory, calls: list[Coroutine[Any, Any, Any]]) -> None:
    """Close a loop just after the start of *calls*."""
    loop = factory()

    async def begin() -> None:
        for call in calls:
            suppress_pending_report(asyncio.ensure_future(call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()


# Files that have been opened by then are not closed by the test.
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_closing_a_loop_during_opens_loses_no_descriptor(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    close_after_start(loop_factory, [opened(tmp_path / str(n), "wb") for n in range(MANY)])


def test_running_a_loop_in_another_thread_during_opens_loses_no_descriptor(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    loop = loop_factory()

    async def begin() -> list[asyncio.Future[Any]]:
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(opened(tmp_path / str(n), "xb")) for n in range(MANY)
        ]
        await asyncio.sleep(0)
        return calls

    async def end(calls: list[asyncio.Future[Any]]) -> None:
        for call in calls:
            await (await call).close()

    calls = loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_until_complete, args=(end(calls),))
    thread.start()
    thread.join()
    assert all(call.result().closed for call in calls)
    drain_executor(loop)
    loop.close()


@pytest.mark.slow
def test_the_end_of_a_run_waits_once_for_the_open_of_a_fifo(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    opening = loop.create_task(opened(tmp_path / "fifo", "rb"))
    before = time.monotonic()
    for _ in range(10):
        loop.run_until_complete(asyncio.sleep(0))
    assert time.monotonic() - before < 1
    with open(tmp_path / "fifo", "wb"):
        loop.run_until_complete(loop.run_until_complete(opening).close())


def no_open_waits(fifo: Path) -> bool:
    """Return whether no open waits for a writer any more."""
    # Checked once, as the check itself would end the wait.
    time.sleep(0.2)
    with contextlib.suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return False
    return True


def test_closing_a_loop_ends_the_open_of_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    close_after_start(uringloop.new_event_loop, [opened(tmp_path / "fifo", "rb")])
    assert no_open_waits(tmp_path / "fifo")


def test_a_cancelled_open_of_a_fifo_ends_at_once(loop: uringloop.Loop, tmp_path: Path) -> None:
    async def check() -> None:
        for number in range(MANY):
            fifo = tmp_path / str(number)
            os.mkfifo(fifo)
            opener_threads = asyncio.ensure_future(opened(fifo, "rb"))
            await asyncio.sleep(0.01)
            opener_threads.cancel()
            assert await asyncio.wait([opener_threads], timeout=5) == ({opener_threads}, set())
            assert opener_threads.cancelled()
            if number == 0:
                assert no_open_waits(fifo)

    loop.run_until_complete(check())


@pytest.mark.filterwarnings("ignore:unclosed file")
def test_closing_a_loop_during_closes_loses_no_data_and_no_descriptor(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    loop = loop_factory()

    async def files() -> list[Any]:
        made = [await opened(tmp_path / str(n), "wb") for n in range(MANY)]
        for number, file in enumerate(made):
            await file.write(b"bytes")
            if number % 2:
                await file.flush()
        return made

    made = loop.run_until_complete(files())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    close_after_start(loop_factory, [file.close() for file in made])
    del made
    gc.collect()
    # asyncio's threads may still be writing.
    wait_until(lambda: all((tmp_path / str(n)).read_bytes() == b"bytes" for n in range(MANY)))


def test_an_open_may_be_cancelled_at_any_time(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> None:
        for number in range(5 * MANY):
            task = asyncio.ensure_future(opened(tmp_path / str(number), "wb"))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if number % 7 == 6:
                await asyncio.sleep(0.001)
            task.cancel()
            try:
                file = await task
            except asyncio.CancelledError:
                continue
            await file.close()

    each_loop.run_until_complete(main())


def test_a_close_may_be_cancelled_at_any_time(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> None:
        for number in range(5 * MANY):
            file = await uringloop.open(tmp_path / str(number), "wb", buffering=0)
            await file.write(b"bytes")
            task = asyncio.ensure_future(file.close())
            for _ in range(number % 5 + 1):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert file.closed

    each_loop.run_until_complete(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_descriptor_of_a_cancelled_opener_is_closed(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, when: str
) -> None:
    begun, waited_for, cancelled, done = (threading.Event() for _ in range(4))

    def opener(path: str, flags: int) -> int:
        begun.set()
        # The caller does not suspend for an opener that returns sooner.
        assert (cancelled if when == "after" else waited_for).wait(10)
        fd = os.open(path, flags, 0o600)
        done.set()
        return fd

    async def main() -> None:
        task = asyncio.ensure_future(_open_by(tmp_path / "file", opener))
        await asyncio.sleep(0)
        waited_for.set()
        # The task is not resumed before this returns.
        assert (begun if when == "after" else done).wait(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()

    each_loop.run_until_complete(main())
    each_loop.run_until_complete(each_loop.shutdown_default_executor())
    assert (tmp_path / "file").exists()


async def _open_by(path: Path, opener: Any) -> Any:
    return await uringloop.open(path, "wb", opener=opener)
