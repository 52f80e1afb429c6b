"""Runs asynchronous tests under many seeds; a part of `uringloop.pytest_plugin`.

A test is run again and again, with its fixtures, until a seed fails or all have passed, and is
reported once. Fixtures of a wider scope are set up once, for all seeds.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import shlex
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.runner import call_and_report

from uringloop.testing import seeds

# The names of the plugin and of its marker.
NAME = "uringloop-seeds"
MARKER = "uringloop_seeds"
# The fixture with the seed of a run.
FIXTURE = "uringloop_seed"
# The property of a report that has the number of seeds, and the seconds of virtual and real time.
PROPERTY = "uringloop-seeds"

# How pytest begins the report of a strict xfail that has passed.
XPASS_STRICT = "[XPASS(strict)]"

# What `pytest --markers` says.
DESCRIPTION = (
    f"{MARKER}(count=None, **options): run this test under so many seeds, if given, and give its "
    "loops the options of uringloop.testing.Loop"
)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("uringloop", "uringloop: tests under many seeds, in virtual time")
    group.addoption(
        "--uringloop-seeds",
        type=int,
        metavar="COUNT",
        help="run each asynchronous test on a loop for tests, under COUNT seeds, from 0 on",
    )
    group.addoption(
        "--uringloop-first-seed",
        type=int,
        metavar="SEED",
        help="begin the seeds of --uringloop-seeds with this one in place of 0",
    )
    group.addoption(
        "--uringloop-seed",
        type=int,
        metavar="SEED",
        help="run each asynchronous test on a loop for tests, under this seed only",
    )
    group.addoption(
        "--uringloop-order",
        choices=("random", "fifo"),
        help="whether the seed chooses the order in which tasks run (random, the default)",
    )
    group.addoption(
        "--uringloop-trace",
        metavar="FILE",
        help="append to FILE what the loops for tests do",
    )


def check(marker: pytest.Mark, item: pytest.Item) -> None:
    """Raise UsageError for invalid arguments of the marker."""
    count = marker.args[0] if marker.args else marker.kwargs.get("count")
    is_count = count is None or (isinstance(count, int) and count > 0)
    if not is_count or len(marker.args) > 1 or (marker.args and "count" in marker.kwargs):
        raise pytest.UsageError(
            f"{item.nodeid}: {MARKER} takes one number of seeds, at least 1, and options of Loop"
        )


def takes_seeds(item: pytest.Item) -> bool:
    """Return whether *item* is a test function that is a coroutine, or asks for its seed."""
    if FIXTURE in getattr(item, "fixturenames", ()):
        return True
    function = getattr(item, "function", None)
    case = getattr(item, "cls", None) or object
    isolated = issubclass(case, unittest.IsolatedAsyncioTestCase)
    if issubclass(case, unittest.TestCase) and not isolated:
        return False
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inner)


def run_once(
    item: pytest.Item, nextitem: pytest.Item | None, *, is_last: bool
) -> list[pytest.TestReport]:
    """Run a test like pytest's runtestprotocol(), and keep the fixtures of wider scopes.

    They are kept for the next run, unless this one fails or is the last.
    """
    function: Any = item
    # What earlier runs have printed is not this one's.
    function._report_sections.clear()
    if not function._request:
        function._initrequest()
    reports = [call_and_report(item, "setup", log=False)]
    if reports[0].passed and not item.config.getoption("setuponly", False):
        reports.append(call_and_report(item, "call", log=False))
    passed = all(map(has_passed, reports))
    # pytest keeps the fixtures that the next item needs, so name one with the same parents.
    following = copy.copy(item) if passed and not is_last else nextitem
    reports.append(call_and_report(item, "teardown", log=False, nextitem=following))
    forget_finished(item)
    function._request = False
    function.funcargs = None
    if item.cls is not None and not issubclass(item.cls, unittest.TestCase):  # type: ignore[attr-defined]
        # Each run has an instance of its own, as each test has.
        for name in ("_instance", "_obj"):
            item.__dict__.pop(name, None)
    return reports


def forget_finished(item: Any) -> None:
    """Drop what the fixtures of wider scopes keep of each run, as of each test: its fixtures' ends.

    They are over, and after thousands of runs each collection of garbage would visit them.
    """
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        for fixture in fixtures:
            fixture._finalizers[:] = [end for end in fixture._finalizers if not is_over(end)]


def is_over(finalizer: Any) -> bool:
    """Return whether a finalizer is the end of a fixture that has ended."""
    fixture = getattr(getattr(finalizer, "func", None), "__self__", None)
    return isinstance(fixture, pytest.FixtureDef) and fixture.cached_result is None


def has_passed(report: pytest.TestReport) -> bool:
    """Return whether the next seed is to run; a strict xfail that passes may fail with that."""
    return report.passed or str(report.longrepr).startswith(XPASS_STRICT)


@contextmanager
def reseeding(item: pytest.Item, run: seeds.Run) -> Iterator[None]:
    """Let each example of hypothesis begin with the same numbers, on a loop that they share."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None or not inspect.iscoroutinefunction(handle.inner_test):
        yield
        return
    inner = handle.inner_test

    @functools.wraps(inner)
    async def begin_again(*arguments: Any, **options: Any) -> Any:
        seeds.begin_again(run.seed, run.options.get("faults"))
        return await inner(*arguments, **options)

    handle.inner_test = begin_again
    try:
        yield
    finally:
        handle.inner_test = inner


