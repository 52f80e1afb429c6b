"""Faults of functions that loops call in threads; each function runs one on a new loop."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
import warnings
from collections import Counter
from typing import Any

from .common import LOCALHOST, Factory, Fault, become_nobody, judged, still_echoes, threads_refused

# Seconds after which a call hangs.
PATIENCE_S = 5.0
QUEUED = 100_000


async def outcome_of(awaitable: Any, patience_s: float = PATIENCE_S) -> str:
    """Return the outcome of a call, in a word."""
    try:
        await asyncio.wait_for(awaitable, patience_s)
    except TimeoutError:
        return "hangs"
    except Exception as exc:
        return type(exc).__name__
    return "works"


def no_thread_for_a_function(factory: Factory) -> str:
    """No thread can be started for a call of `run_in_executor`; later, threads can be started
    again.
    """
    if os.geteuid() != 0:
        return "not tried: needs root"
    loop = factory()
    become_nobody()
    ran = 0

    def call() -> None:
        nonlocal ran
        ran += 1

    async def call_in_thread() -> None:
        await loop.run_in_executor(None, call)

    async def main() -> str:
        with threads_refused():
            refused = await outcome_of(call_in_thread())
            echoed = await still_echoes(loop)
        later = await outcome_of(call_in_thread())
        ran_once = judged(ran == 1, f"ran {ran} of 1 times")
        ok = refused == "RuntimeError" and echoed and later == "works"
        return f"{judged(ok, f'{refused}, an echo, then {later}')}, {ran_once}"

    return str(loop.run_until_complete(main()))


def no_thread_for_a_name(factory: Factory) -> str:
    """No thread can be started for `getaddrinfo` of a name, then of a numeric address; later,
    threads can be started again.
    """
    if os.geteuid() != 0:
        return "not tried: needs root"
    loop = factory()
    # The socket module imports the codec, which another user may not be able to read.
    "name".encode("idna")
    become_nobody()

    async def main() -> str:
        with threads_refused():
            refused = await outcome_of(loop.getaddrinfo("localhost", 80))
            numeric = await outcome_of(loop.getaddrinfo(LOCALHOST, 80, type=1))
            echoed = await still_echoes(loop)
        later = await outcome_of(loop.getaddrinfo("localhost", 80))
        ok = refused == "RuntimeError" and echoed and later == numeric == "works"
        return judged(ok, f"{refused}, numeric {numeric}, an echo, then {later}")

    return str(loop.run_until_complete(main()))


def no_memory_for_calls(factory: Factory) -> str:
    """Each of the first 150 memory allocations of a `run_in_executor` call fails once; a call that
    is refused must not run.
    """
    try:
        testcapi: Any = importlib.import_module("_testcapi")
    except ImportError:
        return "not tried: needs _testcapi"
    loop = factory()

    async def main() -> str:
        outcomes: Counter[str] = Counter()
        ran: list[int] = []
        refused: list[int] = []
        await loop.run_in_executor(None, int)
        for number in range(150):
            testcapi.set_nomemory(number, number + 1)
            try:
                future = loop.run_in_executor(None, ran.append, number)
            except Exception as exc:
                testcapi.remove_mem_hooks()
                outcomes[type(exc).__name__] += 1
                refused.append(number)
            else:
                testcapi.remove_mem_hooks()
                outcomes[await outcome_of(future, 0.5)] += 1
        afterwards = await outcome_of(loop.run_in_executor(None, int))
        anyway = len(set(refused).intersection(ran))
        ok = "hangs" not in outcomes and afterwards == "works" and not anyway
        told = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        return judged(ok, f"{told}, {anyway} refused and run, then {afterwards}")

    return str(loop.run_until_complete(main()))


def an_endless_function(factory: Factory) -> str:
    """A function in a thread never returns: `shutdown_default_executor(0.2)`, then `close()`."""
    loop = factory()

    async def main() -> str:
        endless = loop.run_in_executor(None, threading.Event().wait)
        await asyncio.sleep(0.05)
        endless.cancel()
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                ended = await outcome_of(loop.shutdown_default_executor(0.2))
            except TypeError:
                return "has no timeout before Python 3.12"
        return judged(
            ended == "works" and time.monotonic() - began < 1 and len(caught) == 1,
            f"{ended} in {time.monotonic() - began:.1f} s, {len(caught)} warning",
        )

    shut = loop.run_until_complete(main())
    began = time.monotonic()
    loop.close()
    took = time.monotonic() - began
    return f"{shut}, {judged(took < 1, f'closed in {took * 1e3:.0f} ms')}"


def exit_status(run: Any) -> int:
    """Return the exit status of a forked child that calls *run*."""
    child = os.fork()
    if child == 0:
        try:
            run()
        except SystemExit as exc:
            os._exit(exc.code if isinstance(exc.code, int) else 99)
        finally:
            os._exit(98)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exits_in_a_function(factory: Factory) -> str:
    """`sys.exit(3)` and `os._exit(4)` in a function that runs in a thread: the exit statuses."""

    def run(leave: Any, status: int) -> None:
        loop = factory()

        async def main() -> None:
            await loop.run_in_executor(None, leave, status)

        loop.run_until_complete(main())

    raised = exit_status(lambda: run(sys.exit, 3))
    left = exit_status(lambda: run(os._exit, 4))
    return judged((raised, left) == (3, 4), f"statuses {raised} and {left}")


def fork_in_a_function(factory: Factory) -> str:
    """`os.fork()` in a function that runs in a thread; the child calls functions in threads on a
    loop of its own.
    """
    loop = factory()

    def fork() -> int:
        def run() -> None:
            child_loop = factory()
            total = child_loop.run_until_complete(calls(child_loop))
            child_loop.close()
            sys.exit(total)

        return exit_status(run)

    async def calls(loop: Any) -> int:
        return sum(await asyncio.gather(*(loop.run_in_executor(None, int, "1") for _ in range(50))))

    async def main() -> str:
        status = await asyncio.wait_for(loop.run_in_executor(None, fork), 20)
        here = await calls(loop)
        outcome = f"{status} of 50 calls in the child, {here} in the parent"
        return judged((status, here) == (50, 50), outcome)

    return str(loop.run_until_complete(main()))


def many_calls_and_shutdown(factory: Factory) -> str:
    """100,000 calls are waiting for a thread when the executor shuts down."""
    loop = factory()
    gate = threading.Event()
    ran = 0
    lock = threading.Lock()

    def call() -> None:
        nonlocal ran
        gate.wait()
        with lock:
            ran += 1

    async def main() -> str:
        futures = [loop.run_in_executor(None, call) for _ in range(QUEUED)]
        began = time.monotonic()
        shutting = asyncio.ensure_future(loop.shutdown_default_executor())
        await asyncio.sleep(0)
        gate.set()
        await shutting
        await asyncio.gather(*futures)
        took = time.monotonic() - began
        refused = "nothing"
        try:
            loop.run_in_executor(None, call)
        except RuntimeError:
            refused = "a call"
        ok = ran == QUEUED and refused == "a call"
        return judged(ok, f"{ran:,} ran in {took:.1f} s, then {refused} refused")

    return str(loop.run_until_complete(main()))


FAULTS: tuple[Fault, ...] = (
    no_thread_for_a_function,
    no_thread_for_a_name,
    no_memory_for_calls,
    an_endless_function,
    exits_in_a_function,
    fork_in_a_function,
    many_calls_and_shutdown,
)
