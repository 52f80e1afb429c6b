"""The tables of docs/project/memory-ordering.md name each atomic operation of the package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from models.plants import PLANTS
from support.atomic_uses import ORDERS, Use, uses
from support.sources import PACKAGE, ROOT

PAGE = ROOT / "docs" / "project" / "memory-ordering.md"
MODELS = ROOT / "tests" / "models"
COLUMNS = ["Object", "Access", "Order", "Pairs with", "Why that is enough"]


class Row(NamedTuple):
    """A line of a table: objects, and the operations in each file that are applied to them."""

    objects: set[str]
    accesses: set[tuple[str, str]]
    orders: set[str]
    line: str

    def has(self, use: Use) -> bool:
        return use.object in self.objects and (use.file, use.operation) in self.accesses


def accesses_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and operation of a cell: `` `a.h`: `load`, `store`; `b.c`: `load` ``."""
    for part in text.split("; "):
        file, *operations = re.findall(r"`([^`]+)`", part)
        yield from ((file, operation) for operation in operations)


def rows() -> list[Row]:
    found = []
    is_table = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_table = False
        elif cells == COLUMNS:
            is_table = True
        elif is_table and not set(line) <= set("|-"):
            objects = set(re.findall(r"`(\w+)`", cells[0]))
            orders = set(cells[2].split(", "))
            found.append(Row(objects, set(accesses_of(cells[1])), orders, line))
    return found


ROWS = rows()
USES = uses()


def test_each_use_of_an_atomic_operation_is_in_one_row() -> None:
    counts = {use: sum(row.has(use) for row in ROWS) for use in USES}
    assert {use: count for use, count in counts.items() if count != 1} == {}


def test_each_object_and_each_access_of_a_row_exists() -> None:
    for row in ROWS:
        used = [use for use in USES if row.has(use)]
        assert {use.object for use in used} == row.objects, row.line
        assert {(use.file, use.operation) for use in used} == row.accesses, row.line


def test_each_row_names_the_orders_of_its_accesses() -> None:
    for row in ROWS:
        assert {use.order for use in USES if row.has(use)} == row.orders, row.line


def test_the_tables_have_every_order() -> None:
    # If the search found nothing, the tests above would pass with empty tables.
    assert {use.order for use in USES} == set(ORDERS.values())
    assert Use("_turn/inbox.h", "newest", "uring_replace", "acquire-release") in USES
    assert Use("_softring/waits.c", "sleeping", "atomic_store", "sequential") in USES


def test_the_page_names_each_model() -> None:
    named = re.findall(r"`(\w+\.c)`", PAGE.read_text().partition("## How the orders")[2])
    assert sorted(named) == sorted(path.name for path in MODELS.glob("*.c"))


def test_each_plant_changes_one_place_and_each_model_has_plants() -> None:
    for plant in PLANTS:
        assert (PACKAGE / plant.file).read_text().count(plant.old) == 1, plant.name
        assert plant.old != plant.new, plant.name
    assert {plant.model for plant in PLANTS} == {path.stem for path in MODELS.glob("*.c")}
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
