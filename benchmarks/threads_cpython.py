"""The cost of free-threaded CPython itself: two threads against two processes, without any loop.

    python3.14t benchmarks/threads_cpython.py [--rounds 5] [--seconds 0.1] [--only Future,sleep]

Each line is a statement as event loops or their programs run it, from the standard library only.
Two threads of one process repeat it at the same time, each with objects of its own except for those
that the column `shared` names; two processes do the same. Each thread has a core of its own, the
same two in both cases. `share` is the rate of two threads divided by that of two processes: at 1.0
the threads do not slow each other down. No loop can be better than the statements that it needs.

The program runs on any free-threaded Python, even if uringloop is not installed. It starts itself
as its own workers, which read names of statements from standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Repeats of a statement between two looks at the clock.
BATCH = 500

# Share of the measured time for the warm-up, in which a thread specialises its bytecode.
WARM_UP = 0.5

# ── the statements ───────────────────────────────────────────────────────────────────────────

# What both threads use: all of it belongs to the main thread. A number that is not immortal.
SHARED = """
import asyncio, collections, contextvars, functools, os, socket, sys
import threading, time, types, weakref
from asyncio import Future, Task, get_running_loop, sleep

class Point:
    def __init__(self):
        self.x = NUMBER
    def method(self):
        return None

class Slotted:
    __slots__ = ("x",)
    def __init__(self):
        self.x = 1

def function(*arguments):
    return None

async def coroutine():
    return None

# Has all that a future needs of its loop.
class Loop:
    def get_debug(self):
        return False
    def call_soon(self, callback, *arguments, context=None):
        return None

plain, with_getattr = types.ModuleType("plain"), types.ModuleType("with_getattr")
plain.function = with_getattr.function = function
with_getattr.__getattr__ = function
NUMBER = 10**20
TEXT = "".join(["not ", "interned"])
POINT = Point()
BOUND = POINT.method
PARTIAL = functools.partial(function)
VARIABLE = contextvars.ContextVar("VARIABLE", default=NUMBER)
CONTEXT = contextvars.copy_context()
LIST, DICTIONARY, LOCK = [NUMBER], {"key": NUMBER}, threading.Lock()
"""

# Repeats its statement so many times.
Run = Callable[[int], object]


@dataclass(frozen=True)
class Case:
    """A statement, the preparation in each thread, and what the threads share."""

    code: str
    setup: str = ""
    shared: str = ""
    # A statement with `await` runs on an asyncio loop of its thread.
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or self.code

    def prepared(self) -> Callable[[], Run]:
        """Return a function that prepares in its thread; the threads share its code."""
        asynchronous = "async " if "await" in self.code or "running_loop" in self.code else ""
        body = [f"    {line}" for line in self.setup.splitlines()]
        body += [f"    {asynchronous}def run(count):", "        for _ in range(count):"]
        body += [f"            {line}" for line in self.code.splitlines()]
        body += [f"    return {'on_loop(run)' if asynchronous else 'run'}"]
        names: dict[str, Any] = {"on_loop": on_loop, "new_loop": new_loop}
        exec(SHARED + "\n".join(["def prepare():", *body]), names)
        prepare: Callable[[], Run] = names["prepare"]
        return prepare


# Loops of the statement that is measured, which are closed after it.
LOOPS: list[asyncio.AbstractEventLoop] = []


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop for this thread."""
    loop = asyncio.new_event_loop()
    LOOPS.append(loop)
    return loop


def on_loop(run: Callable[[int], Any]) -> Run:
    """Return a function that runs a coroutine function on a loop of this thread."""
    loop = new_loop()
    return lambda count: loop.run_until_complete(run(count))


