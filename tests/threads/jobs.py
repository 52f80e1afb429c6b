"""Loops that call functions in threads, at random: cancels, exceptions, shutdowns, closed loops.

    python tests/threads/jobs.py --jobs 100000 --threads 8 --loops 2 --seed 7

Several loops, each in a thread, share pools of the kind that is the default executor. Each call
must run at most once, and exactly once if nothing has cancelled it; the caller must get what the
function returned or raised; a pool that was shut down must refuse calls; and nothing may be left at
the end.

The program prints what it did, and exits with 1 if something was wrong. One that hangs ends with
the stacks of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import uringloop
from uringloop._loop.executors import ThreadPool

# The calls of a loop that are in flight at the same time, at most.
BURST_MAX = 300
# The calls of a pool: it is shut down then, with calls in its queue.
POOL_CALLS = 3000
# The program may take so long, and a second more for each hundred calls.
PATIENCE_S = 300.0


class Failed(Exception):
    """What functions raise."""


class Left(BaseException):
    """What functions raise that end in an unusual way."""


class Call:
    """A call of a function, and how often it ran."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ran = 0
        # What may have cancelled it: the caller, and a shutdown of its pool.
        self.was_cancelled = False
        self.pool = 0

    def count(self) -> None:
        # Only one thread does this, or the call is reported.
        self.ran += 1

    def returns(self) -> int:
        self.count()
        return self.number

    def raises(self) -> int:
        self.count()
        raise Failed(self.number)

    def leaves(self) -> int:
        self.count()
        raise Left(self.number)

    def sleeps(self) -> int:
        self.count()
        time.sleep(0.0002)
        return self.number


KINDS: list[tuple[Callable[[Call], int], int]] = [
    (Call.returns, 10),
    (Call.raises, 2),
    (Call.leaves, 1),
    (Call.sleeps, 1),
]
RAISED: dict[Callable[[Call], int], type[BaseException]] = {
    Call.raises: Failed,
    Call.leaves: Left,
}


class Stress:
    """The loops and their pools."""

    def __init__(self, seed: int, jobs: int, threads: int) -> None:
        self.chance = random.Random(seed)
        self.left = jobs
        self.threads = threads
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.unawaited: list[Call] = []
        self.pool = ThreadPool(threads)
        self.pool_calls = 0
        self.pool_number = 0
        # The pools whose shutdown has cancelled the calls in the queue.
        self.cancelled_pools: set[int] = set()
        self.pools = weakref.WeakSet([self.pool])

    def take(self, wanted: int) -> int:
        """Return how many calls a loop may make now, 0 at the end."""
        with self.lock:
            taken = min(wanted, self.left)
            self.left -= taken
            self.pool_calls += taken
            if self.pool_calls >= POOL_CALLS:
                self.replace_pool()
            return taken

    def replace_pool(self) -> None:
        old, self.pool, self.pool_calls = self.pool, ThreadPool(self.threads), 0
        self.pools.add(self.pool)
        cancel = self.chance.random() < 0.5
        if cancel:
            self.cancelled_pools.add(self.pool_number)
        self.pool_number += 1
        # Other threads use the old one at this moment.
        old.shutdown(wait=self.chance.random() < 0.3, cancel_futures=cancel)
        self.done["shutdowns"] += 1

    def run_loops(self, chance: random.Random) -> None:
        try:
            self.run_some_loops(chance)
        except BaseException as error:
            self.wrong.append(f"a thread has ended with {error!r}")

    def run_some_loops(self, chance: random.Random) -> None:
        while self.left:
            loop = uringloop.Loop()
            # Debug mode reports turns that are slow, as on a busy machine.
            loop.slow_callback_duration = PATIENCE_S
            loop.set_exception_handler(lambda _, context: self.wrong.append(str(context)))
            try:
                loop.run_until_complete(self.use(loop, chance))
            finally:
                loop.close()
            self.done["loops"] += 1

    async def use(self, loop: uringloop.Loop, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 20)):
            count = self.take(chance.randrange(1, BURST_MAX))
            calls = [self.call(loop, Call(number), chance) for number in range(count)]
            if chance.random() < 0.1:
                # Close the loop while they run.
                for future, call, _ in calls:
                    self.unawaited.append(call)
                    if future is not None:
                        future.cancel()
                return
            for future, call, kind in calls:
                if future is not None:
                    await self.check(future, call, kind, chance)

    def call(
        self, loop: uringloop.Loop, call: Call, chance: random.Random
    ) -> tuple[asyncio.Future[int] | None, Call, Callable[[Call], int]]:
        kinds, weights = zip(*KINDS, strict=True)
        (kind,) = chance.choices(kinds, weights)
        with self.lock:
            pool, call.pool = self.pool, self.pool_number
        try:
            future = loop.run_in_executor(pool, kind, call)
        except RuntimeError as error:
            if "cannot schedule new futures" not in str(error):
                raise
            self.done["refused"] += 1
            return None, call, kind
        if chance.random() < 0.2:
            call.was_cancelled = future.cancel()
        return future, call, kind

    async def check(
        self,
        future: asyncio.Future[int],
        call: Call,
        kind: Callable[[Call], int],
        chance: random.Random,
    ) -> None:
        if chance.random() < 0.05:
            call.was_cancelled |= future.cancel()
        outcome = ""
        try:
            result = await future
        except asyncio.CancelledError:
            outcome = "cancelled"
            if not (call.was_cancelled or call.pool in self.cancelled_pools):
                self.wrong.append(f"{call.number} was cancelled by nobody")
        except (Failed, Left) as error:
            outcome = "raised"
            if type(error) is not RAISED.get(kind) or error.args != (call.number,):
                self.wrong.append(f"{call.number}: {error!r} from {kind.__name__}")
        else:
            outcome = "returned"
            if result != call.number or kind not in (Call.returns, Call.sleeps):
                self.wrong.append(f"{call.number}: {result!r} from {kind.__name__}")
        ran = call.ran
        if ran > 1 or (ran == 0 and outcome != "cancelled"):
            self.wrong.append(f"{call.number} ran {ran} times, and {outcome}")
        self.done[outcome] += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(PATIENCE_S + options.jobs / 100, exit=True)
    stress = Stress(options.seed, options.jobs, options.threads)
    threads = [
        threading.Thread(target=stress.run_loops, args=(random.Random(f"{options.seed} {index}"),))
        for index in range(options.loops)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stress.pool.shutdown()
    del stress.pool
    wait_for_the_end(stress)
    print(f"seed {options.seed}:", *(f"{name} {n}" for name, n in sorted(stress.done.items())))
    for wrong in stress.wrong[:20]:
        print(wrong)
    sys.exit(1 if stress.wrong else 0)


def wait_for_the_end(stress: Stress) -> None:
    """Report what is left, and what ran too often, when calls that nobody awaits have had time."""
    deadline = time.monotonic() + 30
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.collect()
    stress.wrong += [
        f"{call.number} ran {call.ran} times" for call in stress.unawaited if call.ran > 1
    ]
    if threading.active_count() > 1:
        stress.wrong.append(f"threads are left: {threading.enumerate()}")
    if pools := list[Any](stress.pools):
        stress.wrong.append(f"pools are left: {pools}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
