"""The comparison finds a loop whose events come late, and makes the program that shows it small."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from order.differences import LOOPS, difference, differs, smallest
from order.log import Log
from order.programs import Connection, Program, Step, generate


class Late(asyncio.SelectorEventLoop):
    """Tells each event of a descriptor a turn later than asyncio."""

    def _process_events(self, event_list: list[Any]) -> None:
        if event_list:
            self.call_soon(super()._process_events, event_list)  # type: ignore[misc]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(LOOPS, "late", Late)
    return "late"


def test_a_late_event_is_found(late: str) -> None:
    program = Program(
        (Connection("unix socket", "protocol"),), (Step("peer_send", size=1), Step("soon"))
    )
    # A peer sends, and a callback is scheduled: it runs before the data is told, in the same turn.
    assert not differs(program, late)
    program = Program(program.connections, (Step("peer_send", size=1), Step("chain", size=3)))
    shown = difference(program, late)
    assert shown is not None
    assert "+step 1 1 left\n 0 data 1\n-step 1 1 left\n" in shown


def test_a_program_that_differs_is_made_small(late: str) -> None:
    program = next(
        program for seed in range(100) if differs(program := generate("unix socket", seed), late)
    )
    small = smallest(program, late)
    assert differs(small, late)
    assert len(small.steps) <= 3
    assert len(small.steps) <= len(program.steps)


def test_a_seed_chooses_the_same_program_each_time() -> None:
    assert generate("tcp server", 7) == generate("tcp server", 7)
    assert generate("tcp server", 7) != generate("tcp server", 8)


def test_pieces_without_a_line_between_them_are_one() -> None:
    log = Log()
    log.add_piece("0 data", 0, 1)
    log.add("1 made", 1)
    log.add_piece("0 data", 0, 2)
    log.add("a callback")
    log.add_piece("0 data", 0, 4)
    assert log.view(0) == ["0 data 3", "a callback", "0 data 4"]
    assert log.view(1) == ["1 made", "a callback"]
