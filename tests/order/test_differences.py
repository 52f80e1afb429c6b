"""The comparison finds a loop whose events come late, and makes the program that shows it small.

What programs leave out because it is known to differ from asyncio differs as it is said.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.loops import each_ring

from order.differences import LOOPS, difference, differs, on_asyncio, smallest
from order.links import Link
from order.log import Log
from order.peers import Peer
from order.programs import BIG, DATAGRAMS, SMALL, Connection, Program, Step, generate


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


# ── what is known to differ ─────────────────────────────────────────────────────────────────


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs go on while something is under way that the ring may have taken."""
    monkeypatch.setattr(Link, "is_under_way", lambda link: False)
    on_asyncio.cache_clear()


def check(shown: str | None, *lines: str) -> None:
    assert shown is not None
    assert [line for line in shown.splitlines()[3:] if line[0] in "+-"] == list(lines)


SENT = Step("peer_send", size=1)
SENT_BEFORE = Step("peer_send", size=1, turns=1)


@pytest.mark.usefixtures("hasty")
@each_ring
def test_bytes_behind_those_that_the_ring_has_taken_come_a_turn_later(backend: str) -> None:
    # asyncio's recv() finds both; its selector has reported only the first.
    program = Program(
        (Connection("unix socket", "protocol", warm=SMALL),),
        (SENT_BEFORE, SENT, Step("chain", size=3)),
    )
    check(difference(program, backend), "-0 data 2", "+0 data 1", "+0 data 1")


@pytest.mark.usefixtures("hasty")
def test_a_poll_of_large_messages_may_report_bytes_that_are_received_already() -> None:
    # What has come since is received then, a turn before a selector reports it.
    program = Program(
        (Connection("unix socket", "protocol", warm=BIG),),
        (SENT_BEFORE, SENT_BEFORE, SENT, Step("chain", size=3)),
    )
    check(difference(program, "io_uring"), "+0 data 1", "-0 data 1")


@pytest.mark.usefixtures("hasty")
@each_ring
def test_a_peer_does_not_notice_that_what_the_ring_has_taken_is_left_unread(backend: str) -> None:
    program = Program(
        (Connection("unix socket", "protocol", warm=SMALL),), (SENT_BEFORE, Step("abort", turns=3))
    )
    check(
        difference(program, backend),
        "-0 peer has 0 bytes, ConnectionResetError",
        "+0 peer has 0 bytes, eof",
    )


@pytest.mark.usefixtures("hasty")
@each_ring
@pytest.mark.parametrize("kind", DATAGRAMS)
def test_several_datagrams_come_in_a_turn(kind: str, backend: str) -> None:
    program = Program(
        (Connection(kind, "protocol", warm=SMALL),), (SENT, SENT_BEFORE, Step("chain", size=3))
    )
    check(difference(program, backend), "+0 datagram 1", "-0 datagram 1")


@pytest.mark.usefixtures("hasty")
@each_ring
def test_a_datagram_that_the_ring_has_taken_is_not_handed_over(backend: str) -> None:
    program = Program(
        (Connection("udp", "protocol", warm=SMALL),), (SENT_BEFORE, Step("hand_over", turns=3))
    )
    check(difference(program, backend), "-0 handed over all", "+0 handed over 8")


@pytest.mark.usefixtures("hasty")
@each_ring
def test_bytes_that_the_ring_has_taken_are_not_in_the_socket(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(
        (Connection("unix socket", "protocol", warm=SMALL),),
        (SENT_BEFORE, Step("hand_over", turns=3)),
    )
    # Only detach() returns them.
    monkeypatch.setattr(Link, "detach", Link.hand_over_paused)
    check(difference(program, backend), "-0 handed over all", "+0 handed over 8")


@each_ring
def test_detach_raises_the_reset_that_the_ring_has_taken(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Programs leave out what follows it.
    unnoticed = property(lambda peer: False, lambda peer, value: None)
    monkeypatch.setattr(Peer, "has_reset", unnoticed, raising=False)
    program = Program(
        (Connection("tcp socket", "streams", warm=SMALL),),
        (Step("hand_over", when="data"), SENT, Step("peer_reset", turns=3)),
    )
    check(
        difference(program, backend),
        "-0 read eof",
        "+0 step 0 fails: ConnectionResetError 104",
        "+0 read fails: ConnectionResetError 104",
        "-0 handed over all",
    )
