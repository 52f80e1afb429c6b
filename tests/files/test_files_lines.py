"""Lines: those that were read ahead do not suspend, long ones take many turns."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

import uringloop
from uringloop import fs

Loop = asyncio.AbstractEventLoop

# Longer than the parts of an unfinished line, the slices of copies and the pieces of decoding.
LONG = 300_000


def content_of(end: str) -> str:
    lines = ["first", "x" * LONG, "", "ä€𐍈" * (LONG // 3), "last but one", "y" * 9000, "no end"]
    return end.join(lines)


@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030"])
def test_long_lines_are_those_of_a_built_in_file(
    each_loop: Loop, tmp_path: Path, encoding: str, end: str, newline: str | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content_of(end).encode(encoding))

    async def main() -> None:
        options: Any = {"encoding": encoding, "newline": newline}
        with path.open(**options) as plain:
            expected = plain.readlines()
            async with uringloop.open(path, **options) as file:
                assert [line async for line in file] == expected
                await file.seek(0)
                assert await file.readlines() == expected
                await file.seek(0)
                plain.seek(0)
                for size in (3, LONG + 5, 1, LONG // 2, -1, LONG):
                    assert await file.readline(size) == plain.readline(size)
                    assert await file.read(size) == plain.read(size)
                    position = await file.tell()
                    await file.seek(position)
        assert await fs.read_text(path, **options) == "".join(expected)

    run(each_loop, main)


def test_long_binary_lines_are_those_of_a_built_in_file(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content_of("\n").encode())

    async def main() -> None:
        with path.open("rb") as plain:
            async with uringloop.open(path, "rb") as file:
                assert [line async for line in file] == plain.readlines()
                for hint in (1, LONG, -1):
                    await file.seek(0)
                    plain.seek(0)
                    assert await file.readlines(hint) == plain.readlines(hint)
                    assert await file.tell() == plain.tell()

    run(each_loop, main)


@pytest.mark.parametrize("newline", [None, "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig", "utf-7", "iso2022_jp"])
def test_a_large_text_is_written_as_by_a_built_in_file(
    each_loop: Loop, tmp_path: Path, encoding: str, newline: str | None
) -> None:
    text = "some \u3042 text\n" * 30_000
    expected = io.BytesIO()
    with io.TextIOWrapper(expected, encoding, newline=newline) as plain:
        plain.write(text)
        plain.flush()
        raw = expected.getvalue()

    async def main() -> None:
        path = tmp_path / "file"
        assert await fs.write_text(path, text, encoding, newline=newline) == len(text)
        assert path.read_bytes() == raw
        async with uringloop.open(path, "w", encoding=encoding, newline=newline) as file:
            assert await file.write(text) == len(text)
        assert path.read_bytes() == raw

    run(each_loop, main)


def test_encoding_errors_are_those_of_a_built_in_file(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    text = "a\n" * 100_000 + "\udc80\n" + "b" * 10

    async def main() -> None:
        with pytest.raises(UnicodeEncodeError) as caught:
            await fs.write_text(path, text, "utf-8", newline="\r\n")
        expected = text.replace("\n", "\r\n")
        assert (caught.value.object, caught.value.start, caught.value.end) == (
            expected,
            300_000,
            300_001,
        )
        assert str(caught.value).startswith("'utf-8' codec can't encode character '\\udc80'")
        assert path.read_text() == "before"
        async with uringloop.open(path, "w", encoding="utf-16") as file:
            with pytest.raises(UnicodeEncodeError):
                await file.write(text)
            # The byte order mark has not been written yet.
            await file.write("x")
        assert path.read_bytes() == "x".encode("utf-16")

    run(each_loop, main)


def test_decoding_errors_are_those_of_a_built_in_file(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("ä€\r\n".encode() * 100_000 + b"\xff" + bytes(100_000))

    def facts(exc: UnicodeDecodeError) -> tuple[Any, ...]:
        return (*exc.args, exc.object, exc.start, exc.end)

    async def main() -> None:
        for newline in (None, "\n"):
            with path.open(encoding="utf-8", newline=newline) as plain:
                with pytest.raises(UnicodeDecodeError) as expected:
                    plain.read()
                async with uringloop.open(path, encoding="utf-8", newline=newline) as file:
                    with pytest.raises(UnicodeDecodeError) as caught:
                        await file.read()
                assert facts(caught.value) == facts(expected.value)
                with pytest.raises(UnicodeDecodeError) as caught:
                    await fs.read_text(path, encoding="utf-8", newline=newline)
                assert facts(caught.value) == facts(expected.value)

    run(each_loop, main)


# ── cancelling ───────────────────────────────────────────────────────────────────────────────


async def cancelled_after(turns: int, call: Awaitable[Any]) -> bool:
    """Cancel *call* after *turns* turns; return whether that was before its end."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


