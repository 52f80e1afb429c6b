"""The public API is the recorded one, and breaks no program that an earlier release has allowed.

tests/project/public_api has a file for each version. Until a version is released, its file equals
the API of the sources, and `nox -s api -- --record` writes it. The file of a release stays: the
API of the next version is compared with it. docs/about/policies.md has the rules.
"""

from __future__ import annotations

import datetime
import itertools
import shutil
from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="pip install griffelib")

from support import changelog
from support.api_changes import incompatible, is_announced, problem_of
from support.public_api import Api, Names, api, load, main, recorded, versions
from support.sources import PACKAGE

import uringloop
from uringloop import streams

VERSIONS = versions()
NEWEST = VERSIONS[-1]


@pytest.fixture(scope="module")
def present() -> Api:
    return api()


def test_the_newest_record_is_of_this_version() -> None:
    assert changelog.numbers(NEWEST) >= changelog.numbers(uringloop.__version__)


def test_the_api_is_the_recorded_one(present: Api) -> None:
    # If the change is meant, record it with `nox -s api -- --record`.
    assert present == recorded(NEWEST)


@pytest.mark.parametrize(("before", "version"), list(itertools.pairwise(VERSIONS)))
def test_a_version_breaks_only_what_was_announced(before: str, version: str) -> None:
    old, new = recorded(before), recorded(version)
    sections = changelog.read()
    broken = incompatible(old, new)
    assert {it: why for it, why in broken.items() if not is_announced(it, version, sections)} == {}
    if changelog.numbers(before)[:2] == changelog.numbers(version)[:2]:
        # A release that only corrects faults adds nothing either.
        assert old == new


# ── what is read ─────────────────────────────────────────────────────────────────────────────


def test_names_come_from_python_files_stubs_and_private_bases(present: Api) -> None:
    names = present["names"]
    assert names["uringloop.fs.exists"] == "async def f(path: FileDescriptorOrPath) -> bool"
    assert names["uringloop.Loop.stop"] == "def f() -> None"
    assert names["uringloop.BufferedFile.read"].startswith("def f(size: int | None = -1)")
    assert names["uringloop.Loop.sock_recv"].startswith("async def f(")
    assert names["uringloop.testing.Loop"] == "class (uringloop.Loop)"
    assert names["uringloop.sockets.Event.HANGUP"] == "attribute = 4"
    assert "dead_after: float = 30.0" in names["uringloop.monitor.serve"]


def test_private_names_and_those_of_other_modules_are_left_out(present: Api) -> None:
    names = set(present["names"])
    assert not [name for name in names if "._" in name and ".__" not in name]
    assert not {"uringloop.fs.shutil", "uringloop.fs.COPY_BYTES", "uringloop.loop"} & names
    assert "uringloop.Server.__init__" not in names


def test_every_section_has_its_names(present: Api) -> None:
    assert {
        "options": present["options"]["Loop(stall_ms=)"],
        "commands": present["commands"]["python -m uringloop.top --interval"],
        "metrics": present["metrics"]["uringloop_turns_total"],
        "reports": present["reports"]["top loops[] stats turns"],
        "others": present["others"]["transport._sock"],
    } == {
        "options": "0 to 60,000",
        "commands": "SECONDS",
        "metrics": "counter",
        "reports": "int",
        "others": "private name",
    }
    assert "doctor features min_wait" in present["reports"]
    assert "URINGLOOP_HEALTH=...?stacks=" in present["options"]


# ── changes of the sources ───────────────────────────────────────────────────────────────────


# A file, what is replaced in it, and the names that a program can then no longer use as before.
PLANTED: list[tuple[str, str, str, set[str]]] = [
    ("sockets.py", '    "wait",\n]', "]", {"sockets.wait"}),
    ("policy.py", "    streams: bool = False,\n", "", {"run"}),
    ("policy.py", "    *,\n    loop_factory", "    loop_factory", set()),
    ("tls.py", "size: int = 1024", "size: int = 512", {"tls.reuse_sessions"}),
    ("fs.py", "async def getcwd()", "def getcwd()", {"fs.getcwd"}),
    ("fs.py", "def read_bytes(path", "def read_bytes(name", {"fs.read_bytes"}),
    ("fs.py", "def exists(path", "def exists(follow: bool, path", {"fs.exists"}),
    (
        "fs.py",
        "def islink(path: StrOrBytesPath",
        "def islink(path: StrOrBytesPath, *, f: int = 0",
        set(),
    ),
    ("fs.py", "def isdir(path: FileDescriptorOrPath", "def isdir(path: StrOrBytesPath", set()),
    ("_loop/stats.py", "    turns: int\n", "    turns: float\n", {"Stats.turns"}),
    ("_loop/stats.py", "    turns: ", "    restarts: int\n    turns: ", set()),
    (
        "testing/errors.py",
        "DeadlockError(RuntimeError)",
        "DeadlockError(Exception)",
        {"testing.DeadlockError"},
    ),
    (
        "_turn/turn.pyi",
        "    def stop(self)",
        "    def _stop(self)",
        {"Loop.stop", "testing.Loop.stop"},
    ),
    ("_net/socket_events.py", "    WRITE = 2", "    WRITE = 16", {"sockets.Event.WRITE"}),
    ("testing/faults.py", "frozen=True, kw_only=True", "frozen=True", set()),
    (
        "testing/network.py",
        "def partition(self, one: str,",
        "def partition(self, one: str, *,",
        {"testing.Network.partition"},
    ),
    (
        "streams/connections.py",
        "LIMIT = 2**16",
        "LIMIT = 2**15",
        {f"streams.{name}" for name in streams.__all__ if "_" in name},
    ),
    ("loop.py", "class Loop(BaseLoop)", "class Loop(BaseLoop, Resource)", set()),
]


