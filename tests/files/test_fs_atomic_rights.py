"""fs.write_atomic: the new file never permits more to anyone than the old one."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

from uringloop import fs
from uringloop._ring import backends
from uringloop.files.binary import RawFile

Loop = asyncio.AbstractEventLoop
Entry = tuple[int, int, int]

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODY = 0xFFFFFFFF
# One user may read and write, the file's group has no permission; the mode shows this as 0660.
FOR_A_USER = [
    (OWNER, 6, NOBODY),
    (USER, 6, 1234),
    (GROUP_OWNER, 0, NOBODY),
    (MASK, 6, NOBODY),
    (OTHERS, 0, NOBODY),
]
# All but one user and one group may read.
AGAINST_TWO = [
    (OWNER, 6, NOBODY),
    (USER, 0, 1234),
    (GROUP_OWNER, 4, NOBODY),
    (GROUP, 0, 5678),
    (MASK, 4, NOBODY),
    (OTHERS, 4, NOBODY),
]


@pytest.fixture(autouse=True, params=["", "nameless_files"], ids=["nameless", "named"])
def disabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run each test with unnamed temporary files (O_TMPFILE) and with named ones."""
    with monkeypatch.context() as patch:
        patch.setenv("URINGLOOP_DISABLE", request.param)
        backends.disable_features()
        yield request.param
    backends.disable_features()


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def set_acl(path: Path, entries: list[Entry], which: str = ACCESS) -> None:
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, which, value)
    except OSError as exc:
        if exc.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system has no ACLs")


def acl_of(path: Path) -> list[Entry]:
    if ACCESS not in os.listxattr(path):
        return []
    value = os.getxattr(path, ACCESS)
    return list(struct.iter_unpack("<HHI", value[4:]))


def give_away(path: Path, owner: int, group: int) -> None:
    if os.geteuid():
        pytest.skip("only root may give files away")
    os.chown(path, owner, group)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Modes:
    """The modes of the temporary file, before and after each call that is watched."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.seen: list[int] = []
        for name in ("fchown", "fchmod", "setxattr", "removexattr"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        for name in ("write", "fsync"):
            monkeypatch.setattr(RawFile, name, self._watched_async(getattr(RawFile, name)))

    def record_mode(self) -> None:
        for name in set(os.listdir(self.path.parent)) - {self.path.name}:
            self.seen.append(mode_of(self.path.parent / name))

    def _watched(self, function: Any) -> Any:
        def call(*args: Any) -> None:
            self.record_mode()
            function(*args)
            self.record_mode()

        return call

    def _watched_async(self, method: Any) -> Any:
        async def call(*args: Any) -> Any:
            self.record_mode()
            result = await method(*args)
            self.record_mode()
            return result

        return call


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o060, 0o755, 0o4755])
@pytest.mark.parametrize("owner", [0, 1234])
def test_the_temporary_file_never_permits_more_than_the_old_one(
    each_loop: Loop,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    disabled: str,
    mode: int,
    owner: int,
) -> None:
    path = folder / "file"
    path.write_bytes(b"old")
    if owner:
        give_away(path, owner, owner)
    path.chmod(mode)
    modes = Modes(path, monkeypatch)
    run(each_loop, lambda: fs.write_atomic(path, b"secret"))
    assert not [oct(each) for each in modes.seen if each & ~mode]
    if disabled:
        # The first mode is that just before the write.
        assert modes.seen[0] == mode & 0o600
    assert (mode_of(path), path.read_bytes()) == (mode, b"secret")


def test_an_acl_is_kept(each_loop: Loop, folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(b"old")
    set_acl(path, FOR_A_USER)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (acl_of(path), path.read_bytes()) == (FOR_A_USER, b"new")
    assert mode_of(path) == 0o660


def test_a_replaced_file_does_not_get_the_default_acl_of_its_directory(
    each_loop: Loop, folder: Path
) -> None:
    path = folder / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    set_acl(folder, FOR_A_USER, DEFAULT)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (acl_of(path), mode_of(path)) == ([], 0o640)
    # A new file gets it, as with open().
    for name in ("new", "plain"):
        (folder / name).unlink(missing_ok=True)
    run(each_loop, lambda: fs.write_atomic(folder / "new", b"new"))
    (folder / "plain").write_bytes(b"")
    assert acl_of(folder / "new") == acl_of(folder / "plain") != []


@pytest.mark.parametrize(
    ("entries", "mode"), [(FOR_A_USER, 0o600), (AGAINST_TWO, 0o600)], ids=["for", "against"]
)
def test_the_mode_in_place_of_an_acl_permits_no_more_than_the_acl(
    each_loop: Loop,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[Entry],
    mode: int,
) -> None:
    path = folder / "file"
    path.write_bytes(b"old")
    set_acl(path, entries)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no ACLs")

    monkeypatch.setattr(os, "setxattr", refuse)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (acl_of(path), mode_of(path), path.read_bytes()) == ([], mode, b"new")


def test_another_group_gets_no_more_than_others(
    each_loop: Loop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "file"
    path.write_bytes(b"old")
    give_away(path, os.geteuid(), 5678)
    path.chmod(0o6754)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    monkeypatch.setattr(os, "fchown", refuse)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (path.stat().st_gid, mode_of(path)) == (os.getegid(), 0o4744)
    give_away(path, os.geteuid(), 5678)
    set_acl(path, [(tag, 4 if tag == OTHERS else rights, of) for tag, rights, of in AGAINST_TWO])
    run(each_loop, lambda: fs.write_atomic(path, b"newer"))
    # The user or the members of the group that the ACL excludes may be in the new group.
    expected = [(tag, 0 if tag == GROUP_OWNER else rights, of) for tag, rights, of in AGAINST_TWO]
    assert acl_of(path) == expected


def test_a_file_created_meanwhile_keeps_its_mode(
    each_loop: Loop, folder: Path, monkeypatch: pytest.MonkeyPatch, disabled: str
) -> None:
    path = folder / "file"
    # The link of an unnamed file fails if the file exists; the rename of a named one does not.
    last = "write" if disabled else "fsync"
    method = getattr(RawFile, last)

    async def make(*args: Any) -> None:
        await method(*args)
        if not path.exists():
            path.touch(0o600)

    monkeypatch.setattr(RawFile, last, make)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (mode_of(path), path.read_bytes()) == (0o600, b"new")


def test_a_python_without_extended_attributes_keeps_the_mode(
    each_loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("getxattr", "setxattr", "removexattr"):
        monkeypatch.delattr(os, name)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    run(each_loop, lambda: fs.write_atomic(path, b"new"))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)
