"""Programs that read a cached file as programs with aiofiles do: at random places, and by lines.

On uringloop the files are uringloop's, on other loops those of aiofiles: the same code with another
`open`. The file is created once in the process, before the first measurement.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import tempfile
from typing import Any

from .programs import Program

# Bytes of the file, and bytes that one read takes.
FILE_BYTES = 4 * 2**20
BLOCK = 4096

# A line of the file, with its end: 100 bytes.
LINE = b"x" * 99 + b"\n"

# Calls of uringloop do not suspend: after so many the loop may do something else.
CALLS_BEFORE_A_TURN = 100

# Tasks of `file-read-16`.
TASKS = 16


# The file, which is removed with the process; a list with nothing before it is needed.
_created: list[Any] = []


def cached_file() -> str:
    """Return the path of a file of lines in the page cache."""
    if not _created:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        file.write(LINE * (FILE_BYTES // len(LINE)))
        file.flush()
        _created.append(file)
    name: str = _created[0].name
    return name


def opened(mode: str) -> Any:
    """Open the file in the loop's usual way."""
    module = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    package = importlib.import_module("uringloop" if module == "uringloop" else "aiofiles")
    return package.open(cached_file(), mode)


async def read_blocks(count: int) -> None:
    """seek() to a random place and read() a block, in one task."""
    # The same places for every loop.
    chance = random.Random(1)
    blocks = FILE_BYTES // BLOCK - 1
    offsets = [chance.randrange(blocks) * BLOCK for _ in range(CALLS_BEFORE_A_TURN)]
    async with opened("rb") as file:
        for _ in range(count // CALLS_BEFORE_A_TURN):
            for offset in offsets:
                await file.seek(offset)
                if len(await file.read(BLOCK)) != BLOCK:
                    raise RuntimeError("a short read")
            await asyncio.sleep(0)


async def read_blocks_in_tasks(count: int) -> None:
    """Do the same as read_blocks() in sixteen tasks, each with a file of its own."""
    await asyncio.gather(*(read_blocks(count // TASKS) for _ in range(TASKS)))


async def read_lines(count: int) -> None:
    """`async for` over the lines of a text file, again and again."""
    left = count
    while left:
        async with opened("r") as file:
            async for line in file:
                if len(line) != len(LINE):
                    raise RuntimeError("a short line")
                left -= 1
                if not left:
                    break


async def read_each_line(count: int) -> None:
    """readline() of a text file, again and again."""
    left = count
    while left:
        async with opened("r") as file:
            while left and await file.readline():
                left -= 1


PROGRAMS = {
    "file-read": Program(read_blocks, 20_000, CALLS_BEFORE_A_TURN),
    "file-read-16": Program(read_blocks_in_tasks, 32_000, TASKS * CALLS_BEFORE_A_TURN),
    "file-lines": Program(read_lines, 40_000),
    "file-readline": Program(read_each_line, 40_000),
}
