"""Runs pytest, and each test that fails again alone: `run_again.py SUMMARY [options of pytest]`.

On a busy machine one test of ten thousand fails by accident. Such a test is run again, in a process
of its own, up to three times. If all that fail then pass, the run passes, and SUMMARY gets each
one's name and the output of its first failure, for the last lines of .ci/run.

Everything else fails as before, because a second run could hide it: an error in a fixture's
teardown (a leak, perhaps of an earlier test), an error in collection, a run that was stopped or has
crashed, and more failures than accidents cause.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TRIES = 3
# A broken tree would take hours to fail otherwise.
FAILURES_MAX = 10
# Tells this program to run pytest itself, in the process of the tests.
INSIDE = "--inside"


# pytest keeps its plug-ins in sets.
@dataclass(eq=False)
class Record:
    """A plug-in that notes how a session ends; *only* is the one test to run, or empty for all."""

    only: str
    # The output of each test that failed before its teardown.
    failed: dict[str, str] = field(default_factory=dict)
    # What must not be run again.
    final: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only:
            items[:] = [item for item in items if item.nodeid == self.only]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.final.append(f"{report.nodeid}: error in collection")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            if report.failed:
                self.final.append(f"{report.nodeid}: error in teardown")
        elif report.failed and report.when not in ("setup", "call"):
            # pytest-xdist says so of the test in which a worker has crashed.
            self.final.append(f"{report.nodeid}: the interpreter has crashed")
        elif report.failed:
            sections = [f"-- {title} --\n{text}" for title, text in report.sections]
            self.failed[report.nodeid] = "\n".join([report.longreprtext, *sections])
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldstop or session.shouldfail:
            self.final.append(f"stopped: {session.shouldstop or session.shouldfail}")


def run_inside(path: str, only: str, options: Sequence[str]) -> int:
    """Run pytest in this process, and write the record to *path*."""
    record = Record(only)
    alone = ["--numprocesses", "0"] if only else []
    status = int(pytest.main([*options, *alone], plugins=[record]))
    Path(path).write_text(json.dumps(vars(record)))
    return status


def run(options: Sequence[str], only: str = "") -> tuple[int, Record]:
    """Run pytest in a process of its own, and return its exit status and its record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record")
        command = [sys.executable, __file__, INSIDE, str(path), only, *options]
        status = subprocess.run(command, check=False).returncode
        if path.exists():
            return status, Record(**json.loads(path.read_text()))
    # An interpreter that faulthandler or a test has ended has status 1, too.
    return status, Record(only, final=["the interpreter has crashed"])


def passes_alone(test: str, options: Sequence[str]) -> int:
    """Return at which try *test* passes, or 0 if it never does."""
    for attempt in range(1, TRIES + 1):
        print(f"\n── again, alone ({attempt} of {TRIES}): {test} ──", flush=True)
        status, record = run(options, test)
        if record.final:
            return 0
        if status == pytest.ExitCode.OK and record.passed == [test]:
            return attempt
    return 0


def describe(test: str, attempt: int, output: str) -> str:
    """Return the lines about an unstable test for the summary."""
    ring = os.environ.get("URINGLOOP_BACKEND", "auto")
    place = f"Python {platform.python_version()}, ring {ring}"
    return f"UNSTABLE {test} ({place}): failed, and passed alone at try {attempt}\n{output}\n\n"


def reason_to_fail(status: int, record: Record) -> str:
    """Return why a failed run fails for good, or nothing if its failures may be accidents."""
    if record.final:
        return "; ".join(record.final)
    if status != pytest.ExitCode.TESTS_FAILED or not record.failed:
        return f"pytest ended with status {status}"
    if len(record.failed) > FAILURES_MAX:
        return f"{len(record.failed)} tests failed, more than {FAILURES_MAX}"
    return ""


def main(summary: str, options: Sequence[str]) -> int:
    status, record = run(options)
    if status == pytest.ExitCode.OK and not record.final:
        return 0
    if reason := reason_to_fail(status, record):
        print(f"\nnot run again: {reason}", flush=True)
        return status or 1
    for test, output in record.failed.items():
        attempt = passes_alone(test, options)
        if not attempt:
            print(f"\n{test} does not pass alone", flush=True)
            return status
        with open(summary, "a", encoding="utf-8") as file:
            file.write(describe(test, attempt, output))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == INSIDE:
        sys.exit(run_inside(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
