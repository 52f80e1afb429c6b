"""A program with a loop in each of two threads whose tasks wait, until its input ends.

Its arguments are the kind of the loops, `asyncio` or `uringloop`, and where they run: in two new
`threads`, or one of them in the `main` thread. It prints `waiting` when all tasks wait.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

import uringloop

FACTORIES = {"asyncio": asyncio.new_event_loop, "uringloop": uringloop.new_event_loop}

all_wait = threading.Barrier(2)
numbers = iter(range(2))


async def inner(ends: asyncio.Event) -> None:
    await ends.wait()


async def outer(number: int, ends: asyncio.Event) -> None:
    await asyncio.create_task(inner(ends), name=f"inner-{number}")


async def main() -> None:
    number = next(numbers)
    task = asyncio.current_task()
    assert task is not None
    task.set_name(f"main-{number}")
    ends = asyncio.Event()
    waiting = asyncio.create_task(outer(number, ends), name=f"outer-{number}")
    # One turn for outer(), one for inner().
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # In another thread, so that this task waits, too.
    await asyncio.to_thread(wait_for_the_end)
    ends.set()
    await waiting


def wait_for_the_end() -> None:
    # The loops' threads are back in their loops, or about to be.
    if all_wait.wait(30) == 0:
        print("waiting", flush=True)
    # EOF is for both readers.
    while os.read(0, 1):
        continue


def run(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if place == "threads":
        uringloop.run_threads(main, 2, loop_factory=FACTORIES[kind])
    else:
        other = threading.Thread(target=run, args=(FACTORIES[kind],))
        other.start()
        run(FACTORIES[kind])
        other.join()
