"""A compiled StreamReader without a connection: every read has the outcome of asyncio's.

Random programs run on asyncio's reader and on the compiled one. One difference is allowed: a
compiled reader with a task in readexactly(), readline() or readuntil() is not paused.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.loops import FACTORIES
from support.roles import turns
from support.streams import (
    PausingTransport,
    Player,
    Run,
    Step,
    UnpausableTransport,
    outcome_of,
    streams_of,
)

import uringloop
from uringloop import testing
from uringloop.streams import StreamReader

SETTINGS = settings(
    # EXAMPLES=20000 for a search.
    max_examples=int(os.environ.get("EXAMPLES", "300")),
    deadline=None,
)
# asyncio's readuntil() takes a tuple of separators since 3.13, a compiled one always.
HAS_TUPLES = sys.version_info >= (3, 13)

# Bytes that a counted read asks for.
LONGEST = 8
KINDS = st.sampled_from([bytes, bytes, bytes, bytearray, memoryview])
# Few different bytes, so that separators are found, and found in pieces.
DATA = st.text(alphabet="ab\n", max_size=8).map(str.encode)
SEPARATORS = st.text(alphabet="ab\n", min_size=1, max_size=3).map(str.encode)
FEED = st.tuples(st.just("feed"), DATA, KINDS)
UNTIL = st.tuples(st.just("readuntil"), SEPARATORS)
TUPLES = st.tuples(st.just("readuntil"), st.lists(SEPARATORS, max_size=3).map(tuple))
COUNTED = st.one_of(
    st.tuples(st.just("read"), st.integers(0, LONGEST)),
    st.tuples(st.just("readexactly"), st.integers(-1, LONGEST)),
)
READS = st.one_of(
    COUNTED,
    st.just(("read",)),
    st.just(("readline",)),
    st.just(("readuntil", b"")),
    st.just(("lines",)),
    UNTIL,
    TUPLES if HAS_TUPLES else UNTIL,
)


def started(name: str, reads: Any) -> Any:
    return st.builds(lambda wrapped, read: (name, wrapped, *read), st.booleans(), reads)


RARE = st.sampled_from([("eof",), ("fail",), ("cancel",), ("run_turn",), ("run_turn",)])
STEPS = st.lists(st.one_of(FEED, FEED, started("read", READS), RARE), max_size=14)
# Two at once: asyncio's readuntil() misses a separator if another read takes bytes meanwhile.
TWO = st.lists(
    st.one_of(FEED, started("read_beside", COUNTED), st.just(("eof",)), st.just(("cancel",))),
    max_size=10,
)
LIMITS = st.sampled_from([1, 2, 3, 10, 65_536])


def play(
    loop_name: str, steps: list[Step], limit: int, transport: PausingTransport, settle: bool
) -> Run:
    """Run a program on a new loop of one kind, with that kind's reader."""
    loop = FACTORIES[loop_name]()
    try:
        player = Player(loop, streams_of(loop).StreamReader)
        return loop.run_until_complete(player.play(steps, limit, transport, settle))
    finally:
        loop.close()


def compare(
    steps: list[Step], limit: int, transport_class: type[PausingTransport], settle: bool
) -> None:
    """Run a program on both kinds of readers; what they have done must be the same."""
    stock = play("asyncio", steps, limit, transport_class(), settle)
    compiled = play("uringloop", steps, limit, transport_class(), settle)
    assert compiled.outcomes == stock.outcomes
    assert compiled.rest == stock.rest
    assert compiled.states == stock.states
    if compiled.paused != stock.paused:
        # asyncio pauses at twice the limit, and a paused reader resumes at the limit: a compiled
        # one has not been paused while its task waited, which may have been cancelled.
        assert not compiled.paused
        assert len(stock.rest) <= 2 * limit + LONGEST or ("waits",) in stock.outcomes


@SETTINGS
@given(STEPS, LIMITS, st.sampled_from([PausingTransport, UnpausableTransport]))
@example(
    [("feed", b"ab", bytes), ("read", False, "readuntil", b"b\na"), ("feed", b"\na", bytes)],
    1,
    PausingTransport,
)
def test_reads_have_the_outcomes_of_asyncio(
    steps: list[Step], limit: int, transport_class: type[PausingTransport]
) -> None:
    compare(steps, limit, transport_class, settle=True)