CASES = [
    # Calls.
    Case("function()", shared="a function"),
    Case("own()", "def own(): return None", "its code"),
    Case("point.method()", "point = Point()", "a class"),
    Case("POINT.method()", shared="an instance"),
    Case("BOUND()", shared="a bound method"),
    Case("own()", "own = Point().method", "a function", name="own bound method()"),
    Case("PARTIAL()", shared="a partial"),
    Case("list(map(function, TEN))", "TEN = [1] * 10", "a function", name="function from C, 10 x"),
    Case("list(map(BOUND, ()))", shared="a bound method", name="BOUND is handed to C"),
    Case("list(map(function, ()))", shared="a function", name="function is handed to C"),
    Case("list(map(len, ()))", shared="a builtin", name="len is handed to C"),
    # Looking up what is shared.
    Case("NUMBER", shared="an int"),
    Case("own.add(NUMBER)", "own = set()", "an int"),
    Case("POINT.x", shared="an instance, an int"),
    Case("LIST[0]", shared="a list, an int"),
    Case("DICTIONARY['key']", shared="a dict, an int"),
    Case("str(TEXT)", shared="a str"),
    Case("plain.function", shared="a module, a function"),
    Case("with_getattr.function", shared="a module with __getattr__, a function"),
    Case("asyncio.Future", shared="asyncio has __getattr__; a class"),
    Case("import os", shared="sys.modules, a module", name="import os, in a function"),
    Case("with LOCK: pass", shared="a lock"),
    Case("with lock: pass", "lock = threading.Lock()"),
    # New objects.
    Case("object()"),
    Case("Point()", shared="a class, an int"),
    Case("Slotted()", shared="a class"),
    Case("collections.deque()", shared="a class of C"),
    Case("functools.partial(own)", "own = Point().method", shared="a class of C"),
    Case("bytes(own)", "own = bytearray(128)", name="bytes of 128"),
    Case("[_]; {_: _}; (_,)"),
    Case("lambda: _", shared="code"),
    Case("weakref.ref(own)", "own = Point()"),
    Case("weakref.ref(POINT)", shared="an instance"),
    Case("try: raise OSError\nexcept OSError: pass", shared="a class", name="raise OSError"),
    Case(
        "kept.append([_])",
        "kept = collections.deque(maxlen=20_000)",
        "the garbage collector stops both",
        name="20,000 lists are kept",
    ),
    # What loops and tasks need.
    Case("contextvars.copy_context()", "VARIABLE.set(1)", "a variable"),
    Case("VARIABLE.get()", "VARIABLE.set(NUMBER)", "a variable, an int"),
    Case("own.run(function)", "own = contextvars.copy_context()", "a function"),
    Case("await coroutine()", shared="a function"),
    Case("get_running_loop()", shared="a builtin"),
    Case("asyncio.get_running_loop()", shared="asyncio has __getattr__; a builtin"),
    Case("Future(loop=loop)", "loop = new_loop()", "a class"),
    Case("asyncio.Future(loop=loop)", "loop = new_loop()", "asyncio has __getattr__; a class"),
    Case(
        "f = Future(loop=loop); f.add_done_callback(function, context=own); f.set_result(None)",
        "loop, own = Loop(), contextvars.copy_context()",
        "a function, classes",
        name="future, callback, result",
    ),
    Case(
        "f = Future(loop=loop); f.add_done_callback(print); f.set_result(None)",
        "loop = Loop()",
        "a builtin, classes",
        name="the same with a new context",
    ),
    Case(
        "await Task(coroutine(), eager_start=True)",
        shared="a function, classes",
    ),
    Case("await sleep(0)", shared="functions and classes of asyncio"),
    Case("await asyncio.sleep(0)", shared="the same; asyncio has __getattr__"),
    Case("await Task(coroutine())", shared="functions and classes of asyncio"),
    Case("await asyncio.create_task(coroutine())", shared="the same; asyncio has __getattr__"),
    # The kernel.
    Case("time.monotonic()", shared="a builtin"),
    Case("os.getppid()", shared="a builtin"),
    Case("os.pread(fd, 128, 0)", "fd = os.open(sys.executable, os.O_RDONLY)", "the open files"),
    Case(
        "left.send(own); right.recv(256)",
        "left, right = socket.socketpair(); own = bytes(128)",
        "the open files",
        name="send and recv of own sockets",
    ),
    Case(
        "left.send(own); right.recv(2**18)",
        "left, right = socket.socketpair(); own = bytes(128)",
        "the open files, the allocator's counter",
        name="the same with a buffer of 256 KiB",
    ),
    Case("os.close(os.eventfd(0))", shared="the open files"),
]

NAMED = {case.title: case for case in CASES}

# ── workers ──────────────────────────────────────────────────────────────────────────────────


