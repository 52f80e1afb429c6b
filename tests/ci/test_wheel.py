""".ci/wheel: a wheel for each Python and set of variables, built only if something has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "wheel"
# In place of the project: builds at once, and writes a line for each build.
SETUP = """
from setuptools import setup
if "bdist_wheel" in __import__("sys").argv:
    with open("builds", "a") as builds:
        builds.write("built\\n")
setup(name="example", version="1", packages=["uringloop"])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROGRAM.exists() and find_spec("Cython") and find_spec("setuptools")),
        reason='building needs Cython and setuptools: pip install ".[test]"',
    ),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROGRAM, tmp_path / ".ci")
    (tmp_path / "setup.py").write_text(SETUP)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_text("")
    (tmp_path / "uringloop").mkdir()
    (tmp_path / "uringloop" / "__init__.py").write_text("")
    return tmp_path


def wheel(project: Path, *variables: str, **environment: str) -> Path:
    """Run the program; return the wheel whose path it has printed."""
    done = subprocess.run(
        [sys.executable, project / ".ci" / "wheel", *variables],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.removesuffix("\n"))


def builds(project: Path) -> int:
    return len((project / "builds").read_text().splitlines())


def test_a_wheel_is_built_once_and_again_after_a_change(project: Path) -> None:
    made = wheel(project)
    assert made.exists()
    assert (wheel(project), builds(project)) == (made, 1)
    (project / "uringloop" / "__init__.py").write_text("changed = True")
    assert (wheel(project), builds(project)) == (made, 2)
    assert (wheel(project, CFLAGS="-O0"), builds(project)) == (made, 3)


def test_each_set_of_variables_has_a_wheel_of_its_own(project: Path) -> None:
    release = wheel(project)
    debug = wheel(project, "URINGLOOP_DEBUG=1")
    assert debug != release
    assert (wheel(project), wheel(project, "URINGLOOP_DEBUG=1")) == (release, debug)
    assert builds(project) == 2


def test_a_build_that_fails_ends_the_program_and_is_not_kept(project: Path) -> None:
    (project / "setup.py").write_text("raise SystemExit('no compiler')")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError) as failure:
            wheel(project)
        assert failure.value.stdout == ""
        assert "no compiler" in failure.value.stderr