Call = Callable[[Any], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "readline": lambda file: file.readline(),
    "read": lambda file: file.read(),
    "read-some": lambda file: file.read(LONG * 8),
    "next": lambda file: file.__anext__(),
}


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("name", CALLS)
def test_a_cancelled_long_read_loses_nothing(
    each_loop: Loop, tmp_path: Path, mode: str, name: str
) -> None:
    path = tmp_path / "file"
    text = "head\n" + "ä" * 10 * LONG + "\ntail"
    path.write_text(text, "utf-8")
    whole: Any = text if mode == "r" else text.encode()
    options: Any = {"encoding": "utf-8"} if mode == "r" else {}

    async def main() -> None:
        cancelled = 0
        for turns in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            async with uringloop.open(path, mode, **options) as file:
                head = await file.readline()
                position = await file.tell()
                if not await cancelled_after(turns, CALLS[name](file)):
                    continue
                cancelled += 1
                assert await file.tell() == position
                assert head + await file.read() == whole
        assert cancelled

    run(each_loop, main)


def test_a_cancelled_long_readline_of_a_pipe_loses_nothing(each_loop: Loop) -> None:
    async def main() -> None:
        for mode in ("rb", "r"):
            near, far = os.pipe()
            with os.fdopen(far, "wb") as writer:
                async with uringloop.open(near, mode) as file:
                    sent = 0
                    task = asyncio.ensure_future(file.readline())
                    # More than one part of an unfinished line; each write waits for the reader.
                    while sent < LONG:
                        sent += await asyncio.to_thread(os.write, writer.fileno(), b"x" * 50_000)
                    task.cancel()
                    # A thread that reads cannot be stopped: it needs data to end.
                    writer.write(b"\nend")
                    ending = asyncio.ensure_future(asyncio.to_thread(writer.close))
                    await asyncio.wait([task])
                    rest = await file.read()
                    await ending
                    assert rest == ("x" * sent + "\nend" if mode == "r" else b"x" * sent + b"\nend")

    run(each_loop, main)


def test_a_cancelled_readlines_puts_its_lines_back(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"line\n" * 200_000)

    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            assert await cancelled_after(5, file.readlines())
            assert await file.tell() == 0
            assert await file.readlines() == [b"line\n"] * 200_000

    run(each_loop, main)


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_a_line_that_was_not_awaited_is_read_again(
    each_loop: Loop, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\nthree\n")

    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            lines = [await anext(file)]
            step = file.__anext__()
            # The step is a coroutine if the turn had no time left for it.
            getattr(step, "close", int)()
            del step
            lines += [line async for line in file]
            assert b"".join(line.encode() if mode == "r" else line for line in lines) == (
                b"one\ntwo\nthree\n"
            )

    run(each_loop, main)


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_lines_can_be_awaited_in_every_way(each_loop: Loop, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"{number}\n" for number in range(10)))

    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            lines = [
                await file.__anext__(),
                await anext(file),
                await asyncio.wait_for(file.__anext__(), 10),
                *await asyncio.gather(file.__anext__(), anext(file)),
                await asyncio.ensure_future(anext(file)),
                await asyncio.create_task(file.readline()),
                await file.readline(),
                await file.readline(-1),
                await anext(file, None),
            ]
            assert await anext(file, None) is None
            with pytest.raises(StopAsyncIteration):
                await anext(file)
            assert [int(line) for line in lines] == list(range(10))

    run(each_loop, main)


def test_calls_keep_their_order_when_the_turn_has_no_time_left(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"line\n" * 100_000)

    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            for _ in range(20):
                start = await file.tell()
                # Each takes several turns, and the next starts meanwhile.
                lines, line, position, more = await asyncio.gather(
                    file.readlines(20_000), file.readline(), file.tell(), file.read(5)
                )
                assert len(lines) * 5 + 5 == position - start
                assert (line, more) == (b"line\n", b"line\n")
                await file.seek(0)

    run(each_loop, main)
