"""Calls in threads: the default executor against a ThreadPoolExecutor, by number of threads.

    python benchmarks/executor_threads.py [--rounds 5] [--calls 5000]

Both run the same calls for one uringloop loop, in turn. Prints a table in Markdown: medians, in
thousands of calls a second. Without a GIL more threads do more work, if there are more cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import uringloop
from uringloop._loop.executors import ThreadPool

THREADS = (1, 2, 4, 8)
AT_ONCE = 500
# What a call does, and how many numbers it adds.
WORK = {"nothing": 0, "300 numbers added": 300}
POOLS = {"ThreadPoolExecutor": ThreadPoolExecutor, "this pool": ThreadPool}


def add(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


async def rate(pool: ThreadPoolExecutor, count: int, calls: int) -> float:
    """Return the calls of `add(count)` that *pool* performs, a second."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for _ in range(calls // AT_ONCE):
        await asyncio.gather(*(loop.run_in_executor(pool, add, count) for _ in range(AT_ONCE)))
    return calls // AT_ONCE * AT_ONCE / (time.perf_counter() - began)


async def medians(threads: int, count: int, rounds: int, calls: int) -> list[float]:
    pools = [kind(threads) for kind in POOLS.values()]
    rates: list[list[float]] = [[] for _ in pools]
    for pool in pools:
        await rate(pool, count, AT_ONCE)
    for _ in range(rounds):
        for pool, measured in zip(pools, rates, strict=True):
            measured.append(await rate(pool, count, calls))
    for pool in pools:
        pool.shutdown()
    return [statistics.median(measured) for measured in rates]


async def main(rounds: int, calls: int) -> None:
    print("| a call does | pool |", " | ".join(f"{count} threads" for count in THREADS), "|")
    print("|---|---|", "---|" * len(THREADS), sep="")
    for work, count in WORK.items():
        columns = [await medians(threads, count, rounds, calls) for threads in THREADS]
        for name, row in zip(POOLS, zip(*columns, strict=True), strict=True):
            print(f"| {work} | {name} |", " | ".join(f"{each / 1000:.0f}" for each in row), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    uringloop.run(main(options.rounds, options.calls))
