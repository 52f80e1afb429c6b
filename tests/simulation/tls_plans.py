"""What goes wrong in a connection over TLS, and when: the plan of a meeting (tls.py)."""

from __future__ import annotations

import random
import ssl

from support.tls_contexts import client_context, server_context, strict_server_context

WAYS = ("connect", "accept", "serve", "start_tls")
# Who refuses the other's certificate: nobody, the loop's end, or the stranger.
REFUSERS = (None,) * 6 + ("loop", "stranger")
# What a stranger does: it sends close_notify; without it, it ends its stream, closes its socket or
# resets the connection; it sends bytes that are no records; it does nothing more.
FAULTS = ("notify", "half", "half", "gone", "reset", "garbage", "silence")
# What lets the connection end in order: all that was sent before must arrive.
ORDERLY = ("notify", "half")
# When the program acts: within callbacks, in one that connection_made() has scheduled, right before
# start_tls(), in the handshake, when that has ended, and later.
PLACES = (
    "connection_made",
    "soon",
    "data_received",
    "eof_received",
    "pause_writing",
    "resume_writing",
    "before",
    "handshake",
    "returned",
    "later",
)
ACTS = ("write", "write", "pause", "resume", "close", "abort")
SIZES = (1, 1, 100, 100, 5000, 20_000, 20_000, 100_000, 300_000)
# The simulated clock may pass any usual timeout; one that is to end a wait is short.
PATIENT_S = 1e6
PATIENT = {"ssl_handshake_timeout": PATIENT_S, "ssl_shutdown_timeout": PATIENT_S}
SHORT_S = 2.0


def older(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let *context* speak TLS 1.2 only, where the server has the last word of the handshake."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


SERVERS = {None: server_context(), "server": strict_server_context()}
OLD_SERVERS = {None: older(server_context()), "server": older(strict_server_context())}
CLIENT = client_context()
OLD_CLIENT = older(client_context())


class Plan:
    """What goes wrong in a meeting, and when."""

    def __init__(self, rng: random.Random) -> None:
        self.way = rng.choice(WAYS)
        self.serves = self.way in ("accept", "serve") or (
            self.way == "start_tls" and rng.random() < 0.5
        )
        self.old = rng.random() < 0.5
        self.refuser = rng.choice(REFUSERS)
        # The flight in which the stranger fails, and the part of it that it sends; 0: later.
        self.flight = rng.choice((0, 0, 0, 1, 2)) if self.refuser is None else 0
        self.part = rng.choice((0.0, rng.random(), 1.0))
        self.faults = []
        if self.flight or rng.random() < 0.7:
            self.faults = [rng.choice(FAULTS[1:] if self.flight else FAULTS)]
        if self.faults == ["garbage"] and rng.random() < 0.4:
            self.faults.append("half")
        if self.faults and self.faults[0] in ORDERLY and rng.random() < 0.4:
            self.faults.append(rng.choice(("half", "gone", "reset")[self.faults == ["half"] :]))
        self.answer = "notify" if rng.random() < 0.5 else rng.choice(FAULTS)
        # What the stranger says, and whether that comes with the end of the handshake.
        self.words = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 1, 3)))]
        self.joined = rng.random() < 0.5
        # TLS within TLS, whose end may come together with the handshake above.
        self.nested = self.way == "start_tls" and rng.random() < 0.5
        if self.nested and rng.random() < 0.5:
            self.flight, self.faults, self.joined = 0, ["half"], True
        # Bytes in the clear before start_tls().
        self.clear = rng.choice((0, 0, 100, 100_000)) if self.way == "start_tls" else 0
        # UNIX sockets hold little without the timers of TCP, but have no reset.
        self.tcp = self.way == "serve" or rng.random() < 0.5
        self.narrow = not self.tcp and rng.random() < 0.5
        self.acts = {
            place: [rng.choice(ACTS) for _ in range(rng.choice((1, 1, 2)))]
            for place in PLACES
            if rng.random() < 0.25
        }
        # What comes while the program pauses waits, until the stranger has done its worst.
        self.lazy = rng.random() < 0.4
        if self.lazy:
            self.acts["returned"] = ["pause"]
            self.acts["later"] = [rng.choice(ACTS)]

    def __repr__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in vars(self).items() if value)

    @property
    def flights(self) -> int:
        """How many flights of the stranger make a handshake."""
        return 2 if self.serves or self.old else 1

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext, str]:
        """Return the contexts of the loop's end and of the stranger, and the name to check."""
        refuser = self.refuser and (
            "server" if (self.refuser == "loop") == self.serves else "client"
        )
        name = "elsewhere.example" if refuser == "client" else "localhost"
        # The server that refuses requires a certificate, which no client has.
        strict = "server" if refuser == "server" else None
        if self.serves:
            return SERVERS[strict], OLD_CLIENT if self.old else CLIENT, name
        return CLIENT, (OLD_SERVERS if self.old else SERVERS)[strict], name

    def timeouts(self) -> dict[str, float]:
        silent = "silence" in (self.faults or [self.answer])
        return {
            "ssl_handshake_timeout": SHORT_S if silent and self.flight else PATIENT_S,
            "ssl_shutdown_timeout": SHORT_S if silent else PATIENT_S,
        }
