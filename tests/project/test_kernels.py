""".ci/kernels: what a wheel's name says, the guest's files, and the results on a console."""

from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.loops import each_ring, on_io_uring

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "net" / "unix_ends.c"
RESETS = ROOT / "tests" / "net" / "resets.py"


@pytest.fixture(autouse=True)
def _kernels_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))


def part(name: str) -> ModuleType:
    return importlib.import_module(f"kernels.{name}")


@pytest.mark.parametrize(("lost", "wrong"), [(0, 0), (1, 0), (0, 1)])
def test_rounds_of_ends_are_summed_and_a_lost_one_fails(
    lost: int, wrong: int, tmp_path: Path
) -> None:
    results = part("results")
    told: list[tuple[str, object]] = [
        ("doctor", {"kernel": "7.2.13 #1"}),
        ("ends", ["MULTISHOT", "close", 100, 5, 0]),
        ("ends", ["WATCHED", "close", 1000, 0, 0]),
        ("ends", ["WATCHED", "close", 1000, lost, wrong]),
        ("end", None),
    ]
    log = tmp_path / "console.log"
    log.write_text("".join(f"{results.RESULT}{json.dumps(pair)}\n" for pair in told))
    outcome = results.outcome_of("sid", log)
    problem = f"close: {lost} of 2000 ends lost, {wrong} wrong"
    assert outcome.problems == ([problem] if lost or wrong else [])
    report = part("report").report_of([outcome])
    assert "| 7.2.13 | MULTISHOT | close | 100 | 5 | 0 |" in report
    assert f"| 7.2.13 | WATCHED | close | 2,000 | {lost} | {wrong} |" in report


