"""Short stresses of loops that threads use; `nox -s threads_stress` runs longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parent / "stress.py"
JOBS = Path(__file__).parent / "jobs.py"


@pytest.mark.slow
def test_threads_that_use_loops_of_other_threads_lose_nothing() -> None:
    command = [sys.executable, str(STRESS), "--seconds", "10", "--threads", "4", "--loops", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "post" in done.stdout


def test_calls_in_threads_run_once_and_have_their_results() -> None:
    command = [sys.executable, "-X", "dev", str(JOBS), "--jobs", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "shutdowns" in done.stdout
