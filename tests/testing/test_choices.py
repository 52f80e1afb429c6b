"""A random.Random chooses in place of a seed: hypothesis makes a failing run small."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uringloop import testing

SETTINGS = settings(
    max_examples=1000,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class Nothing(random.Random):
    """Always chooses 0: what an ordinary loop does."""

    def randrange(self, *limits: int) -> int:  # type: ignore[override]
        return 0


class Failing(random.Random):
    """Raises once it has chosen some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def randrange(self, *limits: int) -> int:  # type: ignore[override]
        self.times -= 1
        if self.times < 0:
            raise KeyboardInterrupt("no more choices")
        return 0


async def wake_six(log: list[int]) -> None:
    event = asyncio.Event()

    async def wait(number: int) -> None:
        await event.wait()
        log.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(6)]
    await asyncio.sleep(1)
    event.set()
    await asyncio.gather(*tasks)


def run(loop: testing.Loop) -> list[int]:
    log: list[int] = []
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(wake_six(log))
    return log


# Of hypothesis itself, on CPython 3.14.
@pytest.mark.filterwarnings("ignore:It looks like `register_random`")
def test_hypothesis_finds_the_smallest_order_that_fails() -> None:
    @SETTINGS
    @given(st.randoms(use_true_random=False))
    def check(rng: random.Random) -> None:
        log = run(testing.Loop(rng))
        assert log.index(3) < log.index(4), f"log is {log}"

    with pytest.raises(AssertionError) as caught:
        check()
    assert re.match(r"log is \[0, 1, 2, 4, 3, 5\]", str(caught.value))


def test_choices_of_0_are_what_an_ordinary_loop_does() -> None:
    faults = testing.Faults(late=0.9, short=0.9, stall=0.9, delay=0.9, split=0.9, reset=0.9)
    loop = testing.Loop(Nothing(), faults=faults)
    assert run(loop) == list(range(6))
    assert not any(loop.faults_happened().values())
    assert loop.elapsed() == pytest.approx(1)


def test_a_seeded_random_chooses_like_itself() -> None:
    logs = [run(testing.Loop(random.Random(seed))) for seed in (1, 2, 1)]
    assert logs[0] == logs[2] != logs[1]


@pytest.mark.parametrize("times", [0, 1, 5])
def test_what_a_choice_raises_leaves_the_run(times: int) -> None:
    loop = testing.Loop(Failing(times))
    with pytest.raises(KeyboardInterrupt, match="no more choices"):
        run(loop)
    assert loop.is_closed()


class Counting(random.Random):
    """Chooses 0, and counts the choices."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    def randrange(self, *limits: int) -> int:  # type: ignore[override]
        self.limits.append(limits[0])
        return 0


def test_faults_of_the_ring_are_choices_too() -> None:
    """The ring asks for them with the GIL released, while it waits."""

    async def main() -> bytes:
        reads, writes = await asyncio.open_connection(*server.sockets[0].getsockname())
        writes.write(bytes(100_000))
        writes.write_eof()
        data = await reads.read()
        await asyncio.to_thread(sum, (1, 2))
        writes.close()
        return data

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    chooser = Counting()
    faults = testing.Faults(late=0.5, short=0.5, interrupted=0.5, busy=0.5, reordered=0.5)
    with asyncio.Runner(loop_factory=lambda: testing.Loop(chooser, faults=faults)) as runner:
        server = runner.run(asyncio.start_server(echo, "127.0.0.1", 0))
        assert runner.run(main()) == bytes(100_000)
        server.close()
    # Each fault of the ring asks for a number below this.
    assert chooser.limits.count(1 << 32) > 20
