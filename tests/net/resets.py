"""Resets connections in many states of a receive, and counts those that stay open.

    python tests/net/resets.py --count 10000 --backend soft --only unix

A process of its own connects to a server of the loop, in bursts, exchanges some small messages and
then sends bytes and a reset (TCP), or bytes and the end (UNIX). The end comes "with" the bytes,
while the loop is blocked or runs, or "behind" bytes that the loop has read. Many "new" connections
have exchanged nothing, so they receive by polls. In a "full" burst all of them receive by the ring,
from a pool of buffers that runs empty. Of a "few" each has exchanged another number of messages.

A line of JSON for each kind of end has its numbers. `connection_lost` must be called as often as
`connection_made`, with the right exception and behind all bytes, and no descriptor may be left. The
exit status is 1 otherwise. `nox -s resets` runs this here, `nox -s kernels -- --resets COUNT` on
other kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

# With PYTHONSAFEPATH the interpreter does not add this folder.
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.leaks import open_fds
from support.roles import end, turns

import uringloop

# How the peers of a family end their streams.
ENDS = {"inet": "reset", "unix": "close"}
SIZES = (0, 1, 4, 1000, 64 * 1024, 200 * 1024)
# Connections of a burst. The pool of receive buffers has 16 at first.
BURSTS = {"new": 200, "full": 200, "few": 24}
# Bursts after which a loop is replaced: the pool has grown after some that have emptied it.
BURSTS_OF_A_LOOP = {"new": 20, "full": 1, "few": 20}
# Messages behind which a connection receives by the ring.
MESSAGES_TO_RING = 4
MESSAGE = b"well?\n"
# These are equal, and the violations 0.
COUNTS = ("peers", "made", "lost")
VIOLATIONS = ("fds_left", "wrong_exceptions", "bytes_missing")
# How long an end is waited for, also on a slow emulated machine.
PATIENCE_S = 20.0


class Kind(NamedTuple):
    family: str
    size: int
    when: str
    burst: str

    def messages(self, number: int) -> int:
        """Return how many messages connection *number* of a burst exchanges first."""
        if self.burst == "few":
            return number % (MESSAGES_TO_RING + 2)
        return MESSAGES_TO_RING if self.burst == "full" else 0


def all_kinds() -> list[Kind]:
    kinds = itertools.starmap(Kind, itertools.product(ENDS, SIZES, ("with", "behind"), BURSTS))
    return [kind for kind in kinds if kind.size or kind.when == "with"]


# ── the peers ────────────────────────────────────────────────────────────────────────────────


def run_peers(pipe: Connection) -> None:
    """Make the bursts that the loop's process asks for, until that process ends."""
    with contextlib.suppress(EOFError):
        while True:
            run_burst(pipe, *pipe.recv())


def run_burst(pipe: Connection, kind: Kind, address: Any, count: int) -> None:
    """Connect, say so, wait for the loop's process, end all streams, and say what was sent."""
    peers = [socket.socket(getattr(socket, f"AF_{kind.family.upper()}")) for _ in range(count)]
    for peer in peers:
        peer.connect(address)
    messages = [kind.messages(n) for n in range(count)]
    for sent in range(max(messages)):
        exchange([peer for peer, n in zip(peers, messages, strict=True) if sent < n], MESSAGE)
    pipe.send("connected")
    pipe.recv()
    total = len(MESSAGE) * sum(messages)
    if kind.when == "behind":
        exchange(peers, bytes(kind.size - 1) + b"\n")
        total += kind.size * count
    for peer in peers:
        if kind.when == "with" and kind.size:
            # As much as there is room for: the loop may be blocked.
            peer.setblocking(False)
            total += peer.send(bytes(kind.size))
        end(peer, ENDS[kind.family])
    pipe.send(total)


def exchange(peers: list[socket.socket], data: bytes) -> None:
    """Send *data*, which ends with a newline, from all peers, and wait for all answers."""
    for peer in peers:
        peer.sendall(data)
    for peer in peers:
        assert peer.recv(2) == b"\n"


# ── the loop ─────────────────────────────────────────────────────────────────────────────────


