"""Random programs: how connections are made, what is done to them, and the choice by a seed.

A program is data: connections, and the steps of a driver, which is a task. A step with a `when` is
done in a callback of that kind instead. So a program can be printed, run on any loop, and made
smaller by leaving steps out.

Left out is what has no order on asyncio itself, or where it fails:

- Between two connections that are ready in the same turn the kernel chooses: the logs of a program
  are compared for each connection by itself (log.py).
- A stream may be cut anywhere: neighbouring pieces count as one, and each side sends no more in all
  than one piece, except if the socket is handed over. Then only the sum counts.
- asyncio receives one datagram in a turn; a loop may take all. So one is sent in a turn.
- A peer ends a connection only when the loop has sent what it was told to (`settle` in playing.py).
- Bytes that are written to a peer that is gone fail at once on asyncio, here when the turn ends:
  only the outline of such a program is compared. So is that of a crowd of 40 connections, which may
  take several turns.
- asyncio's TLS takes data that a close() has left unread for an error, and waits for ever to read
  it if it is paused or connection_made() has paused it: that is left out.
- Pipes and datagram endpoints close their descriptor a turn after connection_lost(): a peer does
  not send in between.
- The TLS of this package tells bytes that come with the end of the handshake after the call that
  connects has returned, asyncio before: nothing is sent so early to a server.
- sock_recv() tries to receive first, as asyncio does, but not after a receive that got less than it
  asked for: programs ask for one byte.
- asyncio tells the end again after a pause if the connection stays open: no pauses after the end.
- How many turns a call that connects takes is nobody's promise: other connections rest meanwhile.
- A connection that has been warmed up receives by the ring, or by a poll that stays armed. What is
  sent while other bytes are under way comes in another turn than on asyncio, whose recv() takes
  what has come since the selector's report (docs/decisions/0004): a peer waits until the protocol
  has got what it sent in earlier turns, and large messages. Whoever is given the socket gets it
  from detach(), for the ring may have taken bytes, and not behind a reset. How the peer sees an end
  that leaves such bytes unread is not compared.
- Behind four datagrams a loop may deliver several in a turn, and the ring takes them ahead of the
  protocol (docs/decisions/0005): each is sent when the one before has come, and a socket is not
  handed over while one is under way.
- Timers are due at once, or already: how long a turn takes is the machine's affair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

# What a step can wait for: something that the driver starts, or a callback of the connection.
STARTED = ("soon", "timer", "task")
EVENTS = ("made", "data", "eof", "lost")

# What has happened at the peer before the loop knows of the connection.
EARLY = ("", "", "data", "data eof", "eof", "data close", "data reset")

ON_LOOP = (
    "soon",
    "chain",
    "threadsafe",
    "timer",
    "past_timer",
    "due_timer",
    "task",
    "woken_task",
    "cancelled_task",
)
PEER = ("peer_send", "peer_send", "peer_send", "peer_eof", "peer_close", "peer_reset")
READING = ("pause", "pause", "resume", "resume")
ENDING = ("close", "abort")
STREAM = (*PEER, *READING, *ENDING, "write", "write", "write_eof", "set_protocol", "hand_over")
TLS = (*PEER, *READING, *ENDING, "write", "write", "set_protocol")

STREAMS = (
    "tcp client",
    "tcp server",
    "tcp socket",
    "unix client",
    "unix server",
    "unix socket",
)

# The actions of each kind of connection.
ACTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(STREAMS, STREAM),
    "add_reader": (*PEER, *READING, "close", "hand_over"),
    # asyncio loses what it has received for a task that is cancelled before it goes on.
    "sock_recv": PEER,
    "read pipe": ("peer_send", "peer_send", "peer_close", *READING, "close", "hand_over"),
    "read fifo": ("peer_send", "peer_send", "peer_close", *READING, "close", "hand_over"),
    "read socket": (*PEER, *READING, "close", "hand_over"),
    "write pipe": ("write", "write", "write", "peer_read", "peer_close", "write_eof", *ENDING),
    "write socket": ("write", "write", "write", "peer_read", "peer_close", "write_eof", *ENDING),
    "udp": ("peer_send", "peer_send", "write", *ENDING, "set_protocol", "hand_over"),
    # asyncio cannot send from a pair, whose sockets have no names.
    "unix datagrams": ("peer_send", "peer_send", *ENDING, "set_protocol", "hand_over"),
    "tls client": TLS,
    "tls server": TLS,
}
WRITE_ONLY = ("write pipe", "write socket")
DATAGRAMS = ("udp", "unix datagrams")
TLS_KINDS = ("tls client", "tls server")
WATCHED = ("add_reader", "sock_recv")

# Messages that a connection has received before the steps: after four small ones the ring takes
# bytes ahead of the protocol, after four large ones a poll stays armed.
WARMING = 8
SMALL, BIG = 1, 20_000
# A datagram endpoint may take several in a turn, or ahead of the protocol, behind so many.
DATAGRAMS_FIRST = 4

# Streams are asyncio's StreamReader, "compiled" the reader of uringloop.streams on its loops.
FLAVOURS = ("protocol", "buffered", "streams", "compiled")

# So many connections at a time use up the buffers of a receive pool, and more than that.
CROWD = 40
CROWDED = ("tcp server", "tcp socket", "unix server", "unix socket")

# A loop may deliver more than this in several pieces, in several turns.
PIECE = 50_000
SIZES = (1, 5, 100, 1000, 5000, 20_000)
# What is unread may be in several pieces for the loop, if it is handed over.
LARGE = 150_000
# A piece of a pipe may be no longer, or its write waits for a reader.
PIPE_SIZES = (1, 5, 100, 1000, 5000)


@dataclass(frozen=True)
class Connection:
    """How a connection is made."""

    kind: str
    flavour: str
    early: str = ""
    # What eof_received() returns.
    stays_open: bool = False
    # The size of the messages that it has received before the steps, or 0.
    warm: int = 0

    @property
    def takes_ahead(self) -> bool:
        """Whether the ring takes a stream's bytes before the protocol gets them."""
        return self.warm == SMALL and self.kind not in DATAGRAMS


