"""Compares two traces of loops for tests: at which line do two runs begin to differ?

python -m uringloop.testing one.txt other.txt
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

# How many lines are shown before and after the difference.
BEFORE = 5
AFTER = 5


def without_numbers(lines: Sequence[str]) -> list[str]:
    """Number the descriptors as they appear: their own numbers are the process's, not the run's."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        number = found[0].removeprefix("fd=")
        return numbers.setdefault(number, f"fd={len(numbers)}")

    # The result of an open is a descriptor, too.
    return [
        re.sub(r"\bfd=\d+|(?<= = )\d+$", numbered, line) if is_of_descriptor(line) else line
        for line in lines
    ]


def is_of_descriptor(line: str) -> bool:
    return "fd=" in line or re.search(r"\bopenat#\d+ = \d+$", line) is not None


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Return the index of the first line in which two traces differ; None if they are equal."""
    pairs = itertools.zip_longest(without_numbers(one), without_numbers(other))
    for index, (first, second) in enumerate(pairs):
        if first != second:
            return index
    return None


def shown(lines: Sequence[str], start: int) -> list[str]:
    part = lines[start : start + AFTER]
    return [f"  {line}" for line in part] or ["  (it has ended)"]


def describe(one: Path, other: Path) -> tuple[str, bool]:
    """Return a text about the difference of two files, and whether they are equal."""
    first, second = (path.read_text(errors="replace").splitlines() for path in (one, other))
    index = first_difference(first, second)
    if index is None:
        return f"equal: {len(first):,} lines", True
    lines = [f"the traces differ from line {index + 1:,} on, after"]
    lines += [f"  {line}" for line in first[max(index - BEFORE, 0) : index]] or ["  (the start)"]
    for path, content in ((one, first), (other, second)):
        lines += [f"{path}:", *shown(content, index)]
    return "\n".join(lines), False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m uringloop.testing",
        description="Compare two traces of uringloop.testing.Loop. Exits with 1 if they differ.",
    )
    parser.add_argument("one", type=Path, help="a trace")
    parser.add_argument("other", type=Path, help="the trace to compare it with")
    options = parser.parse_args(arguments)
    try:
        text, equal = describe(options.one, options.other)
    except OSError as exc:
        parser.error(f"{exc.filename}: {exc.strerror}")
    print(text)
    return 0 if equal else 1
