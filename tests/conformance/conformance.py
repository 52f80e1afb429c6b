"""Runs one module of the interpreter's own test.test_asyncio.

`python conformance.py MODULE LOOP [CLASS...]`, where LOOP is asyncio, uringloop or streams. With
uringloop every loop that the module makes is a uringloop loop: asyncio's names of its selector loop
are replaced by a class that accepts and ignores a selector. With streams its streams are compiled
ones, too. Prints a line of JSON when a test starts
and when it ends, `{"test": ..., "outcome": ..., "detail": ...}`; after a hang or a crash the last
line, with the outcome "started", names the test. CONFORMANCE_SKIPS names tests that do not run.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import selectors
import sys
import unittest
import warnings
from typing import Any

# Seconds that one test may take before the process is ended with a traceback.
TEST_SECONDS = 60


class Reporter(unittest.TestResult):
    """Print the outcome of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.failed_subtests: set[str] = set()

    def say(self, test: unittest.TestCase, outcome: str, detail: str = "") -> None:
        # Flushed at once: tests write to descriptors, fork and exec.
        line = json.dumps({"test": test.id(), "outcome": outcome, "detail": detail})
        print(line, file=sys.__stdout__, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
        self.say(test, "started")

    def addSuccess(self, test: unittest.TestCase) -> None:
        if test.id() not in self.failed_subtests:
            self.say(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.say(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addError(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.failed_subtests.add(test.id())
            self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.say(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.say(test, "passed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.say(test, "failed", "unexpected success")


def replace_selector_loops() -> None:
    """Replace every name under which asyncio makes its selector loop by a uringloop loop."""
    import uringloop

    class Loop(uringloop.Loop):
        def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
            if selector is not None:
                selector.close()
            super().__init__()

    for module in (asyncio, asyncio.unix_events):
        for name in ("SelectorEventLoop", "EventLoop"):
            if hasattr(module, name):
                setattr(module, name, Loop)
    for name in ("_UnixDefaultEventLoopPolicy", "_DefaultEventLoopPolicy"):
        policy = getattr(asyncio.unix_events, name, None)
        if policy is not None:
            policy._loop_factory = Loop


def without(suite: unittest.TestSuite, names: set[str]) -> unittest.TestSuite:
    """Return *suite* without the tests in *names*: a test that hangs would end the others."""
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without(test, names))
        elif test.id().removeprefix("test.test_asyncio.") not in names:
            kept.addTest(test)
    return kept


def chosen(module: str, classes: list[str]) -> unittest.TestSuite:
    """Return the tests of *module*, or of some of its classes."""
    loader = unittest.defaultTestLoader
    whole = loader.loadTestsFromName(f"test.test_asyncio.{module}")
    if not classes:
        return whole
    found = sys.modules[f"test.test_asyncio.{module}"]
    # Some classes exist in some versions of Python only.
    kept = [getattr(found, name) for name in classes if hasattr(found, name)]
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in kept)


def main() -> None:
    module, loop, *classes = sys.argv[1:]
    if loop != "asyncio":
        replace_selector_loops()
    if loop == "streams":
        from uringloop import streams

        streams.install()
    # As CPython's own runner does: some tests expect warnings that a filter would hide.
    warnings.simplefilter("default")
    skipped = set(os.environ.get("CONFORMANCE_SKIPS", "").split())
    without(chosen(module, classes), skipped).run(Reporter())


if __name__ == "__main__":
    main()
