"""`tests/support/run_again.py`, by which .ci/run runs a test that fails again, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import run_again

PROGRAM = Path(run_again.__file__)
CI_RUN = PROGRAM.parents[2] / ".ci" / "run"

pytestmark = pytest.mark.slow

# Fails at its first call in any process, as an accident does.
FAILS_ONCE = """
def fails_once():
    mark = Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        print("what the test printed")
        raise ValueError("an accident")
"""
ACCIDENT = FAILS_ONCE + "def test_accident(): fails_once()"
SETUP = "@pytest.fixture\ndef made(): fails_once()\ndef test_accident(made): pass"


@dataclass
class Outcome:
    status: int
    printed: str
    summary: str


def outcome(folder: Path, tests: str, *options: str) -> Outcome:
    """Run the tests of a file that consists of *tests*."""
    path = folder / "test_file.py"
    path.write_text(f"import os, pytest\nfrom pathlib import Path\n{tests}\ndef test_fine(): pass")
    (folder / "conftest.py").touch()
    summary = folder / "summary"
    # Without the variables of the pytest that runs this test.
    environment = {name: each for name, each in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, PROGRAM, summary, "-p", "no:cacheprovider", path.name, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, summary.read_text() if summary.exists() else "")


def test_a_run_that_passes_runs_nothing_again(tmp_path: Path) -> None:
    done = outcome(tmp_path, "")
    assert (done.status, done.summary) == (0, "")
    assert "1 passed" in done.printed
    assert "again" not in done.printed


@pytest.mark.parametrize("tests", [ACCIDENT, FAILS_ONCE + SETUP], ids=["call", "setup"])
def test_an_accident_is_run_again_alone_and_named(tmp_path: Path, tests: str) -> None:
    done = outcome(tmp_path, tests)
    assert done.status == 0, done.printed
    assert done.summary.startswith("UNSTABLE test_file.py::test_accident (Python 3.")
    assert "passed alone at try 1" in done.summary
    assert "ValueError: an accident" in done.summary
    assert "what the test printed" in done.summary
    assert "1 passed in" in done.printed


def test_a_test_is_tried_three_times(tmp_path: Path) -> None:
    counted = """
def test_counted():
    with open("count", "a+") as file:
        file.write("x")
        file.seek(0)
        assert len(file.read()) == {}
"""
    done = outcome(tmp_path, counted.format(4))
    assert done.status == 0, done.printed
    assert "passed alone at try 3" in done.summary
    (tmp_path / "count").unlink()
    (tmp_path / "summary").unlink()
    done = outcome(tmp_path, counted.format(5))
    assert (done.status, done.summary) == (1, "")


def test_a_parameter_with_spaces_is_one_test(tmp_path: Path) -> None:
    tests = "@pytest.mark.parametrize('x', ['a b - c', 'a'])\ndef test_accident(x): fails_once()"
    done = outcome(tmp_path, FAILS_ONCE + tests)
    assert done.status == 0, done.printed
    assert done.summary.startswith("UNSTABLE test_file.py::test_accident[a b - c] (")


# Each fails every time, or could only be hidden by a second run.
STAYS = {
    "always": "def test_wrong(): assert False",
    "accident beside one that stays": ACCIDENT + "\ndef test_wrong(): assert False",
    "collection": FAILS_ONCE + "fails_once()",
    "crash": "def test_wrong(): os.abort()",
    "exit with status 1": "def test_wrong(): os._exit(1)",
    "exit with status 0": "def test_wrong(): os._exit(0)",
    "crash once": FAILS_ONCE
    + "def test_wrong():\n    try: fails_once()\n    except ValueError: os.abort()",
    "accident, then a crash": FAILS_ONCE + "def test_wrong():\n    fails_once()\n    os.abort()",
    "teardown once": FAILS_ONCE
    + "@pytest.fixture\ndef made():\n    yield\n    fails_once()\ndef test_wrong(made): pass",
    "teardown behind an accident": FAILS_ONCE
    + "@pytest.fixture\ndef made():\n    yield\n    assert False\n"
    + "def test_wrong(made): fails_once()",
    "too many": "@pytest.mark.parametrize('x', range(11))\ndef test_wrong(x):\n"
    + "    mark = Path(f'mark-{x}')\n    if not mark.exists():\n        mark.touch()\n"
    + "        raise ValueError",
    "skipped when alone": FAILS_ONCE + "def test_wrong():\n    fails_once()\n    pytest.skip()",
}


@pytest.mark.parametrize("tests", STAYS.values(), ids=STAYS)
def test_what_a_second_run_would_hide_fails(tmp_path: Path, tests: str) -> None:
    assert outcome(tmp_path, tests).status != 0


@pytest.mark.parametrize("tests", [STAYS["crash once"], STAYS["always"], STAYS["teardown once"]])
def test_several_processes_hide_nothing(tmp_path: Path, tests: str) -> None:
    assert outcome(tmp_path, tests, "--numprocesses=2").status != 0


def test_an_accident_in_another_process_is_run_again(tmp_path: Path) -> None:
    done = outcome(tmp_path, ACCIDENT, "--numprocesses=2")
    assert done.status == 0, done.printed
    assert "passed alone at try 1" in done.summary


def test_a_run_that_was_stopped_fails(tmp_path: Path) -> None:
    done = outcome(tmp_path, ACCIDENT, "--exitfirst")
    assert done.status == 1
    assert "not run again: stopped" in done.printed


@pytest.mark.parametrize("option", ["--no-such-option", "--deselect=test_file.py::test_fine"])
def test_a_run_without_tests_fails(tmp_path: Path, option: str) -> None:
    assert outcome(tmp_path, "", option).status > 1


@pytest.mark.skipif(not CI_RUN.exists(), reason="needs .ci of a clone")
@pytest.mark.parametrize("status", [0, 3])
def test_the_last_lines_of_ci_run_name_the_unstable(tmp_path: Path, status: int) -> None:
    text = CI_RUN.read_text()
    head = text[text.index("step()") : text.index("# The Makefile installs")]
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "unstable.log").write_text("of an earlier run")
    program = f'{head}\necho "UNSTABLE a test" >>"${{PYTEST#* }}"\necho passed\nexit {status}'
    done = subprocess.run(
        ["bash", "-ceu", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, "")
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("passed", "UNSTABLE a test")