@dataclass(frozen=True)
class Step:
    """Something that a program does."""

    action: str
    connection: int = 0
    size: int = 0
    when: str = ""
    # After so many turns the driver does the next step.
    turns: int = 0

    def __str__(self) -> str:
        size = f" {self.size}" if self.size else ""
        when = f" in {self.when}" if self.when else ""
        turns = f", then {self.turns} turns" if self.turns else ""
        return f"{self.action}{size} of {self.connection}{when}{turns}"


@dataclass(frozen=True)
class Program:
    connections: tuple[Connection, ...]
    steps: tuple[Step, ...]

    @property
    def is_crowd(self) -> bool:
        return len(self.connections) == CROWD

    def writes_to_an_ended_peer(self) -> bool:
        """Return whether something may be written to a peer that is gone.

        asyncio sends at once, this loop at the end of the turn: the error, and what has been
        received before it, then come in other turns.
        """
        ended = {
            number
            for number, it in enumerate(self.connections)
            if it.early.endswith(("close", "reset"))
        }
        ended |= {it.connection for it in self.steps if it.action in ("peer_close", "peer_reset")}
        # TLS answers the peer's goodbye.
        if any(self.connections[number].kind in TLS_KINDS for number in ended):
            return True
        return any(it.action == "write" and it.connection in ended for it in self.steps)

    def __str__(self) -> str:
        lines = [f"connection {number}: {it}" for number, it in enumerate(self.connections)]
        return "\n".join([*lines, *(f"  {step}" for step in self.steps)])


# ── the choice by a seed ──────────────────────────────────────────────────────────────────────


def flavours_of(kind: str) -> tuple[str, ...]:
    if kind in WRITE_ONLY or kind in DATAGRAMS or kind in WATCHED:
        return ("protocol",)
    if kind.startswith("read"):
        # asyncio's pipes have no buffered protocols.
        return ("protocol", "streams", "compiled")
    return FLAVOURS


