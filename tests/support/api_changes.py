"""Compares the API of two versions: which changes could break a program, and which are announced.

griffe decides about the arguments of functions. Elsewhere a changed text is incompatible, unless
the new one accepts everything that the old one accepted.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

import griffe

from support import changelog
from support.public_api import Api

# A deprecation lasts at least this long, and for at least so many minor releases.
DEPRECATED_FOR = datetime.timedelta(days=365)
DEPRECATED_IN = 2

FUNCTION = re.compile(r"(async )?def f\(")


def incompatible(old: Api, new: Api) -> dict[str, str]:
    """Return the names whose change could break a program, each with what is wrong."""
    return {
        name: problem
        for section, names in old.items()
        for name, text in names.items()
        if (problem := problem_of(text, new.get(section, {}).get(name)))
    }


def problem_of(old: str, new: str | None) -> str:
    """Return why the declaration *new* could break a program that knows *old*, or ""."""
    if new is None:
        return "is gone"
    if new == old:
        return ""
    if FUNCTION.match(old) and FUNCTION.match(new):
        return "; ".join(problems_of_arguments(old, new))
    if old.startswith("class (") and new.startswith("class ("):
        lost = words_of(old) - words_of(new)
        return f"has lost the base {', '.join(sorted(lost))}" if lost else ""
    if new == old.replace("property", "attribute", 1) or is_wider(old, new):
        # A program may set an attribute, but not a property.
        return ""
    return f"was {old!r}, and is {new!r}"


def problems_of_arguments(old: str, new: str) -> Iterator[str]:
    if old.startswith("async ") != new.startswith("async "):
        yield "is now a function" if old.startswith("async ") else "is now a coroutine function"
    before, after = (
        griffe.visit("m", filepath=Path("m.py"), code=f"{text}: ...\n") for text in (old, new)
    )
    for breakage in griffe.find_breaking_changes(before, after):
        parameter = breakage.old_value or breakage.new_value
        yield f"{breakage.kind.value}: {getattr(parameter, 'name', parameter)}"


def words_of(text: str) -> set[str]:
    """Return the words of a list such as `{random,fifo}` or `class (Event, int)`."""
    return set(re.findall(r"[^\s,{}()]+", text))


def is_wider(old: str, new: str) -> bool:
    """Return whether an option that took the values *old* takes them all as *new*, and more."""
    ranges = [re.fullmatch(r"(\d+) to ([\d,]+)", text) for text in (old, new)]
    if all(ranges):
        lows, highs = ([int(it[n].replace(",", "")) for it in ranges if it] for n in (1, 2))
        return lows[1] <= lows[0] and highs[1] >= highs[0]
    is_list = "," in old and ":" not in old + new
    return is_list and words_of(old) < words_of(new)


def is_announced(name: str, version: str, sections: dict[str, changelog.Section]) -> bool:
    """Return whether *version* may change or remove *name*, by what the changelog says.

    A new major version may, if it names the change and if earlier minor releases, the first of them
    a year ago, have had the name under "Deprecated" or have been released since.
    """
    section = sections.get(version, changelog.UNRELEASED)
    if name not in section.names("Changed", "Removed"):
        return False
    number, day = changelog.numbers(version), section.released or datetime.date.today()
    earlier = {
        changelog.numbers(other): it
        for other, it in sections.items()
        if it.released and changelog.numbers(other) < number
    }
    since = min((at for at, it in earlier.items() if name in it.names("Deprecated")), default=None)
    if since is None or number[0] == since[0]:
        return False
    minors = {at[:2] for at in earlier if at >= since}
    released = earlier[since].released
    assert released is not None
    return len(minors) >= DEPRECATED_IN and day - released >= DEPRECATED_FOR
