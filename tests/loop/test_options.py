"""The table of options: Loop() and the reference agree with it, and its rules hold for each."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import pytest
from support.leaks import open_fds
from support.sources import ROOT

import uringloop
from uringloop._loop import options
from uringloop._loop.base_loop import BaseLoop
from uringloop._loop.options import TABLE

ARGUMENTS = [option for option in TABLE if option.argument]
VARIABLES = [option for option in TABLE if option.variable]
NUMBERS = [option for option in TABLE if isinstance(option, options.Number)]
SWITCHES = [option for option in TABLE if isinstance(option, options.Switch)]
PATHS = [option for option in TABLE if isinstance(option, options.PlaceOption)]


def name_of(option: options.Option) -> str:
    return option.argument or option.variable


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in VARIABLES:
        monkeypatch.delenv(option.variable, raising=False)


# ── the table ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loop_class", [BaseLoop, uringloop.Loop])
def test_the_table_has_the_arguments_of_a_loop(loop_class: type) -> None:
    parameters = inspect.signature(loop_class).parameters
    assert sorted(parameters) == sorted(option.argument for option in ARGUMENTS)
    for option in ARGUMENTS:
        # None stands for the variable.
        number = isinstance(option, options.Number) and not option.variable
        assert parameters[option.argument].default == (0 if number else None)


def test_the_document_has_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    (rows,) = re.findall(r"^\| Argument \| Variable .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    assert cells == [
        [option.argument, option.variable, option.values, option.default, option.effect]
        for option in TABLE
    ]


# ── the rules ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("option", VARIABLES, ids=name_of)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_counts_as_not_set(
    monkeypatch: pytest.MonkeyPatch, option: options.Option, text: str
) -> None:
    monkeypatch.setenv(option.variable, text)
    assert option.text() == ""
    with contextlib.closing(uringloop.Loop()) as loop:
        assert loop.backend_reason != "asked for by URINGLOOP_BACKEND"


@pytest.mark.parametrize("option", NUMBERS, ids=name_of)
def test_a_number_is_in_its_range(option: options.Number) -> None:
    assert [option.value(number) for number in (0, 1, option.most)] == [0, 1, option.most]
    for number in (-1, option.most + 1):
        message = f"^{option.argument} must be between 0 and {option.most:,}, not {number}$"
        with pytest.raises(ValueError, match=message):
            option.value(number)
    for wrong in ("1", 1.0, [1], *([] if option.variable else [None])):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            option.value(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["often", "-1", "60001", "1.5"])
def test_a_number_of_a_variable_is_in_its_range(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("URINGLOOP_STALL_MS", text)
    message = f"^URINGLOOP_STALL_MS must be between 0 and 60,000, not '{text}'$"
    fds = open_fds()
    with pytest.raises(ValueError, match=message):
        uringloop.Loop()
    assert open_fds() == fds
    uringloop.Loop(stall_ms=0).close()


@pytest.mark.parametrize("option", SWITCHES, ids=name_of)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", False), ("no", False), ("False", False), (" OFF ", False)),
        *(("1", True), ("yes", True), ("TRUE", True), (" on ", True)),
    ],
)
def test_a_switch_of_a_variable_is_a_word_for_yes_or_no(
    monkeypatch: pytest.MonkeyPatch, option: options.Switch, text: str, expected: bool
) -> None:
    assert option.value() is (option.default == "yes")
    monkeypatch.setenv(option.variable, text)
    assert option.value() is expected
    # The argument wins.
    assert option.value(True) is True
    assert option.value(False) is False


@pytest.mark.parametrize("option", SWITCHES, ids=name_of)
def test_another_word_is_an_error_that_names_the_right_ones(
    monkeypatch: pytest.MonkeyPatch, option: options.Switch
) -> None:
    monkeypatch.setenv(option.variable, "Enabled")
    words = "1, yes, true, on, 0, no, false, off"
    with pytest.raises(ValueError, match=f"^{option.variable} must be one of {words}, not 'Enabl"):
        option.value()


@pytest.mark.parametrize("option", PATHS, ids=name_of)
def test_a_wrong_place_is_an_error_that_names_the_right_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: options.PlaceOption
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(option.variable, "trace.txt")
    fds = open_fds()
    with pytest.raises(ValueError, match=f"^{option.variable} must be {option.values}, not 'trace"):
        uringloop.Loop()
    assert open_fds() == fds
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", PATHS, ids=name_of)
@pytest.mark.parametrize(
    ("text", "expected"), [("0", ""), ("off", ""), ("1", "1"), ("True", "1"), ("a:/Off", "a:/Off")]
)
def test_a_place_is_on_or_off_by_the_same_words(
    monkeypatch: pytest.MonkeyPatch, option: options.PlaceOption, text: str, expected: str
) -> None:
    assert option.value() == ""
    monkeypatch.setenv(option.variable, text)
    assert option.value() == expected


def test_a_ring_of_a_variable_may_have_blanks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URINGLOOP_BACKEND", " soft ")
    with contextlib.closing(uringloop.Loop()) as loop:
        assert (loop.backend, loop.backend_reason) == ("soft", "asked for by URINGLOOP_BACKEND")
