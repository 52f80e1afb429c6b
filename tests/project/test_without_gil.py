"""No module of the package switches the GIL on where Python was built to run without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import uringloop
from uringloop._cpython import gil

PROGRAM = Path(__file__).parents[1] / "support" / "every_part.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not gil.free_threaded(), reason="this Python is a build with a GIL"),
]


def lines_of(folder: Path, *options: str, **variables: str) -> list[str]:
    """Run the program that uses every part, and return what it prints."""
    # The variable would keep the GIL off whatever is imported.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    done = subprocess.run(
        [sys.executable, *options, str(PROGRAM), str(folder)],
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_part_of_the_package_runs_without_the_gil(tmp_path: Path) -> None:
    modules, state = lines_of(tmp_path, "-W", "error")
    assert state == "GIL off"
    public = set(dir(uringloop)) - set(uringloop.__all__) - {"pytest_plugin"}
    assert {f"uringloop.{name}" for name in public} <= set(modules.split())


def test_the_program_notices_a_gil(tmp_path: Path) -> None:
    # If it could not, the test above could not fail.
    assert lines_of(tmp_path, "-W", "ignore", PYTHON_GIL="1")[-1] == "GIL on"
