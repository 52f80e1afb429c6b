"""Threads that use the loops of other threads, at random.

    python tests/threads/stress.py --seconds 60 --threads 8 --loops 4 --seed 7

Each of several threads makes a loop, serves echo connections on it, reads files and sleeps, then
closes it and makes the next one. Other threads call everything that any thread may call on these
loops, also on loops that have been closed meanwhile. Each callback must run once, in the order of
its thread; a closed loop must refuse callbacks; a loop must not sleep while a callback waits; and
nothing must be left at the end. The program prints what it did, and exits with 1 if something was
wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable

import uringloop
from uringloop._monitor.snapshots import snapshot

# A loop that has not run a callback for so long sleeps for ever.
PATIENCE_S = 30.0
# Callbacks of one action: more than the loop runs in a turn, sometimes.
BURST_MAX = 200
CLOSED = "Event loop is closed"


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Target:
    """A loop, and what each calling thread has sent to it and seen run."""

    def __init__(self, loop: uringloop.Loop) -> None:
        self.loop = loop
        self.sent: Counter[int] = Counter()
        self.ran: Counter[int] = Counter()
        # Callers that may still send; the loop is drained when there are none.
        self.lock = threading.Lock()
        self.callers = 0
        self.is_open = True
        self.wrong: list[str] = []

    def enter(self) -> bool:
        with self.lock:
            self.callers += self.is_open
            return self.is_open

    def leave(self) -> None:
        with self.lock:
            self.callers -= 1

    def call(self, thread: int, number: int) -> None:
        """Run in the loop's thread: numbers of a thread follow each other."""
        if number != self.ran[thread]:
            self.wrong.append(f"thread {thread}: {number} ran in place of {self.ran[thread]}")
        self.ran[thread] = number + 1


class Stress:
    def __init__(self, seed: int, threads: int, loops: int) -> None:
        self.seed = seed
        self.deadline = 0.0
        self.targets: list[Target | None] = [None] * loops
        self.threads = threads
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        workers = [
            *(
                threading.Thread(target=self.guard(self.home), args=(n,))
                for n in range(len(self.targets))
            ),
            *(
                threading.Thread(target=self.guard(self.caller), args=(n,))
                for n in range(self.threads)
            ),
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def guard(self, work: Callable[[int], None]) -> Callable[[int], None]:
        def guarded(number: int) -> None:
            try:
                work(number)
            except BaseException as exc:
                self.wrong.append(f"{work.__name__} {number}: {exc!r}")
                raise

        return guarded

    # ── the threads that run loops ───────────────────────────────────────────────────────────

    def home(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + number)
        while time.monotonic() < self.deadline:
            target = Target(uringloop.new_event_loop())
            self.targets[number] = target
            loop = target.loop
            try:
                loop.run_until_complete(self.serve(chance))
                if chance.random() < 0.3:
                    # Other threads may call the loop between two runs.
                    loop.run_until_complete(asyncio.sleep(0))
                self.drain(target)
            finally:
                loop.close()
            self.done["loops"] += 1
            self.wrong += target.wrong
            if target.ran != target.sent:
                self.wrong.append(f"sent {target.sent}, ran {target.ran}")

    def drain(self, target: Target) -> None:
        """Run what the callers have sent; from now on they send nothing."""
        with target.lock:
            target.is_open = False
        patience = time.monotonic() + PATIENCE_S
        while target.callers or target.ran.total() < target.sent.total():
            target.loop.run_until_complete(asyncio.sleep(0))
            if time.monotonic() > patience:
                self.wrong.append(f"callbacks did not run: {target.sent} {target.ran}")
                break

    async def serve(self, chance: random.Random) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        end = loop.time() + chance.uniform(0.001, 0.3)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x" * 10_000)
            file.flush()
            while loop.time() < end:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                data = bytes(chance.randrange(1, 50_000))
                writer.write(data)
                assert await reader.readexactly(len(data)) == data
                writer.close()
                async with uringloop.open(file.name, "rb") as opened:
                    assert len(await opened.read()) == 10_000
                # The loop sleeps until another thread wakes it, or the time is over.
                await asyncio.sleep(chance.choice((0, 0.0001, 0.01)))
                self.done["rounds"] += 1
        server.close()

    # ── the threads that call ────────────────────────────────────────────────────────────────

    def caller(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + 500 + number)
        actions = [
            self.post,
            self.post,
            self.post,
            self.ask,
            self.cancel,
            self.look,
            self.own,
            self.poke,
        ]
        while time.monotonic() < self.deadline:
            target = chance.choice(self.targets)
            if target is None:
                continue
            action = chance.choice(actions)
            if target.enter():
                try:
                    action(number, target, chance)
                finally:
                    target.leave()
            elif target.loop.is_closed():
                self.refused(target)
            self.done[action.__name__] += 1
            if chance.random() < 0.002:
                gc.collect()

    def post(self, number: int, target: Target, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, BURST_MAX)):
            target.loop.call_soon_threadsafe(target.call, number, target.sent[number])
            target.sent[number] += 1

    def ask(self, number: int, target: Target, chance: random.Random) -> None:
        async def answer() -> int:
            await asyncio.sleep(chance.choice((0, 0.0001)))
            return number

        asked = asyncio.run_coroutine_threadsafe(answer(), target.loop)
        # The loop is drained only when this thread has left it.
        assert asked.result(PATIENCE_S) == number

    def cancel(self, number: int, target: Target, chance: random.Random) -> None:
        ran: list[int] = []
        handle = target.loop.call_soon_threadsafe(ran.append, number)
        repr(handle)
        handle.cancel()
        assert handle.cancelled()
        before = len(ran)
        asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), target.loop)
        asked.result(PATIENCE_S)
        # It ran before it was cancelled, or never.
        assert len(ran) == before <= 1

    def look(self, number: int, target: Target, chance: random.Random) -> None:
        stats = target.loop.stats()
        assert min(stats["turns"], stats["timers_pending"]) >= 0
        assert "Loop" in repr(target.loop)
        target.loop.get_debug()
        if chance.random() < 0.1:
            snapshot()

    def own(self, number: int, target: Target, chance: random.Random) -> None:
        loop = uringloop.new_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def poke(self, number: int, target: Target, chance: random.Random) -> None:
        """Do what is an error, on a loop that another thread runs; it must only not crash."""
        with contextlib.suppress(RuntimeError):
            target.loop.call_later(0, int)
        with contextlib.suppress(RuntimeError):
            target.loop.call_soon(int)

    def refused(self, target: Target) -> None:
        try:
            target.loop.call_soon_threadsafe(int)
        except RuntimeError as exc:
            if str(exc) != CLOSED:
                self.wrong.append(repr(exc))
        else:
            self.wrong.append("a closed loop took a callback")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    # Threads that wait for each other are shown, and the program ends.
    faulthandler.dump_traceback_later(options.seconds + 2 * PATIENCE_S, exit=True)
    before = len(os.listdir("/proc/self/fd"))
    stress = Stress(options.seed, options.threads, options.loops)
    stress.run(options.seconds)
    stress.targets.clear()
    gc.collect()
    left = len(os.listdir("/proc/self/fd")) - before
    if left > 0:
        stress.wrong.append(f"{left} descriptors are left")
    print(
        f"seed {options.seed}:", *(f"{name} {count}" for name, count in sorted(stress.done.items()))
    )
    for wrong in stress.wrong[:20]:
        print("wrong:", wrong)
    sys.exit(1 if stress.wrong else 0)


if __name__ == "__main__":
    main()
