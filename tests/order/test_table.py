"""How each kind of transport begins and ends: the order of its callbacks, timers and tasks.

What is expected is what the installed asyncio does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys

import pytest
from support.loops import each_ring

from order.differences import LOOPS, difference, differs
from order.links import Loop
from order.log import Log
from order.programs import (
    ACTIONS,
    STREAMS,
    TLS_KINDS,
    WRITE_ONLY,
    Connection,
    Program,
    Step,
    early_of,
    flavours_of,
    warms_of,
)

# Enough for all that a step has caused.
REST = 8

BEGINNING = (
    Step("soon", when="made"),
    Step("timer", when="made"),
    Step("task", size=2, when="made"),
    Step("soon"),
    Step("timer"),
    Step("past_timer"),
    Step("chain", size=3),
    Step("woken_task"),
    Step("task", size=3, turns=REST),
)
DATA = (
    Step("soon", when="data"),
    Step("timer", when="data"),
    Step("task", size=2, when="data"),
    Step("peer_send", size=1),
    Step("soon"),
    Step("timer"),
    Step("chain", size=3, turns=REST),
)
END = (
    Step("soon", when="eof"),
    Step("timer", when="eof"),
    Step("soon", when="lost"),
    Step("soon"),
    Step("timer"),
    Step("chain", size=3, turns=REST),
)


def data_of(kind: str) -> tuple[Step, ...]:
    """Return the steps about data, if this side can read."""
    return () if kind in WRITE_ONLY else DATA


def ends_of(kind: str) -> list[tuple[Step, ...]]:
    """Return how a connection can end: by the peer or by this side, alone or behind data."""
    actions = dict.fromkeys(ACTIONS[kind])
    ends = [("peer_eof",), ("peer_close",), ("peer_reset",), ("close",), ("abort",), ("write_eof",)]
    behind = [("peer_send", end) for (end,) in ends]
    return [
        tuple(Step(action, size=action == "peer_send") for action in end)
        for end in [*ends, *behind]
        if all(action in actions for action in end)
    ]


# What a warmed-up connection has received, or not yet, when it pauses, and what comes then.
PAUSES: dict[str, tuple[Step, ...]] = {
    "a short pause, behind bytes": (
        Step("peer_send", size=1),
        Step("chain", size=5),
        Step("pause"),
        Step("resume", turns=REST),
    ),
    "a short pause, before bytes and the end": (
        Step("pause"),
        Step("resume"),
        Step("chain", size=6),
        Step("peer_send", size=1),
        Step("peer_eof", turns=REST),
    ),
    "a short pause, before bytes and a reset": (
        Step("pause"),
        Step("resume"),
        Step("chain", size=6),
        Step("peer_send", size=1),
        Step("peer_reset", turns=REST),
    ),
    "a short pause for bytes": (
        Step("pause", when="data"),
        Step("resume", when="data"),
        Step("chain", size=6),
        Step("peer_send", size=1, turns=2),
        Step("peer_send", size=1, turns=REST),
    ),
    "two short pauses": (
        Step("peer_send", size=1, turns=1),
        Step("chain", size=5),
        Step("pause"),
        Step("resume"),
        Step("pause"),
        Step("resume", turns=REST),
    ),
    "two pauses": (
        Step("chain", size=REST),
        Step("peer_send", size=1),
        Step("pause"),
        Step("resume", turns=1),
        Step("pause", turns=2),
        Step("resume", turns=REST),
    ),
    "a pause before bytes that have arrived, and more": (
        Step("peer_send", size=1, turns=1),
        Step("pause"),
        Step("peer_send", size=1, turns=2),
        Step("chain", size=5),
        Step("resume", turns=REST),
    ),
    "a pause before bytes that have arrived, and the end": (
        Step("peer_send", size=1, turns=1),
        Step("pause"),
        Step("peer_send", size=1),
        Step("peer_eof", turns=2),
        Step("chain", size=5),
        Step("resume", turns=REST),
    ),
}
PAUSING = [(kind, flavour) for kind in (*STREAMS, *TLS_KINDS) for flavour in flavours_of(kind)]

ROWS = [(kind, flavour) for kind in ACTIONS for flavour in flavours_of(kind)]
EACH_ROW = pytest.mark.parametrize(("kind", "flavour"), ROWS)


def check(program: Program, backend: str) -> None:
    if differs(program, backend):
        pytest.fail(f"{program}\n{difference(program, backend)}")


@each_ring
@EACH_ROW
def test_connections_begin_in_the_order_of_asyncio(kind: str, flavour: str, backend: str) -> None:
    for early in dict.fromkeys(early_of(kind)):
        check(Program((Connection(kind, flavour, early),), BEGINNING), backend)


@each_ring
@EACH_ROW
def test_connections_end_in_the_order_of_asyncio(kind: str, flavour: str, backend: str) -> None:
    for end, warm, stays_open in itertools.product(ends_of(kind), warms_of(kind), (False, True)):
        steps = (Step("soon", turns=REST), *data_of(kind), *end, *END)
        check(Program((Connection(kind, flavour, "", stays_open, warm),), steps), backend)


@each_ring
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize(("kind", "flavour"), PAUSING)
def test_connections_pause_in_the_order_of_asyncio(
    kind: str, flavour: str, pause: str, backend: str
) -> None:
    for warm in warms_of(kind):
        check(Program((Connection(kind, flavour, warm=warm),), PAUSES[pause]), backend)


# ── subprocesses ────────────────────────────────────────────────────────────────────────────


class Child(asyncio.SubprocessProtocol):
    def __init__(self, log: Log, loop: Loop) -> None:
        self.log = log
        self.loop = loop
        self.lost = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.log.add("made")
        self.loop.call_soon(self.log.add, "callback of made")
        self.loop.call_later(0, self.log.add, "timer of made")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.log.add(f"{fd} data {len(data)}")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.log.add(f"{fd} lost")

    def process_exited(self) -> None:
        self.log.add("exited")

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.add("lost")
        self.lost.set_result(None)


def speak() -> None:
    """Write in the child before it runs its program, so that both pipes are readable at once."""
    os.write(1, b"x" * 10)
    os.write(2, b"x" * 20)


async def begin_child(loop: Loop, log: Log) -> None:
    transport, child = await loop.subprocess_exec(
        lambda: Child(log, loop), sys.executable, "-c", "input()", preexec_fn=speak
    )
    log.add("the call returns")
    loop.call_soon(log.add, "callback")
    loop.call_later(0, log.add, "timer")
    for _ in range(REST):
        await asyncio.sleep(0)
    log.add("the end")
    transport.send_signal(signal.SIGKILL)
    await child.lost
    transport.close()


def child_log(loop: Loop) -> tuple[list[str], set[str]]:
    """Return how a child's connection begins, and what comes at its end, in no order."""
    log = Log()
    try:
        loop.run_until_complete(begin_child(loop, log))
    finally:
        loop.close()
    lines = [str(line) for line in log.lines]
    end = lines.index("the end")
    assert lines[-1] == "lost"
    return lines[:end], set(lines[end:])


@each_ring
def test_children_begin_in_the_order_of_asyncio(backend: str) -> None:
    assert child_log(LOOPS[backend]()) == child_log(LOOPS["asyncio"]())
