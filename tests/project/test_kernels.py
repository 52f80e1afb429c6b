""".ci/kernels with --ends and --resets: the numbers of a kernel's console, and what fails it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.loops import each_ring, on_io_uring

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "net" / "unix_ends.c"
RESETS = ROOT / "tests" / "net" / "resets.py"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program of .ci, which has no suffix, and leave no compiled file beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), f"{ROOT}/.ci/{name}")
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up.
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(("lost", "wrong"), [(0, 0), (1, 0), (0, 1)])
def test_rounds_of_ends_are_summed_and_a_lost_one_fails(
    lost: int, wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = script("kernels", monkeypatch)
    told: list[tuple[str, object]] = [
        ("doctor", {"kernel": "7.2.13 #1"}),
        ("ends", ["MULTISHOT", "close", 100, 5, 0]),
        ("ends", ["WATCHED", "close", 1000, 0, 0]),
        ("ends", ["WATCHED", "close", 1000, lost, wrong]),
        ("end", None),
    ]
    log = tmp_path / "console.log"
    log.write_text("".join(f"{kernels.RESULT}{json.dumps(pair)}\n" for pair in told))
    outcome = kernels.outcome_of("sid", log)
    problem = f"close: {lost} of 2000 ends lost, {wrong} wrong"
    assert outcome.problems == ([problem] if lost or wrong else [])
    report = kernels.report_of([outcome])
    assert "| 7.2.13 | MULTISHOT | close | 100 | 5 | 0 |" in report
    assert f"| 7.2.13 | WATCHED | close | 2,000 | {lost} | {wrong} |" in report


@on_io_uring
def test_the_guest_reads_what_the_program_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = script("kernels-guest", monkeypatch)
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
def test_kinds_of_resets_are_listed_and_a_failed_one_fails(
    failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = script("kernels", monkeypatch)
    numbers = {"kind": "inet 4 with new", "peers": 200, "lost": 200 - failed, "failed": failed}
    told = [("doctor", {"kernel": "7.2.13 #1"}), ("resets", numbers), ("end", None)]
    log = tmp_path / "console.log"
    log.write_text("".join(f"{kernels.RESULT}{json.dumps(pair)}\n" for pair in told))
    outcome = kernels.outcome_of("sid", log)
    assert outcome.problems == ([f"resets: {numbers}"] if failed else [])
    row = f"| 7.2.13 | inet 4 with new | 200 | {200 - failed} | {failed} |"
    assert row in kernels.report_of([outcome])


@pytest.mark.slow
@each_ring
def test_no_connection_stays_open_behind_a_reset(backend: str) -> None:
    program = [sys.executable, str(RESETS), "--count=200", "--only=4 with", f"--backend={backend}"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kinds) == 2 * 3
    assert all(kind["lost"] == kind["peers"] >= 200 for kind in kinds)
