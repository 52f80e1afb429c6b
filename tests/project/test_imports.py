"""Imports: a package imports only from those below it, and modules do not import in circles.

The order of the packages is the list in docs/project/architecture.md. Imports, cimports and
`#include` lines count, also within functions; imports under TYPE_CHECKING do not.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.core import CORE, ORDER
from support.sources import LIBRARY, PACKAGE, ROOT, module_of, name_of

# Extension modules without a source file of their name.
MADE = {"_compiled"}


def for_annotations_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk *tree* without blocks under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt) and for_annotations_only(child):
            continue
        yield child
        yield from runtime_nodes(child)


def python_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything that a Python file imports."""
    for node in runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parent.parts
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from\s+(?P<base>[\w.]+)\s+c?import\s*(?P<names>\([^)]*\)|[^\n]*)"
    r"|c?import\s+(?P<modules>[\w., ]+))",
    re.MULTILINE,
)
INCLUDED = re.compile(r'^[ \t]*(?:#[ \t]*include|cdef extern from) "(\w+/\w+\.h)"', re.MULTILINE)


def line_of(found: re.Match[str]) -> int:
    return found.string.count("\n", 0, found.start()) + 1


def cython_imports(path: Path) -> Iterator[tuple[int, str]]:
    for found in CYTHON_IMPORT.finditer(path.read_text()):
        if found["modules"]:
            names = found["modules"].split(",")
        else:
            names = [f"{found['base']}.{name}" for name in re.findall(r"\w+", found["names"])]
        for name in names:
            yield line_of(found), name.strip()
    yield from included_headers(path)


def included_headers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of the package's headers that a file includes."""
    for found in INCLUDED.finditer(path.read_text()):
        yield line_of(found), "uringloop." + found[1].removesuffix(".h").replace("/", ".")