def work(prepare: Callable[[], Run], seconds: float, meet: Callable[[], object], cpu: int) -> float:
    """Return the nanoseconds of a statement, counted while all workers work."""
    os.sched_setaffinity(0, {cpu})
    run = prepare()
    until = time.perf_counter() + seconds * WARM_UP
    while time.perf_counter() < until:
        run(BATCH)
    meet()
    # The first batch and the last one may be at a time when the other worker does not work.
    until = time.perf_counter() + seconds
    run(BATCH)
    began = ended = time.perf_counter()
    done = 0
    while True:
        run(BATCH)
        now = time.perf_counter()
        if now > until and done:
            break
        ended = now
        done += BATCH
    return (ended - began) / done * 1e9


def together(cpus: list[int], worker: Callable[[int], float]) -> list[float]:
    """Return the results of a worker on each core; a single worker runs in this thread."""
    if len(cpus) == 1:
        return [worker(cpus[0])]
    times: dict[int, float] = {}
    threads = [
        threading.Thread(target=lambda cpu=cpu: times.update({cpu: worker(cpu)})) for cpu in cpus
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(times.values())


def serve(cpus: list[int], seconds: float) -> None:
    """Measure the statements that standard input names, on a thread for each core."""

    def meet() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    for line in sys.stdin:
        # A statement is not slower because of what the one before has left.
        gc.collect()
        prepare = NAMED[line.rstrip("\n")].prepared()
        barrier = threading.Barrier(len(cpus), action=meet)
        times = together(cpus, functools.partial(work, prepare, seconds, barrier.wait))
        print(json.dumps(times), flush=True)
        while LOOPS:
            LOOPS.pop().close()


class Worker:
    """A process that measures statements on its cores."""

    def __init__(self, cpus: list[int], seconds: float) -> None:
        command = [sys.executable, __file__, "--serve", json.dumps([cpus, seconds])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker has ended")
        return line

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# ── the table ────────────────────────────────────────────────────────────────────────────────

# The nanoseconds in every thread, by arrangement, for each round of a statement.
Rounds = dict[str, list[dict[str, list[float]]]]


def measure(workers: list[Worker], name: str) -> list[float]:
    """Return the nanoseconds of a statement in every thread of these processes."""
    for worker in workers:
        worker.say(name)
    for worker in workers:
        worker.hear()
    for worker in workers:
        worker.say("go")
    times: list[float] = []
    for worker in workers:
        times += json.loads(worker.hear())
    return times


def rate_of(times: list[float]) -> float:
    return sum(1 / each for each in times)


def rounds_of(names: list[str], arrangements: dict[str, list[Worker]], count: int) -> Rounds:
    """Take rounds of all statements in all arrangements, and stop the workers."""
    rounds: Rounds = {name: [] for name in names}
    for _ in range(count):
        for name in names:
            taken = {key: measure(workers, name) for key, workers in arrangements.items()}
            rounds[name].append(taken)
    for workers in arrangements.values():
        for worker in workers:
            worker.stop()
    return rounds


def show(options: argparse.Namespace, rounds: Rounds) -> None:
    """Print the table; each time is the mean over the workers."""
    print(f"{sys.version}\n{options.rounds} rounds of {options.seconds} s, medians\n")
    print("| statement | shared | one, ns | two threads, ns | two processes, ns | share |")
    print("| :-- | :-- | --: | --: | --: | --: |")
    for name, taken in rounds.items():
        medians = [
            statistics.median(len(each[key]) / rate_of(each[key]) for each in taken)
            for key in taken[0]
        ]
        shares = [rate_of(each["threads"]) / rate_of(each["processes"]) for each in taken]
        spread = (max(shares) - min(shares)) / 2
        figures = " | ".join(f"{each:,.0f}" for each in medians)
        share = f"{statistics.median(shares):.2f} ±{spread:.2f}"
        print(f"| `{name}` | {NAMED[name].shared or 'nothing'} | {figures} | {share} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of each measurement")
    parser.add_argument("--only", default="", metavar="WORD,...", help="statements with a WORD")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*json.loads(options.serve))
        return
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        raise SystemExit("needs a free-threaded Python with the GIL off")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        raise SystemExit("needs two cores")
    first, last = cores[0], cores[-1]
    arrangements = {
        "one": [Worker([last], options.seconds)],
        "threads": [Worker([first, last], options.seconds)],
        "processes": [Worker([first], options.seconds), Worker([last], options.seconds)],
    }
    words = [word for word in options.only.split(",") if word]
    names = [name for name in NAMED if not words or any(word in name for word in words)]
    show(options, rounds_of(names, arrangements, options.rounds))


if __name__ == "__main__":
    main()
