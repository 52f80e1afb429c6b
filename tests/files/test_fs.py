"""uringloop.fs: awaited, its functions do the same as those of os, shutil and pathlib."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.debug_reports import without_slow_calls
from support.file_pairs import run
from support.roles import run_script

import uringloop
from uringloop import fs

Loop = asyncio.AbstractEventLoop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a file of each kind."""
    made = tmp_path / "folder"
    made.mkdir()
    (made / "file").write_bytes(b"contents")
    (made / "sub").mkdir()
    (made / "link").symlink_to("file")
    (made / "dangling").symlink_to("nowhere")
    os.mkfifo(made / "fifo")
    return made


KINDS = ["file", "sub", "link", "dangling", "fifo", "nothing", "file/below", "sub/"]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result, or the type, arguments and filenames of the exception."""
    try:
        return call()
    except (OSError, ValueError, TypeError) as exc:
        found = (type(exc), exc.args if isinstance(exc, OSError) else ())
        return (*found, getattr(exc, "filename", None), getattr(exc, "filename2", None))


def awaited(loop: Loop, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return outcome(lambda: run(loop, lambda: function(*args, **options)))


def contents(folder: Path) -> dict[str, Any]:
    """Return the mode, the number of links and the data of every file in *folder*."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        data: Any = None
        if stat.S_ISLNK(facts.st_mode):
            data = os.readlink(path)
        elif stat.S_ISREG(facts.st_mode):
            data = path.read_bytes()
        found[str(path.relative_to(folder))] = (facts.st_mode, facts.st_nlink, data)
    return found


