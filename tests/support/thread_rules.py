"""Reads the tables of docs/reference/threads.md: by which rule other threads may use a name."""

from __future__ import annotations

import re

from support.documents import DOCS


def tables() -> dict[str, dict[str, list[str]]]:
    """Return the names of each table by its heading and by the rule."""
    found: dict[str, dict[str, list[str]]] = {}
    heading = ""
    for line in (DOCS / "reference" / "threads.md").read_text().splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
            found[heading] = {}
        elif heading and (row := re.fullmatch(r"\| ([a-z' ]+) \| (`.*`) \|", line)):
            assert row[1] not in found[heading], line
            found[heading][row[1]] = re.findall(r"`([\w.]+)`", row[2])
    return found
