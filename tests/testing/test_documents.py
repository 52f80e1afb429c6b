"""The page docs/reference/testing.md is complete, and has the types and defaults of the source."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from support.documents import ROOT

import uringloop
from uringloop import pytest_plugin, testing
from uringloop.testing import pytest_seeds

TEXT = (ROOT / "docs" / "reference" / "testing.md").read_text()

# A row of a table of arguments: the name, the types and the default.
Row = tuple[str, list[str], str]


def section(heading: str) -> str:
    """Return what is below *heading*, up to the next heading of its level or above."""
    begin = re.search(rf"^(#+) {re.escape(heading)}\n", TEXT, re.M)
    assert begin is not None, heading
    rest = TEXT[begin.end() :]
    end = re.search(rf"^#{{1,{len(begin[1])}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def rows(heading: str, columns: int) -> list[list[str]]:
    """Return the tables below *heading* that have so many columns, without their heads."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| `")]
    every = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for cells in every if len(cells) == columns]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def arguments_of(heading: str) -> list[Row]:
    return [(spans(it[0])[0], spans(it[1]), spans(it[2])[0]) for it in rows(heading, 4)]


def names_in(heading: str, columns: int) -> list[str]:
    return [spans(cells[0])[0] for cells in rows(heading, columns)]


def row_of(name: str, annotation: str, default: object) -> Row:
    """Return the row of a parameter or a field; *annotation* is its text."""
    types = re.split(r" \| |, ", re.sub(r"Literal\[(.*)\]", r"\1", annotation))
    return name, types, "math.inf" if default == math.inf else repr(default)


def rows_of(parameters: Iterable[inspect.Parameter]) -> list[Row]:
    return [row_of(it.name, it.annotation, it.default) for it in parameters]


def fields_of(data: Any) -> list[Row]:
    return [row_of(it.name, str(it.type), it.default) for it in dataclasses.fields(data)]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def public_names(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_every_public_name_of_the_module_has_its_place() -> None:
    classes = {f"testing.{name}" for name in testing.__all__}
    errors = {f"testing.{name}" for name in names_in("Errors", 3)}
    assert classes == set(re.findall(r"^## (testing\.\w+)$", TEXT, re.M)) | errors


def test_the_arguments_of_the_loop() -> None:
    assert arguments_of("testing.Loop") == rows_of(parameters_of(testing.Loop))


def test_what_the_loop_adds_to_other_loops() -> None:
    added = public_names(testing.Loop) - set(dir(uringloop.Loop)) | {"network"}
    named = [name.removeprefix("loop.") for name in names_in("testing.Loop", 2)]
    assert {name.partition("(")[0] for name in named} == added
    for name in named:
        if "(" in name:
            check_call(testing.Loop, name)
    assert f"{testing.Loop.START_S}" in section("testing.Loop")


def check_call(of: type, call: str) -> None:
    """Check the arguments of a method, as the page writes it: `reset(one, other)`."""
    name, _, arguments = call.partition("(")
    signature = inspect.signature(getattr(of, name))
    parameters = [str(it.replace(annotation=it.empty)) for it in signature.parameters.values()]
    assert ", ".join(parameters[1:]) == arguments.removesuffix(")"), call


def test_every_fault() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(testing.Faults)}
    named = names_in("testing.Faults", 2) + names_in("testing.Faults", 3)
    assert sorted(named) == sorted(fields)
    assert set(fields.values()) == {0.0}
    assert "is 0.0 by default" in " ".join(section("testing.Faults").split())


def test_faults_that_a_correct_program_does_not_notice_are_the_first_ones() -> None:
    fields = [field.name for field in dataclasses.fields(testing.Faults)]
    named = names_in("Faults that a correct program does not notice", 2)
    assert set(named) == set(fields[: len(named)])


def test_the_network() -> None:
    assert arguments_of("testing.Network") == rows_of(parameters_of(testing.Network))
    calls = [name.removeprefix("network.") for name in names_in("testing.Network", 2)]
    assert {call.partition("(")[0] for call in calls} == public_names(testing.Network)
    for call in calls:
        check_call(testing.Network, call)


def test_the_route() -> None:
    assert arguments_of("testing.Route") == fields_of(testing.Route)
    others = public_names(testing.Route) - {name for name, *_ in fields_of(testing.Route)}
    assert {f"route.{name}" for name in others} <= set(spans(section("testing.Route")))


class Options:
    """Takes the place of pytest's parser, and notes the options."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def getgroup(self, *names: str) -> Options:
        return self

    def addoption(self, name: str, **attributes: Any) -> None:
        types = attributes.get("choices") or [attributes.get("type", str).__name__]
        # The parser of pytest is argparse's, which has the same default.
        default = argparse.ArgumentParser().add_argument(name, **attributes).default
        self.rows.append((name, list(types), repr(default)))


def test_the_options_of_pytest() -> None:
    options = Options()
    pytest_plugin.pytest_addoption(options)  # type: ignore[arg-type]
    assert arguments_of("Options") == options.rows
    known = {name for name, *_ in options.rows}
    assert set(re.findall(r"--uringloop-[a-z-]+", TEXT)) == known


def test_the_marker_and_the_fixture_of_pytest() -> None:
    signature, _, _ = pytest_seeds.DESCRIPTION.partition(":")
    assert f"`{signature}`" in section(f"The marker {pytest_seeds.MARKER}")
    assert hasattr(pytest_plugin, pytest_seeds.FIXTURE)
    assert f"def test_main({pytest_seeds.FIXTURE})" in section(
        f"The fixture {pytest_seeds.FIXTURE}"
    )
