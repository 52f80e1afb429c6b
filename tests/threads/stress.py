"""Threads that use the loops of other threads, at random.

    python tests/threads/stress.py --seconds 60 --threads 8 --loops 4 --seed 7 --only post,stop

Each of several threads makes a loop, does work of all kinds on it, and makes the next one. The loop
is stopped and run again, in this thread and in others, and closed, also by several threads at once.
Other threads call everything that docs/reference/threads.md allows any thread, on these loops and
on their transports, handles, servers and files, also on loops that are closed meanwhile. Each
callback must run once, in the order of its thread; a closed loop must refuse callbacks; a loop must
not sleep while a callback waits; and nothing must be left at the end.

The program prints what it did, and exits with 1 if something was wrong. A thread that waits for too
long ends it, with the stacks of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import errno
import faulthandler
import gc
import logging
import os
import random
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.thread_rules import tables  # noqa: E402

import uringloop  # noqa: E402
from uringloop import doctor, fs, monitor, prometheus  # noqa: E402
from uringloop.monitor.client import CannotWatch, Connection, Ended  # noqa: E402
from uringloop.monitor.snapshots import snapshot  # noqa: E402

SANITIZED = "TSAN_OPTIONS" in os.environ
# A debug build of CPython aborts if asyncio.all_tasks(), which run() calls, meets a task that ends
# at that moment in another thread than the one that made it (an assertion in add_tasks_llist).
ASSERTS = hasattr(sys, "gettotalrefcount")
# A loop that has not run a callback for so long sleeps for ever.
PATIENCE_S = 120.0 if SANITIZED else 30.0
# Callbacks of one action: more than the loop runs in a turn, sometimes.
BURST_MAX = 200
# How long a loop lives.
LIFE_S = 0.3
CLOSED = "Event loop is closed"
CLOSED_FILE = "I/O operation on closed file."
CERTIFICATES = TESTS / "certificates"
SERVER_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
SERVER_CONTEXT.load_cert_chain(CERTIFICATES / "server.pem")
CLIENT_CONTEXT = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))

# What loops do, and what other threads do, each with its weight: names of methods below.
WORKS = {
    "tcp": 4,
    "tls": 1,
    "udp": 2,
    "files": 3,
    "paths": 2,
    "executor": 1,
    "process": 1,
    "signals": 1,
    "cycles": 2,
    "handles": 3,
}
ACTIONS = {
    "post": 8,
    "ask": 4,
    "cancel": 4,
    "look": 3,
    "use": 8,
    "stop": 4,
    "adopt": 2,
    "functions": 3,
    "abandon": 1,
    "poke": 2,
    "scrape": 1,
    "watch": 1,
    "collect": 1,
}

# The names that any thread may use, by the heading of their table. Three have actions of their own,
# which check more than that a call returns.
USED = {heading: rows.get("any thread", []) for heading, rows in tables().items()}
USED["Loop"] = [n for n in USED["Loop"] if n not in ("adopt", "call_soon_threadsafe", "stop")]
EXTRA_INFO = ("socket", "sockname", "peername", "sslcontext", "cipher", "pipe", "subprocess", "no")
# What threads report to the exception handlers.
QUIET = {"message": "a report of the stress"}

Work = Callable[["Target", random.Random], Coroutine[Any, Any, None]]
Action = Callable[[int, "Target", random.Random], None]


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = threading.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Answers(asyncio.DatagramProtocol):
    """One end of a pair that sends datagrams back and forth."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if len(data) > 1:
            self.transport.sendto(data[1:], address)
        if len(data) <= 2:
            self.ended.set()


class Knot:
    """An object in reference cycles with handles."""

    things: list[object]

    def tie(self) -> None:
        self.things.append(self)


