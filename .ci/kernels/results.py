"""What one kernel has printed on its console, and the problems in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from kernels.base import RELEASES, ROOT
from kernels.guest import RESULT

COMPLAINTS = re.compile(r"BUG:|Oops|Kernel panic|WARNING: |blocked for more than|Out of memory")


@dataclass
class Outcome:
    release: str
    wheel: str = ""
    seconds: float = 0.0
    # The guest's processor, C library and page size, and what the doctor says.
    machine: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    suites: dict[str, dict[str, object]] = field(default_factory=dict)
    # For each receive and kind of end, the numbers of ends, of lost ends and of wrong ends.
    ends: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    # The numbers of each kind of reset, as tests/net/resets.py printed them.
    resets: list[dict[str, object]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def expected(self) -> str:
        return RELEASES[self.release]

    @property
    def kernel(self) -> str:
        return str(self.facts.get("kernel", "?")).split()[0]


def outcome_of(release: str, log: Path) -> Outcome:
    """Parse the console's log and compare the results with the expected ones."""
    outcome = Outcome(release)
    text = log.read_text(errors="replace").replace("\r", "")
    ended = False
    for line in text.splitlines():
        if line.startswith(RESULT):
            kind, value = json.loads(line.removeprefix(RESULT))
            take(outcome, kind, value)
            ended = ended or kind == "end"
        elif COMPLAINTS.search(line) and re.match(r"\[ *\d+\.\d+\]", line):
            outcome.problems.append(f"the kernel: {line}")
    if not ended:
        outcome.problems.append(f"the run did not end: see {log.relative_to(ROOT)}")
    find_problems(outcome)
    return outcome


def take(outcome: Outcome, kind: str, value: object) -> None:
    """Add a result of the guest to *outcome*."""
    match kind, value:
        case "machine", dict(machine):
            outcome.machine = machine
        case "doctor", dict(facts):
            outcome.facts = facts
        case "check", {"name": str(name), "problem": str(problem)}:
            outcome.checks[name] = problem
        case "suite", dict(suite):
            outcome.suites[str(suite["backend"])] = suite
        case "ends", [str(mode), str(end), int(count), int(lost), int(wrong)]:
            sums = outcome.ends.get((mode, end), [0, 0, 0])
            added = zip(sums, (count, lost, wrong), strict=True)
            outcome.ends[mode, end] = [before + more for before, more in added]
        case "resets", dict(numbers):
            outcome.resets.append(numbers)


def find_problems(outcome: Outcome) -> None:
    outcome.problems += [f"{name}: {why}" for name, why in outcome.checks.items() if why]
    # A multishot without the poll may lose ends: it shows whether the kernel has the fault.
    outcome.problems += [
        f"{end}: {lost} of {count} ends lost, {wrong} wrong"
        for (mode, end), (count, lost, wrong) in outcome.ends.items()
        if mode == "WATCHED" and lost + wrong
    ]
    outcome.problems += [f"resets: {n}" for n in outcome.resets if n["failed"]]
    for backend, suite in outcome.suites.items():
        failed = suite["failed"]
        assert isinstance(failed, list)
        outcome.problems += [f"{backend}: {test}" for test in failed]
        if suite["status"] != 0 and not failed:
            outcome.problems.append(f"{backend}: pytest ended with status {suite['status']}")
