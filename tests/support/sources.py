"""The files of the source tree, for tests that read it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "uringloop"

SOURCES = sorted(
    path
    for folder in ("uringloop", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".h", ".c")
    # C files made by Cython are not sources.
    and not (path.suffix == ".c" and path.with_suffix(".pyx").exists())
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