@SETTINGS
@given(STEPS, LIMITS)
def test_reads_have_the_outcomes_of_asyncio_if_several_things_happen_in_one_turn(
    steps: list[Step], limit: int
) -> None:
    compare(steps, limit, PausingTransport, settle=False)


@SETTINGS
@given(TWO, LIMITS)
def test_two_reads_at_once_have_the_outcomes_of_asyncio(steps: list[Step], limit: int) -> None:
    compare(steps, limit, PausingTransport, settle=True)


@SETTINGS
@given(st.lists(DATA, max_size=6), st.lists(SEPARATORS, min_size=1, max_size=3), LIMITS)
def test_readuntil_of_a_tuple_ends_at_the_first_separator(
    parts: list[bytes], separators: list[bytes], limit: int
) -> None:
    """On each Python; asyncio's readuntil() takes a tuple since 3.13."""
    whole = b"".join(parts)
    found = [end for end in range(len(whole) + 1) if whole[:end].endswith(tuple(separators))]

    async def main() -> None:
        reader = StreamReader(limit=limit)
        task = asyncio.ensure_future(reader.readuntil(tuple(separators)))
        for part in parts:
            await turns(2)
            reader.feed_data(part)
        reader.feed_eof()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, asyncio.IncompleteReadError):
            assert not found
            assert (result.partial, result.expected) == (whole, None)
        elif isinstance(result, asyncio.LimitOverrunError):
            assert result.consumed > limit
            assert not found or found[0] > limit
        else:
            assert result == whole[: found[0]]
            assert found[0] - max(map(len, separators)) <= limit

    with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("separators", [(), (b"",), (b"a", b"")])
def test_readuntil_of_a_tuple_refuses_empty_separators(separators: tuple[bytes, ...]) -> None:
    async def main() -> None:
        reader = StreamReader()
        reader.feed_data(b"abc")
        message = "at least one element" if not separators else "at least one-byte string"
        with pytest.raises(ValueError, match=message):
            await reader.readuntil(separators)
        assert await reader.read(10) == b"abc"

    with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
        runner.run(main())


# ── any number of readers ─────────────────────────────────────────────────────────────────

# A read to the end that is cancelled loses what it has taken, as in asyncio.
KEEPING = st.one_of(COUNTED, UNTIL, TUPLES, st.just(("readline",)))
BUSY = st.lists(
    st.one_of(
        FEED,
        started("read_beside", KEEPING),
        st.sampled_from([("cancel",), ("run_turn",), ("run_turn",)]),
    ),
    max_size=20,
)


@SETTINGS
@given(BUSY, st.integers(0, 1000))
def test_no_byte_is_lost_doubled_or_out_of_order_if_many_tasks_read(
    steps: list[Step], seed: int
) -> None:
    """A task gets its bytes when it ends: these are, in that order, the bytes that were fed.

    Whatever the order in which the tasks run: the seed chooses it.
    """
    loop = testing.Loop(seed)
    taken: list[bytes] = []

    def ended(task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            return
        exc = task.exception()
        if exc is None:
            taken.append(task.result())
        elif isinstance(exc, asyncio.IncompleteReadError):
            taken.append(exc.partial)

    player = Player(loop, StreamReader)
    fed = b"".join(step[1] for step in steps if step[0] == "feed")

    async def main() -> bytes:
        loop.set_task_factory(watching)
        run = await player.play([*steps, ("eof",)], 65_536, PausingTransport(), settle=False)
        return run.rest

    def watching(loop: Any, coro: Any, **options: Any) -> Any:
        task = asyncio.Task(coro, loop=loop, **options)
        task.add_done_callback(ended)
        return task

    try:
        rest = loop.run_until_complete(main())
    finally:
        loop.close()
    assert b"".join(taken) + rest == fed
    assert not any(outcome == ("waits",) for outcome in map(outcome_of, player.tasks))
