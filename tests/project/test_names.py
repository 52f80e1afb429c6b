"""Paths and symbols that the documents name between back-quotes exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_rules import PLACEHOLDERS
from support.documents import PAGES, ROOT, name_of, spans

# Paths may be short: relative to one of these folders, or the mere name of a file.
FOLDERS = tuple(ROOT / name for name in ("", "uringloop", "tests", "docs"))
FILES = [
    path
    for folder in ("uringloop", "tests", "benchmarks", "docs", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
]
# Reports of commands, the results of a build, and files of other packages.
ELSEWHERE = re.compile(r"build/.*|.*\.so|ipython_kernel_config\.py|_testbase\.py")
FILE = r"(?:[\w.*-]+/)*[\w*-]+\.(?:py|pyx|pxd|pyi|h|c|md|svg|toml)"
FOLDER = r"(?:uringloop|tests|benchmarks|docs|examples|\.ci|_[a-z]+)/[\w./*-]*"
# As in: `Ring.start()` (`_ring/ring.pyx`), or `copy` in `freelist.pxd`.
SYMBOL = re.compile(
    r"`([A-Za-z_][\w.]*)(?:\(\))?`\s+(?:\(|in\s+|of\s+)`([\w/]+\.(?:pyx|pxd|pyi|py|h|c))`"
)


def files_called(path: str) -> list[Path]:
    """Return the files or folders that a document may mean by *path*."""
    found = [made for folder in FOLDERS for made in folder.glob(path.rstrip("/"))]
    return found or [file for file in FILES if file.match(path)]


def absent_paths(page: Path) -> list[str]:
    named = [span for span in spans(page) if re.fullmatch(f"{FILE}|{FOLDER}", span)]
    known = [path for path in named if path in PLACEHOLDERS or ELSEWHERE.fullmatch(path)]
    return [path for path in named if path not in known and not files_called(path)]


def absent_symbols(text: str) -> list[str]:
    return [
        f"{symbol} in {path}"
        for symbol, path in SYMBOL.findall(text)
        if not any(
            re.search(rf"\b{symbol.rpartition('.')[2]}\b", file.read_text())
            for file in files_called(path)
        )
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_document_names_exists(page: Path) -> None:
    assert absent_paths(page) == []
    assert absent_symbols(page.read_text()) == []


def test_absent_names_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`_ring/ring.pyx`, `ring.pyx`, `tests/net/`, `test_stream*.py`, `app.py`, `io_uring`\n"
        "`_ring/nothing.pyx`, `nothing.h`, `tests/nothing`\n"
    )
    assert absent_paths(page) == ["_ring/nothing.pyx", "nothing.h", "tests/nothing"]
    text = "`Ring.start()` (`_ring/ring.pyx`), `Ring.unheard` in `_ring/ring.pyx`, `x` of `no.h`"
    assert absent_symbols(text) == ["Ring.unheard in _ring/ring.pyx", "x in no.h"]