def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Return two directories with equal contents."""
    made = []
    for name in ("ours", "theirs"):
        top = tmp_path / name
        (top / "a" / "b").mkdir(parents=True)
        (top / "a" / "file").write_bytes(b"file")
        (top / "other").write_bytes(b"other")
        (top / "link").symlink_to("other")
        (top / "full").mkdir()
        (top / "full" / "x").touch()
        made.append(top)
    return made[0], made[1]


# ── status ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [str, os.fsencode, Path], ids=["str", "bytes", "Path"])
def test_stat_and_lstat_return_the_same_as_those_of_os(
    each_loop: Loop, folder: Path, kind: str, form: Callable[[Any], Any]
) -> None:
    path = form(f"{folder}/{kind}")
    # Twice: the second time the kernel has the path in its cache.
    for _ in range(2):
        assert awaited(each_loop, fs.stat, path) == outcome(lambda: os.stat(path))
        assert awaited(each_loop, fs.lstat, path) == outcome(lambda: os.lstat(path))


def test_stat_has_every_field_of_os_stat(each_loop: Loop, folder: Path) -> None:
    for path in (folder / "file", Path("/dev/null"), Path("/proc/self/status"), Path("/")):
        found = awaited(each_loop, fs.stat, path)
        expected = os.stat(path)
        for name in dir(expected):
            if name.startswith("st_") and not (name.startswith("st_atime") or "proc" in str(path)):
                assert getattr(found, name) == getattr(expected, name), name


def test_stat_takes_descriptors_and_dir_fd(each_loop: Loop, folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        assert awaited(each_loop, fs.stat, fd) == os.stat(fd)
        for name in ("file", "link", "nothing"):
            for follow in (True, False):
                options: dict[str, Any] = {"dir_fd": fd, "follow_symlinks": follow}
                assert awaited(each_loop, fs.stat, name, **options) == outcome(
                    lambda name=name, options=options: os.stat(name, **options)  # type: ignore[misc]
                )
        for wrong in ({"dir_fd": fd}, {"follow_symlinks": False}):
            assert awaited(each_loop, fs.stat, fd, **wrong) == outcome(
                lambda wrong=wrong: os.stat(fd, **wrong)  # type: ignore[misc]
            )
    finally:
        os.close(fd)
    assert awaited(each_loop, fs.stat, fd) == outcome(lambda: os.stat(fd))


@pytest.mark.parametrize("kind", KINDS)
def test_path_functions_return_the_same_as_those_of_os_path(
    each_loop: Loop, folder: Path, kind: str
) -> None:
    path = f"{folder}/{kind}"
    names = ("exists", "lexists", "isfile", "isdir", "islink", "ismount", "abspath")
    for name in (*names, "getsize", "getatime", "getmtime", "getctime"):
        expected = outcome(lambda name=name: getattr(os.path, name)(path))  # type: ignore[misc]
        assert awaited(each_loop, getattr(fs, name), path) == expected, name


@pytest.mark.parametrize("kind", KINDS)
def test_access_readlink_samefile_and_statvfs_do_the_same_as_in_os(
    each_loop: Loop, folder: Path, kind: str
) -> None:
    path = f"{folder}/{kind}"
    for mode in (os.F_OK, os.R_OK, os.X_OK):
        for follow in (True, False):
            options: dict[str, Any] = {"follow_symlinks": follow}
            expected = os.access(path, mode, **options)
            assert awaited(each_loop, fs.access, path, mode, **options) is expected
    assert awaited(each_loop, fs.readlink, path) == outcome(lambda: os.readlink(path))
    for other in (folder / "file", folder / "nothing"):
        expected = outcome(lambda other=other: os.path.samefile(path, other))  # type: ignore[misc]
        assert awaited(each_loop, fs.samefile, path, other) == expected
    # The free space may change between the calls, but not whether they succeed.
    free = awaited(each_loop, fs.statvfs, path)
    expected = outcome(lambda: os.statvfs(path))
    assert free == expected or type(free) is type(expected) is os.statvfs_result
    assert awaited(each_loop, fs.getcwd) == os.getcwd()


def test_sendfile_copies_between_descriptors(each_loop: Loop, folder: Path) -> None:
    with open(folder / "file", "rb") as source, open(folder / "copy", "wb") as target:
        calls = (target.fileno(), source.fileno(), 2, 100)
        assert awaited(each_loop, fs.sendfile, *calls) == 6
    assert (folder / "copy").read_bytes() == b"ntents"


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, ""])
def test_an_invalid_path_does_not_exist(each_loop: Loop, path: str) -> None:
    assert awaited(each_loop, fs.exists, path) is os.path.exists(path) is False


# ── names ────────────────────────────────────────────────────────────────────────────────────

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("mkdir", ("new",)),
    ("mkdir", ("private", 0o700)),
    ("mkdir", ("a",)),
    ("mkdir", ("missing/new",)),
    ("mkdir", ("other/new",)),
    ("makedirs", ("m/n/o",)),
    ("makedirs", ("m/n/o/",)),
    ("makedirs", ("m/n/.",)),
    ("makedirs", ("a/b",)),
    ("makedirs", ("a/b", 0o777, True)),
    ("makedirs", ("other", 0o777, True)),
    ("makedirs", ("other/x", 0o777, True)),
    ("rename", ("other", "moved")),
    ("rename", ("a", "moved")),
    ("rename", ("a", "full")),
    ("rename", ("missing", "moved")),
    ("replace", ("other", "a/file")),
    ("replace", ("other", "a")),
    ("remove", ("other",)),
    ("remove", ("link",)),
    ("remove", ("a",)),
    ("remove", ("missing",)),
    ("unlink", ("other",)),
    ("unlink", ("missing",)),
    ("renames", ("a/b", "m/n/o")),
    ("renames", ("missing", "m/n")),
    ("removedirs", ("a/b",)),
    ("removedirs", ("full",)),
    ("rmdir", ("a/b",)),
    ("rmdir", ("full",)),
    ("rmdir", ("other",)),
    ("symlink", ("target", "made")),
    ("symlink", ("target", "made", True)),
    ("symlink", ("target", "other")),
    ("link", ("other", "made")),
    ("link", ("link", "made")),
    ("link", ("a", "made")),
    ("link", ("other", "a/file")),
    ("truncate", ("other", 2)),
    ("truncate", ("other", 200)),
    ("truncate", ("a", 2)),
    ("truncate", ("missing", 2)),
    ("truncate", ("other", -1)),
    ("copyfile", ("other", "made")),
    ("copyfile", ("other", "a/file")),
    ("copyfile", ("link", "made")),
    ("copyfile", ("other", "other")),
    ("copyfile", ("other", "link")),
    ("copyfile", ("missing", "made")),
    ("copyfile", ("other", "a")),
    ("copyfile", ("other", "missing/made")),
    ("copyfile", ("other", "missing/")),
    ("copyfile", ("a", "made")),
    ("copy", ("other", "made")),
    ("copy", ("other", "a")),
    ("copy", ("other", "other")),
]


@pytest.mark.parametrize(("name", "args"), CALLS, ids=[f"{n}{a}" for n, a in CALLS])
@pytest.mark.parametrize("form", [str, Path], ids=["str", "Path"])
def test_results_errors_and_effects_are_those_of_os(
    each_loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    args: tuple[Any, ...],
    form: Callable[[str], Any],
) -> None:
    ours, theirs = twins(tmp_path)
    model = getattr(os, name, None) or getattr(shutil, name)
    given = [form(each) if isinstance(each, str) else each for each in args]
    monkeypatch.chdir(theirs)
    expected = outcome(lambda: model(*given))
    monkeypatch.chdir(ours)
    found = awaited(each_loop, getattr(fs, name), *given)
    assert found == expected
    assert contents(ours) == contents(theirs)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("stat", (1.5,), {}),
    ("stat", ("a\0b",), {}),
    ("stat", ("a",), {"dir_fd": "x"}),
    ("lstat", (None,), {}),
    ("replace", ("a", None), {}),
    ("replace", (3, "a"), {}),
    ("remove", (3,), {}),
    ("remove", ("a\0",), {}),
    ("remove", ("a",), {"dir_fd": "x"}),
    ("mkdir", (None,), {}),
    ("mkdir", ("a\0b",), {}),
    ("mkdir", ("a", "mode"), {}),
    ("mkdir", ("a", 2**70), {}),
    ("mkdir", ("a", 1.5), {}),
    ("makedirs", ("a", 1.5), {}),
    ("mkdir", ("a",), {"dir_fd": 1.5}),
    ("stat", ("a",), {"dir_fd": 1.5}),
    ("unlink", ("a",), {"dir_fd": 1.5}),
    ("rmdir", ("a",), {"dir_fd": 1.5}),
    ("symlink", ("a", "b"), {"dir_fd": 1.5}),
    ("link", ("a", "b"), {"src_dir_fd": 1.5}),
    ("rename", ("a", "b"), {"dst_dir_fd": 1.5}),
    ("access", ("a", 1.5), {}),
    ("rename", ("a", None), {}),
    ("rename", (3, "a"), {}),
    ("unlink", (3,), {}),
    ("rmdir", ("a\0",), {}),
    ("symlink", ("a", None), {}),
    ("link", ("a\0", "b"), {}),
    ("truncate", ("a", "b"), {}),
]


@pytest.mark.parametrize("name", ["exists", "lexists", "isfile", "isdir", "islink", "getsize"])
@pytest.mark.parametrize("path", [0, -1, -100, 2**40, None, 1.5, b"\xff", ["a"]], ids=repr)
def test_unsuitable_paths_are_treated_as_by_os_path(
    loop: uringloop.Loop, name: str, path: Any
) -> None:
    # Functions that look at links take no descriptor; to the kernel -100 is AT_FDCWD.
    def outcome_or_error(call: Callable[[], object]) -> object:
        try:
            return call()
        except (OSError, TypeError, OverflowError) as exc:
            return type(exc), str(exc)

    expected = outcome_or_error(lambda: getattr(os.path, name)(path))
    assert outcome_or_error(lambda: run(loop, lambda: getattr(fs, name)(path))) == expected


@pytest.mark.parametrize(("name", "args", "options"), WRONG)
def test_wrong_arguments_raise_the_messages_of_os(
    loop: uringloop.Loop, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)) as expected:
        getattr(os, name)(*args, **options)
    with pytest.raises(expected.type) as found:
        run(loop, lambda: getattr(fs, name)(*args, **options))
    assert str(found.value) == str(expected.value)


def test_dir_fd_arguments_work_as_those_of_os(each_loop: Loop, tmp_path: Path) -> None:
    ours, theirs = twins(tmp_path)
    here, there = os.open(ours, os.O_RDONLY), os.open(theirs, os.O_RDONLY)
    calls: list[tuple[str, tuple[Any, ...], tuple[str, ...]]] = [
        ("mkdir", ("new",), ("dir_fd",)),
        ("rename", ("other", "moved"), ("src_dir_fd", "dst_dir_fd")),
        ("symlink", ("moved", "soft"), ("dir_fd",)),
        ("link", ("soft", "hard"), ("src_dir_fd", "dst_dir_fd")),
        ("unlink", ("soft",), ("dir_fd",)),
        ("rmdir", ("new",), ("dir_fd",)),
        ("remove", ("missing",), ("dir_fd",)),
    ]
    try:
        for name, args, options in calls:
            expected = outcome(
                lambda n=name, a=args, o=options: getattr(os, n)(*a, **dict.fromkeys(o, there))  # type: ignore[misc]
            )
            found = awaited(each_loop, getattr(fs, name), *args, **dict.fromkeys(options, here))
            assert found == expected
            assert contents(ours) == contents(theirs)
    finally:
        os.close(here)
        os.close(there)


def test_audit_events_are_those_of_os(loop: uringloop.Loop, tmp_path: Path) -> None:
    raised: list[tuple[str, tuple[Any, ...]]] = []
    listening = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if listening and event.startswith("os."):
            raised.append((event, args))

    sys.addaudithook(hook)

    def events(call: Callable[[str], object]) -> list[tuple[str, tuple[Any, ...]]]:
        raised.clear()
        for name in ("mkdir", "rename", "rmdir", "symlink", "unlink"):
            call(name)
        return list(raised)

    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    args = {"mkdir": (a,), "rename": (a, b), "rmdir": (b,), "symlink": ("x", b), "unlink": (b,)}
    expected = events(lambda name: getattr(os, name)(*args[name]))
    assert events(lambda name: run(loop, lambda: getattr(fs, name)(*args[name]))) == expected
    listening = False


def test_read_bytes_and_write_atomic_raise_the_audit_event_of_open(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some")
    opened: list[Path] = []
    listening = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if listening and event == "open":
            opened.append(Path(os.fsdecode(args[0])))

    sys.addaudithook(hook)
    # The second read is served from the page cache.
    for _ in range(2):
        assert run(loop, lambda: fs.read_bytes(path)) == b"some"
    assert opened.count(path) >= 2
    opened.clear()
    run(loop, lambda: fs.write_atomic(path, b"other"))
    assert tmp_path in opened
    listening = False


# ── whole files ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 20, (5 << 20) + 1])
def test_write_bytes_and_read_bytes_transfer_whole_files(
    each_loop: Loop, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "file"
    data = os.urandom(size)

    async def main() -> None:
        assert await fs.write_bytes(path, data) == size
        assert path.read_bytes() == data
        assert await fs.read_bytes(path) == data
        # Also in a turn in which the time of files is used up.
        for _ in range(3):
            assert await fs.read_bytes(str(path)) == data
        assert await fs.write_bytes(path, memoryview(data)[: size // 2]) == size // 2
        assert await fs.read_bytes(path) == data[: size // 2]

    run(each_loop, main)


def test_read_bytes_reads_a_file_without_a_size(each_loop: Loop) -> None:
    assert awaited(each_loop, fs.read_bytes, "/proc/version") == Path("/proc/version").read_bytes()


def test_read_bytes_of_a_fifo_waits_for_a_writer(each_loop: Loop, folder: Path) -> None:
    path = folder / "fifo"

    async def main() -> bytes:
        # First without a writer: an open that did not wait would read EOF at once.
        reading = asyncio.ensure_future(fs.read_bytes(path))
        await asyncio.sleep(0.05)
        assert not reading.done()
        thread = threading.Thread(target=path.write_bytes, args=(b"written",))
        thread.start()
        data = await asyncio.wait_for(reading, 10)
        thread.join()
        return data

    assert run(each_loop, main) == b"written"


@pytest.mark.parametrize(
    "options",
    [{}, {"encoding": "utf-16"}, {"newline": ""}, {"newline": "\r\n"}, {"errors": "replace"}],
    ids=str,
)
def test_write_text_and_read_text_transfer_the_same_as_open(
    each_loop: Loop, tmp_path: Path, options: dict[str, Any]
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    text = "one\ntwo\r\nthree\rä€😀"
    with open(theirs, "w", **options) as file:
        file.write(text)
    assert awaited(each_loop, fs.write_text, ours, text, **options) == len(text)
    assert ours.read_bytes() == theirs.read_bytes()
    with open(theirs, **options) as file:
        expected = file.read()
    assert awaited(each_loop, fs.read_text, ours, **options) == expected


# A thread may drop its reference to the data late.
KEEPING = """
import asyncio, concurrent.futures
from uringloop import fs