def test_changes_of_the_sources_are_found(tmp_path: Path, present: Api) -> None:
    shutil.copytree(PACKAGE, tmp_path / "uringloop", ignore=shutil.ignore_patterns("*.so", "*.c"))
    for file, old, new, _ in PLANTED:
        path = tmp_path / "uringloop" / file
        text = path.read_text()
        assert old in text, (file, old)
        path.write_text(text.replace(old, new))
    changed = {"names": Names(load(tmp_path)).collect()}
    found = incompatible({"names": present["names"]}, changed)
    assert set(found) == {f"uringloop.{name}" for *_, names in PLANTED for name in names}


# ── changes of declarations ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("def f() -> None", None, "is gone"),
        ("def f() -> None", "attribute: int", "was 'def f() -> None', and is 'attribute: int'"),
        ("def f(a, b)", "def f(b, a)", "moved: a"),
        ("def f(a)", "def f()", "removed: a"),
        ("def f(a)", "def f(*, a)", "kind was changed: a"),
        ("def f(a)", "def f(a, /)", "kind was changed: a"),
        ("def f(a=1)", "def f(a=2)", "default was changed: a"),
        ("def f(a=1)", "def f(a)", "required: a"),
        ("def f()", "def f(a)", "required: a"),
        ("def f()", "def f(*, a)", "required: a"),
        ("async def f()", "def f()", "is now a function"),
        ("def f()", "async def f()", "is now a coroutine function"),
        ("class (A, B)", "class (B)", "has lost the base A"),
        ("attribute: int", "attribute: str", "was 'attribute: int', and is 'attribute: str'"),
        ("attribute: int", "property: int", "was 'attribute: int', and is 'property: int'"),
        ("0 to 60,000", "0 to 1,000", "was '0 to 60,000', and is '0 to 1,000'"),
        ("0 to 60,000", "yes, no", "was '0 to 60,000', and is 'yes, no'"),
        ("auto, io_uring, soft", "auto, soft", "was 'auto, io_uring, soft', and is 'auto, soft'"),
        ("{random,fifo}", "{fifo,lifo}", "was '{random,fifo}', and is '{fifo,lifo}'"),
        ("SECONDS", "MS", "was 'SECONDS', and is 'MS'"),
        ("counter", "gauge", "was 'counter', and is 'gauge'"),
    ],
)
def test_an_incompatible_declaration_is_found(old: str, new: str | None, problem: str) -> None:
    assert problem in problem_of(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(a)", "def f(a, b=1)"),
        ("def f(a)", "def f(a, *, b=1)"),
        ("def f(*, a=1)", "def f(a=1)"),
        ("def f(a: int) -> object", "def f(a: int | str) -> int"),
        ("class (A)", "class (A, B)"),
        ("property: int", "attribute: int"),
        ("0 to 1,000", "0 to 60,000"),
        ("auto, soft", "auto, io_uring, soft"),
        ("{random,fifo}", "{random,fifo,lifo}"),
    ],
)
def test_a_compatible_declaration_is_allowed(old: str, new: str) -> None:
    assert problem_of(old, new) == ""


def test_an_addition_is_allowed_and_a_section_may_not_vanish() -> None:
    old = {"options": {"URINGLOOP_A": "yes, no"}}
    new = {"options": {"URINGLOOP_A": "yes, no", "URINGLOOP_B": "names"}, "metrics": {"m": "gauge"}}
    assert incompatible(old, new) == {}
    assert incompatible(new, old) == {"URINGLOOP_B": "is gone", "m": "is gone"}


# ── what was announced ───────────────────────────────────────────────────────────────────────

ANNOUNCED = """
## 2.0.0, unreleased

### Removed

- `uringloop.old`, in favour of `uringloop.new`.
- `uringloop.late` and `uringloop.never`.

## 1.3.0, 2027-06-01

### Deprecated

- `uringloop.late`.

## 1.2.0, 2027-03-01

### Deprecated

- `uringloop.old`: use `uringloop.new`. `uringloop.kept` as well.

## 1.1.0, 2027-01-01
"""


def announced(name: str, version: str = "2.0.0", day: str = "2028-03-01") -> bool:
    sections = changelog.read(ANNOUNCED.replace("2.0.0, unreleased", f"{version}, {day}"))
    return is_announced(name, version, sections)


def test_a_removal_is_announced_for_two_minor_releases_and_a_year() -> None:
    assert announced("uringloop.old")
    assert not announced("uringloop.old", day="2028-02-01")
    assert not announced("uringloop.late", day="2029-01-01")


def test_a_removal_needs_a_new_major_version() -> None:
    assert not announced("uringloop.old", version="1.4.0")


def test_a_removal_that_the_changelog_does_not_name_is_not_announced() -> None:
    assert not announced("uringloop.kept")
    assert not announced("uringloop.never")


def test_a_version_without_a_date_counts_as_of_today() -> None:
    sections = changelog.read(ANNOUNCED)
    assert sections["2.0.0"].released is None
    assert sections["1.2.0"].released == datetime.date(2027, 3, 1)
    waited = datetime.date.today() >= datetime.date(2028, 2, 29)
    assert is_announced("uringloop.old", "2.0.0", sections) == waited


def test_the_record_of_a_release_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    released = {"1.0.0": changelog.Section(datetime.date(2027, 1, 1))}
    monkeypatch.setattr(changelog, "read", lambda: released)
    with pytest.raises(SystemExit, match=r"1\.0\.0 is released"):
        main("1.0.0")
