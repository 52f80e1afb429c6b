"""Runs a program on a loop, and returns its log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from asyncio import selector_events
from collections.abc import Callable
from typing import Any

from order.connecting import connect
from order.links import Buffered, Link, Loop, Recorder, said
from order.log import Log
from order.programs import (
    DATAGRAMS,
    DATAGRAMS_FIRST,
    ENDING,
    LARGE,
    PEER,
    TLS_KINDS,
    WARMING,
    WRITE_ONLY,
    Program,
    Step,
)

# A program takes milliseconds, unless something never happens.
LIMIT_S = 10.0

# Within so many turns a transport has sent what was written, and closed its socket. Before that the
# peer does not end the connection: a loop may write at the end of a turn.
SETTLED_TURNS = 6
SETTLED = ("peer_eof", "peer_close", "peer_reset", "peer_read")

# An end that has not come by then never comes.
PATIENCE_S = 1.0

# The due timer's delay.
SHORT_S = 0.001


def play(program: Program, loop: Loop) -> Log:
    """Run *program* on *loop*, which is closed afterwards."""
    playing = Playing(program, loop)
    # asyncio's debug mode reports slow callbacks, among others.
    loop.set_debug(False)
    loop.set_exception_handler(playing.on_handler)
    try:
        loop.run_until_complete(asyncio.wait_for(playing.run(), LIMIT_S))
    except TimeoutError:
        playing.log.add("the program does not end")
    finally:
        loop.close()
    return playing.log


# Older versions begin to read after connection_made() even if it has paused.
MADE_MAY_PAUSE = "is_reading" in selector_events._SelectorTransport._add_reader.__code__.co_names  # type: ignore[attr-defined]


def is_left_out(step: Step, link: Link) -> bool:
    """Return whether asyncio would fail on its own state, or its loop promises no result."""
    if step.when == "made" and step.action in ("pause", "hand_over") and not MADE_MAY_PAUSE:
        return True
    if link.ended and step.action in ("pause", "resume", "hand_over"):
        # If the connection stays open, asyncio tells the end again after a pause.
        return True
    closing = link.transport.is_closing()
    kind = link.made_as.kind
    if step.action == "hand_over" and kind == "udp" and link.datagrams >= DATAGRAMS_FIRST:
        # The ring has taken what is under way.
        return link.is_under_way()
    if step.action == "hand_over" and link.made_as.takes_ahead and link.peer.has_reset:
        # detach() raises the error that the ring has taken.
        return True
    if kind in TLS_KINDS:
        if step.action == "pause" and step.when == "made":
            return True
        if step.action == "close":
            return closing or not link.transport.is_reading()
        return closing and step.action != "abort"
    if kind in WRITE_ONLY and step.when == "made":
        # asyncio watches the number of the descriptor afterwards, even if it is closed.
        return step.action != "write"
    # A descriptor is closed in one of the next turns.
    return closing and (step.action == "hand_over" or kind in WRITE_ONLY)


class Playing:
    """A program that runs."""

    def __init__(self, program: Program, loop: Loop) -> None:
        self.program = program
        self.loop = loop
        self.log = Log()
        self.turn = 0
        self.links = [
            Link(number, made_as, loop, self.log)
            for number, made_as in enumerate(program.connections)
        ]
        self.names = {id(step): f"step {number}" for number, step in enumerate(program.steps)}
        self.tasks: list[asyncio.Task[None]] = []

    def on_handler(self, loop: Loop, context: dict[str, Any]) -> None:
        # What follows describes the transport.
        message = str(context["message"]).partition(" on ")[0]
        self.log.add(f"handler: {message} {said(context.get('exception'))}")

    # ── the driver ───────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        self.prepare()
        for link in self.links:
            try:
                await connect(link)
            except OSError as exc:
                # The peer may have reset the connection before.
                link.lost = True
                link.note(f"connect fails: {said(exc)}")
            else:
                link.note("is open")
                await self.warm(link)
            if link is not self.links[-1]:
                await self.turns(SETTLED_TURNS)
        for step in self.program.steps:
            await self.drive(step)
            await self.turns(step.turns)
        await self.end()

    async def warm(self, link: Link) -> None:
        """Let the connection receive some messages, one after the other, unless it is paused."""
        size = link.made_as.warm
        if not size:
            return
        link.warming = True
        for _ in range(WARMING):
            if link.transport.is_closing() or link.is_paused():
                break
            link.peer.send(size)
            await self.until(lambda: link.received == link.peer.sent)
        link.warming = False

    def prepare(self) -> None:
        """Tell each connection what to do in its callbacks."""
        for link in self.links:
            waiting: dict[str, list[Step]] = {}
            for step in self.program.steps:
                if step.connection == link.number:
                    link.large |= step.size == LARGE
                    waiting.setdefault(step.when, []).append(step)
            link.happened = self.reaction(waiting)

    def reaction(self, waiting: dict[str, list[Step]]) -> Callable[[str], None]:
        def happened(event: str) -> None:
            # At the first data, and not again.
            for step in waiting.pop(event, ()):
                self.do(step)

        return happened

    async def drive(self, step: Step) -> None:
        """Do or start a step, unless a callback of its connection does it."""
        if step.when == "soon":
            self.loop.call_soon(self.do, step)
        elif step.when == "timer":
            self.loop.call_later(0, self.do, step)
        elif step.when == "task":
            self.tasks.append(self.loop.create_task(self.do_in_task(step)))
        elif step.when == "":
            link = self.links[step.connection]
            closing = link.transport is not None and link.transport.is_closing()
            if step.action in SETTLED or (step.action == "peer_send" and closing):
                await self.settle(link)
            if step.action in PEER:
                await self.until_delivered(link, step)
            self.do(step)

    async def do_in_task(self, step: Step) -> None:
        self.do(step)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn += 1
            await asyncio.sleep(0)

    async def settle(self, link: Link) -> None:
        """Let the loop send and close what it has been told to."""
        await self.turns(link.touched_at + SETTLED_TURNS - self.turn)

    async def until_delivered(self, link: Link, step: Step) -> None:
        """Let a protocol get what was sent, if it depends on the loop what comes with it."""
        if link.large and link.made_as.warm and not link.is_paused():
            # How many turns a large message takes depends on the loop.
            await self.turns(link.sent_at + SETTLED_TURNS - self.turn)
        for _ in range(SETTLED_TURNS):
            if not link.is_under_way() or not self.comes_apart(link, step):
                break
            await self.turns(1)

    def comes_apart(self, link: Link, step: Step) -> bool:
        """Return whether what a peer does may be told apart from what is under way, or with it."""
        if link.made_as.kind in DATAGRAMS:
            return link.datagrams >= DATAGRAMS_FIRST
        if not link.made_as.warm:
            return False
        if link.made_as.kind in TLS_KINDS:
            # A pause lets the socket go on, and an end is sent as bytes, too.
            return link.sent_at != self.turn
        # What comes during a pause is told together, and so is what is sent within a turn.
        return step.action == "peer_send" and link.sent_at != self.turn and not link.is_paused()

    async def end(self) -> None:
        """End all connections, and note what each side has got."""
        await self.turns(SETTLED_TURNS)
        if self.program.is_crowd:
            await self.until_lost()
        self.log.add("end")
        for link in self.links:
            if link.peer.ended:
                continue
            received = link.peer.receive()
            # A socket that is closed with unread bytes in it resets the connection.
            link.note(f"peer has {received.partition(',')[0] if link.left_unread else received}")
        for link in self.links:
            if link.transport is None:
                continue
            if not link.lost or link.made_as.flavour in ("streams", "compiled"):
                # A transport that only reads has no abort().
                getattr(link.transport, "abort", link.transport.close)()
        await self.turns(SETTLED_TURNS)
        await self.until_lost()
        for link in self.links:
            await self.leave(link)

    async def until_lost(self) -> None:
        await self.until(lambda: all(link.lost for link in self.links))

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds() and time.monotonic() < deadline:
            await self.turns(1)

    async def leave(self, link: Link) -> None:
        for task in link.tasks:
            task.cancel()
        await asyncio.gather(*link.tasks, return_exceptions=True)
        if self.program.is_crowd:
            link.note(f"received {link.received}")
        if link.duplicate is not None:
            # Some bytes may have gone to the protocol, others wait in the socket.
            rest = link.rest()
            all_there = link.received + rest == link.peer.sent
            link.note("handed over " + ("all" if all_there else f"{link.received + rest}"))
        if not link.peer.ended:
            link.peer.close()
        with contextlib.suppress(OSError):
            if link.transport is not None and link.fileno() != -1:
                link.note("still has its descriptor")

    # ── what a step does ─────────────────────────────────────────────────────────────────

    def do(self, step: Step) -> None:
        name = self.names[id(step)]
        link = self.links[step.connection]
        # What a callback of a connection does is seen by that connection alone.
        owner = link.number if step.when in ("made", "data", "eof", "lost") else None
        self.log.add(f"{name}: {step.action}", owner)
        try:
            if step.action.startswith("peer"):
                self.by_peer(step, link)
            elif hasattr(Making, step.action):
                getattr(Making(self, name, owner), step.action)(step.size)
            else:
                self.by_loop(step, link)
        except Exception as exc:
            link.note(f"{name} fails: {said(exc)}")

    def by_peer(self, step: Step, link: Link) -> None:
        peer = link.peer
        if peer.ended:
            return
        link.sent_at = self.turn
        if step.action == "peer_send":
            peer.send(step.size)
        elif step.action == "peer_eof":
            peer.send_eof()
        elif step.action == "peer_close":
            peer.close()
        elif step.action == "peer_reset":
            peer.reset()
        else:
            link.note(f"peer has {peer.receive()}")

    def by_loop(self, step: Step, link: Link) -> None:
        transport = link.transport
        if transport is None or is_left_out(step, link):
            return
        if step.action in ("write", "write_eof", "close", "abort"):
            link.touched_at = self.turn
        if step.action in ENDING:
            link.left_unread |= link.made_as.takes_ahead and link.is_under_way()
        if step.action == "write":
            data = bytes(step.size)
            if link.made_as.kind in DATAGRAMS:
                transport.sendto(data)
            else:
                transport.write(data)
        elif step.action == "set_protocol":
            self.set_protocol(link)
        elif step.action == "hand_over":
            self.hand_over(link)
        elif step.action in ("pause", "resume"):
            getattr(transport, f"{step.action}_reading")()
        else:
            getattr(transport, step.action)()

    def set_protocol(self, link: Link) -> None:
        """Replace the protocol, but for a stream's, whose reader is its own."""
        if link.made_as.flavour == "protocol":
            link.transport.set_protocol(Recorder(link, "new "))
        elif link.made_as.flavour == "buffered":
            link.transport.set_protocol(Buffered(link, "new "))

    def hand_over(self, link: Link) -> None:
        """Give the socket to somebody else."""
        if link.made_as.kind in DATAGRAMS:
            link.hand_over()
            link.transport.abort()
        elif link.made_as.takes_ahead:
            link.detach()
        else:
            link.hand_over_paused()


