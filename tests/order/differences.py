"""Compares the logs of a program on several loops, and makes a program that differs small."""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import uringloop
from order.log import Log
from order.playing import play
from order.programs import Program

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
# A difference that does not come again is one of the machine's.
TRIES = 3

LOOPS: dict[str, LoopFactory] = {
    "asyncio": asyncio.SelectorEventLoop,
    # It is not there for every Python.
    "uvloop": lambda: importlib.import_module("uvloop").new_event_loop(),
    "io_uring": lambda: uringloop.Loop(backend="io_uring"),
    "soft": lambda: uringloop.Loop(backend="soft"),
}


@functools.lru_cache(maxsize=1)
def on_asyncio(program: Program) -> Log:
    return play(program, LOOPS["asyncio"]())


def difference(program: Program, loop: str) -> str | None:
    """Return how the program's log on *loop* differs from asyncio's, if it does, as a diff."""
    expected, found = on_asyncio(program), play(program, LOOPS[loop]())
    if expected.has_unread_tls():
        return None
    if program.is_crowd or program.writes_to_an_ended_peer():
        return diff(expected.outline(), found.outline(), loop)
    for number in range(len(program.connections)):
        shown = diff(expected.view(number), found.view(number), loop)
        if shown is not None:
            return f"view of connection {number}:\n{shown}"
    return None


def diff(expected: list[str], found: list[str], loop: str) -> str | None:
    if expected == found:
        return None
    return "\n".join(difflib.unified_diff(expected, found, "asyncio", loop, n=100, lineterm=""))


def differs(program: Program, loop: str) -> bool:
    """Return whether the program differs each time: a busy machine may delay a packet once."""
    for _ in range(TRIES):
        if difference(program, loop) is None:
            return False
        on_asyncio.cache_clear()
    return True


def smallest(program: Program, loop: str) -> Program:
    """Return the smallest program that still differs, by leaving out one thing after the other."""
    changed = not program.is_crowd
    while changed:
        changed = False
        for candidate in smaller(program):
            if differs(candidate, loop):
                program, changed = candidate, True
                break
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Yield programs with a step, a connection or a detail less."""
    steps = program.steps
    if len(steps) > 3:
        half = len(steps) // 2
        yield replace(program, steps=steps[:half])
        yield replace(program, steps=steps[half:])
    last = len(program.connections) - 1
    if last > 0:
        for gone in range(last + 1):
            yield Program(
                program.connections[:gone] + program.connections[gone + 1 :],
                tuple(
                    replace(step, connection=step.connection - (step.connection > gone))
                    for step in steps
                    if step.connection != gone
                ),
            )
    for index, step in enumerate(steps):
        before, after = steps[:index], steps[index + 1 :]
        yield replace(program, steps=before + after)
        for plainer in (
            replace(step, turns=0),
            replace(step, turns=min(step.turns, 1)),
            replace(step, when=""),
            replace(step, size=min(step.size, 1)),
        ):
            if plainer != step:
                yield replace(program, steps=(*before, plainer, *after))
    for index, made_as in enumerate(program.connections):
        before_it, after_it = program.connections[:index], program.connections[index + 1 :]
        for simpler in (
            replace(made_as, early=""),
            replace(made_as, stays_open=False),
            replace(made_as, warm=0),
            replace(made_as, flavour="protocol"),
        ):
            if simpler != made_as:
                yield replace(program, connections=(*before_it, simpler, *after_it))
