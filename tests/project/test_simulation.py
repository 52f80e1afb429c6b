"""Random programs against the oracle of `simulation`; hypothesis shortens a failing one.

The kernel is the machine's own. `nox -s simulate` runs seeds on a loop for tests, with faults.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from simulation.ends import End
from simulation.model import CROWDS, FORMS, KINDS, LAST, SERVED, SIZES, Difference, Model
from simulation.mutants import MUTANTS, Mutant, mutated
from simulation.streams import READS
from support.leaks import open_fds
from support.loops import on_io_uring
from support.sources import PACKAGE

from uringloop._ring.backends import Backend

NUMBERS = st.integers(0, 1 << 16)
SMALL = st.integers(1, 10)
TURNS = st.sampled_from((0, 0, 1, 2, 5))


class Programs(RuleBasedStateMachine):
    backend: Backend = "soft"

    def __init__(self) -> None:
        super().__init__()
        self.fds = open_fds()
        self.folder = Path(tempfile.mkdtemp(prefix="uringloop-simulation-"))
        self.model: Any = None

    @initialize(seed=NUMBERS)
    def begin(self, seed: int) -> None:
        self.model = Model(seed, self.folder, backend=self.backend)

    def connected(self) -> bool:
        """Whether a connection was ever made: hypothesis needs a fact that timing cannot change."""
        return bool(self.model and self.model.pairs)

    def end(self, number: int) -> End:
        # If no end is usable, any closed one will do: the model does nothing with it.
        ends: list[End] = self.model.ends(lambda end: True)
        usable = [end for end in ends if end.usable] or ends
        return usable[number % len(usable)]

    @rule(kind=st.sampled_from(KINDS))
    def connect(self, kind: str) -> None:
        self.model.run(self.model.connect(kind))

    @rule(kind=st.sampled_from(SERVED), count=st.sampled_from(CROWDS))
    def crowd(self, kind: str, count: int) -> None:
        self.model.run(self.model.crowd(kind, count))

    @precondition(connected)
    @rule(number=NUMBERS, size=st.sampled_from(SIZES), form=st.sampled_from(FORMS))
    def write(self, number: int, size: int, form: str) -> None:
        self.model.run(self.model.write(self.end(number), size, form))

    @precondition(connected)
    @rule(
        number=NUMBERS,
        what=st.sampled_from(("pause", "resume", "resume", "write_eof", "close", "abort")),
    )
    def change(self, number: int, what: str) -> None:
        self.model.run(getattr(self.model, what)(self.end(number)))

    @rule(count=SMALL, how=st.sampled_from(LAST), tcp=st.booleans())
    def last_words(self, count: int, how: str, tcp: bool) -> None:
        self.model.run(self.model.last_words(count, how, tcp=tcp))

    @precondition(connected)
    @rule(number=NUMBERS, settled=st.booleans())
    def hand_over(self, number: int, settled: bool) -> None:
        self.model.run(self.model.hand_over(self.end(number), settled=settled))

    @precondition(connected)
    @rule(number=NUMBERS, high=st.sampled_from((0, 1000, 100_000)))
    def limit(self, number: int, high: int) -> None:
        self.model.run(self.model.limit(self.end(number), high))

    @rule(count=TURNS)
    def turn(self, count: int) -> None:
        self.model.run(self.model.turns(count))

    @rule(count=SMALL, what=st.sampled_from(("soon", "timers", "thread")))
    def call(self, count: int, what: str) -> None:
        self.model.run(getattr(self.model, what)(count))

    @rule(count=SMALL, with_ancillary=st.booleans())
    def datagrams(self, count: int, with_ancillary: bool) -> None:
        self.model.run(self.model.datagrams(count, with_ancillary=with_ancillary))

    @rule(count=SMALL, cancels=st.integers(0, 3))
    def descriptors(self, count: int, cancels: int) -> None:
        self.model.run(self.model.descriptors(count, cancels))

    @rule(limit=st.integers(1, 3), count=st.integers(1, 11))
    def limited(self, limit: int, count: int) -> None:
        self.model.run(self.model.limited(limit, count))

    @rule(size=st.sampled_from(SIZES), cancels=st.integers(0, 3))
    def sockets(self, size: int, cancels: int) -> None:
        self.model.run(self.model.sockets(size, cancels))

    @rule(layer=st.sampled_from(tuple(READS)), compiled=st.booleans())
    def streams(self, layer: str, compiled: bool) -> None:
        self.model.run(self.model.streams(layer, compiled=compiled))

    @rule(offset=NUMBERS, size=st.sampled_from(SIZES), sync=st.booleans())
    def file_write(self, offset: int, size: int, sync: bool) -> None:
        self.model.run(self.model.file_write(offset, size, sync))

    @rule(offset=NUMBERS, size=st.sampled_from(SIZES))
    def file_read(self, offset: int, size: int) -> None:
        self.model.run(self.model.file_read(offset, size))

    @rule(size=st.sampled_from(SIZES))
    def write_atomic(self, size: int) -> None:
        self.model.run(self.model.write_atomic(size))

    @rule(count=TURNS, joined=st.booleans())
    def fifo(self, count: int, joined: bool) -> None:
        self.model.run(self.model.fifo(count, joined=joined))

    @rule(count=TURNS)
    def terminal(self, count: int) -> None:
        self.model.run(self.model.terminal(count))

    def teardown(self) -> None:
        try:
            if self.model is not None:
                self.model.run(self.model.finish())
                self.model.leave()
                assert not open_fds() - self.fds
        finally:
            if self.model is not None and not self.model.loop.is_closed():
                self.model.loop.close()
            shutil.rmtree(self.folder)


class ProgramsOnIoUring(Programs):
    backend = "io_uring"


def case_of(programs: type[Programs]) -> Any:
    case = programs.TestCase
    case.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return pytest.mark.slow(case)


TestPrograms = case_of(Programs)
TestProgramsOnIoUring = on_io_uring(case_of(ProgramsOnIoUring))


@pytest.mark.parametrize(
    ("sent", "received"),
    [(b"ab", b"b"), (b"ab", b"aba"), (b"", b"a")],
    ids=["lost", "twice", "odd"],
)
def test_the_oracle_detects_lost_repeated_and_odd_bytes(
    tmp_path: Path, sent: bytes, received: bytes
) -> None:
    model = Model(0, tmp_path)
    model.run(model.connect("pair"))
    left, right = model.pairs[0]
    left.sent += sent
    right.take(received)
    with pytest.raises(Difference, match="other bytes"):
        model.check()
    left.sent[:] = right.received
    model.differences.clear()
    model.run(model.finish())
    model.loop.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    # `nox -s mutants` takes an hour; a mutant whose line has changed would end it.
    assert mutated((PACKAGE / mutant.file).read_text(), mutant)
    assert mutant.wrong != mutant.right
