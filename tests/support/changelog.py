"""What CHANGELOG.md says of each version: when it was released, and which names it mentions where.

A section of a version has the heading `## 1.2.0, unreleased` or `## 1.2.0, 2027-03-01`.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field

from support.sources import ROOT

Version = tuple[int, ...]


@dataclass(frozen=True)
class Section:
    """A version: the day of its release, and the names in each part, such as "Deprecated"."""

    released: datetime.date | None
    parts: dict[str, set[str]] = field(default_factory=dict)

    def names(self, *parts: str) -> set[str]:
        return {name for part in parts for name in self.parts.get(part, ())}


UNRELEASED = Section(None)


def numbers(version: str) -> Version:
    return tuple(map(int, version.split(".")))


def read(text: str | None = None) -> dict[str, Section]:
    """Return the sections by their versions, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text() if text is None else text
    found: dict[str, Section] = {}
    parts = re.split(r"^## ([\d.]+), (unreleased|\d{4}-\d\d-\d\d)$", text, flags=re.MULTILINE)
    for version, day, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        released = None if day == "unreleased" else datetime.date.fromisoformat(day)
        pieces = re.split(r"^### (\w+)$", body, flags=re.MULTILINE)
        names = {
            title: set(re.findall(r"`([^`]+)`", piece))
            for title, piece in zip(pieces[1::2], pieces[2::2], strict=True)
        }
        found[version] = Section(released, names)
    return found
