"""Callbacks that run no Python code: other threads and signals still get their turn."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

import pytest
from support.loops import run_turns

PATIENCE = 20.0
NUMBERS = list(range(100_000))


def call_for_ever(loop: AbstractEventLoop) -> None:
    """Have the loop call a function in C in each turn, which only schedules itself."""
    functions: list[Callable[[], object]] = []
    scheduled = map(loop.call_soon, itertools.cycle(functions))
    functions.append(scheduled.__next__)
    loop.call_soon(scheduled.__next__)


def call_later_from_a_thread(
    loop: AbstractEventLoop, function: Callable[[], object]
) -> threading.Thread:
    """Have another thread call *function*, some time after *loop* has run its next callbacks."""

    def run() -> None:
        time.sleep(0.01)
        function()

    thread = threading.Thread(target=run)
    loop.call_soon(thread.start)
    return thread


def test_another_thread_runs_between_turns(each_loop: AbstractEventLoop) -> None:
    thread = call_later_from_a_thread(
        each_loop, lambda: each_loop.call_soon_threadsafe(each_loop.stop)
    )
    call_for_ever(each_loop)
    began = time.monotonic()
    each_loop.call_later(PATIENCE, each_loop.stop)
    each_loop.run_forever()
    thread.join()
    assert time.monotonic() - began < PATIENCE


def call_many(loop: AbstractEventLoop) -> list[int]:
    """Have the loop call many functions in C, and return the list of their results."""
    sums: list[int] = []

    def schedule_many() -> None:
        for _ in range(500):
            # The method of a list is in C, and so is what its argument calls.
            loop.call_soon(sums.extend, map(sum, (NUMBERS,)))

    loop.call_soon(schedule_many)
    return sums


def call_many_at(loop: AbstractEventLoop) -> list[int]:
    """Have the loop call many functions in C that are due at the same time."""
    sums: list[int] = []
    for number in range(500):
        loop.call_at(number * 1e-9, sums.extend, map(sum, (NUMBERS,)))
    return sums


def test_tracers_find_the_files_that_they_look_for(each_loop: AbstractEventLoop) -> None:
    names: set[str] = set()
    for _ in range(100):
        each_loop.call_soon(int)
    sys.setprofile(lambda frame, event, argument: names.add(frame.f_code.co_filename))
    try:
        run_turns(each_loop)
    finally:
        sys.setprofile(None)
    # Coverage reports a file that does not exist, unless its name begins so.
    assert names
    assert all(name.startswith("<") or os.path.isfile(name) for name in names)


CALLS = pytest.mark.parametrize("call", [call_many, call_many_at])


@CALLS
def test_another_thread_runs_within_a_turn(
    each_loop: AbstractEventLoop, call: Callable[[AbstractEventLoop], list[int]]
) -> None:
    done: list[int] = []

    def look_when_the_turn_has_begun() -> None:
        while not sums:
            time.sleep(0.001)
        done.append(len(sums))

    thread = call_later_from_a_thread(each_loop, look_when_the_turn_has_begun)
    sums = call(each_loop)
    run_turns(each_loop, 4)
    thread.join()
    assert len(sums) == 500
    assert done[0] < 500


@CALLS
def test_a_signal_is_handled_within_a_turn(
    each_loop: AbstractEventLoop, call: Callable[[AbstractEventLoop], list[int]]
) -> None:
    thread = call_later_from_a_thread(each_loop, lambda: os.kill(os.getpid(), signal.SIGINT))
    sums = call(each_loop)
    with pytest.raises(KeyboardInterrupt):
        each_loop.run_forever()
    thread.join()
    done = len(sums)
    assert done < 500
    # The next run calls the others.
    each_loop.call_later(0.001, each_loop.stop)
    each_loop.run_forever()
    assert len(sums) == 500
