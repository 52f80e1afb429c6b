"""fs.write_atomic leaves all of the new contents or all of the old, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

from uringloop import fs
from uringloop._ring import backends

Loop = asyncio.AbstractEventLoop

KILLS = 60
# Forks a writer for each line of input: a writer is killed sooner than a new process could import.
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


@pytest.fixture(params=["", "nameless_files"], ids=["nameless", "named"])
def disabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run each test with unnamed temporary files (O_TMPFILE) and with named ones."""
    names: str = request.param
    with monkeypatch.context() as patch:
        patch.setenv("URINGLOOP_DISABLE", names)
        backends.disable_features()
        yield names
    backends.disable_features()


either_way = pytest.mark.usefixtures("disabled")


@either_way
@pytest.mark.parametrize("size", [0, 10, 5 << 20])
@pytest.mark.parametrize("form", [str, os.fsencode, Path], ids=["str", "bytes", "Path"])
def test_write_atomic_writes_all_of_the_data(
    each_loop: Loop, tmp_path: Path, size: int, form: Any
) -> None:
    path = tmp_path / "file"
    data = os.urandom(size)
    assert run(each_loop, lambda: fs.write_atomic(form(str(path)), data)) is None
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


@either_way
def test_a_new_file_has_the_default_mode_and_an_existing_one_keeps_its_mode(
    each_loop: Loop, tmp_path: Path
) -> None:
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.touch()
    run(each_loop, lambda: fs.write_atomic(path, b"1"))
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o751)
    run(each_loop, lambda: fs.write_atomic(path, bytearray(b"2")))
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o751, b"2")


@either_way
def test_a_path_without_a_directory_is_accepted(
    each_loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(each_loop, lambda: fs.write_atomic("file", b"text"))
    run(each_loop, lambda: fs.write_atomic(b"bytes", memoryview(b"text")))
    assert sorted(os.listdir(tmp_path)) == ["bytes", "file"]


@either_way
def test_a_symbolic_link_is_replaced(each_loop: Loop, tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_bytes(b"other")
    path.symlink_to(other)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (path.is_symlink(), path.read_bytes(), other.read_bytes()) == (False, b"new", b"other")


@either_way
def test_a_name_of_the_maximum_length_is_accepted(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert path.read_bytes() == b"new"


@either_way
@pytest.mark.parametrize("name", ["missing/file", "folder", "file/below"])
def test_errors_name_the_file_and_leave_nothing(each_loop: Loop, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:  # noqa: PT011
        run(each_loop, lambda: fs.write_atomic(tmp_path / name, b"data"))
    assert str(tmp_path / name) in (caught.value.filename, caught.value.filename2)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@either_way
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


@either_way
def test_a_cancelled_call_leaves_the_old_or_the_new_contents(
    each_loop: Loop, tmp_path: Path
) -> None:
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


@either_way
def test_readers_see_the_old_or_the_new_contents(each_loop: Loop, tmp_path: Path) -> None:
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


LEFT = re.compile(r"file\.[0-9a-f]{12}\.tmp")


def test_a_killed_process_leaves_the_old_or_the_new_contents(folder: Path, disabled: str) -> None:
    path = folder / "file"
    chance = random.Random(2)
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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
    for left in set(os.listdir(folder)) - {"file"}:
        assert LEFT.fullmatch(left)
        if not disabled:
            # Killed between link and rename: all of the data was written.
            data = (folder / left).read_bytes()
            assert data == data[:9] * 20_000


# Kills itself at an audit event, which precedes the system call, unless its argument is *path*.
SUICIDE = """
import asyncio, os, signal, sys, uringloop
from uringloop import fs
path, event, loop = sys.argv[1:]
# Under another loop the package has not read URINGLOOP_DISABLE yet.
uringloop._ring.backends.disable_features()
def hook(name, args):
    if name == event and args[0] != path:
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    sys.addaudithook(hook)
    await fs.write_atomic(path, b"new" * 1_000_000)
(uringloop.run if loop == "Loop" else asyncio.run)(main())
"""


def killed_at(event: str, path: Path, loop: Loop, disabled: str = "") -> list[str]:
    """Kill a writer at *event*; return the files that it has left beside *path*."""
    command = [sys.executable, "-c", SUICIDE, str(path), event, type(loop).__name__]
    done = subprocess.run(command, env={**os.environ, "URINGLOOP_DISABLE": disabled}, timeout=60)
    assert done.returncode == -signal.SIGKILL
    return sorted(set(os.listdir(path.parent)) - {path.name})


def test_a_process_killed_while_it_writes_leaves_nothing(each_loop: Loop, folder: Path) -> None:
    path = folder / "file"
    assert killed_at("os.link", path, each_loop) == []
    assert not path.exists()
    path.write_bytes(b"old")
    assert killed_at("os.link", path, each_loop) == []
    assert path.read_bytes() == b"old"


def test_a_temporary_file_left_by_a_killed_process_is_named_after_the_file(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (left,) = killed_at("os.rename", path, each_loop, disabled="nameless_files")
    assert LEFT.fullmatch(left)
    assert path.read_bytes() == b"old"


@either_way
def test_owner_group_and_permissions_are_kept(each_loop: Loop, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root may give files away")
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 5678)
    path.chmod(0o6751)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    facts = path.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1234, 5678, 0o6751)
    assert path.read_bytes() == b"new"


def test_a_file_is_written_even_if_its_owner_cannot_be_kept(
    tmp_path: Path,
) -> None:
    if os.geteuid():
        pytest.skip("only root may give files away")
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.chown(path, 1234, 5678)
    os.chown(path.parent, 4321, 4321)
    script = """
import asyncio, concurrent.futures.thread, os, sys
from uringloop import fs
os.chdir(sys.argv[1])
groups = [int(sys.argv[2])]
os.setgroups(groups)
os.setresgid(4321, 4321, 4321)
os.setresuid(4321, 4321, 4321)
asyncio.run(fs.write_atomic("file", b"new"))
"""
    # To the old file the members of the new group were others.
    for group, expected, mode in (("5678", 5678, 0o640), ("4321", 4321, 0o600)):
        os.chown(path, 1234, 5678)
        command = [sys.executable, "-c", script, str(path.parent), group]
        subprocess.run(command, check=True, timeout=60)
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == (4321, expected)
        assert stat.S_IMODE(facts.st_mode) == mode


@either_way
def test_a_file_created_meanwhile_is_replaced(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"

    async def main() -> None:
        await asyncio.gather(*(fs.write_atomic(path, b"%d" % number) for number in range(20)))

    run(each_loop, main)
    assert path.read_bytes() in {b"%d" % number for number in range(20)}
    assert os.listdir(tmp_path) == ["file"]
