"""The programs of the documents: each passes on other loops, and a seed finds its bug."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.inner_pytest import run_pytest

pytest.importorskip("pytest_asyncio")

RACES = Path(__file__).parents[2] / "examples" / "races"
BROKEN = {
    "test_doubled_payment.py::test_bank",
    "test_leaked_connection.py::test_pool",
    "test_lost_wake_up.py::test_mailbox",
}


def run_races(folder: Path, *arguments: str) -> str:
    shutil.copytree(RACES, folder / "races")
    return run_pytest(folder, "races", *arguments)


def test_seeds_find_the_bugs_and_no_others(tmp_path: Path) -> None:
    out = run_races(tmp_path, "-p", "uringloop.pytest_plugin", "--uringloop-seeds=200")
    failed = set(re.findall(r"^FAILED races/(\S+)", out, re.MULTILINE))
    assert failed == BROKEN
    assert "3 failed, 3 passed" in out


def test_all_pass_in_real_time(tmp_path: Path) -> None:
    assert "6 passed" in run_races(tmp_path)