class Making:
    """What a program makes with the loop: callbacks, timers and tasks, each with its line."""

    def __init__(self, playing: Playing, name: str, owner: int | None) -> None:
        self.loop = playing.loop
        self.tasks = playing.tasks
        self.log = playing.log
        self.name = name
        self.owner = owner

    def note(self, text: str) -> None:
        self.log.add(f"{self.name} {text}", self.owner)

    def soon(self, size: int) -> None:
        self.loop.call_soon(self.note, "called")

    def chain(self, size: int) -> None:
        """Call back in each of *size* turns."""
        self.note(f"{size} left")
        if size > 0:
            self.loop.call_soon(self.chain, size - 1)

    def threadsafe(self, size: int) -> None:
        self.loop.call_soon_threadsafe(self.note, "called")

    def timer(self, size: int) -> None:
        self.loop.call_later(0, self.note, "timer")

    def past_timer(self, size: int) -> None:
        self.loop.call_at(self.loop.time() - 1, self.note, "timer")

    def due_timer(self, size: int) -> None:
        """Make a timer whose time comes before this callback returns."""
        self.loop.call_later(SHORT_S, self.note, "timer")
        time.sleep(2 * SHORT_S)

    def task(self, size: int) -> None:
        self.tasks.append(self.loop.create_task(self.steps(size)))

    async def steps(self, size: int) -> None:
        for number in range(size):
            self.note(f"task {number}")
            await asyncio.sleep(0)
        self.note("task ends")

    def woken_task(self, size: int) -> None:
        future = self.loop.create_future()
        self.tasks.append(self.loop.create_task(self.wait(future)))
        self.loop.call_soon(self.soon_again, functools.partial(future.set_result, None))

    def cancelled_task(self, size: int) -> None:
        task = self.loop.create_task(self.wait(self.loop.create_future()))
        self.tasks.append(task)
        self.loop.call_soon(self.soon_again, task.cancel)

    def soon_again(self, function: Callable[[], object]) -> None:
        self.loop.call_soon(function)

    async def wait(self, future: asyncio.Future[None]) -> None:
        self.note("task waits")
        try:
            await future
        except asyncio.CancelledError:
            self.note("task is cancelled")
        else:
            self.note("task is woken")
