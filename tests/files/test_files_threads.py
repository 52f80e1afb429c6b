"""One file and several threads, each with a loop of its own."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.roles import in_thread

import uringloop
from uringloop._cpython import gil

without_gil = pytest.mark.skipif(
    not gil.free_threaded(), reason="with a GIL nothing checks the thread of a file"
)

THREADS = 4
CALLS = 500
LINE = b"a line of the file\n"


def test_file_is_used_by_one_thread_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(3 * LINE)

    async def open_file() -> uringloop.BufferedFile:
        return await uringloop.open(path, "rb")

    async def read(file: uringloop.BufferedFile) -> bytes:
        return await file.readline()

    file = in_thread(lambda: uringloop.run(open_file()))
    for _ in range(3):
        assert in_thread(lambda: uringloop.run(read(file))) == LINE
    in_thread(lambda: uringloop.run(file.close()))
    assert file.closed


def hammer(file: Any, *names_and_arguments: tuple[Any, ...]) -> list[BaseException]:
    """Call the methods in several threads at the same time, and return what was raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    async def main() -> None:
        barrier.wait()
        for _ in range(CALLS):
            for name, *arguments in names_and_arguments:
                try:
                    await getattr(file, name)(*arguments)
                except RuntimeError as exc:
                    errors.append(exc)

    uringloop.run_threads(main, THREADS)
    return errors


async def opened(path: Path, mode: str) -> Any:
    file: Any = await uringloop.open(path, mode)
    return file


@without_gil
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "calls"),
    [
        ("w+b", [("write", LINE)]),
        ("r+b", [("seek", 0), ("readline",), ("pread", 10, 0), ("write", LINE), ("flush",)]),
        ("r+", [("seek", 0), ("readline",), ("write", LINE.decode()), ("flush",)]),
    ],
)
def test_file_that_threads_use_at_once_refuses_all_but_one(
    tmp_path: Path, mode: str, calls: list[tuple[Any, ...]]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(100 * LINE)
    file = uringloop.run(opened(path, mode))
    errors = hammer(file, *calls)
    assert {str(exc) for exc in errors} <= {"This file is in use by another thread"}
    uringloop.run(file.close())
    # A write is there in whole lines, or was refused.
    if mode == "w+b":
        lines = THREADS * CALLS - len(errors)
        assert path.read_bytes() == lines * LINE


@without_gil
def test_calls_of_several_threads_change_no_count_of_the_same_code(tmp_path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "file", "w+b", buffering=0) as file:
            calls: list[Any] = [
                file.pwrite(b"data", 0),
                file.pread(4, 0),
                file.pread_into(bytearray(4), 0),
                file.pwritev([b"data"], 0),
                file.preadv([bytearray(4)], 0),
            ]
            is_immortal: Any = sys._is_immortal  # type: ignore[attr-defined, unused-ignore]
            for call in calls:
                assert is_immortal(call.cr_code)
                await call

    uringloop.run(main())
