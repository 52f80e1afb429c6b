"""The Makefile creates and removes its own environments, never one that a user has made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"

pytestmark = pytest.mark.skipif(
    not (MAKEFILE.exists() and shutil.which("make")),
    reason="needs make, and the Makefile of a clone",
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile and an environment as the README's Install makes it."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "uringloop").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = elsewhere")
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without the variables of the make that runs this test.
    inherited = ("MAKE", "MFLAGS", "VENV")
    own = {name: each for name, each in os.environ.items() if not name.startswith(inherited)}
    return subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={sys.executable}", *arguments],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("target", ["bench", "test"])
def test_make_does_not_use_the_environment_of_the_readme(clone: Path, target: str) -> None:
    done = make(clone, "--dry-run", target)
    assert "-m venv .venv-make" in done.stdout
    # Matches .venv, not .venv-make.
    assert not re.search(r"(?<![\w-])\.venv(?![\w-])", done.stdout)


def test_ci_chooses_the_program_that_runs_the_tests(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What make needs to reach the tests' own recipe.
    for name in ("setup.py", "pyproject.toml"):
        (clone / name).touch()
    # By the environment, as .ci/run does.
    monkeypatch.setenv("PYTEST", "run_again.py build/unstable.log")
    done = make(clone, "--dry-run", "test")
    assert done.stdout.count("bin/python run_again.py build/") == 1
    assert "-m pytest" not in done.stdout


def test_clean_removes_only_files_of_make(clone: Path) -> None:
    (clone / ".venv-make").mkdir()
    (clone / "build").mkdir()
    done = make(clone, "clean")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in clone.iterdir()) == [".venv", "Makefile", "uringloop"]
    assert (clone / ".venv" / "pyvenv.cfg").exists()


def test_an_environment_of_a_user_is_not_replaced(clone: Path) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    done = make(clone, "VENV=.venv", f".venv/python-{version}")
    assert done.returncode != 0
    assert ".venv is not an environment of make's" in done.stderr
    assert (clone / ".venv" / "pyvenv.cfg").exists()
