"""The files of the source tree, for tests that read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "uringloop"

SOURCES = sorted(
    path
    for folder in ("uringloop", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".h", ".c")
)
SOURCES.append(ROOT / "setup.py")
LIBRARY = [path for path in SOURCES if PACKAGE in path.parents]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """Return the dotted module name of a file of the package, without `uringloop.`."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def constant(file: str, name: str) -> Any:
    """Return the number *name* of a Cython *file* of the package, an int or a float.

    Compiled modules do not export such constants. Other constants of the file may be part of the
    expression. Raises LookupError.
    """
    text = (PACKAGE / file).read_text()
    found = re.search(rf"^(?:    |cdef [\w ]+ )?{name} = ([^#\n]+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"uringloop/{file} has no constant {name}")
    expression = found[1].strip()
    others = {other: constant(file, other) for other in re.findall(r"\b[A-Z]\w+", expression)}
    return eval(expression, others)
