"""The comparison of thread pools runs, and has a figure for each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "executor_threads.py"


def test_each_pool_has_a_rate_for_each_number_of_threads() -> None:
    command = [sys.executable, str(PROGRAM), "--rounds", "1", "--calls", "500"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = table.splitlines()[2:]
    assert len(rows) == 4
    for row in rows:
        assert len(re.findall(r"\| \d+ (?=\|)", row)) == 4