class Target:
    """A loop, and what each calling thread has sent to it and seen run."""

    def __init__(self, loop: uringloop.Loop) -> None:
        self.loop = loop
        # Each thread has numbers of its own: it counts what it sends, the loop what runs.
        self.sent: dict[int, int] = {}
        self.ran: dict[int, int] = {}
        self.lock = threading.Lock()
        # Callers that may still send; the loop is drained when there are none.
        self.callers = 0
        self.is_open = True
        self.wrong: list[str] = []
        # The newest object of each kind, by the heading of its table.
        self.shown: dict[str, object] = {"Loop": loop}
        loop.set_exception_handler(self.report)

    def enter(self) -> bool:
        with self.lock:
            self.callers += self.is_open
            return self.is_open

    def leave(self) -> None:
        with self.lock:
            self.callers -= 1

    def call(self, thread: int, number: int) -> None:
        """Run in the loop's thread: numbers of a thread follow each other."""
        expected = self.ran.get(thread, 0)
        if number != expected:
            self.wrong.append(f"thread {thread}: {number} ran in place of {expected}")
        self.ran[thread] = number + 1

    def report(self, loop: object, context: dict[str, Any]) -> None:
        if context["message"] != QUIET["message"]:
            self.wrong.append(repr(context))

    def make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coroutine, loop=loop, **options)

    def is_drained(self) -> bool:
        with self.lock:
            return not self.is_open and not self.callers and self.ran == self.sent


