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
from support.loops import LoopFactory
from support.processes import thread_names
from support.roles import wait_until

import uringloop

MANY = 20


def descriptors() -> dict[str, str]:
    """Return what is open, but for the folder that tells."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def opening() -> int:
    """Return how many threads there are that may open files, the software ring's too."""
    return sum(not name.startswith("iou-") for name in thread_names().values())


@pytest.fixture(autouse=True)
def none_is_lost() -> Iterator[None]:
    gc.collect()
    before, begun = descriptors(), opening()
    yield
    gc.collect()
    # A worker of the kernel may be at its last, and a thread opens files until it ends.
    until = time.monotonic() + 5
    while time.monotonic() < until:
        ended = opening() <= begun
        if (left := descriptors()) == before and ended:
            break
        time.sleep(0.01)
        gc.collect()
    assert left == before
    assert ended


def forgotten(task: asyncio.Task[Any]) -> None:
    """Have nobody be told that *task* will never be resumed."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def begun_and_closed(factory: LoopFactory, calls: list[Coroutine[Any, Any, Any]]) -> None:
    """Close a loop of which these have just begun."""
    loop = factory()

    async def begin() -> None:
        for call in calls:
            forgotten(asyncio.ensure_future(call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()


# What has been opened by then is a file that nobody closes.
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_files_are_being_opened_when_their_loop_is_closed(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    begun_and_closed(loop_factory, [opened(tmp_path / str(n), "wb") for n in range(MANY)])


def is_left_alone(fifo: Path) -> bool:
    """Return whether nobody waits for a writer any more."""
    # Asked once, for the question itself would end the wait.
    time.sleep(0.2)
    with contextlib.suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return False
    return True


def test_a_fifo_waits_for_its_peer_when_its_loop_is_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    begun_and_closed(uringloop.new_event_loop, [opened(tmp_path / "fifo", "rb")])
    assert is_left_alone(tmp_path / "fifo")


def test_a_cancelled_open_of_a_fifo_ends_at_once(loop: uringloop.Loop, tmp_path: Path) -> None:
    async def check() -> None:
        for number in range(MANY):
            fifo = tmp_path / str(number)
            os.mkfifo(fifo)
            opening = asyncio.ensure_future(opened(fifo, "rb"))
            await asyncio.sleep(0.01)
            opening.cancel()
            assert await asyncio.wait([opening], timeout=5) == ({opening}, set())
            assert opening.cancelled()
            if number == 0:
                assert is_left_alone(fifo)

    loop.run_until_complete(check())


@pytest.mark.filterwarnings("ignore:unclosed file")
def test_files_are_being_closed_when_their_loop_is_closed(
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
    begun_and_closed(loop_factory, [file.close() for file in made])
    del made
    gc.collect()
    # Threads of asyncio's may still be at it.
    wait_until(lambda: all((tmp_path / str(n)).read_bytes() == b"bytes" for n in range(MANY)))


def test_an_open_is_cancelled_at_any_time(
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


def test_a_close_is_cancelled_at_any_time(
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
def test_what_an_opener_opens_for_nobody_is_closed(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, when: str
) -> None:
    begun, waited_for, cancelled, done = (threading.Event() for _ in range(4))

    def opener(path: str, flags: int) -> int:
        begun.set()
        # A quicker one is not waited for at all.
        assert (cancelled if when == "after" else waited_for).wait(10)
        fd = os.open(path, flags, 0o600)
        done.set()
        return fd

    async def main() -> None:
        task = asyncio.ensure_future(_open_by(tmp_path / "file", opener))
        await asyncio.sleep(0)
        waited_for.set()
        # The task is not told before this returns.
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
