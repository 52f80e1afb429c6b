"""Small programs that only schedule: tasks, callbacks, timers, threads, processes.

Each does its operation *count* times; PROGRAMS has the count that takes about half a second. The
code of asyncio itself is the same for all loops: only the loops make the figures differ.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

# Callbacks and timers of one turn: more than in most programs, and little memory.
BATCH = 1000

# Tasks of `sleep-100`.
HUNDRED = 100

# Tasks of `gather`, of `lock` and of `semaphore`, and how many of these may hold the semaphore.
TEN = 10
HOLDERS = 3

# Threads of `threadsafe-4`.
CALLERS = 4

# Average seconds between the timers of `timers`: too short for any loop to wait for one. The
# fastest take 1 us to create and run one.
WINDOW = 1e-7


def _nothing() -> None:
    """Do nothing, as the callback of a timer that is cancelled."""


def _countdown(count: int) -> tuple[Callable[[], None], asyncio.Future[None]]:
    """Return a callback, and a future that has its result after *count* calls of it."""
    done = asyncio.get_running_loop().create_future()
    left = count

    def call() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    return call, done


async def sleep_one(count: int) -> None:
    """One task that yields: sleep(0)."""
    for _ in range(count):
        await asyncio.sleep(0)


async def sleep_hundred(count: int) -> None:
    """A hundred tasks that yield in turn."""
    await asyncio.gather(*(sleep_one(count // HUNDRED) for _ in range(HUNDRED)))


async def call_soon_batch(count: int) -> None:
    """A thousand callbacks in every turn."""
    loop = asyncio.get_running_loop()
    called = 0

    def call(number: int) -> None:
        nonlocal called
        called += number

    for _ in range(count // BATCH):
        for _ in range(BATCH):
            loop.call_soon(call, 1)
        await asyncio.sleep(0)
    if called != count:
        raise RuntimeError("not every callback was called")


async def call_soon(count: int) -> None:
    """A callback that schedules itself: one in every turn."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = count

    def call() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(call)
        else:
            done.set_result(None)

    loop.call_soon(call)
    await done


async def future(count: int) -> None:
    """A task that waits for a future which a callback resolves."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        waiter = loop.create_future()
        loop.call_soon(waiter.set_result, None)
        await waiter


async def call_later_cancel(count: int) -> None:
    """A timeout that is set and cancelled, as for every request of a server."""
    loop = asyncio.get_running_loop()
    for _ in range(count // BATCH):
        for _ in range(BATCH):
            loop.call_later(60, _nothing).cancel()
        await asyncio.sleep(0)


async def timers(count: int) -> None:
    """Create timers at random times within a window, and then run them."""
    loop = asyncio.get_running_loop()
    call, done = _countdown(count)
    # The same numbers for every loop.
    chance = random.Random(1)
    begin, span = loop.time(), count * WINDOW
    for _ in range(count):
        loop.call_at(begin + chance.random() * span, call)
    await done


async def _hand_over(count: int, size: int) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(size)

    async def put() -> None:
        for number in range(count):
            await queue.put(number)

    async def get() -> None:
        for number in range(count):
            if await queue.get() != number:
                raise RuntimeError("the queue changed the order")

    await asyncio.gather(put(), get())


async def queue_one(count: int) -> None:
    """A queue of one item between two tasks: a task switch for every item."""
    await _hand_over(count, 1)


async def queue_hundred(count: int) -> None:
    """A queue of a hundred items between two tasks."""
    await _hand_over(count, 100)


async def threadsafe(count: int) -> None:
    """Wake-ups from another thread, each after the last has arrived."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    # A lock, because a semaphore is much Python code.
    arrived = threading.Lock()
    arrived.acquire()

    def wake() -> None:
        for _ in range(count):
            loop.call_soon_threadsafe(arrived.release)
            arrived.acquire()
        loop.call_soon_threadsafe(done.set_result, None)

    thread = threading.Thread(target=wake)
    thread.start()
    await done
    thread.join()


