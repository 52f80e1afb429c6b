"""The table of CPython's internals that uringloop uses: complete, correct, without stale rows."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import relied_on
from relied_on import REQUIRED, TABLE, Row
from support.sources import LIBRARY, PACKAGE, ROOT, name_of

from uringloop._cpython import stdlib

SOURCES = [path for path in LIBRARY if path.suffix != ".pyi"]
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
CYTHON = [path for path in SOURCES if path.suffix in (".pyx", ".pxd")]
C_SOURCES = [path for path in SOURCES if path.suffix in (".h", ".c", ".pyx", ".pxd")]

PRIVATE = re.compile(r"_[a-z]\w*$|_[A-Z]\w*[a-z]\w*$")

# namedtuple's method is documented; the others are names of pytest, nest_asyncio and uvicorn.
OTHERS = {"_replace", "_fixtureinfo", "_nest_patched", "_install_sigquit_handler"}
# pytest's, for plugins that run an item again, as pytest-rerunfailures does.
OTHERS |= {"_report_sections", "_initrequest", "_instance", "_obj", "_finalizers"}
# aiohttp's, for the end of its workers' servers.
OTHERS |= {"_server", "_get_valid_log_format", "_current_request"}
# A documented function of the standard library.
OTHERS |= {"_exit"}
# What files keep for a loop, in the loop's dictionary (FilesOfLoop).
OTHERS |= {"_files"}

WORDS = {
    word for row in TABLE for name in (row.owner, *row.names.split()) for word in name.split(".")
}


def names_of(row: Row) -> list[str]:
    return row.names.split()


# ── the rows ─────────────────────────────────────────────────────────────────────────────────


def test_every_row_has_a_gain_a_replacement_and_a_version() -> None:
    for row in TABLE:
        assert row.gain, row
        assert row.without, row
        assert re.fullmatch(r"\d\.\d+", row.since), row
        assert row.switch is None or not row.without.startswith(REQUIRED), row


def test_no_name_is_in_two_rows() -> None:
    named = [(row.owner, name) for row in TABLE for name in names_of(row)]
    assert sorted({one for one in named if named.count(one) > 1}) == []


def test_every_switch_has_a_row_and_every_row_a_known_switch() -> None:
    assert {row.switch for row in TABLE if row.switch} == set(stdlib.SWITCHES)


def test_every_switch_is_documented() -> None:
    (page,) = re.findall(
        r"^## `URINGLOOP_DISABLE`$(.*?)(?:^## |\Z)",
        (ROOT / "docs" / "reference" / "configuration.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(stdlib.SWITCHES)


# ── this Python ──────────────────────────────────────────────────────────────────────────────


def version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def is_expected(row: Row) -> bool:
    """Return whether the Python that runs is one of those that have the row's names."""
    running = sys.version_info[:2]
    return version(row.since) <= running and (row.until is None or running <= version(row.until))


