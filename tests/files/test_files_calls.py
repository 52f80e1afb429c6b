"""The awaitables that calls of buffered files return: used as coroutines, they do nothing early."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

import uringloop

Loop = asyncio.AbstractEventLoop
Call = Callable[[Any], Coroutine[Any, Any, Any]]

TEXT = "".join(f"{number}\n" for number in range(10_000))
CALLS: dict[str, Call] = {
    "read": lambda file: file.read(100),
    "read-all": lambda file: file.read(),
    "readline": lambda file: file.readline(),
    "next": lambda file: file.__anext__(),
}
MODES = ("rb", "r")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text(TEXT)
    return path


def expected(path: Path, mode: str, name: str) -> Any:
    """Return what a built-in file returns."""
    with path.open(mode) as file:
        if name == "read-all":
            return file.read()
        return file.read(100) if name == "read" else next(file)


def spend_the_turn(file: Any) -> None:
    """Read until the turn has no time left for files; other work must wait for the next turn."""
    asyncio.get_running_loop().call_soon(int)
    for _ in range(100_000):
        call = file.seek(0)
        try:
            call.send(None)
        except StopIteration:
            continue
        call.close()
        return
    raise AssertionError("the turn has always time")


# ── like coroutines ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["read", "read-all", "readline"])
def test_calls_are_used_like_coroutines(each_loop: Loop, path: Path, mode: str, name: str) -> None:
    async def in_another_thread(call: Coroutine[Any, Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(
            lambda: asyncio.run_coroutine_threadsafe(call, loop).result(10)
        )

    ways: list[Callable[[Coroutine[Any, Any, Any]], Any]] = [
        lambda call: call,
        asyncio.create_task,
        asyncio.ensure_future,
        asyncio.shield,
        lambda call: asyncio.wait_for(call, 10),
        in_another_thread,
    ]

    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            for way in ways:
                await file.seek(0)
                call = CALLS[name](file)
                assert asyncio.iscoroutine(call)
                assert inspect.isawaitable(call)
                assert await way(call) == expected(path, mode, name)
            await file.seek(0)
            parts = await asyncio.gather(*(file.read(10) for _ in range(5)))
            assert type(parts[0])().join(parts) == expected(path, mode, "read-all")[:50]

    run(each_loop, main)


@pytest.mark.parametrize("mode", MODES)
def test_methods_are_coroutine_functions(each_loop: Loop, path: Path, mode: str) -> None:
    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            for name in ("read", "readline", "seek", "tell", "write"):
                is_coroutine_function = (
                    asyncio.iscoroutinefunction
                    if sys.version_info < (3, 12)
                    else inspect.iscoroutinefunction
                )
                assert is_coroutine_function(getattr(file, name)), name

    run(each_loop, main)


def test_a_call_shows_its_name(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            task = asyncio.create_task(file.read(1))
            assert "BufferedFile.read" in repr(task)
            assert await task == b"0"
            assert "BufferedFile.read" in repr(task)

    run(each_loop, main)


def test_a_call_is_awaited_once(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            for call in (file.read(5), file.read(), file.tell()):
                await call
                with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
                    await call
                with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
                    call.throw(ValueError)
                call.close()

    run(each_loop, main)


def test_steps_may_be_called_by_name(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            await file.readline()
            for call in (file.readline, file.__anext__):
                step: Any = call().__await__()
                stopped = None
                while stopped is None:
                    try:
                        # The line was read ahead, but the turn may have no time left.
                        assert step.__next__() is None
                    except StopIteration as exc:
                        stopped = exc
                    await asyncio.sleep(0)
                # The exception is this program's: the next call has another.
                await file.tell()
                assert stopped.value == (b"1\n" if call == file.readline else b"2\n")

    run(each_loop, main)


def test_only_none_is_sent_to_a_call_that_has_not_begun(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            call = file.read(5)
            with pytest.raises(TypeError, match="can't send non-None value to a just-started"):
                call.send(5)
            assert await call == TEXT[:5].encode()

    run(each_loop, main)


def test_an_exception_thrown_before_the_start_ends_the_call(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            for thrown in ((ValueError("x"),), (ValueError, "x"), (ValueError, ValueError("x"))):
                call = file.read(5)
                with pytest.raises(ValueError, match="x"):
                    call.throw(*thrown)
                with pytest.raises(RuntimeError, match="cannot reuse"):
                    await call
            assert await file.tell() == 0

    run(each_loop, main)


# ── not awaited ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_not_awaited_does_nothing(each_loop: Loop, path: Path, mode: str) -> None:
    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            first = await file.readline()
            calls = [call(file) for name, call in CALLS.items() if name != "next"]
            calls.append(file.seek(50))
            for call in calls:
                call.close()
            assert first + await file.read() == expected(path, mode, "read-all")

    run(each_loop, main)


def test_a_call_that_is_not_awaited_is_reported(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "r") as file:
            calls: list[Any] = [file.read(5), file.buffer.seek(5)]
            for name in ("TextFile.read", "BufferedFile.seek"):
                with pytest.warns(RuntimeWarning, match=f"'{name}' was never awaited"):
                    calls.pop(0)

    run(each_loop, main)


def test_a_call_in_a_cycle_is_collected(each_loop: Loop, path: Path) -> None:
    class Size:
        call: Any

        def __index__(self) -> int:
            return 5

    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            size = Size()
            size.call = file.read(size)  # type: ignore[arg-type]  # as int() takes one
            gone = weakref.ref(size)
            del size
            with pytest.warns(RuntimeWarning, match="never awaited"):
                gc.collect()
            assert gone() is None

    run(each_loop, main)


# ── the turn, the lock ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["read", "readline"])
def test_a_call_that_waits_for_the_next_turn_may_be_cancelled(
    each_loop: Loop, path: Path, mode: str, name: str
) -> None:
    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            await file.seek(0)
            await file.readline()
            position = await file.tell()
            for end in ("cancel", "close", "forget"):
                async with uringloop.open(path, "rb") as other:
                    await other.read(1)
                    if isinstance(each_loop, uringloop.Loop):
                        spend_the_turn(other)
                call = CALLS[name](file)
                if end == "cancel":
                    task = asyncio.ensure_future(call)
                    await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                elif end == "close":
                    call.close()
                else:
                    with pytest.raises(ZeroDivisionError):
                        call.throw(ZeroDivisionError)
                del call
                await file.seek(position)
                assert await file.readline() in ("1\n", b"1\n")
                await file.seek(position)

    run(each_loop, main)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_destroyed_lets_later_ones_go_on(
    loop: uringloop.Loop, path: Path, mode: str
) -> None:
    async def main() -> None:
        async with uringloop.open(path, mode) as file:
            await file.seek(0)
            await asyncio.sleep(0)
            async with uringloop.open(path, "rb") as other:
                await other.read(1)
                spend_the_turn(other)
                paused = file.readline()
                assert paused.send(None) is None
                waiting = [asyncio.create_task(file.readline()) for _ in range(3)]
                await asyncio.sleep(0)
                assert not any(task.done() for task in waiting)
                waiting[0].cancel()
                del paused
                gc.collect()
                assert await asyncio.gather(*waiting[1:]) == [
                    line if mode == "r" else line.encode() for line in ("0\n", "1\n")
                ]

    run(loop, main)


def test_calls_of_16_tasks_all_go_on(loop: uringloop.Loop, path: Path) -> None:
    async def main() -> None:
        done = [0] * 16

        async def reader(number: int) -> None:
            async with uringloop.open(path, "rb") as file:
                while min(done) < 20:
                    await file.seek(number)
                    assert await file.read(10) == TEXT[number : number + 10].encode()
                    done[number] += 1

        await asyncio.gather(*(reader(number) for number in range(16)))

    run(loop, main)


# ── positions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 100, 2047, 2048, 4096, 8191, 8192, 8193, 40_000])
@pytest.mark.parametrize("buffering", [-1, 2, 100, 5000, 20_000, 300_000])
def test_reads_after_a_seek_are_those_of_a_built_in_file(
    each_loop: Loop, path: Path, size: int, buffering: int
) -> None:
    async def main() -> None:
        with path.open("rb", buffering) as built_in:
            async with uringloop.open(path, "rb", buffering) as file:
                for offset in (3000, 33, 3005, 48_000, 48_889, 48_890, 60_000, 30):
                    assert await file.seek(offset) == built_in.seek(offset)
                    for _ in range(3):
                        assert await file.read(size) == built_in.read(size)
                        assert await file.tell() == built_in.tell()
                    assert await file.readline() == built_in.readline()
                    assert await file.seek(-20, os.SEEK_CUR) == built_in.seek(-20, os.SEEK_CUR)
                    assert await file.readline() == built_in.readline()
                    assert await file.read(size) == built_in.read(size)

    run(each_loop, main)


def test_a_large_read_after_a_seek_reads_nothing_ahead(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))

    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            for offset in (8192, 50_000, 20_000):
                await file.seek(offset)
                await file.read(4096)
                # Where the file system reports what is cached: others are read by the ring.
                at = os.lseek(file.fileno(), 0, os.SEEK_CUR)
                assert at >= offset + 4096
                assert await file.tell() == offset + 4096

    run(loop, main)


def test_a_position_that_another_moves_is_followed(each_loop: Loop, path: Path) -> None:
    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            await file.seek(1000)
            assert len(await file.read(4096)) == 4096
            if await file.tell() == os.lseek(file.fileno(), 0, os.SEEK_CUR):
                # As a child process does that has inherited the descriptor.
                os.lseek(file.fileno(), 7, os.SEEK_SET)
                assert await file.tell() == 7
                assert await file.read(3) == TEXT[7:10].encode()

    run(each_loop, main)


def test_a_file_that_is_only_partly_cached_is_read_in_full(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(300_000)
    path.write_bytes(content)

    async def main() -> None:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for size in (10_000, 100_000, 4096, 20):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for page in (0, 4096, 40_960):
                os.pread(fd, 1, page)
            async with uringloop.open(path, "rb") as file:
                await file.seek(100)
                assert await file.read(size) == content[100 : 100 + size]
                assert await file.read(size) == content[100 + size : 100 + 2 * size]
                assert await file.tell() == 100 + 2 * size
                await file.seek(39_000)
                line = content[39_000:].split(b"\n")[0] + b"\n"
                assert await file.readline() == line
        os.close(fd)

    run(each_loop, main)


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_on_a_loop_of_its_own(loop: uringloop.Loop, path: Path) -> None:
    async def read(file: uringloop.BufferedFile) -> bytes:
        parts = [await file.read(20) for _ in range(1000)]
        return b"".join(parts)

    async def main() -> None:
        async with uringloop.open(path, "rb") as file:
            await file.seek(3)
            await file.seek(5000)
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = int(uringloop.run(read(file)) != TEXT[5000:25_000].encode())
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0

    run(loop, main)
