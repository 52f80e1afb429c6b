"""What the pages of the reference say, for tests that compare it with the code."""

from __future__ import annotations

import re
from pathlib import Path

from support.documents import Block, blocks, plain
from support.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"
COMMANDS = REFERENCE / "commands.md"
# The extras that users install; the others are for work on the project.
EXTRAS = ("bench", "otel", "report", "top")


def table(page: Path, *head: str) -> list[list[str]]:
    """Return the cells of the only table of a page whose first columns have these names."""
    names = r" *\| *".join(map(re.escape, head))
    (rows,) = re.findall(
        rf"^\| *{names} *\|.*\n\|[-:|]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE
    )
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def names_in(cell: str) -> list[str]:
    """Return what stands between back-quotes in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def of_commands() -> dict[str, Block]:
    """Return the help of each command, by its name as the page's headings have it."""
    found: dict[str, Block] = {}
    for block in blocks(COMMANDS):
        found.setdefault(block.heading, block)
    return found


def statuses() -> dict[str, list[str]]:
    """Return the exit statuses of each command that has a table of them."""
    parts = re.split(r"^## (.*)$", COMMANDS.read_text(), flags=re.MULTILINE)
    return {
        plain(heading): re.findall(r"^\| (\d+|any) \|", text, re.MULTILINE)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
        if "| Exit status |" in text
    }