def early_of(kind: str) -> tuple[str, ...]:
    if kind in WRITE_ONLY or kind in ("udp", "tls server"):
        return ("",)
    if kind in DATAGRAMS:
        return ("", "data")
    if kind == "tls client":
        return ("", "", "data", "data eof")
    if kind in ("read pipe", "read fifo"):
        return ("", "data", "data close")
    return EARLY


def warms_of(kind: str) -> tuple[int, ...]:
    """Return with which messages a connection may be warmed up."""
    if kind in DATAGRAMS:
        return (0, SMALL)
    return (0, SMALL, BIG) if kind in STREAMS or kind in TLS_KINDS else (0,)


def warmed(connection: Connection, rng: random.Random) -> Connection:
    """Warm a connection up, or not. Its peer does nothing early then."""
    warm = rng.choice((0, *warms_of(connection.kind)))
    return replace(connection, warm=warm, early="") if warm else connection


def generate(kind: str, seed: int) -> Program:
    """Choose a program."""
    rng = random.Random(f"{kind} {seed}")
    count = rng.choice((1, 1, 1, 2, 3))
    connections = tuple(
        Connection(
            kind, rng.choice(flavours_of(kind)), rng.choice(early_of(kind)), rng.random() < 0.3
        )
        for _ in range(count)
    )
    steps = [random_step(rng, kind, count) for _ in range(rng.randrange(2, 14))]
    connections = tuple(warmed(it, rng) for it in connections)
    return Program(connections, tuple(limited(steps)))


def generate_crowd(kind: str, seed: int) -> Program:
    """Choose a program in which many peers send and end at once, before the loop looks."""
    rng = random.Random(f"crowd {kind} {seed}")
    connections = tuple(
        Connection(kind, rng.choice(flavours_of(kind)), warm=rng.choice((0, 0, SMALL, BIG)))
        for _ in range(CROWD)
    )
    steps = []
    for number in range(CROWD):
        for action in rng.choice((("peer_send",), (), ("peer_send", "peer_eof"))):
            size = rng.choice(SIZES) if action == "peer_send" else 0
            steps.append(Step(action, number, size))
        steps.append(Step(rng.choice(("peer_reset", "peer_reset", "peer_close")), number))
    return Program(connections, tuple(steps))


def limited(steps: list[Step]) -> list[Step]:
    """Keep what each side of a connection sends within one piece, but for sockets handed over."""
    handed_over = {step.connection for step in steps if step.action == "hand_over"}
    sent: dict[tuple[str, int], int] = {}
    kept = []
    for step in steps:
        size = step.size
        if size == LARGE and step.connection not in handed_over:
            size = 1
        side = step.action, step.connection
        if size != LARGE and sent.get(side, 0) + size > PIECE:
            size = 1
        sent[side] = sent.get(side, 0) + size
        kept.append(replace(step, size=size))
    return kept


def random_step(rng: random.Random, kind: str, count: int) -> Step:
    connection = rng.randrange(count)
    turns = rng.choice((0, 0, 0, 1, 1, 2, 3, 8))
    if rng.random() < 0.35:
        when = rng.choice(("", "", *STARTED, *EVENTS))
        return Step(rng.choice(ON_LOOP), connection, rng.randrange(1, 4), when, turns)
    action = rng.choice(ACTIONS[kind])
    sizes = PIPE_SIZES if kind in WRITE_ONLY or kind in WATCHED else SIZES
    size = rng.choice(sizes) if action in ("peer_send", "write") else 0
    if action == "peer_send" and kind not in DATAGRAMS and rng.random() < 0.05:
        size = LARGE
    if action == "peer_send" and kind in DATAGRAMS:
        # asyncio receives one datagram in each turn, others may receive more.
        turns = max(turns, 1)
    step = Step(action, connection, size, "", turns)
    if not action.startswith("peer") and rng.random() < 0.4:
        step = replace(step, when=rng.choice((*STARTED, *EVENTS, "data")))
    return step