class Burst:
    """The connections of a burst at the server."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made = self.lost = self.received = 0
        self.exceptions: Counter[str] = Counter()
        self.open: set[asyncio.Transport] = set()
        self.all_lost = asyncio.Event()


class Answering(asyncio.Protocol):
    """Answers each newline by a newline."""

    def __init__(self, burst: Burst) -> None:
        self.burst = burst

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.burst.made += 1
        self.burst.open.add(transport)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\n"):
            self.transport.write(b"\n")
        self.burst.received += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.burst.lost += 1
        self.burst.exceptions[type(exc).__name__] += 1
        self.burst.open.remove(self.transport)
        if self.burst.lost == self.burst.count:
            self.burst.all_lost.set()


class Resets:
    """Asks the process of the peers for bursts, and runs loops that serve them."""

    def __init__(self, backend: Literal["io_uring", "soft"] | None) -> None:
        # Before any loop is made.
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        context.Process(target=run_peers, args=(theirs,), daemon=True).start()
        theirs.close()
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.new_loop = functools.partial(uringloop.Loop, backend=backend)

    async def answer(self) -> Any:
        """Return the next message of the peers' process."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.pipe.recv)

    async def burst(self, kind: Kind, count: int, numbers: Counter[str]) -> None:
        burst = Burst(count)
        server = await serve(kind.family, burst)
        before = open_fds()
        self.pipe.send((kind, server.sockets[0].getsockname(), count))
        await self.answer()
        self.pipe.send("end")
        # In every other burst the loop finds all bytes and all ends at once.
        blocked = kind.when == "with" and numbers["bursts"] % 2 == 0
        sent = self.pipe.recv() if blocked else await self.answer()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(burst.all_lost.wait(), PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S * (not burst.open)
        while open_fds() - before and time.monotonic() < deadline:
            await turns()
        expected = "NoneType" if kind.family == "unix" else "ConnectionResetError"
        numbers["bursts"] += 1
        numbers["peers"] += count
        numbers["made"] += burst.made
        numbers["lost"] += burst.lost
        numbers["fds_left"] += len(open_fds() - before)
        numbers["wrong_exceptions"] += burst.lost - burst.exceptions[expected]
        # What is unread when a TCP connection is reset may be dropped.
        if kind.family == "unix" or kind.when == "behind":
            numbers["bytes_missing"] += sent - burst.received
        for transport in burst.open:
            transport.abort()
        server.close()

    def run(self, kind: Kind, count: int) -> Counter[str]:
        """End *count* connections and return the numbers."""
        numbers = Counter(dict.fromkeys((*COUNTS, *VIOLATIONS, "starved"), 0))
        sizes = [BURSTS[kind.burst]] * math.ceil(count / BURSTS[kind.burst])
        while sizes:
            with asyncio.Runner(loop_factory=self.new_loop) as runner:
                for _ in range(min(BURSTS_OF_A_LOOP[kind.burst], len(sizes))):
                    runner.run(self.burst(kind, sizes.pop(), numbers))
                loop = runner.get_loop()
                assert isinstance(loop, uringloop.Loop)
                numbers["starved"] += loop.stats()["starved"]
        return numbers


def serve(family: str, burst: Burst) -> Coroutine[Any, Any, asyncio.Server]:
    loop = asyncio.get_running_loop()
    if family == "inet":
        return loop.create_server(lambda: Answering(burst), "127.0.0.1", 0, backlog=burst.count)
    path = f"\0resets-{os.getpid()}"
    return loop.create_unix_server(lambda: Answering(burst), path, backlog=burst.count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="ends of a kind (%(default)s)")
    parser.add_argument("--backend", choices=("io_uring", "soft"), help="the loop's ring")
    parser.add_argument("--only", default="", help="a part of a kind's name, as 'inet 4 with'")
    options = parser.parse_args()
    resets = Resets(options.backend)
    failed = False
    for kind in all_kinds():
        name = " ".join(map(str, kind))
        if options.only in name:
            began = time.monotonic()
            numbers: dict[str, Any] = dict(resets.run(kind, options.count))
            counts, violations = ([numbers[n] for n in names] for names in (COUNTS, VIOLATIONS))
            wrong = len(set(counts)) > 1 or any(violations)
            numbers |= {"failed": wrong, "seconds": round(time.monotonic() - began, 1)}
            print(json.dumps({"kind": name, **numbers}), flush=True)
            failed |= wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