@on_io_uring
def test_the_guest_reads_what_the_program_prints(tmp_path: Path) -> None:
    guest = part("guest")
    program = tmp_path / "unix-ends"
    compiler = ["cc", str(SOURCE), "-o", str(program), "-pthread", "-l:liburing.a"]
    try:
        subprocess.run(compiler, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a C compiler and liburing's static library")
    done = subprocess.run(
        [program, "SINGLE", "100", "SHUT_WR"], capture_output=True, text=True, check=True
    )
    found = guest.ENDS_LINE.findall(done.stdout)
    assert len(found) == len(done.stdout.splitlines()) > 0
    assert {(mode, end) for mode, end, *_ in found} == {("SINGLE", "SHUT_WR")}
    # Of each size, a quarter is ended on the same processor, and fractions are dropped.
    assert sum(int(count) for _, _, count, _, _ in found) == 100


@pytest.mark.parametrize("failed", [False, True])
def test_kinds_of_resets_are_listed_and_a_failed_one_fails(failed: bool, tmp_path: Path) -> None:
    results = part("results")
    numbers = {"kind": "inet 4 with new", "peers": 200, "lost": 200 - failed, "failed": failed}
    told = [("doctor", {"kernel": "7.2.13 #1"}), ("resets", numbers), ("end", None)]
    log = tmp_path / "console.log"
    log.write_text("".join(f"{results.RESULT}{json.dumps(pair)}\n" for pair in told))
    outcome = results.outcome_of("sid", log)
    assert outcome.problems == ([f"resets: {numbers}"] if failed else [])
    row = f"| 7.2.13 | inet 4 with new | 200 | {200 - failed} | {failed} |"
    assert row in part("report").report_of([outcome])


@pytest.mark.parametrize(
    ("tags", "version", "architecture", "platforms"),
    [
        ("cp311-cp311-linux_x86_64", "3.11", "x86_64", ["linux_x86_64"]),
        ("cp314-cp314t-manylinux_2_28_aarch64", "3.14t", "aarch64", ["manylinux_2_28_aarch64"]),
        (
            "cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
            *("3.12", "x86_64", ["manylinux_2_27_x86_64", "manylinux_2_28_x86_64"]),
        ),
        ("cp313-cp313-musllinux_1_2_aarch64", "3.13", "aarch64", ["musllinux_1_2_aarch64"]),
    ],
)
def test_a_wheels_name_says_where_it_runs(
    tags: str, version: str, architecture: str, platforms: list[str]
) -> None:
    wheel = part("wheel").wheel_of(Path(f"asyncio_uringloop-1.0.0-{tags}.whl"))
    assert (wheel.version, wheel.architecture, wheel.platforms) == (
        *(version, architecture, platforms),
    )
    assert wheel.is_for_musl() == ("musl" in tags)


@pytest.mark.parametrize("name", ["pytest-9.0-py3-none-any.whl", "a-1-cp313-cp313-win_amd64.whl"])
def test_other_wheels_are_refused(name: str) -> None:
    with pytest.raises(part("base").KernelsError, match="for Linux"):
        part("wheel").wheel_of(Path(name))


def test_files_of_the_first_folder_win(tmp_path: Path) -> None:
    image = part("image")
    first, second, stage = (tmp_path / name for name in ("first", "second", "stage"))
    for folder in (first, second):
        (folder / "lib" / "test").mkdir(parents=True)
        (folder / "lib" / "libc.so.6").write_text(folder.name)
        (folder / "lib" / "test" / "left_out.py").touch()
    (second / "lib" / "libc.so").symlink_to("/lib/libc.so.6")
    # A distribution with a merged /usr.
    (stage / "usr" / "lib").mkdir(parents=True)
    (stage / "lib").symlink_to("usr/lib")
    image.add(first, stage)
    image.add(second, stage)
    assert (stage / "usr" / "lib" / "libc.so.6").read_text() == "first"
    assert str((stage / "lib" / "libc.so").readlink()) == "/lib/libc.so.6"
    assert not list(stage.rglob("left_out.py"))


def test_a_dynamic_linker_is_where_the_interpreter_names_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_bytes(b"\x7fELF\0/home/me/musl/ld-musl-aarch64.so.1\0libc.so\0")
    part("image").add_dynamic_linker(tmp_path, program)
    link = tmp_path / "home" / "me" / "musl" / "ld-musl-aarch64.so.1"
    assert str(link.readlink()) == "/lib/ld-musl-aarch64.so.1"
    # It is there already in most cases.
    part("image").add_dynamic_linker(tmp_path, program)


def test_of_the_wheels_for_another_processor_the_newest_for_debian_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = part("cli")
    other = part("base").ARCHITECTURES["aarch64" if os.uname().machine == "x86_64" else "x86_64"]
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(cli, "WHEELS", (tmp_path,))
    with pytest.raises(part("base").KernelsError, match=f"no wheel for {other.name}"):
        cli.default_wheel(other)
    for age, tag in enumerate(("cp313-manylinux_2_28", "cp311-manylinux_2_28", "cp314t-linux")):
        wheel = tmp_path / f"a-1-{tag[:5]}-{tag}_{other.name}.whl"
        wheel.touch()
        os.utime(wheel, (0, age))
    (tmp_path / f"a-1-cp313-cp313-musllinux_1_2_{other.name}.whl").touch()
    assert cli.default_wheel(other).name == f"a-1-cp311-cp311-manylinux_2_28_{other.name}.whl"


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all files, as the kernel's initramfs/buffer-format.rst says."""
    found = {}
    at = 0
    while archive[at:].strip(b"\0"):
        # Archives may be padded between each other.
        at += len(archive[at:]) - len(archive[at:].lstrip(b"\0"))
        assert archive[at : at + 6] == b"070701"
        _, mode, _, _, _, _, size, _, _, _, _, name_size, _ = (
            int(archive[start : start + 8], 16) for start in range(at + 6, at + 110, 8)
        )
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        content = at + (110 + name_size + 3) // 4 * 4
        found[name] = (mode, archive[content : content + size])
        at = content + (size + 3) // 4 * 4
    return found


def test_an_initramfs_has_the_files_of_all_folders(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / folder.name).write_text("odd" * len(folder.name))
        (folder / f"link-{folder.name}").symlink_to(f"bin/{folder.name}")
    (folders[0] / "bin" / "first").chmod(0o700)
    image = part("image").pack(folders, tmp_path / "image").read_bytes()
    assert entries(image) == {
        "bin": (stat.S_IFDIR | 0o755, b""),
        "bin/first": (stat.S_IFREG | 0o755, b"odd" * 5),
        "bin/second": (stat.S_IFREG | 0o644, b"odd" * 6),
        "link-first": (stat.S_IFLNK | 0o777, b"bin/first"),
        "link-second": (stat.S_IFLNK | 0o777, b"bin/second"),
        "TRAILER!!!": (0, b""),
    }


@pytest.mark.slow
@each_ring
def test_no_connection_stays_open_behind_a_reset(backend: str) -> None:
    program = [sys.executable, str(RESETS), "--count=200", "--only=4 with", f"--backend={backend}"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kinds) == 2 * 3
    assert all(kind["lost"] == kind["peers"] >= 200 for kind in kinds)
