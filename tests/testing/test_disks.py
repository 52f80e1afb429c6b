"""The disk of a loop for tests: full, broken and slow, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import uringloop
from uringloop import testing

T = TypeVar("T")
DATA = bytes(range(256)) * 300


def run(main: Coroutine[Any, Any, T], **faults: float) -> tuple[T, testing.Loop]:
    loop = testing.Loop(faults=testing.Faults(**faults))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main), loop


async def write_and_read(path: Path) -> bytes:
    async with uringloop.open(path, "wb") as file:
        await file.write(DATA)
    async with uringloop.open(path, "rb") as file:
        data: bytes = await file.read()
        return data


async def failures(folder: Path, use: Callable[[Path], Coroutine[Any, Any, object]]) -> set[int]:
    """Return the errors of 100 attempts; an attempt without one has worked."""
    found = set()
    for number in range(100):
        try:
            await use(folder / str(number))
        except OSError as exc:
            found.add(exc.errno or 0)
    return found


async def use(path: Path) -> None:
    assert await write_and_read(path) == DATA


def test_without_faults_a_disk_takes_no_time(tmp_path: Path) -> None:
    found, loop = run(failures(tmp_path, use))
    assert found == set()
    assert loop.elapsed() < 1e-6


@pytest.mark.parametrize(("kind", "error"), [("no_space", errno.ENOSPC), ("bad_disk", errno.EIO)])
def test_a_disk_fails(tmp_path: Path, kind: str, error: int) -> None:
    found, loop = run(failures(tmp_path, use), **{kind: 0.1})
    assert found == {error}
    assert loop.faults_happened()[kind] > 0
    assert any(path.stat().st_size == len(DATA) for path in tmp_path.iterdir())


def test_a_full_disk_makes_no_files_and_folders(tmp_path: Path) -> None:
    async def make(path: Path) -> None:
        await uringloop.fs.mkdir(path)

    found, _ = run(failures(tmp_path, make), no_space=1.0)
    assert found == {errno.ENOSPC}
    assert list(tmp_path.iterdir()) == []


def test_reading_does_not_need_space(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)

    async def read() -> bytes:
        async with uringloop.open(tmp_path / "file", "rb") as file:
            data: bytes = await file.read()
            return data

    assert run(read(), no_space=1.0)[0] == DATA


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("buffering", [0, -1])
def test_a_read_comes_from_the_disk_and_not_from_the_page_cache(
    tmp_path: Path, buffering: int, size: int
) -> None:
    (tmp_path / "file").write_bytes(DATA)

    async def read() -> int | None:
        async with uringloop.open(tmp_path / "file", "rb", buffering) as file:
            with pytest.raises(OSError, match="Input/output") as caught:
                await file.read(size)
            return caught.value.errno

    assert run(read(), bad_disk=1.0)[0] == errno.EIO


def test_a_slow_disk_takes_virtual_time_and_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> float:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        ticking = asyncio.create_task(tick())
        for number in range(10):
            await use(tmp_path / str(number))
        ticking.cancel()
        took = asyncio.get_running_loop().time() - testing.Loop.START_S
        assert turns >= int(took / 0.01) - 1
        return took

    took, loop = run(main(), slow_disk=1.0)
    assert 1 < took < 200
    assert loop.faults_happened()["slow_disk"] > 20


def test_a_time_out_ends_the_wait_for_a_slow_disk(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> int:
        late = 0
        for number in range(50):
            try:
                async with asyncio.timeout(0.05):
                    await use(tmp_path / str(number))
            except TimeoutError:
                late += 1
        await asyncio.sleep(5)
        return late

    late, _ = run(main(), slow_disk=0.3)
    assert 0 < late < 50
    gc.collect()
    # Also the descriptors of files that were opened after their task had given up.
    assert len(os.listdir("/proc/self/fd")) == before


def test_concurrent_calls_of_a_slow_disk_end_in_the_seeds_order(tmp_path: Path) -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def one(number: int) -> None:
            await write_and_read(tmp_path / str(number))
            ended.append(number)

        await asyncio.gather(*(one(number) for number in range(5)))
        return ended

    first, again = (run(main(), slow_disk=0.5)[0] for _ in range(2))
    assert first == again
    assert first != sorted(first)


def test_a_loop_may_be_closed_while_its_disk_works(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        tasks = [asyncio.create_task(write_and_read(tmp_path / str(n))) for n in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    loop = testing.Loop(faults=testing.Faults(slow_disk=1.0))
    task = loop.create_task(main())
    loop.run_until_complete(task)
    for other in asyncio.all_tasks(loop):
        other._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del loop, task, other
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
