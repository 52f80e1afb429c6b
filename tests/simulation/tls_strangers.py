"""A stranger at the other end of a connection over TLS, who does as the plan of a meeting says.

It does TLS by hand, on a socket of its own, so that it knows and chooses which bytes are sent, and
which of them together. The faults of the simulated kernel do not reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from typing import Any

from simulation.ends import End
from simulation.tls_plans import CLIENT, ORDERLY, SERVERS, Plan

GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x17\x03\x03\x00\x20" + bytes(32),
    b"\x15\x03\x03\0\2\2\x28",
)
# More bytes than any record has: OpenSSL must not wait for the rest of one.
RECORD_MAX = 17_000
# Looks for something that is to come: those without a pause, all, and the longest pause.
QUICK_LOOKS = 200
LOOKS_MAX = 300
LOOK_MAX_S = 5.0


async def pause(looks: int) -> None:
    """Wait until the next look for something.

    Time must go on only for what comes by a timer. A loop for tests that is about to sleep looks at
    all its connections.
    """
    late = looks - QUICK_LOOKS
    await asyncio.sleep(0 if late < 0 else min(LOOK_MAX_S, 0.01 * 2.0 ** min(late, 20)))


class Layer:
    """TLS by hand, for one end."""

    def __init__(self, context: ssl.SSLContext, name: str | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # Only clients have a name to check.
        self.tls = context.wrap_bio(self.incoming, self.outgoing, name is None, name)
        # Reports of OpenSSL: close_notify; errors of this end, and those in alerts.
        self.notified = False
        self.errors: list[ssl.SSLError] = []

    def decrypt(self) -> bytes:
        """Return the plaintext of what has been received."""
        plaintext = bytearray()
        try:
            while piece := self.tls.read(RECORD_MAX):
                plaintext += piece
            self.notified = True
        except ssl.SSLZeroReturnError:
            # This end has sent close_notify before.
            self.notified = True
        except ssl.SSLWantReadError:
            # No whole record is left.
            pass
        except ssl.SSLError as exc:
            self.errors.append(exc)
        return bytes(plaintext)

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


class Stranger(End):
    """The other end of a connection: an SSLObject over a raw socket."""

    def __init__(self, model: Any, plan: Plan, sock: socket.socket) -> None:
        super().__init__(model)
        self.plan = plan
        self.sock = sock
        self.rng: random.Random = model.rng
        _, context, name = plan.contexts()
        self.layer = Layer(context, name if plan.serves else None)
        # TLS below that one.
        self.below: Layer | None = None
        self.may_begin = asyncio.Event()
        # Flights of the handshake that are sent whole.
        self.flights = 0
        # The handshake is complete, or has failed.
        self.shaken = False
        # What the loop's end had written when this one failed; None: it has not.
        self.promised: int | None = None
        # The socket was closed before the other end's.
        self.closed_early = False

    @property
    def alerted(self) -> bool:
        return any("ALERT" in str(error) for error in self.layer.errors)

    async def live(self) -> None:
        try:
            if self.plan.nested:
                await self.begin_below()
            await self.may_begin.wait()
            await self.hear_clear()
            complete = await self.shake_hands()
            self.shaken = True
            if complete:
                await self.talk()
            await self.listen()
        except OSError:
            self.lossy = True
        finally:
            self.closed = True
            self.sock.close()

    async def begin_below(self) -> None:
        serves = self.plan.serves
        layer = Layer(CLIENT if serves else SERVERS[None], "localhost" if serves else None)
        while True:
            done = True
            try:
                layer.tls.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            await self.transmit(layer.outgoing.read())
            if done:
                break
            if not await self.more():
                raise ConnectionResetError
            layer.incoming.write(self.layer.incoming.read())
        self.below = layer

    async def hear_clear(self) -> None:
        while (missing := self.plan.clear - len(self.received)) > 0:
            if not await self.more(missing):
                return
            # The other end's TLS may follow.
            self.add(self.layer.incoming.read(missing))

    async def shake_hands(self) -> bool:
        """Return whether the handshake is complete, and this end has not failed."""
        plan = self.plan
        while True:
            try:
                self.layer.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as exc:
                self.layer.errors.append(exc)
                await self.transmit(self.layer.outgoing.read())
                return False
            flight = self.layer.outgoing.read()
            if flight and self.flights + 1 == plan.flight and plan.part < 1:
                await self.transmit(flight[: int(len(flight) * plan.part)])
                await self.fail(plan.faults)
                return False
            self.flights += bool(flight)
            self.shaken = done
            if done and plan.joined:
                self.say_all()
            await self.transmit(flight + self.layer.outgoing.read())
            if flight and self.flights == plan.flight:
                await self.fail(plan.faults)
                return False
            if done:
                return True
            if not await self.more():
                return False

    def say_all(self) -> None:
        """Encrypt all that this end has to say, and if it then says goodbye, that."""
        while self.plan.words:
            self.say(self.plan.words.pop())
        if self.plan.faults[:1] == ["notify"] and not self.plan.flight:
            self.say_goodbye()

    def say(self, size: int) -> None:
        data = self.rng.randbytes(size)
        self.sent += data
        self.layer.tls.write(data)

    def say_goodbye(self) -> None:
        # What came before is read first: OpenSSL takes it for an error behind close_notify.
        self.hear()
        if self.promised is None and self.peer is not None:
            self.promised = len(self.peer.sent)
        with contextlib.suppress(ssl.SSLError):
            self.layer.tls.unwrap()

    async def talk(self) -> None:
        while self.plan.words:
            self.say(self.plan.words.pop())
            await self.transmit(self.layer.outgoing.read())
            await self.model.turns(self.rng.randrange(3))
        if not self.plan.flight:
            await self.fail(self.plan.faults)

    async def fail(self, faults: list[str]) -> None:
        end = self.peer
        assert end is not None
        for kind in faults:
            await self.model.turns(self.rng.choice((0, 0, 1, 5)))
            self.shaken = True
            if self.promised is None:
                self.promised = len(end.sent)
            if kind not in ORDERLY:
                self.lossy = end.lossy = True
            if kind == "notify":
                self.say_goodbye()
                await self.transmit(self.layer.outgoing.read())
            elif kind == "half":
                await self.end_stream()
            elif kind == "garbage":
                rest = RECORD_MAX if self.plan.flight and 0 < self.plan.part < 1 else 0
                await self.transmit(self.rng.choice(GARBAGE) + bytes(rest))
            elif kind in ("gone", "reset"):
                if kind == "reset":
                    linger = struct.pack("ii", 1, 0)
                    self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.closed = self.closed_early = True
                self.sock.close()

    async def end_stream(self) -> None:
        if self.below is not None:
            layer, self.below = self.below, None
            with contextlib.suppress(ssl.SSLError):
                layer.tls.unwrap()
            await self.transmit(layer.outgoing.read())
            self.below = layer
        self.sock.shutdown(socket.SHUT_WR)

    async def listen(self) -> None:
        """Receive until the end, and answer close_notify."""
        while not self.closed:
            self.hear()
            if self.layer.notified and self.promised is None:
                await self.fail([self.plan.answer])
            elif not await self.more():
                return

    def hear(self) -> None:
        """Read what has been received."""
        self.add(self.layer.decrypt())

    async def more(self, most: int = 1 << 16) -> bool:
        """Receive bytes; return False at the end of the connection."""
        for look in range(LOOKS_MAX):
            if self.below is not None:
                if data := self.below.decrypt():
                    self.layer.incoming.write(data)
                    return True
                if self.below.notified:
                    return False
            try:
                data = self.sock.recv(most)
            except BlockingIOError:
                await pause(look)
                continue
            if self.below is None or not data:
                self.layer.incoming.write(data)
                return bool(data)
            self.below.incoming.write(data)
        self.model.differs(f"a stranger waits for ever: {self.plan} {self} {self.peer}")
        return False

    async def transmit(self, data: bytes) -> None:
        if self.below is not None and data:
            data = self.below.encrypt(data)
        left = memoryview(data)
        size = self.rng.choice((1, 7, 1000)) if self.rng.random() < 0.2 else len(data)
        looks = 0
        while left:
            try:
                left = left[self.sock.send(left[:size]) :]
            except BlockingIOError:
                await pause(looks)
                looks += 1
                continue
            size = len(data)
            await self.model.turns(self.rng.randrange(2))
