"""The core without its neighbours: it imports none of them, and its loops run without them.

A folder of links to its packages, with a front of its own, is a package without neighbours. The
compiled modules of neighbours are there nevertheless, because all compiled modules are in one file:
`nox -s core` builds and tests the core without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.core import FRONT, NEIGHBOURS, parts_of_the_core
from support.loops import each_ring
from support.roles import PATIENCE
from test_imports import package_of

import uringloop
from uringloop._cpython import loading

PACKAGE = Path(uringloop.__file__).parent
PROGRAM = Path(__file__).parents[1] / "support" / "core_program.py"
# Goes before the front. At the end of a program it prints which modules of the package were
# imported, present or absent.
WATCHER = """
import atexit
import sys

wanted = []

class Watcher:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("uringloop."):
            wanted.append(name)

sys.meta_path.insert(0, Watcher)
atexit.register(lambda: print(*wanted))
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with a package that is the core alone."""
    package = tmp_path / "uringloop"
    package.mkdir()
    (package / "__init__.py").write_text(WATCHER + FRONT)
    for source in (Path(loading.FILE), *parts_of_the_core(PACKAGE)):
        (package / source.name).symlink_to(source)
    return tmp_path


def run_program(folder: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *program* with the package in *folder*, and without any other installed package."""
    return subprocess.run(
        [sys.executable, "-S", "-P", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@each_ring
def test_the_core_runs_without_its_neighbours(core: Path, backend: str) -> None:
    done = run_program(core, PROGRAM, backend)
    assert (done.returncode, done.stderr) == (0, "")
    imported = done.stdout.split()
    assert "uringloop._net.sendfile" in imported
    packages = {package_of(name.removeprefix("uringloop.")) for name in imported}
    assert packages & NEIGHBOURS == set()


def test_a_neighbour_is_missed_in_the_core(core: Path) -> None:
    program = core / "program.py"
    program.write_text("import uringloop._net.sendfile, uringloop.files.operation")
    done = run_program(core, program)
    assert "No module named 'uringloop.files'" in done.stderr
