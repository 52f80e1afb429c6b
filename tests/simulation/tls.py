"""TLS in a random program: one end is the loop's, and a stranger at the other end fails.

The stranger may fail behind any byte of the handshake, send its first bytes and its end with the
last ones, and answer close_notify in any way or not at all. The program acts within each callback,
and between them. From the plan of all this follows what each end must get.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from support.sockets import tcp_pair, unix_pair

from simulation.tls_plans import CLIENT, ORDERLY, PATIENT, SERVERS, SHORT_S, SIZES, Plan
from simulation.tls_strangers import LOOKS_MAX, QUICK_LOOKS, Stranger, pause

# How a handshake fails, by what the stranger does in it.
FAILURES = {
    "half": ConnectionError,
    "gone": ConnectionError,
    "reset": ConnectionError,
    "garbage": ssl.SSLError,
    "silence": ConnectionAbortedError,
}
# What a socket holds in transit, if that is little.
NARROW = 4096


class Meeting:
    """A connection of the loop with a stranger."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.plan = Plan(model.rng)
        self.end: Any = model.end()
        # The result of the handshake. start_tls() returns None if the connection has ended.
        self.failure: BaseException | None = None
        self.opened = False
        # The program has cancelled the handshake, or ended the connection below it.
        self.disturbed = False
        self.began = 0.0
        # More than a narrow socket takes.
        self.sizes = SIZES[-3:] if self.plan.narrow else SIZES

    async def hold(self) -> None:
        """Let both ends do what they are to do, until nothing of the connection is left."""
        plan, end, model = self.plan, self.end, self.model
        ours, theirs = tcp_pair() if plan.tcp else unix_pair()
        if plan.narrow:
            for sock in ours, theirs:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW)
        server = None
        if plan.way == "serve":
            ours.close()
            theirs.close()
            server = await model.loop.create_server(self.made, "127.0.0.1", 0, **self.options())
            theirs = socket.create_connection(server.sockets[0].getsockname())
            theirs.setblocking(False)
        self.stranger = Stranger(model, plan, theirs)
        end.peer, self.stranger.peer = self.stranger, end
        # The handshake may fail with an error after connection_made().
        end.lossy = plan.refuser is not None or (plan.way == "start_tls" and plan.flight > 0)
        life = asyncio.ensure_future(self.stranger.live())
        self.began = model.loop.time()
        if server is None:
            await self.connect(ours)
        else:
            self.plan_callbacks()
            self.stranger.may_begin.set()
            await self.until(lambda: end.transport is not None or life.done())
            self.opened = end.transport is not None
        if self.opened:
            await self.use()
        await self.until(self.is_over)
        await life
        if server is not None:
            server.close()
        self.check()

    async def until(self, condition: Callable[[], bool]) -> None:
        for look in range(LOOKS_MAX):
            if condition():
                return
            await pause(look)
        self.model.differs(f"stuck: {self.plan} {self.end} {self.stranger}")

    # ── what the program does ────────────────────────────────────────────────────────────────

    def options(self) -> dict[str, Any]:
        context, _, name = self.plan.contexts()
        named = {} if self.plan.serves else {"server_hostname": name}
        return {"ssl": context, **named, **self.plan.timeouts()}

    def made(self) -> Any:
        """Return the program's protocol, a factory for the loop."""
        return self.end

    async def connect(self, ours: socket.socket) -> None:
        """Wait for the end of the handshake, which the program may disturb."""
        opening = asyncio.ensure_future(self.shake_hands(ours))
        if "handshake" in self.plan.acts:
            await self.stranger.may_begin.wait()
            await self.model.turns(self.model.rng.randrange(1, 6))
            self.disturb(opening)
        await asyncio.wait([opening])
        self.failure = asyncio.CancelledError() if opening.cancelled() else opening.exception()

    async def shake_hands(self, ours: socket.socket) -> None:
        loop = self.model.loop
        try:
            if self.plan.way == "start_tls":
                await self.start_tls(ours)
                return
            self.plan_callbacks()
            self.stranger.may_begin.set()
            if self.plan.serves:
                await loop.connect_accepted_socket(self.made, ours, **self.options())
            else:
                await loop.create_connection(self.made, sock=ours, **self.options())
            self.opened = self.end.transport is not None
        finally:
            self.stranger.may_begin.set()

    async def start_tls(self, ours: socket.socket) -> None:
        loop, end = self.model.loop, self.end
        if not self.plan.nested:
            transport, _ = await loop.create_connection(self.made, sock=ours)
        elif self.plan.serves:
            transport, _ = await loop.connect_accepted_socket(
                self.made, ours, ssl=SERVERS[None], **PATIENT
            )
        else:
            transport, _ = await loop.create_connection(
                self.made, sock=ours, ssl=CLIENT, server_hostname="localhost", **PATIENT
            )
        self.model.references.append(weakref.ref(transport))
        if self.plan.clear:
            data = self.model.data(self.plan.clear)
            end.send(data)
            transport.write(data)
        if end.lost:
            raise ConnectionResetError
        for what in self.plan.acts.get("before", ()):
            if what in ("close", "abort"):
                self.disturb_with(getattr(transport, what))
        end.secure = True
        self.plan_callbacks()
        self.stranger.may_begin.set()
        options = self.options()
        secured = await loop.start_tls(
            transport, end, options.pop("ssl"), server_side=self.plan.serves, **options
        )
        if secured is not None:
            end.transport = secured
            self.opened = True

    def disturb(self, opening: asyncio.Future[None]) -> None:
        """Act in the handshake; of a new connection the program has nothing but the wait."""
        end, rng = self.end, self.model.rng
        below = end.transport if self.plan.way == "start_tls" else None
        secured = below and getattr(below.get_protocol(), "_app_transport", None)
        for what in self.plan.acts["handshake"]:
            if opening.done() or self.opened:
                return
            ends = what in ("close", "abort")
            if not secured:
                if ends:
                    self.disturb_with(opening.cancel)
            elif secured._ssl_protocol._transport is None:
                # The handshake has not begun.
                pass
            elif ends:
                self.disturb_with(getattr(rng.choice((secured, below)), what))
            elif what == "write":
                data = self.model.data(rng.choice(self.sizes))
                end.send(data)
                secured.write(data)

    def disturb_with(self, act: Callable[[], object]) -> None:
        self.disturbed = self.end.lossy = self.stranger.lossy = True
        act()

    def plan_callbacks(self) -> None:
        within = self.end.within
        for place in ("eof_received", "pause_writing", "resume_writing"):
            within[place] = functools.partial(self.act, place)
        within["connection_made"] = self.act_when_made
        within["data_received"] = self.act_on_data

    def act_when_made(self) -> None:
        self.act("connection_made")
        self.model.loop.call_soon(self.act, "soon")

    def act_on_data(self) -> None:
        if not self.opened and self.plan.way != "serve":
            self.model.differs(f"bytes before the program has its transport: {self.plan}")
        self.act("data_received")

    def act(self, place: str) -> None:
        end, rng = self.end, self.model.rng
        if self.plan.way == "start_tls" and not self.opened:
            # The program has no transport: the one in the clear is no longer its own.
            return
        for what in self.plan.acts.get(place, ()):
            if not end.usable:
                return
            if what == "write":
                if not end.transport.is_closing():
                    data = self.model.data(rng.choice(self.sizes))
                    end.send(data)
                    end.transport.write(data)
            elif what == "pause":
                if not end.reading_paused:
                    end.reading_paused = True
                    end.transport.pause_reading()
            elif what == "resume":
                end.wake()
            elif what == "close":
                end.closed = end.lossy = True
                end.transport.close()
            elif what == "abort":
                end.aborted = end.lossy = self.stranger.lossy = True
                end.transport.abort()

    async def use(self) -> None:
        """Act on the open connection; then end it, unless the stranger does."""
        end, model, plan = self.end, self.model, self.plan
        model.references.append(weakref.ref(end.transport))
        self.act("returned")
        looks = 0
        while plan.lazy and self.stranger.promised is None and looks < QUICK_LOOKS:
            await model.turns(1)
            looks += 1
        await model.turns(model.rng.choice((0, 1, 5, 30)))
        self.act("later")
        await model.turns(model.rng.choice((0, 5, 30)))
        # A pause does not keep the end of the handshake from the stranger.
        await self.until(lambda: self.stranger.shaken or not end.usable)
        end.wake()
        if end.usable and (not plan.faults or "silence" in plan.faults):
            end.closed = end.lossy = True
            end.transport.close()

    def is_over(self) -> bool:
        """Return whether the connection has ended, as far as the program is told."""
        if self.opened:
            # What a callback has paused after the last step.
            self.end.wake()
        return self.end.lost or not (self.opened or self.must_be_told())

    def must_be_told(self) -> bool:
        """Return whether the program is told of the end of a handshake that start_tls() began.

        As in asyncio it is if OpenSSL has failed, but not if the connection below has.
        """
        return self.plan.way == "start_tls" and isinstance(self.failure, ssl.SSLError)

    # ── what must hold ───────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        for claim in self.broken():
            self.model.differs(
                f"{claim}: {self.plan} {self.failure!r} {self.end.error!r} {self.end} "
                f"{self.stranger} {self.stranger.layer.errors}"
            )

    def broken(self) -> Iterator[str]:
        """Yield what does not hold."""
        plan, end, stranger, failure = self.plan, self.end, self.stranger, self.failure
        may_open = stranger.flights >= plan.flights and plan.refuser != "loop"
        if self.opened and not may_open:
            yield "a connection without a handshake"
        if plan.way in ("connect", "accept"):
            if failure is None and not self.opened:
                yield "a failed handshake is not told"
            if failure is not None and end.transport is not None and not self.disturbed:
                yield "a connection whose handshake has failed"
        if self.model.harmful or self.disturbed:
            return
        if not self.opened:
            if end.lost and isinstance(failure, ConnectionAbortedError):
                yield "connection_lost() after a handshake that has timed out"
            if may_open and not set(plan.faults) & {"reset", "gone", "silence"}:
                yield "no connection, although the handshake is complete"
            known = FAILURES[plan.faults[0]] if plan.flight else (ssl.SSLError, ConnectionError)
            if failure is not None and not isinstance(failure, known):
                yield "an odd failure"
            lasted = self.model.loop.time() - self.began
            if isinstance(failure, ConnectionAbortedError) and lasted < SHORT_S:
                yield "a timeout that is early"
            if plan.refuser == "loop" and self.hears_alerts() and not stranger.alerted:
                yield "no alert for a refusal"
            return
        # In TLS within TLS the end of the stream below does not wait for a pause above.
        waits = not (plan.nested and (end.resumes or end.reading_paused))
        if waits and not end.lossy and not (end.complete and end.eof):
            yield "bytes or the end are not told"
        if end.error is not None and plan.refuser is None and self.ends_orderly():
            yield "an error at an orderly end"
        # A stranger who refuses reads nothing, and after its alert no close_notify follows.
        if not stranger.lossy and not end.aborted and plan.refuser is None:
            wanted = len(end.sent) if stranger.promised is None else stranger.promised
            if len(stranger.received) < wanted:
                yield "bytes do not reach the stranger"
            if not stranger.layer.notified and plan.faults in ([], ["notify"]):
                yield "no close_notify"
        if end.eof and isinstance(end.error, ssl.SSLError) and not end.closed:
            yield "an orderly end and an error"
        if isinstance(end.error, ssl.SSLError) and self.hears_alerts() and not stranger.alerted:
            yield "no alert for a bad record"

    def ends_orderly(self) -> bool:
        """Return whether the stranger does nothing that is an error."""
        return set(self.plan.faults or [self.plan.answer]) <= set(ORDERLY)

    def hears_alerts(self) -> bool:
        """Return whether an alert must reach the stranger.

        None follows close_notify. It is lost with a send that the kernel keeps, and if the loop's
        end has unread bytes when it closes its socket.
        """
        plan, end, faults = self.plan, self.end, self.model.loop.faults
        if faults.late or faults.short or end.sent or end.closed:
            return False
        if plan.refuser is not None:
            return plan.refuser == "loop" and not self.stranger.sent and not plan.faults
        return plan.faults == ["garbage"] and (not plan.flight or plan.part == 1)