async def threadsafe_four(count: int) -> None:
    """Calls from four threads at the same time, which wait for nothing; the loop counts them."""
    loop = asyncio.get_running_loop()
    call, done = _countdown(count)

    def calls() -> None:
        for _ in range(count // CALLERS):
            loop.call_soon_threadsafe(call)

    threads = [threading.Thread(target=calls) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    await done
    for thread in threads:
        thread.join()


async def executor_one(count: int) -> None:
    """run_in_executor with a function that does nothing."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.run_in_executor(None, int)


async def executor_hundred(count: int) -> None:
    """run_in_executor with 100 such calls at once."""
    loop = asyncio.get_running_loop()
    for _ in range(count // HUNDRED):
        await asyncio.gather(*[loop.run_in_executor(None, int) for _ in range(HUNDRED)])


async def to_thread_hundred(count: int) -> None:
    """100 calls of asyncio.to_thread at once."""
    for _ in range(count // HUNDRED):
        await asyncio.gather(*[asyncio.to_thread(int) for _ in range(HUNDRED)])


async def create_task(count: int) -> None:
    """A task that ends at once, awaited."""

    async def ends() -> None:
        return

    for _ in range(count):
        await asyncio.create_task(ends())


async def gather(count: int) -> None:
    """Ten tasks that end at once, gathered."""

    async def ends() -> None:
        return

    for _ in range(count // TEN):
        await asyncio.gather(*(ends() for _ in range(TEN)))


async def timeout(count: int) -> None:
    """asyncio.timeout around one turn."""
    for _ in range(count):
        async with asyncio.timeout(60):
            await asyncio.sleep(0)


async def wait_for(count: int) -> None:
    """asyncio.wait_for around one turn."""
    for _ in range(count):
        await asyncio.wait_for(asyncio.sleep(0), 60)


async def _hold(count: int, lock: asyncio.Lock | asyncio.Semaphore) -> None:
    async def hold() -> None:
        for _ in range(count // TEN):
            async with lock:
                await asyncio.sleep(0)

    await asyncio.gather(*(hold() for _ in range(TEN)))


async def lock(count: int) -> None:
    """Ten tasks that hold a lock for one turn each."""
    await _hold(count, asyncio.Lock())


async def semaphore(count: int) -> None:
    """Ten tasks of which three at a time hold a semaphore, for one turn each."""
    await _hold(count, asyncio.Semaphore(HOLDERS))


async def event(count: int) -> None:
    """Two tasks that wake each other with two events."""
    there, back = asyncio.Event(), asyncio.Event()

    async def answer() -> None:
        for _ in range(count):
            await there.wait()
            there.clear()
            back.set()

    async def ask() -> None:
        for _ in range(count):
            there.set()
            await back.wait()
            back.clear()

    await asyncio.gather(answer(), ask())


async def connecting(count: int) -> None:
    """Connect to a listening socket, one connection after the other."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        for _ in range(count):
            transport, _ = await loop.create_connection(asyncio.Protocol, *address)
            # The kernel has connected it before.
            accepted, _ = listener.accept()
            transport.close()
            accepted.close()


async def numeric_host(count: int) -> None:
    """Resolve a numeric address, as many programs do before they connect."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.getaddrinfo("127.0.0.1", 80)


async def localhost(count: int) -> None:
    """Resolve a name that is in /etc/hosts."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.getaddrinfo("localhost", 80)


async def subprocess(count: int) -> None:
    """A process that ends at once, waited for."""
    for _ in range(count):
        process = await asyncio.create_subprocess_exec("/bin/true")
        if await process.wait() != 0:
            raise RuntimeError("the process failed")


@dataclass(frozen=True)
class Program:
    """A program and its operations in one measurement: it runs any multiple of the unit."""

    run: Callable[[int], Coroutine[None, None, None]]
    count: int
    unit: int = 1

    def whole(self, operations: float) -> int:
        """Return the number of *operations* in whole units, at least one unit."""
        return max(round(operations / self.unit), 1) * self.unit


PROGRAMS = {
    "sleep-1": Program(sleep_one, 300_000),
    "sleep-100": Program(sleep_hundred, 500_000, HUNDRED),
    "call-soon": Program(call_soon, 300_000),
    "call-soon-batch": Program(call_soon_batch, 1_000_000, BATCH),
    "future": Program(future, 200_000),
    "call-later-cancel": Program(call_later_cancel, 500_000, BATCH),
    "timers": Program(timers, 1_000_000),
    "queue-1": Program(queue_one, 200_000),
    "queue-100": Program(queue_hundred, 300_000),
    "threadsafe": Program(threadsafe, 20_000),
    "threadsafe-4": Program(threadsafe_four, 200_000, CALLERS),
    "executor-1": Program(executor_one, 10_000),
    "executor-100": Program(executor_hundred, 30_000, HUNDRED),
    "to-thread-100": Program(to_thread_hundred, 30_000, HUNDRED),
    "create-task": Program(create_task, 200_000),
    "gather": Program(gather, 200_000, TEN),
    "timeout": Program(timeout, 100_000),
    "wait-for": Program(wait_for, 70_000),
    "lock": Program(lock, 150_000, TEN),
    "event": Program(event, 150_000),
    "semaphore": Program(semaphore, 150_000, TEN),
    "connecting": Program(connecting, 3_000),
    "numeric-host": Program(numeric_host, 20_000),
    "localhost": Program(localhost, 10_000),
    "subprocess": Program(subprocess, 150),
}