def imports_of(path: Path, known: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield line and module, without the package's name, of the imports from uringloop."""
    if path.suffix in (".h", ".c"):
        find = included_headers
    else:
        find = python_imports if path.suffix == ".py" else cython_imports
    for line, name in find(path):
        head, _, rest = name.partition(".")
        if head != "uringloop":
            continue
        # The longest prefix that is a module; the rest is a name in it.
        while rest and rest not in known:
            rest = rest.rpartition(".")[0]
        yield line, rest or "__init__"


def all_imports() -> list[tuple[Path, int, str, str]]:
    known = {module_of(path) for path in LIBRARY} | MADE
    return [
        (path, line, module_of(path), imported)
        for path in LIBRARY
        if path.suffix != ".pyi"
        for line, imported in imports_of(path, known)
        if imported not in MADE
    ]


IMPORTS = all_imports()


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_is_in_the_list() -> None:
    there = {package_of(module_of(path)) for path in LIBRARY} - MADE
    assert sorted(ORDER) == sorted(there)


def test_packages_import_only_from_lower_packages() -> None:
    places = {package: place for place, package in enumerate(ORDER)}
    up = [
        f"{name_of(path)}:{line}: {module} imports {imported}"
        for path, line, module, imported in IMPORTS
        if places[package_of(imported)] > places[package_of(module)]
    ]
    assert up == []


def circles(imports: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the circles of modules that import each other, each once."""
    found: set[tuple[str, ...]] = set()
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circle = path[path.index(module) :]
            first = circle.index(min(circle))
            found.add((*circle[first:], *circle[:first]))
        elif module not in done:
            for imported in sorted(imports.get(module, ())):
                visit(imported, (*path, module))
            done.add(module)

    for module in sorted(imports):
        visit(module, ())
    return sorted(found)


def test_modules_do_not_import_each_other_in_circles() -> None:
    imports: dict[str, set[str]] = {}
    for _, _, module, imported in IMPORTS:
        # A module's .pxd belongs to the module, and a package's __init__ to its modules.
        if imported not in (module, package_of(module)):
            imports.setdefault(module, set()).add(imported)
    assert circles(imports) == []


HEADERS = sorted(path for path in LIBRARY if path.suffix == ".h" and path.parent.name != "bench")


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/liburing.h").exists(),
    reason="needs a C compiler and liburing",
)
@pytest.mark.parametrize("header", HEADERS, ids=name_of)
def test_every_header_compiles_on_its_own(header: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.c"
    program.write_text(f'#include "{header.relative_to(PACKAGE)}"\n')
    folders = [PACKAGE, sysconfig.get_path("include")]
    options = ["-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function"]
    options += [f"-I{folder}" for folder in folders]
    done = subprocess.run(["cc", *options, str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_does_not_import_the_benchmark() -> None:
    known = [
        f"{name_of(path)}:{line}"
        for path, line, module, imported in IMPORTS
        if package_of(imported) == "bench" and package_of(module) != "bench"
    ]
    assert known == []


# ── the core ──────────────────────────────────────────────────────────────────────────────────

# Where the core still names a neighbour, and why. An entry that is no longer needed fails the test.
EXCEPTIONS = {
    ("uringloop/policy.py", "streams"): "run(streams=True) installs them",
}
CORE_FILES = [path for path in LIBRARY if package_of(module_of(path)) in CORE]
# The name of a module in a string: for import_module() and the like.
NAMED = re.compile(r'"uringloop\.(\w+)')


def neighbours_of_the_core() -> dict[tuple[str, str], list[int]]:
    """Return the lines that import, include or name a neighbour, by file and neighbour."""
    named = [
        (path, line_of(found), found[1])
        for path in CORE_FILES
        for found in NAMED.finditer(path.read_text())
        if found[1] in ORDER
    ]
    imported = [
        (path, line, package_of(name))
        for path, line, module, name in IMPORTS
        if package_of(module) in CORE
    ]
    lines: dict[tuple[str, str], list[int]] = {}
    for path, line, package in named + imported:
        if package not in CORE and package != "__init__":
            lines.setdefault((name_of(path), package), []).append(line)
    return lines


def test_the_core_does_not_know_its_neighbours() -> None:
    found = neighbours_of_the_core()
    assert {place: lines for place, lines in found.items() if place not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) - set(found) == set()


def test_the_core_does_not_speak_of_simulation() -> None:
    spoken = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in CORE_FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"simulat|loops? for tests", line, re.IGNORECASE)
    ]
    assert spoken == []


def test_public_modules_are_at_the_top_of_the_package() -> None:
    public = {path.name for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))}
    public -= {path.name for path in PACKAGE.glob("*.so")}
    modules = {name.removesuffix(".py") for name in public - {"py.typed"}}
    assert modules == {name for name in ORDER if not name.startswith("_")}


# ── the search itself ────────────────────────────────────────────────────────────────────────


def test_imports_are_found_in_every_form(tmp_path: Path) -> None:
    cython = tmp_path / "example.pyx"
    cython.write_text(
        "cimport cython\nfrom uringloop._ring.ring cimport (\n    Ring,\n    Operation,\n)\n"
        "    from uringloop._turn cimport turn\n"
        'cdef extern from "_ring/uring.h" nogil:\n'
    )
    assert list(cython_imports(cython)) == [
        (1, "cython"),
        (2, "uringloop._ring.ring.Ring"),
        (2, "uringloop._ring.ring.Operation"),
        (6, "uringloop._turn.turn"),
        (7, "uringloop._ring.uring"),
    ]
    header = tmp_path / "example.h"
    header.write_text('#include <stdint.h>\n#include "_ring/uring.h"\n')
    assert list(included_headers(header)) == [(2, "uringloop._ring.uring")]


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}}, []),
        ({"a": {"b"}, "b": {"a"}}, [("a", "b")]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"b"}}, [("a", "b", "c")]),
    ],
)
def test_circles_are_found(imports: dict[str, set[str]], expected: list[tuple[str, ...]]) -> None:
    assert circles(imports) == expected
