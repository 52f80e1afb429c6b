"""Random programs have asyncio's events in asyncio's order; `nox -s order` runs more of them."""

from __future__ import annotations

import pytest
from support.loops import each_ring

from order.differences import difference, differs, smallest
from order.programs import ACTIONS, CROWDED, Program, generate, generate_crowd

SEEDS = 60
CROWD_SEEDS = 3


def check(program: Program, backend: str) -> None:
    if differs(program, backend):
        small = smallest(program, backend)
        pytest.fail(f"{small}\n{difference(small, backend)}")


@pytest.mark.slow
@each_ring
@pytest.mark.parametrize("kind", ACTIONS)
def test_events_come_in_the_order_of_asyncio(kind: str, backend: str) -> None:
    for seed in range(SEEDS):
        check(generate(kind, seed), backend)


@pytest.mark.slow
@each_ring
@pytest.mark.parametrize("kind", CROWDED)
def test_many_connections_that_end_at_once_all_end(kind: str, backend: str) -> None:
    for seed in range(CROWD_SEEDS):
        check(generate_crowd(kind, seed), backend)