def owner_of(path: str) -> object:
    """Return the module or class that a dotted path names; None if there is none."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None


def words_of(owner: type) -> set[str]:
    """Return the names of a class and those that its methods use: fields are set in methods."""
    words = set(dir(owner))
    for name, value in inspect.getmembers_static(owner):
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        code = getattr(function, "__code__", None)
        words |= set(code.co_names) if code is not None else set()
        words.add(name)
    return words


def has(row: Row, name: str) -> bool:
    if row.owner == "":
        return isinstance(owner_of(name), types.ModuleType)
    with warnings.catch_warnings():
        # Policies are deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        owner = owner_of(row.owner)
    if isinstance(owner, type):
        return name in words_of(owner)
    return hasattr(owner, name)


PYTHON_NAMES = [
    pytest.param(row, name, id=f"{row.owner}.{name}".lstrip("."))
    for row in TABLE
    if row.owner != relied_on.C
    for name in names_of(row)
]


@pytest.mark.parametrize(("row", "name"), PYTHON_NAMES)
def test_a_name_is_there_or_its_replacement_is_used(row: Row, name: str) -> None:
    if has(row, name):
        return
    assert not row.without.startswith(REQUIRED) or not is_expected(row)
    if row.switch is not None:
        assert stdlib.report()[row.switch] != "used"
    # The row's `until` is missing: this Python no longer has the name.
    assert not is_expected(row)


# The first Python that does not need a part any more.
NOT_NEEDED = {"task_set": (3, 14)}


@pytest.mark.parametrize("name", sorted(set(stdlib.SWITCHES) - {"bio_memory"}))
def test_this_standard_library_has_the_shape_that_is_relied_on(name: str) -> None:
    needed = sys.version_info < NOT_NEEDED.get(name, (4,))
    assert stdlib.report()[name] in (("used", "disabled") if needed else ("absent",))


# ── the sources ──────────────────────────────────────────────────────────────────────────────


def private(name: str) -> bool:
    return PRIVATE.match(name) is not None


def without_prose(path: Path) -> str:
    """Return a Cython file without comments and docstrings; its lines keep their numbers."""
    text = re.sub(
        r'"""(.*?)"""',
        lambda found: "\n" * found[1].count("\n"),
        path.read_text(),
        flags=re.DOTALL,
    )
    return re.sub(r"#.*", "", text)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def own_names() -> set[str]:
    """Return the private names that uringloop defines: functions, fields, variables, modules."""
    found = {part for path in LIBRARY for part in path.relative_to(PACKAGE).with_suffix("").parts}
    for path in PYTHON:
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    for path in CYTHON:
        text = without_prose(path)
        # Methods and functions, and fields, of which a line may declare several.
        found |= set(re.findall(r"^ *(?:async )?c?p?def [^(=\n]*?(\w+)\(", text, re.MULTILINE))
        for declared in re.findall(r"^ *cdef ([^(=\n]+)", text, re.MULTILINE):
            found |= set(re.findall(r"(\w+) *(?:,|$)", declared))
        found |= set(re.findall(r"^    (\w+) =", text, re.MULTILINE))
    return found


# Includes names that a class overrides or shares with its base class in asyncio.
OWN = own_names()

GETATTR = re.compile(r"\b(?:get|has|set|del)attr\(\s*[\w.]+,\s*[\"'](_[a-zA-Z]\w*)[\"']")
FOUND = re.compile(r"\b(?:find|code_of|uses_name)\(\s*\w+,\s*\"([\w.]+)\"")


def python_uses(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted text of every use of a private name in a Python file."""
    tree = parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            yield node.lineno, f"{ast.unparse(node.value)}.{node.attr}"
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if private(alias.name))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("uringloop"):
            if private(node.module or "") and node.module not in ("_typeshed",):
                yield node.lineno, node.module or ""
            for alias in node.names:
                if private(alias.name):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call):
            for found in GETATTR.finditer(ast.unparse(node)):
                yield node.lineno, found[1]


