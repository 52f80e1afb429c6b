"""The program that measures what CPython's threads cost: its statements run, and it needs two."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uringloop._cpython import gil

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "threads_cpython.py"


def loaded() -> Any:
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("threads_cpython", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks the module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program = loaded()


@pytest.mark.parametrize("name", program.NAMED)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_statement_runs(name: str) -> None:
    if "eager_start" in name and sys.version_info < (3, 14):
        pytest.skip("an eager task finds its loop by itself from Python 3.14 on")
    run = program.NAMED[name].prepared()()
    try:
        run(10)
    finally:
        while program.LOOPS:
            program.LOOPS.pop().close()


def test_statements_have_names_of_their_own() -> None:
    assert len(program.NAMED) == len(program.CASES)


@pytest.mark.slow
def test_the_program_needs_a_python_without_a_gil() -> None:
    command = [sys.executable, str(PROGRAM), "--rounds", "1", "--seconds", "0.01"]
    done = subprocess.run([*command, "--only", "POINT"], capture_output=True, text=True)
    if gil.free_threaded():
        assert done.returncode == 0, done.stderr
        assert "| `POINT.x` | an instance, an int |" in done.stdout
    else:
        assert done.returncode == 1
        assert done.stderr == "needs a free-threaded Python with the GIL off\n"
