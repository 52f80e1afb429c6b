"""Style as a test: sizes, required and forbidden contents of files.

Reads only the source tree that this file belongs to. When a test fails, change the code, not the
rule.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.sources import LIBRARY, PACKAGE, ROOT, SOURCES, module_of, name_of

from uringloop import __version__

FUNCTION_LINES_MAX = 60

PYTHON = [path for path in SOURCES if path.suffix == ".py"]
CYTHON = [path for path in SOURCES if path.suffix in (".pyx", ".pxd")]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
OTHERS = [
    ROOT / name for name in ("Makefile", "MANIFEST.in", "noxfile.py", "pyproject.toml", ".ci/run")
]


def offences(
    paths: Iterable[Path], search: Callable[[Path], Iterable[tuple[int, str]]]
) -> list[str]:
    """Return what *search* finds in the files, as `file:line: what`."""
    return [f"{name_of(path)}:{line}: {what}" for path in paths for line, what in search(path)]


def matches(pattern: str) -> Callable[[Path], Iterator[tuple[int, str]]]:
    def search(path: Path) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(pattern, line):
                yield number, line.strip()

    return search


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


def python_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield node.lineno, node.end_lineno, node.name


CYTHON_FUNCTION = re.compile(r"^(?P<indent> *)(?:async )?(?:c|cp)?def (?!enum|extern|class|struct)")


def cython_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    lines = path.read_text().splitlines()
    for first, line in enumerate(lines):
        found = CYTHON_FUNCTION.match(line)
        if found is None or "(" not in line:
            continue
        last = first
        for index in range(first + 1, len(lines)):
            if lines[index].strip():
                indent = len(lines[index]) - len(lines[index].lstrip())
                if indent <= len(found["indent"]):
                    break
                last = index
        yield first + 1, last + 1, line.strip()


def c_functions(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the functions of a C file: a `{` that a `)` comes before, until a `}` in column 0."""
    text = path.read_text()
    for found in re.finditer(r"^\w[^;{}]*\)\s*\{\n.*?^\}", text, re.MULTILINE | re.DOTALL):
        first = text.count("\n", 0, found.start()) + 1
        yield first, first + found[0].count("\n"), found[0].partition("(")[0]


