"""Opening files: arguments, errors and attributes."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import raised, run

import uringloop
from uringloop import fs
from uringloop.files.binary import BufferedFile, RawFile
from uringloop.files.text import TextFile


@pytest.mark.parametrize(
    "arguments",
    [
        ("file", "q"),
        ("file", ""),
        ("file", "rw"),
        ("file", "rr"),
        ("file", "tb"),
        ("file", "b"),
        ("file", "r", 0),
        ("file", "rb", -1, "utf-8"),
        ("file", "rb", -1, None, "strict"),
        ("file", "rb", -1, None, None, "\n"),
        ("file", "r", -1, None, None, "x"),
        ("file", "r", -1, "no-such-encoding"),
        ("file", "r", -1, "hex"),
        ("file", "r", -1, 5),
        ("file", 5),
        ("file", "r", "1"),
        ("file", "r", -1, None, None, None, False),
        ("missing", "r"),
        ("missing/file", "w"),
        ("file", "x"),
        (".", "r"),
        (".", "w"),
        ("nul\0", "r"),
        (-1, "r"),
        (12345, "r"),
        (1.5, "r"),
        (None, "r"),
        ("file", "r", -1, None, None, None, True, lambda path, flags: -1),
        ("file", "r", -1, None, None, None, True, lambda path, flags: "0"),
    ],
)
def test_open_raises_the_errors_of_the_built_in(
    each_loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[Any, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    expected = raised(lambda: open(*arguments))  # noqa: SIM115
    found = raised(lambda: run(each_loop, lambda: uringloop.open(*arguments)))
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert vars(found) == vars(expected)
    assert getattr(found, "filename", None) == getattr(expected, "filename", None)


@pytest.mark.parametrize("kind", ["proc", "terminal", "fifo", "null"])
@pytest.mark.parametrize(
    ("mode", "buffering"), [("ab", 0), ("ab", -1), ("a", -1), ("rb", 0), ("rb", -1)]
)
@pytest.mark.parametrize("plus", ["", "+"])
def test_files_without_a_position_are_treated_as_by_the_built_in(
    each_loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
    kind: str,
    mode: str,
    buffering: int,
    plus: str,
) -> None:
    master, terminal = os.openpty()
    os.mkfifo(tmp_path / "fifo")
    other = os.open(tmp_path / "fifo", os.O_RDWR)
    path = {
        # It can seek, but not to its end.
        "proc": "/proc/self/comm",
        "terminal": os.ttyname(terminal),
        "fifo": str(tmp_path / "fifo"),
        "null": os.devnull,
    }[kind]
    mode += plus

    def position_of(file: Any) -> list[object]:
        seekable = bool(file.seekable())
        return [seekable, os.lseek(file.fileno(), 0, os.SEEK_CUR) if seekable else None]

    async def main() -> list[object]:
        async with uringloop.open(path, mode, buffering) as file:
            return position_of(file)

    def plain() -> list[object]:
        with open(path, mode, buffering) as file:
            return position_of(file)

    def outcome(call: Callable[[], list[object]]) -> list[object]:
        try:
            return call()
        except OSError as exc:
            return [type(exc), str(exc), exc.filename]

    try:
        assert outcome(lambda: run(each_loop, main)) == outcome(plain)
    finally:
        for fd in (master, terminal, other):
            os.close(fd)


@pytest.mark.parametrize(
    "mode", ["r", "w", "a", "x", "r+", "w+", "a+", "x+", "rb", "wb", "ab", "xb", "r+b", "w+b"]
)
@pytest.mark.parametrize("buffering", [-1, 0, 1, 512])
def test_attributes_are_those_of_a_built_in_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str, buffering: int
) -> None:
    path = tmp_path / "file"

    def plain() -> list[Any]:
        path.unlink(missing_ok=True)
        if "x" not in mode:
            path.write_text("ten bytes!")
        with open(path, mode, buffering) as file:
            attributes = [file.mode, file.name, file.closed, file.readable(), file.writable()]
            return [*attributes, file.seekable(), file.isatty(), file.tell()]

    async def ours() -> list[Any]:
        async with uringloop.open(path, mode, buffering) as file:
            attributes = [file.mode, file.name, file.closed, file.readable(), file.writable()]
            attributes += [await file.seekable(), await file.isatty(), await file.tell()]
            assert isinstance(file.fileno(), int)
        assert file.closed
        return attributes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = plain()
        except ValueError as exc:
            if mode[0] == "x":
                path.unlink()
            with pytest.raises(ValueError, match=str(exc)):
                run(each_loop, ours)
            return
        path.unlink()
        if "x" not in mode:
            path.write_text("ten bytes!")
        assert run(each_loop, ours) == expected


def test_mode_and_buffering_select_the_class_of_the_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "a", "wb", buffering=0) as raw:
            assert type(raw) is RawFile
        async with uringloop.open(tmp_path / "a", "rb") as buffered:
            assert type(buffered) is BufferedFile
        file = await uringloop.open(tmp_path / "a")
        assert type(file) is TextFile
        assert type(file.buffer) is BufferedFile
        await file.close()
        await file.close()

    run(each_loop, main)


def test_open_takes_an_opener_or_a_descriptor_to_own_or_borrow(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    folder = os.open(tmp_path, os.O_RDONLY)

    async def main() -> None:
        opening = uringloop.open(
            "a", "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)
        )
        async with opening as file:
            assert await file.read() == b"0123"
            assert not os.get_inheritable(file.fileno())
            os.lseek(file.fileno(), 2, os.SEEK_SET)
            async with uringloop.open(file.fileno(), "rb", closefd=False) as borrowed:
                assert await borrowed.read() == b"23"
            assert borrowed.closed
            os.fstat(file.fileno())

    try:
        run(each_loop, main)
    finally:
        os.close(folder)


def test_the_descriptor_is_not_inheritable(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> bool:
        async with uringloop.open(tmp_path / "a", "w") as file:
            return os.get_inheritable(file.fileno())

    assert not run(each_loop, main)


def test_direct_io_works_with_aligned_buffers(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system has no O_DIRECT")
    data = os.urandom(3 * 4096)

    async def main() -> None:
        out, back = fs.aligned_buffer(len(data)), fs.aligned_buffer(len(data))
        out[:] = data
        async with uringloop.open(path, "wb", 0, opener=fs.direct) as file:
            assert await file.pwrite(out, 0) == len(data)
            with pytest.raises(OSError, match="Invalid argument"):
                await file.pwrite(out[1:4097], 0)
        async with uringloop.open(path, "rb", 0, opener=fs.direct) as file:
            assert await file.pread_into(back[4096:], 4096) == 2 * 4096
            assert await file.readinto(back[:4096]) == 4096
        assert back == data

    run(each_loop, main)
