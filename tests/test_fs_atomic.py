"""fs.write_atomic: the whole of the new contents or the whole of the old, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filing import run

from uringloop import fs

Loop = asyncio.AbstractEventLoop

KILLS = 200
# A process for each line that it reads; forked, since an import takes longer than a writer lives.
WRITERS = """
import asyncio, os, sys, uringloop
async def main():
    for number in range(10**6):
        await uringloop.fs.write_atomic(sys.argv[1], b"%09d" % number * 20_000)
        if not number:
            print(os.getpid(), flush=True)
for _ in sys.stdin:
    pid = os.fork()
    if not pid:
        uringloop.run(main())
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


@pytest.mark.parametrize("size", [0, 10, 5 << 20])
@pytest.mark.parametrize("form", [str, os.fsencode, Path], ids=["str", "bytes", "Path"])
def test_what_is_written_is_there(each_loop: Loop, tmp_path: Path, size: int, form: Any) -> None:
    path = tmp_path / "file"
    data = os.urandom(size)
    assert run(each_loop, lambda: fs.write_atomic(form(str(path)), data)) is None
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_new_file_has_the_mode_of_a_new_file_and_an_old_one_keeps_its_own(
    each_loop: Loop, tmp_path: Path
) -> None:
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.touch()
    run(each_loop, lambda: fs.write_atomic(path, b"1"))
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o751)
    run(each_loop, lambda: fs.write_atomic(path, bytearray(b"2")))
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o751, b"2")


def test_a_name_without_a_folder(
    each_loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(each_loop, lambda: fs.write_atomic("file", b"text"))
    run(each_loop, lambda: fs.write_atomic(b"bytes", memoryview(b"text")))
    assert sorted(os.listdir(tmp_path)) == ["bytes", "file"]


def test_a_link_is_replaced(each_loop: Loop, tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_bytes(b"other")
    path.symlink_to(other)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (path.is_symlink(), path.read_bytes(), other.read_bytes()) == (False, b"new", b"other")


def test_names_as_long_as_names_can_be(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["missing/file", "folder", "file/below"])
def test_errors_name_the_file_and_leave_nothing(each_loop: Loop, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:  # noqa: PT011
        run(each_loop, lambda: fs.write_atomic(tmp_path / name, b"data"))
    assert str(tmp_path / name) in (caught.value.filename, caught.value.filename2)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_leaves_the_old_contents(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    script = """
import asyncio, resource, signal, sys, uringloop
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
async def main():
    try:
        await uringloop.fs.write_atomic(sys.argv[1], bytes(200_000))
    except OSError as exc:
        print(exc.errno)
if sys.argv[2] == "Loop":
    uringloop.run(main())
else:
    asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(path), type(each_loop).__name__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(errno.EFBIG)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_cancelled_leaves_one_or_the_other(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0" * 100_000)
    chance = random.Random(1)

    async def main() -> None:
        for number in range(1, 60):
            before = path.read_bytes()
            data = b"%d" % (number % 10) * 100_000
            writing = asyncio.ensure_future(fs.write_atomic(path, data))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0, 0.003))
            else:
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            assert path.read_bytes() in (before, data)
            assert os.listdir(tmp_path) == ["file"]

    run(each_loop, main)


def test_readers_see_one_or_the_other(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0" * 50_000)

    async def write() -> None:
        for number in range(30):
            await fs.write_atomic(path, b"%d" % (number % 10) * 50_000)

    async def main() -> None:
        writing = asyncio.ensure_future(write())
        seen = 0
        while not writing.done() or not seen:
            data = await fs.read_bytes(path)
            assert len(data) == 50_000
            assert len(set(data)) == 1
            seen += 1
            await asyncio.sleep(0)
        await writing

    run(each_loop, main)


def test_a_process_that_is_killed_leaves_one_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    chance = random.Random(2)
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for _ in range(KILLS):
            parent.stdin.write(b"next\n")
            parent.stdin.flush()
            writer = int(parent.stdout.readline())
            time.sleep(chance.uniform(0, 0.02))
            os.kill(writer, signal.SIGKILL)
            assert parent.stdout.readline() == b"ended\n"
            data = path.read_bytes()
            assert len(data) == 9 * 20_000
            assert data == data[:9] * 20_000
        parent.stdin.close()
