"""pytest's plugin for a run on the core alone: `nox -s core`.

Tests that need a neighbour of the core are skipped: those of a module that imports one, and those
that name one in their code, or in the strings, and the functions and classes of their module, that
they use. A run of all tests in which more than a tenth is skipped for this reason fails.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from support.core import NEIGHBOURS

# The public names that are not the core's, and modules of them.
ABSENT = sorted(NEIGHBOURS | {"connect_file", "open", "run_threads"})
NAMED = re.compile(rf"\buringloop(?:\.| import )(?:{'|'.join(ABSENT)})\b")
REASON = "needs a neighbour of the core"
# A run of one folder passes fewer tests.
MANY = 5000


class Finder:
    """Skips a module of tests that imports what is absent."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] == "uringloop":
            pytest.skip(REASON, allow_module_level=True)


sys.meta_path.append(Finder)


def names_in(thing: FunctionType | type) -> Iterator[str]:
    """Yield the names that the code of a function, or of a class's methods, uses."""
    members = vars(thing).values() if isinstance(thing, type) else [inspect.unwrap(thing)]
    codes = [member.__code__ for member in members if isinstance(member, FunctionType)]
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def texts_of(thing: Any, module: ModuleType, seen: set[int]) -> Iterator[str]:
    """Yield *thing*, if it is a string, or its source and those of what it uses of *module*."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, str):
        yield thing
    if not isinstance(thing, (FunctionType, type)) or thing.__module__ != module.__name__:
        return
    yield inspect.getsource(thing)
    places = [module, *(value for value in vars(module).values() if is_support(value))]
    for name in names_in(thing):
        for place in places:
            yield from texts_of(vars(place).get(name), module, seen)


def is_support(thing: Any) -> bool:
    return isinstance(thing, ModuleType) and thing.__name__.startswith("support.")


def needs_a_neighbour(item: pytest.Function) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    used = [item.function, *(definition.func for found in fixtures for definition in found)]
    seen: set[int] = set()
    for function in used:
        module = sys.modules[function.__module__]
        if any(NAMED.search(text) for text in texts_of(function, module, seen)):
            return True
    return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and needs_a_neighbour(item):
            item.add_marker(pytest.mark.skip(reason=REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats
    skipped = [report for report in reports.get("skipped", []) if REASON in str(report.longrepr)]
    terminalreporter.write_line(f"{len(skipped)} skipped: {REASON}")
    passed = len(reports.get("passed", []))
    if passed > MANY and 10 * len(skipped) > passed:
        raise pytest.UsageError("too many tests need neighbours of the core")
