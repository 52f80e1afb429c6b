"""Files do what built-in files do, awaited, under any loop."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import Call, compare, opened, our_results, plain_results, raised, run

import uringloop

TEXT = "first\nsecond\r\nthird ä€𐍈\n\nlast"


# ── reading and writing ──────────────────────────────────────────────────────────────────────

READ_CALLS: list[Call] = [
    ("read", (3,)),
    ("readline", ()),
    ("readline", (0,)),
    ("readline", (2,)),
    ("tell", ()),
    ("read", (None,)),
    ("read", ()),
    ("seek", (0,)),
    ("readlines", ()),
    ("readlines", (3,)),
    ("seek", (-1,)),
    ("seek", (0, 7)),
    ("write", ("x",)),
    ("write", (b"x",)),
    ("writelines", ([],)),
    ("flush", ()),
    ("truncate", (0,)),
]
BINARY_CALLS: list[Call] = [
    ("readinto", (bytearray(4),)),
    ("readinto", (b"read only",)),
    ("seek", (-3, 2)),
    ("seek", (1, 1)),
    ("read", (-1,)),
    ("read", (-2,)),
]
BUFFERED_CALLS: list[Call] = [
    ("read1", (4,)),
    ("read1", ()),
    ("seek", (0,)),
    ("peek", ()),
    ("readinto1", (bytearray(4),)),
    ("read1", (0,)),
]


@pytest.mark.parametrize("mode", ["r", "rb", "r+", "r+b", "w+", "w+b", "a+b"])
@pytest.mark.parametrize("buffering", [-1, 0, 5])
def test_all_methods_return_the_same_as_those_of_built_in_files(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str, buffering: int
) -> None:
    if "b" not in mode and buffering == 0:
        pytest.skip("text files are always buffered")
    calls = list(READ_CALLS)
    if "b" in mode:
        calls += BINARY_CALLS
        if buffering:
            calls += BUFFERED_CALLS
        if "+" in mode:
            calls.remove(("readlines", (3,)))
    else:
        # It stops before the end, after which tell() of a built-in text file raises OSError.
        calls.remove(("readlines", (3,)))
    compare(each_loop, tmp_path, TEXT.encode(), mode, calls, buffering=buffering)


@pytest.mark.parametrize("mode", ["w", "wb", "r", "rb"])
@pytest.mark.parametrize(
    "call",
    [
        ("read", ()),
        ("readline", ()),
        ("readlines", ()),
        ("write", ("text",)),
        ("truncate", ()),
        ("readinto", (bytearray(3),)),
    ],
)
@pytest.mark.parametrize("buffering", [-1, 0])
def test_calls_that_the_mode_forbids_raise_the_built_in_message(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str, call: Call, buffering: int
) -> None:
    if "b" not in mode and (buffering == 0 or call[0] == "readinto"):
        pytest.skip("text files are always buffered")
    path = tmp_path / "file"
    path.touch()
    name, arguments = call
    if "b" in mode and name == "write":
        arguments = (b"text",)
    if (mode[0] == "r") == (name.startswith("read")):
        pytest.skip("allowed")

    async def ours() -> None:
        async with uringloop.open(path, mode, buffering) as file:
            await getattr(file, name)(*arguments)

    def plain() -> None:
        with open(path, mode, buffering) as file:
            getattr(file, name)(*arguments)

    expected, found = raised(plain), raised(lambda: run(each_loop, ours))
    assert type(found) is type(expected) is io.UnsupportedOperation
    assert str(found) == str(expected)


class Two:
    """An integer of another type, like those of numpy."""

    def __index__(self) -> int:
        return 2


INTEGERS: list[Call] = [
    ("read", (1.5,)),
    ("readline", (1.5,)),
    ("readlines", (1.5,)),
    ("seek", (0, 0.0)),
    ("truncate", (1.5,)),
    ("read1", (1.5,)),
    ("peek", (1.5,)),
    # A built-in text file accepts that, and returns it.
    ("seek", (1.5,)),
]


@pytest.mark.parametrize(
    ("mode", "buffering", "count"), [("r+b", 0, 5), ("r+b", -1, 7), ("r+", -1, 5)]
)
def test_a_float_argument_raises_the_built_in_message(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str, buffering: int, count: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    calls = INTEGERS[:count] + (INTEGERS[-1:] if "b" in mode else [])

    async def main(plain: Any) -> None:
        async with uringloop.open(path, mode, buffering) as file:
            for name, arguments in calls:
                expected = raised(partial(getattr(plain, name), *arguments))
                with pytest.raises(TypeError) as found:
                    await getattr(file, name)(*arguments)
                assert (name, str(found.value)) == (name, str(expected))
            assert await file.read() == plain.read()

    with open(path, mode, buffering) as plain:
        run(each_loop, lambda: main(plain))


@pytest.mark.parametrize("mode", ["r+b", "r+"])
def test_offsets_may_be_index_objects_but_not_floats(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    two: Any = Two()

    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            calls: list[Call] = [
                ("pread", (1.5, 0)),
                ("pread", (1, 1.5)),
                ("pread_into", (bytearray(1), 1.5)),
                ("preadv", ([bytearray(1)], 1.5)),
                ("pwrite", (b"x", 1.5)),
                ("pwritev", ([b"x"], 1.5)),
                ("fallocate", (1.5, 1)),
                ("fallocate", (0, 1.5)),
            ]
            expected = raised(lambda: os.pread(file.fileno(), 1, 1.5))  # type: ignore[arg-type]
            for name, arguments in calls:
                with pytest.raises(TypeError) as found:
                    await getattr(file, name)(*arguments)
                assert (name, str(found.value)) == (name, str(expected))
            assert await file.pread(two, two) == b"23"
            assert await file.pwrite(b"x", two) == 1
            await file.fallocate(two, two)
            assert await file.seek(two) == 2
            assert len(await file.read(two)) == 2
            assert len(await file.readline(two)) == 2
            assert await file.truncate(two) == 2
        assert path.read_bytes() == b"01"

    run(each_loop, main)


@pytest.mark.parametrize("mode", ["r+", "r+b"])
@pytest.mark.parametrize(
    "name",
    ["read", "readline", "write", "flush", "seek", "tell", "truncate", "fileno", "isatty"],
)
def test_calls_of_a_closed_file_raise_value_error(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str, name: str
) -> None:
    (tmp_path / "file").touch()
    arguments = {"seek": (0,), "write": ("" if mode == "r+" else b"",)}.get(name, ())

    async def main() -> None:
        file = await uringloop.open(tmp_path / "file", mode)
        await file.close()
        with pytest.raises(ValueError, match="closed file"):
            await getattr(file, name)(*arguments)
        with pytest.raises(ValueError, match="closed file"):
            async for _ in file:
                pass
        with pytest.raises(ValueError, match="closed file"):
            async with file:
                pass

    run(each_loop, main)


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
def test_async_for_yields_the_lines_of_a_built_in_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, newline: str | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT.encode() + b"\r" + b"z" * 20_000 + b"\r\n" * 9000)
    with open(path, newline=newline, encoding="utf-8") as plain:
        expected = list(plain)

    async def main() -> list[str]:
        async with uringloop.open(path, newline=newline, encoding="utf-8") as file:
            return [line async for line in file]

    assert run(each_loop, main) == expected


def test_a_tty_is_line_buffered(each_loop: asyncio.AbstractEventLoop) -> None:
    ours, theirs = os.openpty()

    async def main() -> None:
        async with uringloop.open(theirs, "w", closefd=False) as file:
            assert file.line_buffering
            assert await file.isatty()
            await file.write("no end")
            await file.write(" of line\n")
            # The kernel may deliver the line end separately.
            line = os.read(ours, 100)
            while not line.endswith(b"\n"):
                line += os.read(ours, 100)
            assert line == b"no end of line\r\n"

    try:
        run(each_loop, main)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pipe_is_read_as_data_arrives_and_written(each_loop: asyncio.AbstractEventLoop) -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        async with uringloop.open(reading, "rb") as source:
            async with uringloop.open(writing, "wb") as sink:
                assert not await source.seekable()
                task = asyncio.ensure_future(source.read1(100))
                await asyncio.sleep(0)
                await sink.write(b"some")
                await sink.flush()
                assert await task == b"some"
                with pytest.raises(io.UnsupportedOperation):
                    await source.seek(0)
                with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
                    await source.pread(1, 0)
                await sink.write(b"the rest")
            assert await source.read() == b"the rest"

    run(each_loop, main)


def test_opening_a_fifo_waits_for_its_peer(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)

    async def main() -> None:
        opening = asyncio.ensure_future(opened(path, "rb"))
        await asyncio.sleep(0.05)
        assert not opening.done()
        async with uringloop.open(path, "wb") as sink:
            source = await opening
            await sink.write(b"here")
        assert await source.read() == b"here"
        await source.close()

    run(each_loop, main)


def test_files_without_a_size_are_read_to_their_end(each_loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with uringloop.open("/proc/self/maps", "rb") as file:
            data = await file.read()
        assert data.endswith(b"\n")
        assert data.count(b"\n") > 50
        async with uringloop.open("/dev/zero", "rb") as file:
            assert await file.read(10) == bytes(10)

    run(each_loop, main)


CALLS_OF_PROC: list[Call] = [
    ("write", (b"one",)),
    ("tell", ()),
    ("seek", (0,)),
    ("read", (2,)),
    ("write", (b"three",)),
    ("tell", ()),
    ("read", ()),
]


@pytest.mark.parametrize("path", ["/proc/self/comm", "/proc/version"])
@pytest.mark.parametrize("mode", ["wb", "r+b"])
def test_a_file_of_proc_is_written_at_its_position(
    each_loop: asyncio.AbstractEventLoop, path: str, mode: str
) -> None:
    # The kernel takes no offset for such a file, and does not move its position.
    if not os.access(path, os.W_OK):
        pytest.skip("only root may open it")
    name = Path("/proc/self/comm").read_bytes()

    async def main() -> None:
        expected = plain_results(Path(path), mode, CALLS_OF_PROC, buffering=0)
        assert await our_results(Path(path), mode, CALLS_OF_PROC, buffering=0) == expected[:-1]
        async with uringloop.open(path, "r+b") as file:
            for call in (file.pwrite(b"x", 0), file.pwritev([b"x"], 0)):
                with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
                    await call
        await uringloop.fs.write_bytes("/proc/self/comm", b"two")
        assert await uringloop.fs.read_bytes("/proc/self/comm") == b"two\n"

    try:
        run(each_loop, main)
    finally:
        Path("/proc/self/comm").write_bytes(name)


def test_an_eventfd_is_read_and_written(each_loop: asyncio.AbstractEventLoop) -> None:
    # lseek() succeeds on it, but it takes no offset.
    async def main() -> None:
        async with uringloop.open(os.eventfd(3), "r+b", 0) as file:
            assert await file.read(8) == (3).to_bytes(8, sys.byteorder)
            assert await file.write((5).to_bytes(8, sys.byteorder)) == 8
            assert os.eventfd_read(file.fileno()) == 5
            with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
                await file.pread(8, 0)

    run(each_loop, main)


# ── at an offset ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["w+", "w+b"])
def test_calls_with_an_offset_leave_the_position_alone(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: str
) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "file", mode) as file:
            assert await file.pwrite(b"0123456789", 0) == 10
            assert await file.pwritev([b"ab", b"", memoryview(b"cde")[::1]], 10) == 5
            assert await file.pread(4, 8) == b"89ab"
            assert await file.pread(100, 12) == b"cde"
            assert await file.pread(1, 100) == b""
            assert await file.pread(0, 0) == b""
            buffer = bytearray(3)
            assert await file.pread_into(buffer, 1) == 3
            assert buffer == b"123"
            parts = [bytearray(2), bytearray(20)]
            assert await file.preadv(parts, 3) == 12
            assert bytes(parts[0] + parts[1][:10]) == b"3456789abcde"
            assert await file.tell() == 0
            await file.fsync()
            await file.fdatasync()
            await file.fallocate(0, 100)
            assert os.fstat(file.fileno()).st_size == 100
            for call in (file.pread(-1, 0), file.pread(1, -1), file.pwrite(b"", -1)):
                with pytest.raises(ValueError, match="negative"):
                    await call
            with pytest.raises(TypeError):
                await file.pread_into(b"constant", 0)

    run(each_loop, main)


def test_reads_at_offsets_run_concurrently(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    content = os.urandom(1 << 20)
    (tmp_path / "file").write_bytes(content)

    async def main() -> None:
        async with uringloop.open(tmp_path / "file", "rb") as file:
            parts = await asyncio.gather(
                *(file.pread(4096, offset) for offset in range(0, len(content), 4096))
            )
            assert b"".join(parts) == content

    run(each_loop, main)


def test_large_files_are_read_and_written_whole(
    each_loop: asyncio.AbstractEventLoop, folder: Path
) -> None:
    content = os.urandom(5 << 20)

    async def main() -> None:
        async with uringloop.open(folder / "file", "w+b") as file:
            assert await file.write(content) == len(content)
            await file.seek(0)
            assert await file.read() == content
            await file.seek(1)
            buffer = bytearray(len(content))
            assert await file.readinto(buffer) == len(content) - 1
            assert buffer[:-1] == content[1:]

    run(each_loop, main)


# ── concurrent calls ─────────────────────────────────────────────────────────────────────────


def test_calls_of_one_file_run_in_order(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "file", "w+b", buffering=64) as file:
            lines = [b"%06d\n" % number * 9 for number in range(300)]
            await asyncio.gather(*(file.write(line) for line in lines))
            await file.seek(0)
            assert await file.read() == b"".join(lines)
            await file.seek(0)
            read = await asyncio.gather(*(file.readline() for _ in range(300 * 9)))
            assert b"".join(read) == b"".join(lines)

    run(each_loop, main)


def test_appends_of_two_files_do_not_overwrite_each_other(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    path = tmp_path / "log"

    async def append(letter: bytes) -> None:
        async with uringloop.open(path, "ab", buffering=0) as file:
            for _ in range(200):
                assert await file.write(letter * 50 + b"\n") == 51
                assert await file.tell() >= 51

    async def main() -> None:
        await asyncio.gather(*map(append, (b"a", b"b", b"c")))

    run(each_loop, main)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 600
    assert {len(line) for line in lines} == {50}
    assert {len(set(line)) for line in lines} == {1}


def test_a_child_process_shares_the_position_of_the_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def main() -> None:
        async with uringloop.open(tmp_path / "log", "w") as file:
            await file.write("before\n")
            await file.flush()
            subprocess.run(  # noqa: ASYNC221
                [sys.executable, "-c", "print('child', flush=True)"], stdout=file.fileno()
            )
            await file.write("after\n")

    run(each_loop, main)
    assert (tmp_path / "log").read_text() == "before\nchild\nafter\n"


@pytest.mark.slow
def test_thousands_of_files_are_open_at_once(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def one(number: int, opened: asyncio.Semaphore, barrier: asyncio.Event) -> int:
        async with uringloop.open(tmp_path / str(number), "w+") as file:
            await file.write(str(number))
            await file.flush()
            await file.seek(0)
            opened.release()
            await barrier.wait()
            return int(await file.read())

    async def main() -> None:
        opened, barrier = asyncio.Semaphore(0), asyncio.Event()
        tasks = [asyncio.ensure_future(one(number, opened, barrier)) for number in range(2000)]
        for _ in tasks:
            await opened.acquire()
        barrier.set()
        assert await asyncio.gather(*tasks) == list(range(2000))

    run(each_loop, main)


def test_a_file_may_be_used_by_several_loops_in_succession(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    file: Any = None

    async def go_on() -> bytes:
        nonlocal file
        file = file or await uringloop.open(tmp_path / "file", "rb", buffering=0)
        await asyncio.gather(*(file.tell() for _ in range(3)))
        return await file.read(1)  # type: ignore[no-any-return]

    for expected in (b"0", b"1", b"2"):
        loop = loop_factory()
        assert run(loop, go_on) == expected
        run(loop, loop.shutdown_default_executor)
        loop.close()
    asyncio.run(file.close())


# ── the end ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_an_unreferenced_file_is_flushed_closed_and_reported(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: Any
) -> None:
    async def main() -> int:
        file = await opened(tmp_path / "file", mode)
        await file.write("kept" if mode == "w" else b"kept")
        return int(file.fileno())

    with pytest.warns(ResourceWarning, match=r"unclosed file <uringloop\.BufferedFile name="):
        fd = run(each_loop, main)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert (tmp_path / "file").read_bytes() == b"kept"


@pytest.mark.parametrize("mode", ["r+", "r+b"])
def test_detach_returns_a_built_in_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path, mode: Any
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    async def main() -> None:
        file = await opened(tmp_path / "file", mode)
        await file.seek(4)
        await file.write("ab" if mode == "r+" else b"ab")
        with file.detach() as plain:
            assert plain.tell() == 6
            assert plain.read() == b"6789"
        with pytest.raises(ValueError, match="has been detached"):
            await file.read()
        with pytest.raises(ValueError, match="has been detached"):
            await file.close()

    run(each_loop, main)
    assert (tmp_path / "file").read_bytes() == b"0123ab6789"
