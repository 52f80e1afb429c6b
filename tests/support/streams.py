"""Helpers of the tests of compiled streams: which classes a loop uses, and programs for readers.

A program is a list of steps for one StreamReader: data is fed, reads are started and cancelled. It
runs on the classes of asyncio and on the compiled ones, and both must have the same outcomes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import uringloop
import uringloop.streams
from support.roles import Loop, turns

Step = tuple[Any, ...]
# A name of an outcome, and what belongs to it.
Outcome = tuple[Any, ...]

# The task that waits in a read is resumed within so many turns, also if wait_for() is around it.
SETTLED_TURNS = 5


def streams_of(loop: Loop) -> ModuleType:
    """Return the module with the classes under test: compiled ones for this package's loops."""
    return uringloop.streams if isinstance(loop, uringloop.Loop) else asyncio.streams


class PausingTransport(asyncio.Transport):
    """Counts the calls of pause_reading() and resume_reading()."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0
        self.resumes = 0

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.resumes += 1

    @property
    def paused(self) -> bool:
        assert self.pauses - self.resumes in (0, 1)
        return self.pauses > self.resumes


class UnpausableTransport(PausingTransport):
    """A transport that can not be paused."""

    def pause_reading(self) -> None:
        raise NotImplementedError


async def collected(reader: asyncio.StreamReader) -> list[bytes]:
    """Return the lines of `async for`."""
    return [line async for line in reader]


def reading(reader: asyncio.StreamReader, name: str, *arguments: Any) -> Coroutine[Any, Any, Any]:
    if name == "lines":
        return collected(reader)
    made: Coroutine[Any, Any, bytes] = getattr(reader, name)(*arguments)
    return made


async def inside(reader: asyncio.StreamReader, name: str, *arguments: Any) -> Any:
    """Await a read in a coroutine: its task does not run the read itself."""
    return await reading(reader, name, *arguments)


def outcome_of(task: asyncio.Task[Any]) -> Outcome:
    """Return the result or the exception of a task, in a form that can be compared."""
    if not task.done():
        return ("waits",)
    if task.cancelled():
        return ("cancelled",)
    exc = task.exception()
    if exc is None:
        return ("result", type(task.result()), task.result())
    details = {name: getattr(exc, name, None) for name in ("partial", "expected", "consumed")}
    return ("error", type(exc), exc.args, details)


@dataclass
class Run:
    """What one program has done."""

    outcomes: list[Outcome] = field(default_factory=list)
    # After each step: which reads have ended, and whether the reader is at its end.
    states: list[tuple[tuple[bool, ...], bool]] = field(default_factory=list)
    rest: bytes = b""
    paused: bool = False


class Player:
    """Runs the steps of a program."""

    def __init__(self, loop: Loop, reader_class: Callable[..., asyncio.StreamReader]) -> None:
        self.loop = loop
        self.reader_class = reader_class
        self.tasks: list[asyncio.Task[Any]] = []
        self.fed_eof = False
        self.failed = False

    async def play(
        self, steps: list[Step], limit: int, transport: PausingTransport, settle: bool
    ) -> Run:
        """Run *steps*; with *settle*, the tasks run after each of them."""
        self.reader = self.reader_class(limit=limit, loop=self.loop)
        self.reader.set_transport(transport)
        run = Run()
        for name, *arguments in steps:
            await getattr(self, name)(*arguments)
            if settle:
                await turns(SETTLED_TURNS)
                run.states.append((tuple(t.done() for t in self.tasks), self.reader.at_eof()))
        await turns(SETTLED_TURNS)
        run.outcomes = [outcome_of(task) for task in self.tasks]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        run.paused = transport.paused
        run.rest = bytes(self.reader._buffer)  # type: ignore[attr-defined]
        return run

    async def feed(self, data: bytes, kind: Callable[[bytes], Any]) -> None:
        if not self.fed_eof:
            self.reader.feed_data(kind(data))

    async def eof(self) -> None:
        self.fed_eof = True
        self.reader.feed_eof()

    async def fail(self) -> None:
        # asyncio forgets the exception if a task that was woken for data has not run yet.
        await turns(SETTLED_TURNS)
        if not self.failed:
            self.failed = True
            self.reader.set_exception(ConnectionResetError("by the peer"))

    async def read(self, wrapped: bool, name: str, *arguments: Any) -> None:
        """Start a read, unless another one is going on."""
        if all(task.done() for task in self.tasks):
            await self.read_beside(wrapped, name, *arguments)

    async def read_beside(self, wrapped: bool, name: str, *arguments: Any) -> None:
        """Start a read, whatever others do."""
        read = (inside if wrapped else reading)(self.reader, name, *arguments)
        self.tasks.append(self.loop.create_task(read))

    async def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def run_turn(self) -> None:
        await turns(1)
