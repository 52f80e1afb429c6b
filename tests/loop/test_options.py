"""The table of options: Loop() and the reference agree with it, and its rules hold for each."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import pytest
from support import seccomp
from support.leaks import open_fds
from support.sources import ROOT

import uringloop
from uringloop import doctor, testing
from uringloop._cpython import stdlib
from uringloop._loop import options
from uringloop._loop.base_loop import BaseLoop
from uringloop._loop.options import TABLE
from uringloop.monitor import health_settings

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
    (rows,) = re.findall(r"^\| Option \| Values .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    assert cells == [
        [
            ", ".join(f"`{name}`" for name in (option.argument, option.variable) if name),
            option.values,
            option.default,
            option.effect,
            option.read,
            option.ring,
        ]
        for option in TABLE
    ]


def test_the_document_has_the_settings_of_health() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    (rows,) = re.findall(r"^\| Setting \| Values .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    defaults = inspect.signature(uringloop.monitor.serve).parameters
    assert [row[0] for row in cells] == list(health_settings.SETTINGS)
    for name, values, default, _ in cells:
        usual = defaults[name].default
        if values == "yes, no":
            assert default == ("yes" if usual else "no")
        else:
            assert float(default) == usual


# ── when, and on which ring ──────────────────────────────────────────────────────────────────


def test_the_kernel_of_an_option_is_that_of_its_feature() -> None:
    newest = "both; io_uring from Linux {}.{}".format(*doctor.SINCE["min_wait"])
    assert options.BATCH_WAIT_US.ring == newest


def test_the_software_ring_ignores_the_options_of_the_other() -> None:
    ignored = {"ring_files": False, "sqpoll": 1, "sqpoll_cpu": 0}
    names_of_them = {option.argument for option in TABLE if option.ring == options.IO_URING_ONLY}
    assert ignored.keys() == names_of_them
    names = threads_of_kernel()
    with contextlib.closing(uringloop.Loop(backend="soft", **ignored)) as loop:  # type: ignore[arg-type]
        assert loop.backend == "soft"
        assert threads_of_kernel() == names


def threads_of_kernel() -> set[str]:
    """Return the names of this process's threads that poll a submission queue."""
    tasks = Path("/proc/self/task")
    names = {(task / "comm").read_text().strip() for task in tasks.iterdir()}
    return {name for name in names if name.startswith("iou-sqp")}


@pytest.mark.parametrize(
    "option", [it for it in VARIABLES if it.variable != "URINGLOOP_DISABLE"], ids=name_of
)
def test_a_variable_is_read_when_the_table_says(
    monkeypatch: pytest.MonkeyPatch, option: options.Option
) -> None:
    # Not the first loop of this process: those of the first loop are checked by each one.
    uringloop.Loop().close()
    monkeypatch.setenv(option.variable, "nonsense")
    if option.read == options.IMPORT:
        uringloop.Loop().close()
        done = seccomp.run("-c", "import uringloop", **{option.variable: "nonsense"})
        assert f"ValueError: {option.variable} must be" in done.stderr
        return
    with pytest.raises(ValueError, match=option.variable):
        uringloop.Loop()


def test_each_new_loop_reads_which_parts_are_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.DISABLE.read == options.EACH_LOOP
    before = stdlib.report()["stream_reader"]
    monkeypatch.setenv("URINGLOOP_DISABLE", "nonsense")
    with pytest.raises(ValueError, match=r"^URINGLOOP_DISABLE: nonsense is none of"):
        uringloop.Loop()
    monkeypatch.setenv("URINGLOOP_DISABLE", "stream_reader")
    uringloop.Loop().close()
    assert stdlib.report()["stream_reader"] == "disabled"
    monkeypatch.delenv("URINGLOOP_DISABLE")
    uringloop.Loop().close()
    assert stdlib.report()["stream_reader"] == before


# ── the rules ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "option", [one for one in VARIABLES if one.read != options.IMPORT], ids=name_of
)
def test_a_server_finds_a_wrong_variable_before_its_workers_do(
    option: options.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(option.variable, "nonsense")
    with pytest.raises(ValueError, match=option.variable):
        options.check()


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


@pytest.mark.parametrize("option", [one for one in SWITCHES if one.argument], ids=name_of)
@pytest.mark.parametrize("given", ["no", "yes", "", 0, 1, []], ids=repr)
def test_an_argument_for_yes_or_no_is_a_bool(option: options.Switch, given: object) -> None:
    fds = open_fds()
    with pytest.raises(TypeError) as caught:
        uringloop.Loop(**{option.argument: given})  # type: ignore[arg-type]
    assert str(caught.value) == f"{option.argument} must be True or False, not {given!r}"
    assert open_fds() == fds


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
    for loop_class in (uringloop.Loop, testing.Loop):
        with pytest.raises(
            ValueError, match=f"^{option.variable} must be {option.values}, not 'trace"
        ):
            loop_class()
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
