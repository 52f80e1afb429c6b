"""aiofiles, which runs in the loop's default executor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from application import LARGE, PIECES, STREAMED
from programs import needs, program, quiet
from support.roles import Loop

aiofiles = needs("aiofiles")
aiofiles_os = needs("aiofiles.os")
tempfile = needs("aiofiles.tempfile")
pytestmark = quiet


@program
async def test_files_are_written_and_read(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with aiofiles.open(path, "wb") as file:
        for piece in PIECES:
            assert await file.write(piece) == len(piece)
    assert path.read_bytes() == STREAMED
    async with aiofiles.open(path, "rb") as file:
        await file.seek(-3, 2)
        assert await file.read() == STREAMED[-3:]
        assert await file.tell() == len(STREAMED)
    path.write_text("one\ntwo\nthree\n")
    async with aiofiles.open(path) as file:
        assert [line async for line in file] == ["one\n", "two\n", "three\n"]
    await aiofiles_os.rename(path, tmp_path / "moved")
    assert await aiofiles_os.listdir(tmp_path) == ["moved"]
    with pytest.raises(FileNotFoundError):
        await aiofiles.open(path)


@pytest.mark.slow
@program
async def test_many_files_are_copied_concurrently(each_loop: Loop, tmp_path: Path) -> None:
    async def copy(name: int) -> None:
        async with (
            tempfile.TemporaryFile("w+b") as draft,
            aiofiles.open(tmp_path / str(name), "wb") as final,
        ):
            await draft.write(LARGE[: name * 1_000])
            await draft.seek(0)
            while piece := await draft.read(10_000):
                await final.write(piece)

    await asyncio.gather(*(copy(name) for name in range(50)))
    for name in range(50):
        assert (tmp_path / str(name)).read_bytes() == LARGE[: name * 1_000]
