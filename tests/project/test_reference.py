"""The pages of the reference are complete: variables, commands, metrics and public names.

Each table of a page is compared with the code that it describes. tests/loop/test_options.py does
that for the options of a loop.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.documents import matches, prose, spans
from support.metrics import instruments, kinds_of_prometheus
from support.reference_pages import (
    COMMANDS,
    EXTRAS,
    REFERENCE,
    names_in,
    of_commands,
    statuses,
    table,
)
from support.sources import PACKAGE, ROOT, module_of

import uringloop
from uringloop import __main__, top
from uringloop._loop import options
from uringloop._loop.stats import COUNTERS, GAUGES, HISTOGRAM, Stats
from uringloop._net.servers import Drained
from uringloop._net.socket_events import Event
from uringloop.monitor import command_line, otel
from uringloop.testing.pytest_seeds import MARKER

CONFIGURATION = REFERENCE / "configuration.md"
METRICS = REFERENCE / "metrics.md"
API = REFERENCE / "api.md"
PROMETHEUS = ROOT / "docs" / "how-to" / "prometheus.md"
DASHBOARD = ROOT / "examples" / "dashboard.json"

# A command that starts Python takes a second at most; other tests may run at the same time.
TIME_LIMIT_S = 60


# ── variables ────────────────────────────────────────────────────────────────────────────────

VARIABLE = re.compile(r"URINGLOOP_[A-Z_]+")


def variables_of(path: Path) -> Iterator[str]:
    """Yield the variables whose names are strings of a file: that is how the code reads them."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and VARIABLE.fullmatch(value):
                yield value
    else:
        yield from re.findall(rf"[\"']({VARIABLE.pattern})[\"']", path.read_text())


def test_the_page_has_the_variables_that_are_read_and_no_other() -> None:
    installed = {
        name
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".pyx")
        for name in variables_of(path)
    }
    of_the_build = set(variables_of(ROOT / "setup.py"))
    assert installed == {option.variable for option in options.TABLE} - {""}
    assert {"URINGLOOP_DEBUG", "URINGLOOP_CFLAGS"} <= of_the_build
    named = {name for span in spans(CONFIGURATION) for name in VARIABLE.findall(span)}
    assert named == installed | of_the_build


def test_a_variable_that_is_read_is_found(tmp_path: Path) -> None:
    programs = {"module.py": 'os.environ["URINGLOOP_A"]', "module.pyx": 'f("URINGLOOP_A")'}
    for name, text in programs.items():
        path = tmp_path / name
        path.write_text(f"# URINGLOOP_B\n{text}\n")
        assert list(variables_of(path)) == ["URINGLOOP_A"]


# ── commands ─────────────────────────────────────────────────────────────────────────────────

PLUGIN = "uringloop.pytest_plugin"


HELPS = of_commands()