def cython_uses(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(without_prose(path).splitlines(), 1):
        if re.match(r"\s*(from uringloop|cimport uringloop)", line):
            continue
        imported = re.match(r"\s*(?:from|import) (\w+)", line)
        if imported is not None and private(imported[1]):
            yield number, imported[1]
        for found in re.finditer(r"(?<![\w.])((?:\w+|\))(?:\.\w+)*)\.(\w+)", line):
            for word in found[0].split(".")[1:]:
                if private(word):
                    yield number, found[0]
        for found in (*GETATTR.finditer(line), *FOUND.finditer(line)):
            if any(private(word) for word in found[1].split(".")):
                yield number, found[1]


def uses() -> Iterator[tuple[Path, int, str]]:
    for path in PYTHON:
        yield from ((path, line, text) for line, text in python_uses(path))
    for path in CYTHON:
        yield from ((path, line, text) for line, text in cython_uses(path))


USES = list(uses())
MODULES = {
    "asyncio", "base_events", "base_subprocess", "concurrent", "constants", "coroutines", "events",
    "format_helpers", "futures", "inspect", "logging", "os", "runners", "signal", "socket",
    "ssl", "sslproto", "streams", "subprocess", "sys", "tasks", "tempfile", "threading",
    "transports", "trsock", "unix_events", "warnings", "weakref",
}  # fmt: skip


def test_every_private_name_that_is_used_is_in_the_table() -> None:
    missing = []
    for path, line, text in USES:
        head = text.partition(".")[0]
        words = {word for word in text.split(".") if private(word)} - OTHERS - WORDS
        # A standard module's private attribute must be listed even if uringloop has the same name.
        if words - (set() if head in MODULES else OWN):
            missing.append(f"{name_of(path)}:{line}: {text}")
    assert missing == []


def test_every_name_of_the_table_is_used() -> None:
    used = {word for _, _, text in USES for word in text.split(".")}
    used |= {word for path in SOURCES for word in re.findall(r"\w+", path.read_text())}
    unused = [
        f"{row.owner}.{name}"
        for row in TABLE
        for name in names_of(row)
        if name.split(".")[-1] not in used
    ]
    assert unused == []


def test_a_use_that_is_not_in_the_table_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import _thread\nfrom asyncio.base_futures import _PENDING\n"
        "x = asyncio.events._hidden\ny = getattr(task, '_must_cancel', None)\n"
    )
    assert sorted(text for _, text in python_uses(path)) == [
        "_must_cancel",
        "_thread",
        "asyncio.events._hidden",
    ]
    path = tmp_path / "module.pyx"
    path.write_text('"""sslproto._prose"""\nx = sslproto.SSLProtocol._hidden  # y._comment\n')
    assert list(cython_uses(path)) == [(2, "sslproto.SSLProtocol._hidden")]


def test_modules_that_are_not_documented_are_in_the_table() -> None:
    modules = {name for row in TABLE if row.owner == "" for name in names_of(row)}
    inside = {path.stem for path in Path(importlib.import_module("asyncio").__path__[0]).iterdir()}
    used = set()
    for path in (*PYTHON, *CYTHON):
        text = without_prose(path)
        used |= set(re.findall(r"^\s*from (asyncio\.\w+) import", text, re.MULTILINE))
        for names in re.findall(r"^\s*from asyncio import ([\w, ]+)", text, re.MULTILINE):
            used |= {f"asyncio.{name}" for name in names.split(", ") if name in inside}
        used |= set(re.findall(r"^\s*import (_\w+|posix)$", text, re.MULTILINE))
    assert used == modules


def test_only_one_module_reads_the_code_of_functions() -> None:
    looks = [
        name_of(path)
        for path in (*PYTHON, *CYTHON)
        if re.search(r"\b__code__\b|\bco_names\b|\bco_varnames\b", without_prose(path))
    ]
    assert looks == ["uringloop/_cpython/stdlib.pyx"]


# Fields of CPython's structures, its private functions, and structures that are declared here.
C_FIELD = re.compile(r"(?:->|\.)((?:ob|tp|nb|mp|am|bf)_\w+|d_method|d_member)\b")
C_NAME = re.compile(r"\b(_Py_?[A-Z]\w+|PyUnstable_\w+|Py_REFCNT|PySSL\w+)\b")
C_STRUCT = re.compile(r"ctypedef struct (Py\w+):\n +(?!pass)\w+ \*?(\w+)")


def c_uses(path: Path) -> Iterator[str]:
    text = path.read_text()
    yield from C_FIELD.findall(text)
    yield from (name for name in C_NAME.findall(text) if not name.startswith("_PyModule"))
    yield from (f"{struct}.{field}" for struct, field in C_STRUCT.findall(text))


def test_every_c_structure_whose_fields_are_used_is_in_the_table() -> None:
    named = {name for row in TABLE if row.owner == relied_on.C for name in names_of(row)}
    known = named | {name.split(".")[-1] for name in named}
    found = [(name_of(path), name) for path in C_SOURCES for name in c_uses(path)]
    assert [f"{where}: {name}" for where, name in found if name not in known] == []
    assert {name for name in named if name != "BIO_ctrl"} <= {
        name for name in named for _, used in found if used in (name, name.split(".")[-1])
    }
