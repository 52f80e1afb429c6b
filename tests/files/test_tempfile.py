"""Temporary files and directories, compared with those of the standard library."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile as plain
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

import uringloop
from uringloop import tempfile

MODES = ["r+", "w+", "x+", "r+b", "w+b", "wb+"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of temporary files; it must be empty after the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(plain, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


def exists(path: str) -> bool:
    return os.path.exists(path)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


def fill(folder: str) -> None:
    below = Path(folder, "below")
    below.mkdir()
    (below / "file").touch()


def line_for(mode: str) -> Any:
    return b"a line\n" if "b" in mode else "eine Zeile, ä\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile"])
def test_written_data_is_read_back(
    each_loop: asyncio.AbstractEventLoop, mode: str, kind: str
) -> None:
    line = line_for(mode)

    async def main() -> None:
        async with getattr(tempfile, kind)(mode=mode) as file:
            for _ in range(3):
                await file.write(line)
            await file.writelines([line, line])
            await file.flush()
            await file.seek(0)
            assert [each async for each in file] == [line] * 5
            await file.seek(0)
            assert await file.readline() == line
            assert await file.readlines() == [line] * 4
            await file.truncate(0)
            await file.seek(0)
            assert not await file.read()
            assert not file.closed
        assert file.closed

    run(each_loop, main)


def test_an_unnamed_file_is_in_no_directory(
    each_loop: asyncio.AbstractEventLoop, temporary: Path
) -> None:
    async def main() -> None:
        async with tempfile.TemporaryFile() as file:
            assert os.listdir(temporary) == []
            assert file.name == file.fileno()
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
            assert not os.get_inheritable(file.fileno())

    run(each_loop, main)


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("delete_on_close", [True, False])
def test_a_named_file_is_removed_as_its_options_say(
    each_loop: asyncio.AbstractEventLoop, temporary: Path, delete: bool, delete_on_close: bool
) -> None:
    async def main() -> str:
        made = tempfile.NamedTemporaryFile(
            suffix=".end", prefix="begin", delete=delete, delete_on_close=delete_on_close
        )
        async with made as file:
            path: str = file.name
            assert Path(path).parent == temporary
            assert Path(path).name.startswith("begin")
            assert path.endswith(".end")
            assert file.delete is delete
            await file.write(b"some")
            await file.flush()
            assert content_of(path) == b"some"
            await file.close()
            assert exists(path) is not (delete and delete_on_close)
        return path

    path = run(each_loop, main)
    assert exists(path) is not delete
    if not delete:
        os.unlink(path)


def test_a_named_file_that_was_removed_elsewhere_can_be_closed(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        file = await tempfile.NamedTemporaryFile()
        os.unlink(file.name)
        await file.close()
        await file.close()
        assert file.closed

    run(each_loop, main)


def test_an_unreferenced_named_file_is_removed_and_reported(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> str:
        file = await tempfile.NamedTemporaryFile()
        name: str = file.name
        return name

    def forget() -> str:
        name: str = run(each_loop, main)
        gc.collect()
        return name

    with pytest.warns(ResourceWarning, match="unclosed file"):
        path = forget()
    assert not exists(path)


@pytest.mark.parametrize("kind", ["TemporaryFile", "NamedTemporaryFile"])
def test_a_file_created_after_a_cancel_is_removed(
    each_loop: asyncio.AbstractEventLoop, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    mkstemp = plain.mkstemp

    def slow_mkstemp(*args: Any) -> tuple[int, str]:
        begun.set()
        assert cancelled.wait(10)
        return mkstemp(*args)

    monkeypatch.setattr(plain, "mkstemp", slow_mkstemp)

    async def made() -> Any:
        return await getattr(tempfile, kind)()

    async def main() -> None:
        task = asyncio.ensure_future(made())
        await asyncio.sleep(0)
        assert begun.wait(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()

    run(each_loop, main)
    each_loop.run_until_complete(each_loop.shutdown_default_executor())


# In Python 3.11 the finalizer of SpooledTemporaryFile fails if its constructor has raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile"])
@pytest.mark.parametrize(
    "options", [{"mode": "q"}, {"mode": "w", "encoding": "none such"}, {"dir": "/none/such"}]
)
def test_creation_errors_are_those_of_the_standard_library(
    each_loop: asyncio.AbstractEventLoop, kind: str, options: dict[str, Any]
) -> None:
    if kind == "SpooledTemporaryFile" and "encoding" not in options:
        pytest.skip("a spooled file raises these at its rollover")

    async def made() -> Any:
        return await getattr(tempfile, kind)(**options)

    with pytest.raises((OSError, ValueError, LookupError)) as expected:
        getattr(plain, kind)(**options)
    with pytest.raises((OSError, ValueError, LookupError)) as found:
        each_loop.run_until_complete(made())
    assert type(found.value) is type(expected.value)
    assert getattr(found.value, "errno", None) == getattr(expected.value, "errno", None)


# ── spooled files ────────────────────────────────────────────────────────────────────────────


def on_disk(file: Any) -> bool:
    return file.name is not None


@pytest.mark.parametrize("mode", ["w+", "w+b"])
def test_a_spooled_file_moves_to_disk_when_it_exceeds_max_size(
    each_loop: asyncio.AbstractEventLoop, mode: str
) -> None:
    line = line_for(mode)

    async def main() -> None:
        size = len(line if isinstance(line, bytes) else line.encode())
        async with tempfile.SpooledTemporaryFile(2 * size, mode, encoding=None) as file:
            await file.write(line)
            await file.write(line)
            assert not on_disk(file)
            await file.seek(0)
            assert await file.read(3) == line[:3]
            await file.seek(0, os.SEEK_END)
            await file.write(line)
            assert on_disk(file)
            await file.seek(0)
            assert await file.read() == line * 3
            assert await file.tell() == 3 * size

    run(each_loop, main)


def test_rollover_keeps_the_position_and_truncate_may_roll_over(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile() as file:
            await file.write(b"x" * 100_000)
            assert not on_disk(file)
            await file.seek(10)
            await file.rollover()
            await file.rollover()
            assert on_disk(file)
            assert await file.tell() == 10
            assert len(await file.read()) == 99_990
        async with tempfile.SpooledTemporaryFile(10) as file:
            await file.truncate(20)
            assert on_disk(file)
            assert await file.read() == bytes(20)

    run(each_loop, main)


def test_concurrent_writes_lose_nothing_at_a_rollover(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile(1000) as file:
            await asyncio.gather(*(file.write(bytes([n]) * 100) for n in range(50)))
            assert on_disk(file)
            await file.seek(0)
            content = await file.read()
            assert content == b"".join(bytes([n]) * 100 for n in range(50))

    run(each_loop, main)


def test_a_spooled_text_file_has_newlines(each_loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile(mode="w+", newline="") as file:
            await file.write("one\r\ntwo\r\n")
            await file.seek(0)
            await file.read()
            assert file.newlines == "\r\n"

    run(each_loop, main)


ATTRIBUTES = ["name", "mode", "encoding", "errors", "newlines", "closed"]


def attributes_of(file: Any) -> dict[str, Any]:
    """Return the attributes of *file*, with the type of its name."""
    found = {name: getattr(file, name, "nothing") for name in ATTRIBUTES}
    found["name"] = type(found["name"])
    able = {name: bool(getattr(file, name)()) for name in ("readable", "writable", "seekable")}
    return found | able


@pytest.mark.parametrize("mode", ["w+", "w+b"])
def test_attributes_of_a_spooled_file_are_those_of_the_standard_library(
    each_loop: asyncio.AbstractEventLoop, mode: str
) -> None:
    async def main(theirs: Any) -> None:
        async with tempfile.SpooledTemporaryFile(mode=mode) as file:
            assert attributes_of(file) == attributes_of(theirs)
            assert file.name is None
            theirs.rollover()
            await file.rollover()
            assert attributes_of(file) == attributes_of(theirs)
        theirs.close()
        assert file.closed is theirs.closed is True

    with plain.SpooledTemporaryFile(mode=mode) as theirs:
        run(each_loop, lambda: main(theirs))


@pytest.mark.parametrize(
    ("mode", "encoding"), [("w+b", None), ("w+", "utf-8"), ("w+", "utf-16"), ("w+", "utf-7")]
)
@pytest.mark.parametrize("left", [0, 3, 7])
def test_fileno_moves_a_spooled_file_to_disk(
    each_loop: asyncio.AbstractEventLoop, mode: str, encoding: str | None, left: int
) -> None:
    line: Any = b"first\nsecond\n" if encoding is None else "erst\näöü\n"

    async def main(theirs: Any) -> None:
        async with tempfile.SpooledTemporaryFile(mode=mode, encoding=encoding) as file:
            await file.write(line)
            await file.seek(0)
            theirs.write(line)
            theirs.seek(0)
            assert await file.read(left) == theirs.read(left)
            fd = file.fileno()
            assert file.fileno() == fd
            assert on_disk(file)
            assert os.pread(fd, 100, 0) == os.pread(theirs.fileno(), 100, 0)
            assert await file.tell() == theirs.tell()
            assert await file.read() == theirs.read()
            await file.write(line)
            theirs.write(line)
            await file.flush()
            theirs.flush()
            assert os.pread(fd, 100, 0) == os.pread(theirs.fileno(), 100, 0)
        with pytest.raises(ValueError, match="closed file"):
            file.fileno()

    with plain.SpooledTemporaryFile(mode=mode, encoding=encoding) as theirs:
        run(each_loop, lambda: main(theirs))


def test_fileno_during_a_rollover_returns_the_final_descriptor(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile() as file:
            await file.write(b"some")
            rolling = asyncio.ensure_future(file.rollover())
            await asyncio.sleep(0)
            fd = file.fileno()
            await rolling
            assert file.fileno() == fd
            await file.write(b" more")
            await file.flush()
            assert os.pread(fd, 100, 0) == b"some more"
        closed = await tempfile.SpooledTemporaryFile()
        await closed.close()
        with pytest.raises(ValueError, match="closed file"):
            closed.fileno()

    run(each_loop, main)


def test_read1_and_readinto1_work_in_memory_and_on_disk(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile() as file:
            await file.write(b"0123456789")
            for rolled in (False, True):
                assert on_disk(file) == rolled
                await file.seek(0)
                assert await file.read1(2) == b"01"
                room = bytearray(3)
                assert await file.readinto1(room) == 3
                assert room == b"234"
                await file.truncate(10)

    run(each_loop, main)


CALLS: list[tuple[Any, ...]] = [
    ("read", 5),
    ("readline",),
    ("readline", 9),
    ("readlines", 6),
    ("readlines", 7),
    ("readlines", 40),
    ("read", 11),
    ("readlines",),
]
SPOOLED = "a\r\nbc\rdefg\nhijk\r\n\n\r" + "lmnopqr\r\n" * 5 + "s" * 40 + "\r\nt\nu"


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 8, 1000])
@pytest.mark.parametrize("newline", ["bytes", None, "", "\n", "\r", "\r\n"])
def test_calls_in_pieces_return_the_same_as_those_of_the_standard_library(
    each_loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    newline: str | None,
    piece: int,
) -> None:
    monkeypatch.setattr(tempfile, "PIECE", piece)
    monkeypatch.setattr(tempfile, "LINES", 2)
    is_text = newline != "bytes"
    options: dict[str, Any] = {"mode": "w+", "newline": newline} if is_text else {"mode": "w+b"}
    content: Any = SPOOLED if is_text else SPOOLED.encode()
    lines = content.splitlines(keepends=True)

    async def main(start: int) -> None:
        with plain.SpooledTemporaryFile(**options) as expected:
            async with tempfile.SpooledTemporaryFile(**options) as file:
                expected.writelines(lines)
                await file.writelines(iter(lines))
                expected.write(content)
                assert await file.write(content) == len(content)
                assert await file.tell() == expected.tell()
                expected.seek(0)
                await file.seek(0)
                for name, *arguments in CALLS[start:] + CALLS[:start]:
                    result = getattr(expected, name)(*arguments)
                    assert await getattr(file, name)(*arguments) == result

    for start in range(len(CALLS)):
        each_loop.run_until_complete(main(start))


def test_writelines_writes_the_lines_before_an_error(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    def lines() -> Iterator[bytes]:
        yield from [b"one\n"] * 70
        raise LookupError

    async def main() -> None:
        async with tempfile.SpooledTemporaryFile() as file:
            with pytest.raises(LookupError):
                await file.writelines(lines())
            with pytest.raises(TypeError):
                await file.writelines([b"two\n", None])
            await file.seek(0)
            assert await file.readlines() == [b"one\n"] * 70 + [b"two\n"]

    run(each_loop, main)


def test_fileno_during_another_call_loses_nothing(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    lines = [b"line %d\n" % number for number in range(300_000)]
    whole = b"".join(lines)

    async def main() -> None:
        async def keep_busy() -> None:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(0)

        busy = asyncio.ensure_future(keep_busy())
        for call, argument in (("write", whole), ("writelines", lines), ("readlines", None)):
            async with tempfile.SpooledTemporaryFile() as file:
                if argument is None:
                    await file.write(whole)
                    await file.seek(0)
                arguments = () if argument is None else (argument,)
                using = asyncio.ensure_future(getattr(file, call)(*arguments))
                for _ in range(3):
                    await asyncio.sleep(0)
                assert not using.done()
                file.fileno()
                result = await using
                if argument is None:
                    assert result == lines
                await file.seek(0)
                assert await file.read() == whole
        busy.cancel()

    run(each_loop, main)


def test_calls_of_a_closed_spooled_file_raise_value_error(
    each_loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        file = await tempfile.SpooledTemporaryFile()
        await file.close()
        for call in (file.read, file.tell, file.flush):
            with pytest.raises(ValueError, match="closed file"):
                await call()
        with pytest.raises(ValueError, match="closed file"):
            async with file:
                pass

    run(each_loop, main)


# ── directories ──────────────────────────────────────────────────────────────────────────────


def test_a_temporary_directory_is_removed_with_its_contents(
    each_loop: asyncio.AbstractEventLoop, temporary: Path
) -> None:
    async def main() -> None:
        made = tempfile.TemporaryDirectory(suffix="end", prefix="begin")
        async with made as name:
            assert made.name == name
            assert Path(name).parent == temporary
            assert Path(name).name.startswith("begin")
            assert name.endswith("end")
            fill(name)
        assert not exists(name)
        async with tempfile.TemporaryDirectory() as name:
            os.rmdir(name)
        async with made as name:
            await made.cleanup()
            assert not exists(name)

    run(each_loop, main)


def test_the_module_is_an_attribute_of_the_package() -> None:
    assert uringloop.tempfile is tempfile


def test_a_roll_over_that_fails_leaves_no_coroutine_behind(
    each_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    async def main() -> None:
        async with tempfile.SpooledTemporaryFile(max_size=10) as file:
            monkeypatch.setattr(plain, "tempdir", str(temporary / "absent"))
            with pytest.raises(FileNotFoundError):
                await file.write(b"x" * 20)
            # A coroutine that is never awaited would be a warning here, which is an error.
            gc.collect()
            monkeypatch.setattr(plain, "tempdir", str(temporary))

    run(each_loop, main)


def test_an_unnamed_file_whose_name_cannot_be_removed_is_closed(
    each_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    removed: list[str] = []

    def refuse(name: str) -> None:
        removed.append(name)
        raise PermissionError(name)

    async def main() -> None:
        before = set(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", refuse)
            with pytest.raises(PermissionError):
                await tempfile.TemporaryFile()
        assert set(os.listdir("/proc/self/fd")) <= before
        os.unlink(removed[0])

    run(each_loop, main)
