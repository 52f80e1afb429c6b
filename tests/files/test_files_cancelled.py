"""Files: a cancelled call loses no data and leaves the position unchanged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

import uringloop

Loop = asyncio.AbstractEventLoop
Call = Callable[[Any], Awaitable[Any]]

# Turns after which a call is cancelled; after more of them the whole file has been read.
TURNS = (*range(8), 13, 21, 34, 55)
TEXT = "".join("é" * 20 + "x" * size + "\n" for size in (5, 30_000, 8191, 10_000, 30, 400_000))

CALLS: dict[str, Call] = {
    "read": lambda file: file.read(),
    "read-some": lambda file: file.read(300_000),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(),
    "readlines-hint": lambda file: file.readlines(60_000),
}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"mode": "r", "encoding": "utf-8"},
    "text-line-ends": {"mode": "r", "encoding": "utf-8", "newline": ""},
    "utf-16": {"mode": "r", "encoding": "utf-16"},
    "binary": {"mode": "rb"},
    "raw": {"mode": "rb", "buffering": 0},
}


async def cancelled(call: Awaitable[Any], turns: int, times: int) -> bool:
    """Cancel *call* after *turns* turns, *times* times; return whether it had ended before."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_call_leaves_the_position_unchanged(
    each_loop: Loop, folder: Path, kind: str, call: str, times: int
) -> None:
    path, options = folder / "file", KINDS[kind]
    path.write_bytes(TEXT.encode(options.get("encoding", "utf-8")))
    with open(path, **options) as plain:
        whole = plain.read()

    async def read_after_a_cancel(turns: int, skipped: int) -> bool:
        async with uringloop.open(path, **options) as file:
            read = [await file.readline() for _ in range(skipped)]
            if await cancelled(CALLS[call](file), turns, times):
                return False
            read.append(await file.readline())
            read.append(await file.read())
            assert whole[:0].join(read) == whole
        return True

    async def main() -> None:
        async def keep_busy() -> None:
            # Here calls of files yield only while other tasks are ready. On asyncio's loop they
            # wait for a thread, and a busy loop would keep that from its processor.
            while isinstance(each_loop, uringloop.Loop):  # noqa: ASYNC110
                await asyncio.sleep(0)

        busy = asyncio.ensure_future(keep_busy())
        for skipped in (0, 1):
            for turns in TURNS:
                if not await read_after_a_cancel(turns, skipped) and turns > 1:
                    break
        busy.cancel()

    run(each_loop, main)


@pytest.mark.parametrize("call", ["read", "readline", "readlines"])
@pytest.mark.parametrize("buffering", [0, -1])
@pytest.mark.parametrize("mode", ["rb", "r"])
def test_a_cancelled_call_of_a_pipe_loses_no_data(
    each_loop: Loop, call: str, buffering: int, mode: str
) -> None:
    if mode == "r" and not buffering:
        pytest.skip("text files have a buffer")
    reading, writing = os.pipe()

    async def main() -> None:
        async with uringloop.open(reading, mode, buffering=buffering) as file:
            os.write(writing, b"one\ntwo\n" if call == "readlines" else b"one")
            task = asyncio.ensure_future(CALLS[call](file))
            # On asyncio's loop a thread reads until the pipe is empty.
            await asyncio.sleep(0.05)
            task.cancel()
            os.write(writing, b" more\nend")
            os.close(writing)
            with pytest.raises(asyncio.CancelledError):
                await task
            rest = [await file.readline(), *await file.readlines()]
        first = "one\ntwo\n" if call == "readlines" else "one"
        found = "".join(line if isinstance(line, str) else line.decode() for line in rest)
        assert found == first + " more\nend"

    run(each_loop, main)


def test_bytes_that_a_cancelled_read_of_a_pipe_put_back_are_read_in_linear_time(loop: Loop) -> None:
    reading, writing = os.pipe()
    size = 1_000_000

    async def main() -> None:
        async with uringloop.open(reading, "rb", buffering=0) as file:
            task = asyncio.ensure_future(file.read())
            async with uringloop.open(writing, "wb", buffering=0) as sink:
                await sink.write(b"x" * size)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await sink.write(b"\n")
            # Pipes are read byte by byte, which must not copy the rest of the bytes each time.
            assert await file.readline() == b"x" * size + b"\n"

    run(loop, main)