class Stress:
    def __init__(self, seed: int, threads: int, loops: int, only: set[str]) -> None:
        self.seed = seed
        self.deadline = 0.0
        self.targets: list[Target | None] = [None] * loops
        self.threads = threads
        self.done: Counter[str] = Counter()  # about: the threads count without a lock
        self.wrong: list[str] = []
        # Runs and closes loops of other threads.
        self.strangers = concurrent.futures.ThreadPoolExecutor(4, "stranger")
        self.folder = tempfile.TemporaryDirectory(prefix="stress")
        self.file = os.path.join(self.folder.name, "file")
        self.socket = os.path.join(self.folder.name, "monitor.sock")
        Path(self.file).write_bytes(b"x" * 10_000)
        self.works = self.chosen(only, WORKS)
        self.actions = self.chosen(only, ACTIONS)

    def chosen(self, only: set[str], names: dict[str, int]) -> list[Any]:
        """Return the methods *names*, each as often as it says, or those in *only*."""
        return [
            getattr(self, name)
            for name, weight in names.items()
            for _ in range(weight)
            if not only or name in only
        ]

    def run(self, seconds: float) -> None:
        """Use loops for so many seconds, one of them in this thread, the main thread."""
        self.deadline = time.monotonic() + seconds
        homes = range(1, len(self.targets))
        workers = [
            *(threading.Thread(target=self.guard(self.home), args=(n,)) for n in homes),
            *(
                threading.Thread(target=self.guard(self.caller), args=(n,))
                for n in range(self.threads)
            ),
        ]
        monitor.start(self.socket)
        for worker in workers:
            worker.start()
        self.guard(self.home)(0)
        for worker in workers:
            worker.join()
        monitor.stop()
        monitor.stop_serving()
        self.strangers.shutdown()
        self.folder.cleanup()

    def guard(self, work: Callable[[int], None]) -> Callable[[int], None]:
        def guarded(number: int) -> None:
            try:
                work(number)
            except BaseException as exc:
                self.wrong.append(f"{work.__name__} {number}: {exc!r}")
                traceback.print_exc()
                if isinstance(exc, TimeoutError) and len(self.wrong) == 1:
                    faulthandler.dump_traceback()
            finally:
                # The others end, too.
                if self.wrong:
                    self.deadline = 0.0

        return guarded

    # ── the threads that own loops ───────────────────────────────────────────────────────────

    def home(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + number)
        while time.monotonic() < self.deadline:
            target = Target(uringloop.new_event_loop())
            self.targets[number] = target
            self.live(target, chance)
            self.close(target, chance)
            if target.loop._operations_in_flight or target.loop._buffers_out:
                target.wrong.append(f"operations are left: {target.loop.stats()}")
            self.done["loops"] += 1
            self.wrong += target.wrong

    def live(self, target: Target, chance: random.Random) -> None:
        """Run the loop, in this thread and in others, until no caller uses it."""
        patience = time.monotonic() + LIFE_S + PATIENCE_S
        task: asyncio.Task[None] = target.loop.create_task(self.work(target, chance))
        task.add_done_callback(lambda _: target.loop.stop())
        while not task.done():
            self.run_once(target, chance)
        task.result()
        with target.lock:
            target.is_open = False
        while not target.is_drained():
            target.loop.call_soon_threadsafe(target.loop.stop)
            target.loop.run_forever()
            if time.monotonic() > patience:
                raise TimeoutError(f"callbacks did not run: {target.sent} {target.ran}")
        if threading.current_thread() is threading.main_thread():
            target.loop.remove_signal_handler(signal.SIGUSR1)
        for ending in (target.loop.shutdown_asyncgens, target.loop.shutdown_default_executor):
            shutdown = target.loop.create_task(ending())
            while not shutdown.done():
                # A stop of another thread may still wait in the loop.
                with contextlib.suppress(RuntimeError):
                    target.loop.run_until_complete(shutdown)

    def run_once(self, target: Target, chance: random.Random) -> None:
        """Run the loop until it is stopped, in one of several threads."""
        self.done["runs"] += 1
        if chance.random() < 0.7:
            target.loop.run_forever()
        elif chance.random() < 0.5:
            self.strangers.submit(target.loop.run_forever).result(LIFE_S + PATIENCE_S)
        else:
            # Only one of them can run it.
            both = [self.strangers.submit(target.loop.run_forever) for _ in range(2)]
            # The second may begin when the first has ended, with nothing left to do.
            while concurrent.futures.wait(both, 0.01).not_done:
                target.loop.call_soon_threadsafe(target.loop.stop)
            for run in both:
                with contextlib.suppress(RuntimeError):
                    run.result()

    def close(self, target: Target, chance: random.Random) -> None:
        """Close the loop, in one of several threads or in several."""
        closings: list[concurrent.futures.Future[None]] = []
        if chance.random() < 0.5:
            count = chance.choice((1, 2, 3))
            closings = [self.strangers.submit(target.loop.close) for _ in range(count)]
        if not closings or chance.random() < 0.5:
            target.loop.close()
        for closing in closings:
            closing.result(PATIENCE_S)

    async def work(self, target: Target, chance: random.Random) -> None:
        end = target.loop.time() + chance.uniform(0.001, LIFE_S)
        while target.loop.time() < end:
            works: list[Work] = [chance.choice(self.works) for _ in range(3) if self.works]
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(work(target, chance))
                    self.done[work.__name__] += 1
            # The loop sleeps until another thread wakes it, or the time is over.
            await asyncio.sleep(chance.choice((0, 0.0001, 0.01)))

    # ── what loops do ────────────────────────────────────────────────────────────────────────

    async def tcp(self, target: Target, chance: random.Random) -> None:
        await self.talk(target, chance, None, None)

    async def tls(self, target: Target, chance: random.Random) -> None:
        await self.talk(target, chance, SERVER_CONTEXT, CLIENT_CONTEXT)

    async def talk(
        self,
        target: Target,
        chance: random.Random,
        context: ssl.SSLContext | None,
        client_context: ssl.SSLContext | None,
    ) -> None:
        server = await target.loop.create_server(Echo, "127.0.0.1", 0, ssl=context)
        target.shown["Server"] = server
        port = server.sockets[0].getsockname()[1]
        name = "localhost" if context else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context, server_hostname=name
        )
        target.shown["TLS transport" if context else "Stream transport"] = writer.transport
        for _ in range(chance.randrange(1, 5)):
            data = bytes(chance.randrange(1, 50_000))
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    async def udp(self, target: Target, chance: random.Random) -> None:
        one, protocol = await target.loop.create_datagram_endpoint(
            Answers, local_addr=("127.0.0.1", 0)
        )
        other, _ = await target.loop.create_datagram_endpoint(Answers, local_addr=("127.0.0.1", 0))
        target.shown["Datagram transport"] = one
        count = chance.randrange(2, 20)
        one.sendto(bytes(count), other.get_extra_info("sockname"))
        await protocol.ended.wait()
        one.close()
        other.close()

    async def files(self, target: Target, chance: random.Random) -> None:
        async with (
            uringloop.open(self.file, "rb", 0) as raw,
            uringloop.open(self.file, "rb") as buffered,
            uringloop.open(self.file) as text,
        ):
            target.shown |= {"RawFile": raw, "BufferedFile": buffered, "TextFile": text}
            for opened in (raw, buffered, text):
                assert len(await opened.read()) == 10_000
        name = f"{self.file}-{id(target)}-{chance.random()}"
        async with uringloop.open(name, "wb") as file:
            await file.write(bytes(chance.randrange(1, 20_000)))
        try:
            await fs.remove(name)
        except OSError as exc:
            # Another thread has run the loop meanwhile: whether the file is removed is unknown.
            if exc.errno != errno.ECANCELED:
                raise

    async def paths(self, target: Target, chance: random.Random) -> None:
        read = await asyncio.gather(*(fs.read_bytes(self.file) for _ in range(3)))
        assert [len(data) for data in read] == [10_000] * 3
        assert (await fs.stat(self.file)).st_size == 10_000

    async def executor(self, target: Target, chance: random.Random) -> None:
        assert await target.loop.run_in_executor(None, int, "7") == 7
        assert await target.loop.getaddrinfo("localhost", 80)

    async def process(self, target: Target, chance: random.Random) -> None:
        child = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        # asyncio's Process has no public name for its transport.
        transport: Any = child._transport  # type: ignore[attr-defined]
        target.shown |= {
            "Subprocess transport": transport,
            "Write pipe": transport.get_pipe_transport(0),
            "Read pipe": transport.get_pipe_transport(1),
        }
        data = bytes(chance.randrange(1, 50_000))
        output, _ = await child.communicate(data)
        assert output == data
        assert child.returncode == 0

    async def signals(self, target: Target, chance: random.Random) -> None:
        """Handle a signal. It may be late if another thread has run the loop meanwhile."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        arrived = asyncio.Event()
        # live() removes the handler, in the main thread again.
        target.loop.add_signal_handler(signal.SIGUSR1, arrived.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), 0.1)

    async def cycles(self, target: Target, chance: random.Random) -> None:
        """Leave handles for the garbage collector, which may run in any thread."""
        knot = Knot()
        timer = target.loop.call_later(100, knot.tie)
        knot.things = [knot, timer, target.loop.call_soon(knot.tie), target.loop.create_future()]
        timer.cancel()

    async def handles(self, target: Target, chance: random.Random) -> None:
        """Run callbacks whose handles other threads have, beside many that nobody has."""
        ran: list[int] = []
        known = []
        for number in range(chance.randrange(1, BURST_MAX)):
            target.loop.call_soon(int)
            target.loop.call_later(0, int)
            if chance.random() < 0.2:
                handle = target.loop.call_soon(ran.append, number)
                timer = target.loop.call_later(chance.uniform(0, 0.0001), ran.append, -number - 1)
                known += [(number, handle), (-number - 1, timer)]
                target.shown |= {"Handle": handle, "TimerHandle": timer}
        # Another thread may run the loop meanwhile: later turns are as good.
        await asyncio.sleep(chance.choice((0, 0.001)))
        await asyncio.sleep(0.001)
        assert len(ran) == len(set(ran))
        # A handle that has run can be cancelled, too.
        for number, handle in known:
            assert number in ran or handle.cancelled()

    # ── the threads that call ────────────────────────────────────────────────────────────────

    def caller(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + 500 + number)
        while time.monotonic() < self.deadline:
            target = chance.choice(self.targets)
            if target is None or not self.actions:
                time.sleep(0.001)
                continue
            action: Action = chance.choice(self.actions)
            if target.enter():
                try:
                    action(number, target, chance)
                finally:
                    target.leave()
                self.done[action.__name__] += 1
            else:
                self.intrude(target)

    def post(self, number: int, target: Target, chance: random.Random) -> None:
        first = target.sent.get(number, 0)
        for sent in range(first, first + chance.randrange(1, BURST_MAX)):
            target.loop.call_soon_threadsafe(target.call, number, sent)
            target.sent[number] = sent + 1

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
        if chance.random() < 0.3:
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

    def use(self, number: int, target: Target, chance: random.Random) -> None:
        """Use every name of an object that its table allows any thread."""
        heading, shown = chance.choice(list(target.shown.copy().items()))
        for name in USED[heading]:
            try:
                found = getattr(shown, name)
                if callable(found):
                    found = found(*self.arguments(name, target, chance))
                    if asyncio.iscoroutine(found):
                        found.close()
                    elif name == "on_stall":
                        found()
                elif name == "slow_callback_duration":
                    # The only attribute that any thread may set, too.
                    setattr(shown, name, found)
            except NotImplementedError:
                # The class does not support the method, such as write() of datagrams.
                pass
            except ValueError as exc:
                if str(exc) != CLOSED_FILE:
                    raise
        self.done[heading] += 1

    def arguments(self, name: str, target: Target, chance: random.Random) -> tuple[Any, ...]:
        arguments: dict[str, tuple[Any, ...]] = {
            "call_exception_handler": (QUIET,),
            "default_exception_handler": (QUIET,),
            "get_extra_info": (chance.choice(EXTRA_INFO),),
            "get_pipe_transport": (chance.choice((0, 1, 2)),),
            "on_stall": (lambda *_: None,),
            "set_debug": (chance.random() < 0.2,),
            "set_exception_handler": (target.report,),
            "set_task_factory": (chance.choice((None, target.make_task)),),
            "write": (b"",),
            "writelines": ([],),
        }
        return arguments.get(name, ())

    def stop(self, number: int, target: Target, chance: random.Random) -> None:
        if chance.random() < 0.5:
            target.loop.stop()
        else:
            target.loop.call_soon_threadsafe(target.loop.stop)

    def adopt(self, number: int, target: Target, chance: random.Random) -> None:
        one, other = socket.socketpair()
        with other:
            other.settimeout(PATIENCE_S)
            _, protocol = target.loop.adopt(one, Echo).result(PATIENCE_S)
            other.sendall(b"echo")
            assert other.recv(10) == b"echo"
        if not protocol.lost.wait(PATIENCE_S):
            raise TimeoutError("the end of a connection was lost")

    def functions(self, number: int, target: Target, chance: random.Random) -> None:
        """Call the package's functions."""

        async def answer() -> int:
            await asyncio.sleep(0)
            return number

        choice = chance.uniform(0.8 if ASSERTS else 0, 1)
        if choice < 0.7:
            assert uringloop.run(answer()) == number
        elif choice < 0.8:
            assert uringloop.run_threads(answer, 2) == [number] * 2
        elif choice < 0.98:
            # Clients of the other threads are disconnected, or not connected.
            monitor.stop()
            monitor.start(self.socket)
            monitor.serve("127.0.0.1:0", stacks=True)
        else:
            doctor.examine()

    def abandon(self, number: int, target: Target, chance: random.Random) -> None:
        """Leave a loop to the garbage collector, which closes it in any thread."""
        loop = uringloop.new_event_loop()
        if chance.random() < 0.5:
            loop.run_until_complete(asyncio.sleep(0))
        loop.call_later(100, loop.stop)
        loop.call_soon_threadsafe(loop.stop)

    def poke(self, number: int, target: Target, chance: random.Random) -> None:
        """Do what asyncio allows in another thread outside of debug mode only."""
        # The loop may be closed meanwhile, or runs in debug mode.
        with contextlib.suppress(RuntimeError):
            target.loop.call_later(0, int)
        with contextlib.suppress(RuntimeError):
            target.loop.call_later(100, int).cancel()
        with contextlib.suppress(RuntimeError):
            target.loop.call_soon(int)
        one, other = socket.socketpair()
        with one, other:
            with contextlib.suppress(RuntimeError):
                target.loop.add_writer(one, int)
            with contextlib.suppress(RuntimeError):
                target.loop.add_reader(one, int)
            with contextlib.suppress(RuntimeError):
                target.loop.remove_writer(one)
            with contextlib.suppress(RuntimeError):
                target.loop.remove_reader(one)

    def scrape(self, number: int, target: Target, chance: random.Random) -> None:
        assert "uringloop_turns_total" in prometheus.text(target.loop)

    def watch(self, number: int, target: Target, chance: random.Random) -> None:
        """Ask the monitor, as uringloop.top does; it answers a limited number of clients."""
        with (
            contextlib.suppress(CannotWatch, Ended),
            Connection(self.socket) as connection,
        ):
            connection.ask(PATIENCE_S)

    def collect(self, number: int, target: Target, chance: random.Random) -> None:
        if chance.random() < 0.2:
            gc.collect()

    def intrude(self, target: Target) -> None:
        """Use a loop that is being closed, or is closed. What it has taken need not run."""
        ran: list[int] = []
        was_closed = target.loop.is_closed()
        target.loop.stats()
        try:
            handle = target.loop.call_soon_threadsafe(ran.append, 1)
        except RuntimeError as exc:
            if str(exc) != CLOSED:
                self.wrong.append(repr(exc))
        else:
            if was_closed:
                self.wrong.append("a closed loop took a callback")
            handle.cancel()
            if len(ran) > 1:
                self.wrong.append("a callback ran twice")
        self.done["intrude"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=8, help="threads that call")
    parser.add_argument("--loops", type=int, default=4, help="loops at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help=f"names of {', '.join({**WORKS, **ACTIONS})}")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    if not only <= WORKS.keys() | ACTIONS.keys():
        parser.error(f"unknown: {', '.join(only - WORKS.keys() - ACTIONS.keys())}")
    # Threads that wait for each other are shown, and the program ends.
    faulthandler.dump_traceback_later(options.seconds + 3 * PATIENCE_S, exit=True)
    warnings.filterwarnings("ignore", "unclosed event loop", ResourceWarning)
    warnings.filterwarnings("ignore", ".* take turns", RuntimeWarning)
    logging.getLogger("asyncio").addFilter(is_wanted)
    before = open_files()
    threads = threading.active_count()
    stress = Stress(options.seed, options.threads, options.loops, only)
    stress.run(options.seconds)
    stress.targets.clear()
    gc.collect()
    left = open_files() - before
    # A sanitizer opens files when it reports something.
    if left and not SANITIZED:
        stress.wrong.append(f"descriptors are left: {sorted(left)}")
    # The thread of stalls ends by itself when it sees that no loop is left.
    deadline = time.monotonic() + PATIENCE_S
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    if threading.active_count() > threads:
        stress.wrong.append(f"threads are left: {threading.enumerate()}")
    print(
        f"seed {options.seed}:", *(f"{name} {count}" for name, count in sorted(stress.done.items()))
    )
    for wrong in stress.wrong[:20]:
        print("wrong:", wrong)
    sys.exit(1 if stress.wrong else 0)


def is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith((QUIET["message"], "Executing"))


def open_files() -> set[tuple[str, str]]:
    """Return the open descriptors, each with the name of its file."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # The descriptor that lists the folder is closed.
        with contextlib.suppress(OSError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


if __name__ == "__main__":
    main()