class SeedRuns:
    """The hooks that repeat tests, and the counts of a session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.count: int | None = config.getoption("--uringloop-seeds")
        first: int | None = config.getoption("--uringloop-first-seed")
        self.only: int | None = config.getoption("--uringloop-seed")
        self.order: str | None = config.getoption("--uringloop-order")
        self.trace: str | None = config.getoption("--uringloop-trace")
        if self.count is not None and self.count < 1:
            raise pytest.UsageError("--uringloop-seeds must be at least 1")
        if first is not None and (self.count is None or first < 0):
            raise pytest.UsageError(
                "--uringloop-first-seed needs --uringloop-seeds, and must not be negative"
            )
        self.first = first or 0
        self.totals: list[float] = [0, 0.0, 0.0]
        self.tests = 0
        self.commands: list[str] = []
        # The test that runs, and whether a part of it has failed.
        self.running = ""
        self.part_failed = False

    def plan(self, item: pytest.Item) -> tuple[Sequence[int], dict[str, Any]] | None:
        """Return the seeds of a test and the options of its loops; None to run it as usual."""
        marker = item.get_closest_marker(MARKER)
        options = dict(marker.kwargs) if marker else {}
        count = options.pop("count", None)
        if marker and marker.args:
            (count,) = marker.args
        numbers = self.numbers(count)
        if numbers is None or not takes_seeds(item):
            return None
        if self.order is not None:
            options["order"] = self.order
        if self.trace is not None:
            options["trace"] = self.trace
        return numbers, options

    def numbers(self, count: int | None = None) -> Sequence[int] | None:
        """Return the seeds of a test whose marker has *count*; None if it has none."""
        if self.only is not None:
            return [self.only]
        if self.count is not None:
            return range(self.first, self.first + self.count)
        return None if count is None else range(count)

    def describe(self) -> str | None:
        """Return the seeds of the command line in words; None if it has none."""
        numbers = self.numbers()
        if numbers is None:
            return None
        first, last = numbers[0], numbers[-1]
        named = f"the seed {first}" if first == last else f"the seeds {first} to {last}"
        return f"asynchronous tests on uringloop.testing.Loop, under {named}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers(MARKER):
                check(marker, item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        plan = self.plan(item)
        if plan is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with seeds.garbage_set_aside():
            reports = self.reports(item, nextitem, *plan)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def reports(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        numbers: Sequence[int],
        options: dict[str, Any],
    ) -> list[pytest.TestReport]:
        """Run a test until a seed fails; return the reports of the last seed."""
        totals = [0, 0.0, 0.0]
        reports: list[pytest.TestReport] = []
        last = numbers[-1]
        properties = list(item.user_properties)
        for number in numbers:
            item.user_properties[:] = properties
            self.running = item.nodeid
            self.part_failed = False
            with seeds.run(number, options) as run, reseeding(item, run):
                reports = run_once(item, nextitem, is_last=number == last)
            totals = [totals[0] + 1, totals[1] + run.virtual_s, totals[2] + run.real_s]
            self.running = ""
            if self.part_failed:
                self.commands.append(self.again(item, number))
            if self.part_failed or not all(map(has_passed, reports)):
                self.annotate(item, reports, number)
                break
        reports[0].user_properties.append((PROPERTY, totals))
        return reports

    def annotate(self, item: pytest.Item, reports: list[pytest.TestReport], seed: int) -> None:
        """Say in the reports of a failure how to run its seed again."""
        for report in reports:
            if report.failed:
                report.sections.append(("uringloop", self.again(item, seed)))

    def again(self, item: pytest.Item, seed: int) -> str:
        path, *parts = item.nodeid.split("::")
        path = os.path.relpath(self.config.rootpath / path, self.config.invocation_params.dir)
        where = shlex.quote("::".join([path, *parts]))
        again = f"pytest {where} -p uringloop.pytest_plugin --uringloop-seed={seed}"
        if self.order is not None:
            again += f" --uringloop-order={self.order}"
        return f"seed {seed} failed; again: {again}"

    # ── the summary, in the process that reports ─────────────────────────────────────────────

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid == self.running:
            # A subtest reports by itself, while the test runs.
            self.part_failed = True
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "setup":
                self.tests += 1
                self.add(value)
        for name, text in report.sections:
            if name == "uringloop":
                self.commands.append(text)

    def add(self, totals: Any) -> None:
        self.totals = [old + new for old, new in zip(self.totals, totals, strict=True)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.tests:
            return
        count, virtual, real = self.totals
        terminalreporter.section("uringloop")
        for command in self.commands:
            terminalreporter.line(command)
        terminalreporter.line(
            f"{count} runs of {self.tests} tests: {virtual:,.0f} s of virtual time in {real:,.1f} s"
        )