kept = []

class Keeping(concurrent.futures.ThreadPoolExecutor):
    def submit(self, *arguments):
        kept.append(arguments)
        return super().submit(*arguments)

async def main():
    asyncio.get_running_loop().set_default_executor(Keeping())
    assert await fs.write_text({path!r}, "text") == 4
    assert await fs.read_text({path!r}) == "text"

asyncio.run(main())
assert kept
"""


def test_text_that_a_thread_still_refers_to_is_not_freed(tmp_path: Path) -> None:
    ended = run_script(KEEPING.format(path=str(tmp_path / "file")), "-X", "dev")
    assert (ended.returncode, without_slow_calls(ended.stderr)) == (0, "")


def test_write_text_leaves_the_file_unchanged_if_the_arguments_are_bad(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        run(each_loop, lambda: fs.write_text(path, "ä", "ascii"))
    with pytest.raises(TypeError, match="data must be str, not bytes"):
        run(each_loop, lambda: fs.write_text(path, b"bytes"))  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="unknown encoding: no-such"):
        run(each_loop, lambda: fs.read_text(path, "no-such"))
    assert path.read_text() == "before"


@pytest.mark.parametrize("form", [str, os.fsencode, Path], ids=["str", "bytes", "Path"])
def test_read_bytes_raises_the_errors_of_open(
    each_loop: Loop, folder: Path, form: Callable[[Any], Any]
) -> None:
    for name in ("nothing", "sub", "dangling"):
        path = form(f"{folder}/{name}")
        expected = outcome(lambda path=path: open(path, "rb"))  # type: ignore[misc]
        assert awaited(each_loop, fs.read_bytes, path) == expected


def test_a_large_copy_is_complete_and_has_the_mode_of_the_source(
    each_loop: Loop, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom((3 << 20) + 7))
    source.chmod(0o640)
    target = run(each_loop, lambda: fs.copy(source, tmp_path / "target"))
    assert target.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_copy_without_follow_symlinks_copies_the_link(each_loop: Loop, folder: Path) -> None:
    target = folder / "copied"
    assert run(each_loop, lambda: fs.copy(folder / "link", target, follow_symlinks=False)) == target
    assert os.readlink(target) == "file"
    with pytest.raises(shutil.SpecialFileError, match="is a named pipe"):
        run(each_loop, lambda: fs.copyfile(folder / "fifo", folder / "x"))


# ── directories ──────────────────────────────────────────────────────────────────────────────


def test_scandir_yields_the_entries_of_os_scandir(each_loop: Loop, folder: Path) -> None:
    for number in range(600):
        (folder / "sub" / f"{number}").touch()

    async def main(path: Any) -> list[tuple[str, bool]]:
        async with fs.scandir(path) as entries:
            return sorted([(entry.name, entry.is_dir()) async for entry in entries])

    for path in (folder, folder / "sub", os.fspath(folder)):
        with os.scandir(path) as entries:
            expected = sorted((entry.name, entry.is_dir()) for entry in entries)
        assert run(each_loop, lambda path=path: main(path)) == expected  # type: ignore[misc]
    assert sorted(run(each_loop, lambda: fs.listdir(folder))) == sorted(os.listdir(folder))


def test_awaiting_scandir_returns_an_iterator(each_loop: Loop, folder: Path) -> None:
    for number in range(600):
        (folder / "sub" / f"{number}").touch()

    async def main(path: Any) -> set[str]:
        with await fs.scandir(path) as entries:
            first = next(entries)
            return {first.name, *(entry.name for entry in entries)}

    for path in (folder, folder / "sub", os.fspath(folder)):
        found = run(each_loop, lambda path=path: main(path))  # type: ignore[misc]
        assert found == set(os.listdir(path))
    expected = outcome(lambda: os.scandir(folder / "nothing"))
    assert awaited(each_loop, lambda: main(folder / "nothing")) == expected
    with pytest.raises(TypeError, match="await it first"):
        next(fs.scandir(folder))


def test_leaving_scandir_early_closes_the_directory(each_loop: Loop, folder: Path) -> None:
    async def main() -> None:
        async with fs.scandir(folder) as entries:
            async for _ in entries:
                break
        assert [entry async for entry in entries] == []

    # The fixture counts the descriptors.
    run(each_loop, main)


def test_scandir_of_a_missing_directory_raises_file_not_found(
    each_loop: Loop, folder: Path
) -> None:
    async def main() -> list[Any]:
        return [entry async for entry in fs.scandir(folder / "nothing")]

    expected = outcome(lambda: os.scandir(folder / "nothing"))
    assert awaited(each_loop, main) == expected


@pytest.mark.parametrize("topdown", [True, False])
@pytest.mark.parametrize("followlinks", [True, False])
def test_walk_yields_the_same_as_os_walk(
    each_loop: Loop, tmp_path: Path, topdown: bool, followlinks: bool
) -> None:
    top, _ = twins(tmp_path)
    (top / "more").symlink_to("a")

    async def main() -> list[Any]:
        return [found async for found in fs.walk(top, topdown, None, followlinks)]

    assert run(each_loop, main) == list(os.walk(top, topdown, None, followlinks))


def test_walk_skips_directories_that_the_caller_removes(each_loop: Loop, tmp_path: Path) -> None:
    top, _ = twins(tmp_path)

    async def main() -> list[str]:
        seen = []
        async for path, folders, _ in fs.walk(str(top)):
            folders[:] = [name for name in sorted(folders) if name != "a"]
            seen.append(os.path.relpath(path, top))
        return seen

    assert run(each_loop, main) == [".", "full"]


def test_walk_calls_onerror_in_the_thread_of_the_loop(each_loop: Loop, tmp_path: Path) -> None:
    errors: list[tuple[int, Any]] = []

    def onerror(error: OSError) -> None:
        errors.append((threading.get_ident(), error.filename))

    async def main(handler: Any) -> list[Any]:
        return [found async for found in fs.walk(tmp_path / "nothing", onerror=handler)]

    assert run(each_loop, lambda: main(None)) == []
    assert run(each_loop, lambda: main(onerror)) == []
    assert errors == [(threading.get_ident(), str(tmp_path / "nothing"))] or errors == [
        (threading.get_ident(), tmp_path / "nothing")
    ]

    def refuse(error: OSError) -> None:
        raise error

    with pytest.raises(FileNotFoundError):
        run(each_loop, lambda: main(refuse))