def long_functions(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".py":
        functions = python_functions(path)
    elif path.suffix in (".pyx", ".pxd"):
        functions = cython_functions(path)
    else:
        functions = c_functions(path)
    for first, last, name in functions:
        if last - first + 1 > FUNCTION_LINES_MAX:
            yield first, f"{name}: {last - first + 1} lines"


def test_functions_are_short() -> None:
    assert offences([p for p in SOURCES if p.suffix != ".pyi"], long_functions) == []


# ── required contents ────────────────────────────────────────────────────────────────────────


def test_every_compiled_module_has_its_declarations() -> None:
    for path in CYTHON:
        if path.suffix == ".pyx":
            assert path.with_suffix(".pxd").exists(), name_of(path)


def imported_names(path: Path) -> Iterator[str]:
    """Yield the dotted names that a Python file or a stub imports, at any level."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_compiled_module_has_a_stub_if_python_code_imports_it() -> None:
    python = [path for path in SOURCES if path.suffix in (".py", ".pyi")]
    imported = {name for path in python for name in imported_names(path)}
    modules = [path for path in CYTHON if path.suffix == ".pyx"]
    stubs = [name_of(path) for path in modules if path.with_suffix(".pyi").exists()]
    assert stubs == [
        name_of(path) for path in modules if f"uringloop.{module_of(path)}" in imported
    ]


def test_every_module_starts_with_prose() -> None:
    def silent(path: Path) -> bool:
        text = path.read_text()
        if path.suffix == ".py":
            return not ast.get_docstring(ast.parse(text))
        start = "/* " if path.suffix in (".h", ".c") else '"""'
        return not text.removeprefix("# cython: language_level=3\n").startswith(start)

    # An empty __init__.py needs no prose.
    sources = [path for path in SOURCES if path.suffix != ".pyi" and path.stat().st_size]
    assert [name_of(path) for path in sources if silent(path)] == []


def constants(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield index and text of the lines that may define a constant: of modules and of enums."""
    block = ""
    for index, line in enumerate(lines):
        if re.match(r"\S", line):
            block = line
        if line == block or re.match(r"cp?def enum\b", block):
            yield index, line.strip()


# Numbers only: names and tables explain themselves.
NUMBER = re.compile(
    r"(cdef (double|size_t|Py_ssize_t|[\w ]*int\w*) )?_?[A-Z][A-Z0-9_]* *(:[^=]+)?= *[-(<\d][^,]*$"
)


def unexplained_constants(path: Path) -> Iterator[tuple[int, str]]:
    """Yield constant numbers with no comment on their line or above their paragraph."""
    lines = path.read_text().splitlines()
    for index, line in constants(lines):
        if not NUMBER.match(line) or "  # " in line:
            continue
        above = index - 1
        while above >= 0 and lines[above].strip() and not lines[above].lstrip().startswith("#"):
            above -= 1
        if above < 0 or not lines[above].lstrip().startswith("#"):
            yield index + 1, line


def test_constant_numbers_have_a_comment() -> None:
    library = [path for path in LIBRARY if path.suffix in (".py", ".pyx", ".pxd")]
    assert offences(library, unexplained_constants) == []


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_the_first_figure_of_the_readme_is_that_of_its_table() -> None:
    text = (ROOT / "README.md").read_text()
    claim = re.search(r"\*\*([\d.]+) times\*\*", text)
    row = re.search(r"^\| TCP, 128 B, 50 clients \|.*\*\*([\d.]+)\*\* \|$", text, re.MULTILINE)
    assert claim
    assert row
    assert claim[1] == row[1]


def test_the_architecture_page_is_read_in_one_sitting() -> None:
    assert len((ROOT / "docs" / "project" / "architecture.md").read_text().splitlines()) <= 300


# ── forbidden contents ───────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs the repository"
)
def test_the_repository_has_no_stray_files() -> None:
    # Git refuses a repository of another user, also for root, without this setting.
    listing = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(listing, capture_output=True, check=True, text=True).stdout.split("\0")
    assert [name for name in names if not re.fullmatch(r"[\w.+/-]*", name, re.ASCII)] == []
    at_the_top = {name for name in names if name and "/" not in name}
    assert at_the_top == {
        ".gitignore",
        ".readthedocs.yaml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "noxfile.py",
        "pyproject.toml",
        "setup.py",
        "stubtest_allowlist.txt",
    }


def test_no_line_ends_in_blanks() -> None:
    assert offences([*SOURCES, *DOCUMENTS, *OTHERS], matches(r"\s$")) == []


def test_no_file_has_a_to_do_mark() -> None:
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    assert offences([*SOURCES, *OTHERS], matches(rf"\b({marks})\b")) == []


def second_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield names that stand for another constant, and for nothing else."""
    for index, line in constants(path.read_text().splitlines()):
        if re.match(r"(cdef [\w ]+ )?_?[A-Z]\w* = _?[A-Z][A-Z0-9_]+( +#|$)", line):
            yield index + 1, line


def test_constants_have_one_name() -> None:
    library = [path for path in LIBRARY if path.suffix in (".py", ".pyx", ".pxd")]
    assert offences(library, second_names) == []


def silent_handlers(path: Path) -> Iterator[tuple[int, str]]:
    lines = path.read_text().splitlines()
    for index, line in enumerate(lines):
        if re.match(r"\s*except\s*:", line):
            yield index + 1, "catches everything, SystemExit too"
        if re.match(r"\s*except\b.*:$", line) and lines[index + 1].strip() == "pass":
            yield index + 1, "passes without a sentence that says why"


def test_every_swallowed_exception_has_a_comment() -> None:
    paths = [path for path in SOURCES if path.suffix in (".py", ".pyx")]
    assert offences(paths, silent_handlers) == []


def _is_of(path: Path, programs: tuple[str, ...]) -> bool:
    return str(path.relative_to(PACKAGE)).startswith(programs)


def test_the_library_does_not_print() -> None:
    programs = (
        "bench/",
        "doctor.py",
        "top.py",
        "as_uvloop.py",
        "monitor/command_line.py",
        "testing/traces.py",
        "__main__.py",
    )
    paths = [p for p in LIBRARY if p.suffix in (".py", ".pyx") and not _is_of(p, programs)]
    assert offences(paths, matches(r"(^|[^\w.])print\(")) == []


def test_python_modules_have_no_casts_and_no_mixins() -> None:
    paths = [path for path in LIBRARY if path.suffix == ".py"]
    assert offences(paths, matches(r"\bcast\(|class \w*Mixin")) == []


# ── Cython ───────────────────────────────────────────────────────────────────────────────────


def test_cython_modules_are_compiled_one_by_one() -> None:
    assert offences(CYTHON, matches(r"^\s*include\b")) == []


IMPORT = re.compile(r"^from \S+ c?import (?:\((?P<list>[^)]*)\)|(?P<line>[^(#\n]+))$", re.MULTILINE)


def untidy_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield imports whose names are unsorted or packed: Ruff sorts those of Python modules."""
    text = path.read_text()
    for found in IMPORT.finditer(text):
        names = [name.strip() for name in (found["list"] or found["line"]).split(",")]
        names = [name for name in names if name]
        # In Ruff's order: constants, classes, then functions and variables.
        in_order = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
        packed = found["list"] is not None and len(names) != found["list"].count("\n") - 1
        if names != in_order or packed:
            yield text.count("\n", 0, found.start()) + 1, found[0].splitlines()[0]


def test_imports_of_cython_modules_are_sorted_and_one_to_a_line() -> None:
    assert offences(CYTHON, untidy_imports) == []


def test_casts_have_no_run_time_check() -> None:
    assert offences(CYTHON, matches(r"<\w+\?>")) == []


def test_submissions_are_filled_in_c_headers_only() -> None:
    assert offences(CYTHON, matches(r"\bsqe(\.|->|\[0\]\.)\w+ *[|&]?= ")) == []


# Without an exception clause a function with such a C result loses or invents exceptions.
C_RESULT = (
    r"(void|bint|char|short|int|long|float|double|size_t|ssize_t|Py_ssize_t|u?int\d+_t"
    r"|unsigned [\w ]+|const [\w ]+)\b"
)
C_FUNCTION = re.compile(
    rf"^(?P<indent> *)cp?def (inline )?(?P<result>{C_RESULT}[\w ]*\**|[\w ]+\*+) *\w+\("
)


def bare_functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield C functions that have neither `except` nor `noexcept`."""
    lines = path.read_text().splitlines()
    for index, line in enumerate(lines):
        if not C_FUNCTION.match(line):
            continue
        header = line
        for following in lines[index + 1 :]:
            if header.count("(") == header.count(")"):
                break
            header += " " + following.strip()
        if not re.search(r"\) *(except|noexcept)\b", header):
            yield index + 1, header.strip()


def test_every_c_function_has_an_exception_clause() -> None:
    assert offences(CYTHON, bare_functions) == []


# ── the rules themselves ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("search", "suffix", "text", "lines"),
    [
        (bare_functions, ".pyx", "cdef int f(self):\n    pass\ncdef object g(): pass\n", [1]),
        (bare_functions, ".pxd", "cdef int *f(int a,\n    int b)\ncdef void g() noexcept\n", [1]),
        (untidy_imports, ".pyx", "from a cimport B, c\nfrom a cimport c, B\n", [2]),
        (untidy_imports, ".pxd", "from a cimport (\n    B, c)\nfrom a cimport B\n", [1]),
        (silent_handlers, ".py", "try:\n    f()\nexcept OSError:\n    pass\n", [3]),
        (silent_handlers, ".py", "try:\n    f()\nexcept OSError:\n    # Why.\n    pass\n", []),
        (unexplained_constants, ".py", "# Why.\nA = 1\nB = 2\n\nC = 3\n", [5]),
        (unexplained_constants, ".pxd", "cdef enum:\n    # Why.\n    A = 1\n\n    B = 2\n", [5]),
        (unexplained_constants, ".pyx", "cdef double A = 1.5\ncdef f():\n    B = 1\n", [1]),
        (second_names, ".pyx", "cdef int B = A_MAX\ncpdef enum:\n    C = A_MAX  # Why.\n", [1, 3]),
        (second_names, ".py", "B = A_MAX + 1\nC = A_MAX\ndef f():\n    D = A_MAX\n", [2]),
        (long_functions, ".pyx", "cdef int f() except -1:\n" + "    g()\n" * 60, [1]),
        (long_functions, ".h", "static int f(void)\n{\n" + "    g();\n" * 60 + "}\n", [1]),
        (long_functions, ".py", "def f():\n" + "    g()\n" * 59, []),
    ],
)
def test_the_rules_find_violations(
    tmp_path: Path,
    search: Callable[[Path], Iterator[tuple[int, str]]],
    suffix: str,
    text: str,
    lines: list[int],
) -> None:
    path = tmp_path / f"example{suffix}"
    path.write_text(text)
    assert [line for line, _ in search(path)] == lines