def modules_with_a_program() -> Iterator[str]:
    """Yield the modules that are commands: `uringloop.x`, and those of the workers."""
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__main__.py"), *PACKAGE.glob("workers/*")]:
        if path.suffix == ".py" and '\nif __name__ == "__main__":' in path.read_text():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__main__")


def test_every_command_is_on_the_page_and_in_the_list() -> None:
    modules = set(modules_with_a_program())
    assert {f"uringloop.{name}" for name in __main__.TOOLS} | {"uringloop"} == modules
    commands = {f"python -m {module}" for module in modules} | {f"pytest -p {PLUGIN}"}
    assert set(HELPS) == commands
    rows = table(COMMANDS, "Command", "Purpose", "Needs")
    assert [names_in(row[0]) for row in rows] == [[name] for name in HELPS]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as in a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "COLUMNS": "80", "PYTHONSAFEPATH": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


def words(text: str) -> str:
    """Return a text without its layout, which differs between versions of argparse."""
    return " ".join(text.split())


def missing_package(module: str) -> str:
    """Return the server that a module of the workers needs, if it is not installed, else ""."""
    if ".workers." not in module:
        return ""
    server = module.rpartition(".")[2].removesuffix("_server")
    return "" if find_spec(server) else server


@pytest.mark.parametrize("module", sorted(modules_with_a_program()))
def test_the_page_has_the_help_of_a_command(module: str) -> None:
    if package := missing_package(module):
        assert run("-m", module, "--help").returncode == 1
        pytest.skip(f"{package} is not installed")
    done = run("-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert matches(words(HELPS[f"python -m {module}"].text), words(done.stdout)), done.stdout


@pytest.mark.parametrize("module", sorted(modules_with_a_program()))
def test_the_usage_of_a_command_names_its_module(module: str) -> None:
    if package := missing_package(module):
        pytest.skip(f"{package} is not installed")
    usage = run("-m", module, "--help").stdout.splitlines()[0].lower()
    # From 3.14 on, argparse names the interpreter in the usage of a command that names nothing.
    assert re.match(rf"usage: python[\d.t]* -m {re.escape(module)}\b", usage), usage


def test_the_page_has_the_options_of_the_pytest_plugin() -> None:
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-p", PLUGIN, "--help")
    # pytest has written them with a blank in the place of the equals sign.
    shown, printed = (
        words(text).replace("=", " ") for text in (HELPS[f"pytest -p {PLUGIN}"].text, done.stdout)
    )
    assert shown in printed
    assert f"{MARKER}(" in (REFERENCE / "testing.md").read_text()


@pytest.mark.parametrize("module", sorted(modules_with_a_program()))
def test_wrong_arguments_have_the_status_that_the_page_names(module: str) -> None:
    if package := missing_package(module):
        pytest.skip(f"{package} is not installed")
    done = run("-m", module, "--frobnicate")
    assert (done.returncode, done.stdout) == (command_line.REFUSED, "")


def test_the_page_has_the_exit_statuses() -> None:
    assert (command_line.REFUSED, top.ENDED) == (2, 3)
    assert statuses() == {
        "python -m uringloop": ["0", "2"],
        "python -m uringloop.doctor": ["0", "1", "2"],
        "python -m uringloop.top": ["0", "1", "2", "3"],
        # tests/tools/test_bench.py sends the signals.
        "python -m uringloop.bench": ["0", "1", "2", "130", "143"],
        "python -m uringloop.testing": ["0", "1", "2"],
        "python -m uringloop.as_uvloop": ["2", "any"],
    }


def test_traces_have_the_exit_statuses_that_the_page_names(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a\n")
    other.write_text("b\n")
    compare = ("-m", "uringloop.testing", str(one))
    found = [run(*compare, str(path)).returncode for path in (one, other, tmp_path / "none")]
    assert found == [0, 1, 2]


def test_a_program_on_as_uvloop_has_its_own_exit_status() -> None:
    command = ("-m", "uringloop.as_uvloop")
    assert run(*command, "-c", "raise SystemExit(7)").returncode == 7
    assert run(*command, "no-such-program").returncode == 2


# ── metrics ──────────────────────────────────────────────────────────────────────────────────


def metrics() -> list[list[str]]:
    return table(METRICS, "`stats()`", "Metric", "Type, unit")


def test_the_table_has_every_key_of_stats_once() -> None:
    keys = [name for row in metrics() for name in names_in(row[0])]
    assert sorted(keys) == sorted(Stats.__annotations__)
    assert set(keys) == set(COUNTERS) | set(GAUGES) | HISTOGRAM


def test_the_table_has_every_metric_with_its_type() -> None:
    kinds = kinds_of_prometheus()
    found = {
        name: row[2].partition(",")[0]
        for row in metrics()
        for name in names_in(row[1])
        if name.startswith("uringloop_")
    }
    assert found == kinds


def test_a_key_and_its_metric_are_in_one_row() -> None:
    for row in metrics():
        for key in names_in(row[0]):
            if key in COUNTERS or key in GAUGES:
                assert any(name.startswith(f"uringloop_{key}") for name in names_in(row[1])), row


def test_the_table_has_every_instrument_of_opentelemetry() -> None:
    made = instruments()
    # Those that have the name of a key are described by a rule below the table.
    by_rule = {f"uringloop.{name}" for name in (*COUNTERS, *GAUGES)}
    assert by_rule <= set(made)
    for name, about in ((f"uringloop.{key}", key) for key in (*COUNTERS, *GAUGES)):
        assert made[name][0] == ("counter" if about in COUNTERS else "gauge")
    named = [
        name.removesuffix(".p50")
        for row in metrics()
        for name in names_in(row[1])
        if name.startswith("uringloop.")
    ]
    others = {re.sub(r"\.(p\d+|max)$", "", name) for name in set(made) - by_rule}
    assert sorted(named) == sorted(others)
    parts = {name.rpartition(".")[2] for name in made if name.startswith("uringloop.turn.")}
    assert parts == set(otel.QUANTILES)
    assert all(f"`.{part}`" in METRICS.read_text() for part in parts)


def test_each_metric_has_a_meaning_and_what_to_do() -> None:
    for row in metrics():
        assert len(row) == 5, row
        assert all(row[1:]), row


def test_alerts_and_graphs_use_existing_metrics_as_their_types_allow() -> None:
    kinds = kinds_of_prometheus()
    text = PROMETHEUS.read_text()
    kind_of: dict[str, str] = {}
    for name in set(re.findall(r"\buringloop_\w+", text)):
        # A histogram has no series of its own name.
        histogram = re.fullmatch(r"(\w+)_(?:bucket|sum|count)", name)
        kind_of[name] = kinds[histogram[1]] if histogram else kinds[name]
        assert (kind_of[name] == "histogram") == bool(histogram), name
    assert len(kind_of) > 10
    for function, name in re.findall(r"\b(rate|increase|delta)\((\w+)", text):
        assert (kind_of[name] == "gauge") == (function == "delta"), (function, name)


def test_each_alert_has_a_severity_and_selects_its_service() -> None:
    (rules,) = re.findall(r"^groups:\n(.*?)^```", PROMETHEUS.read_text(), re.DOTALL | re.MULTILINE)
    alerts = re.split(r"^ +- alert: ", rules, flags=re.MULTILINE)[1:]
    assert len(alerts) > 5
    for alert in alerts:
        labels = re.findall(r"^ +labels: (.+)$", alert, re.MULTILINE)
        assert labels in [[f"{{severity: {word}}}"] for word in ("page", "warning", "info")], alert
        # The annotations name no series; a comment behind them belongs to the next alert.
        expression, _, _ = alert.partition("annotations:")
        series = re.findall(r"\b(?:up|uringloop_\w+|kube_\w+)(?:\{(\w+)=)?", expression)
        assert series, alert
        assert set(series) <= {"job", "container"}, alert


def test_the_dashboard_draws_the_graphs_of_the_page() -> None:
    board = json.loads(DASHBOARD.read_text())
    drawn = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    selector = '{job="$job"}'
    rows = table(PROMETHEUS, "To see", "Draw")
    expressions = [name for row in rows for name in names_in(row[1])]
    assert [expression.replace(selector, "") for expression in drawn] == expressions
    assert all(expression.count(selector) == 1 for expression in drawn)
    assert {"datasource", "job"} == {variable["name"] for variable in board["templating"]["list"]}


# ── the policies ─────────────────────────────────────────────────────────────────────────────

POLICIES = ROOT / "docs" / "about" / "policies.md"


def test_the_policies_have_the_pythons_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = re.findall(r"Python :: (3\.\d+)'", str(project["classifiers"]))
    assert [row[0] for row in table(POLICIES, "Python", "Supported until")] == supported
    assert project["requires-python"] == f">={supported[0]}"


def test_the_policies_have_the_extras_that_are_recorded() -> None:
    extras = next(row[1] for row in table(POLICIES, "Part", "Public") if row[0] == "extras")
    assert tuple(names_in(extras)) == EXTRAS


# ── the API ──────────────────────────────────────────────────────────────────────────────────

DIRECTIVE = re.compile(
    r"^ *\.\. (?:auto)?(?:class|function|method|attribute|property|data|exception|module):: "
    r"(?:[\w.]*\.)?(\w+)",
    re.MULTILINE,
)


# The members that autodoc takes from a module: those that the directive names, or all of them.
AUTOMODULE = re.compile(r"^\.\. automodule:: ([\w.]+)\n +:members:(.*)", re.MULTILINE)


def described() -> set[str]:
    """Return the names that the page describes, without those of their modules."""
    text = API.read_text()
    names = set(DIRECTIVE.findall(text))
    for module, members in AUTOMODULE.findall(text):
        names.update(members.split(", ") if members else importlib.import_module(module).__all__)
    return {name.strip() for name in names}


def public_modules() -> list[str]:
    """Return the public modules: those that have `__all__`, except in private packages."""
    return [
        f"uringloop.{module_of(path)}".removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if "\n__all__ = [" in path.read_text() and not module_of(path).startswith("_as_uvloop")
    ]


def own(found: type, *bases: type) -> set[str]:
    """Return the public names of a class that none of *bases* has."""
    of_bases = {name for base in bases for name in dir(base)}
    return {name for name in dir(found) if not name.startswith("_")} - of_bases


def test_the_page_has_what_the_loop_adds_to_asyncio() -> None:
    asyncio = importlib.import_module("asyncio")
    added = own(uringloop.Loop, asyncio.BaseEventLoop, asyncio.SelectorEventLoop)
    # asyncio's loop has this attribute, too, but not its class.
    assert added - {"slow_callback_duration"} <= described()
    assert own(uringloop.Server, asyncio.Server) <= described()
    assert own(uringloop.StreamTransport, asyncio.Transport) <= described()


@pytest.mark.parametrize("name", public_modules())
def test_the_page_has_every_public_name_of_a_module(name: str) -> None:
    if ".workers." in name:
        assert f"`{name}.Worker`" in prose(API)
        return
    module = importlib.import_module(name)
    assert set(module.__all__) <= described()
    assert name == "uringloop" or f"module:: {name}\n" in API.read_text()


def test_a_name_that_is_not_described_is_found() -> None:
    assert {"read_bytes", "merged", "recv_fds", "DeadlockError"} <= described()
    assert not {"decoded", "in_thread", "examine_all"} & described()


def test_the_page_has_the_members_of_results_and_events() -> None:
    names = described()
    assert set(Drained._fields) <= names
    assert set(Event.__members__) <= names
    values = re.findall(r"attribute:: ([A-Z]+)\n +:value: (\d+)", API.read_text())
    assert {name: int(value) for name, value in values} == dict(Event.__members__)


def test_the_page_has_the_classes_of_the_workers_and_the_fixture() -> None:
    text = API.read_text()
    for path in (PACKAGE / "workers").glob("*.py"):
        if re.search(r"^class Worker\(", path.read_text(), re.MULTILINE):
            assert f"`uringloop.workers.{path.stem}.Worker`" in prose(API), path.stem
    assert f"`{MARKER}" in text
    assert "`uringloop_seed`" in text
