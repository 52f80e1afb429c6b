"""The report of all kernels, in Markdown: build/kernels.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernels.results import Outcome

SUITES = (
    *("Processor", "Debian release", "Kernel", "Pages", "C library", "Python", "Wheel", "Ring"),
    *("Passed", "Skipped", "Failed", "Seconds"),
)
KERNELS = (
    *("Debian release", "Kernel", "Ring that `auto` chose", "Features used", "Features absent"),
    "Cases of `kernel.io_uring_disabled` with the expected effect",
)
ENDS = ("Kernel", "Receive", "End", "Ends", "Lost", "Wrong")


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a table, or none if it has no rows."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    heads = list(heads)
    return ["", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *lines] if lines else []


def suites(outcome: Outcome) -> Iterator[list[object]]:
    """Yield a row for each ring that the suite ran on."""
    machine = outcome.machine
    for backend, suite in outcome.suites.items():
        failed = suite["failed"]
        assert isinstance(failed, list)
        yield [
            *(machine.get("processor", "?"), outcome.release, outcome.kernel),
            *(machine.get("pages", "?"), machine.get("libc", "?")),
            *(outcome.facts.get("python", "?"), f"`{outcome.wheel}`", backend),
            *(suite["passed"], suite["skipped"], len(failed), suite.get("seconds", "?")),
        ]


def kernel(outcome: Outcome) -> list[object]:
    states = outcome.facts.get("features", {})
    assert isinstance(states, dict)
    used = [name for name, state in states.items() if state == "used"]
    absent = [name for name, state in states.items() if state == "absent"]
    sysctls = [why for name, why in outcome.checks.items() if name.startswith("kernel.")]
    return [
        *(outcome.release, outcome.kernel, outcome.facts.get("backend", "?")),
        *(", ".join(used) or "none", ", ".join(absent) or "none"),
        f"{sysctls.count('')} of {len(sysctls)}" if sysctls else "no such setting",
    ]


def report_of(outcomes: list[Outcome]) -> str:
    facts = next((outcome.facts for outcome in outcomes if outcome.facts), {})
    versions = (facts.get(name, "?") for name in ("uringloop", "liburing"))
    lines = [
        "# Kernels",
        "",
        "`nox -s kernels` booted these kernels in qemu, by emulation.",
        "This run used uringloop {} and liburing {}.".format(*versions),
    ]
    lines += table(SUITES, (row for outcome in outcomes for row in suites(outcome)))
    lines += table(KERNELS, map(kernel, outcomes))
    ends = (
        (outcome.kernel, *key, *values) for outcome in outcomes for key, values in ends_of(outcome)
    )
    lines += table(ENDS, ends)
    resets = [{"kernel": one.kernel, **numbers} for one in outcomes for numbers in one.resets]
    lines += table(resets[0] if resets else (), (row.values() for row in resets))
    for outcome in outcomes:
        if outcome.checks or outcome.problems:
            lines += ["", f"## {outcome.release}: {outcome.seconds:.0f} s", ""]
        for name, why in outcome.checks.items():
            lines.append(f"- {name}: {why or 'as expected'}")
        lines += [f"- PROBLEM: {problem}" for problem in outcome.problems]
    return "\n".join(lines) + "\n"


def ends_of(outcome: Outcome) -> Iterator[tuple[tuple[str, str], list[str]]]:
    for key, numbers in outcome.ends.items():
        yield key, [f"{number:,}" for number in numbers]
