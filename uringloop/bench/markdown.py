"""Tables and lists of Markdown, as all reports of the benchmarks write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence


def line(cells: Iterable[str]) -> str:
    """Return one row of a table."""
    return f"| {' | '.join(cells)} |"


def head(headings: Sequence[str], left: Collection[str]) -> list[str]:
    """Return the head of a table; columns of words, in *left*, are aligned to the left."""
    rule = [":--" if heading in left else "--:" for heading in headings]
    return [line(headings), line(rule)]


def table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], left: Collection[str]
) -> list[str]:
    """Return the lines of a table."""
    return [*head(headings, left), *map(line, rows)]


def facts(named: Mapping[str, str]) -> list[str]:
    """Return a list of names with their values."""
    return [f"- {name}: {value}" for name, value in named.items()]
