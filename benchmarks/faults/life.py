"""Faults: forks, threads, signals, interrupts, exceptions; each function runs one on a new loop."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import importlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from uringloop.bench.counters import rss_bytes

from .common import (
    MB,
    Counted,
    Counts,
    Factory,
    Fault,
    become_nobody,
    echo_pair,
    fds_left,
    judged,
    open_fds,
    still_echoes,
)


def fork_while_running(factory: Factory) -> str:
    """`os.fork()` in a callback; the child uses the loop and exits."""
    loop = factory()
    counts = Counts()

    async def main() -> str:
        transport, peer = await echo_pair(loop, counts)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            outcome = "ran the loop"
            try:
                loop.call_soon_threadsafe(print)
                transport.write(b"of the child")
                loop._run_once() if hasattr(loop, "_run_once") else loop.run_forever()
            except BaseException as exc:
                outcome = type(exc).__name__
            os.write(write, outcome.encode())
            os._exit(0)
        outcome = os.read(read, 100).decode()
        os.waitpid(child, 0)  # noqa: ASYNC222
        data = os.urandom(300_000)
        back = bytearray()
        sending = asyncio.ensure_future(loop.sock_sendall(peer, data))
        while len(back) < len(data):
            back += await asyncio.wait_for(loop.sock_recv(peer, 65536), 5)
        await sending
        stray = len(back) - len(data) if back != data else 0
        transport.close()
        peer.close()
        child_outcome = judged(outcome == "RuntimeError", f"child: {outcome}")
        return f"{child_outcome}; {judged(back == data, f'parent: {stray} extra bytes')}"

    return str(loop.run_until_complete(main()))


def _child_of_multiprocessing(queue: Any) -> None:
    async def main() -> int:
        await asyncio.sleep(0.001)
        return 42

    queue.put(asyncio.run(main()))


def multiprocessing_both_ways(factory: Factory) -> str:
    """`multiprocessing` in a running loop, with fork and with spawn."""
    loop = factory()

    async def main() -> str:
        outcomes = []
        for way in ("fork", "spawn"):
            context: Any = multiprocessing.get_context(way)
            queue = context.Queue()
            process = context.Process(target=_child_of_multiprocessing, args=(queue,))
            process.start()
            result: Any = "nothing"
            with contextlib.suppress(Exception):
                result = await loop.run_in_executor(None, queue.get, True, 10)
            process.kill()
            process.join()
            outcomes.append(judged(result == 42, f"{way}: {'works' if result == 42 else result}"))
        return ", ".join(outcomes)

    return str(loop.run_until_complete(main()))


def abandoned(factory: Factory) -> str:
    """200 loops, each with a connection and a timer, are dropped without `close()`."""
    fds = open_fds()
    references = []
    for _ in range(200):
        loop = factory()
        loop.run_until_complete(echo_pair(loop, Counts()))
        loop.call_later(1000, print)
        references.append(weakref.ref(loop))
        del loop
    gc.collect()
    alive = sum(reference() is not None for reference in references)
    return f"{judged(alive == 0, f'{alive} loops alive')}, {fds_left(fds)}"


def interrupted_anywhere(factory: Factory) -> str:
    """KeyboardInterrupt at 300 random moments during an echo; the loop is run again after each."""
    loop = factory()
    counts = Counts()
    loop.set_exception_handler(counts.handler)
    data = random.Random(1).randbytes(20 * MB)
    _, peer = loop.run_until_complete(echo_pair(loop, counts))
    peer.setblocking(True)
    back = bytearray()

    def read() -> None:
        while len(back) < len(data):
            back.extend(peer.recv(MB))

    def stop() -> None:
        loop.call_later(0.05, stop)
        loop.stop()

    loop.call_later(0.05, stop)

    threads = [
        threading.Thread(target=read, daemon=True),
        threading.Thread(target=peer.sendall, args=(data,), daemon=True),
    ]
    interrupts = 0
    running = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal interrupts, running
        # An interrupt in data_received may lose the data that the protocol was given; the loop has
        # no part in that.
        if running and getattr(frame, "f_code", None) is not Counted.data_received.__code__:
            running = False
            interrupts += 1
            raise KeyboardInterrupt

    def interrupt() -> None:
        rng = random.Random(2)
        for _ in range(300):
            time.sleep(rng.random() * 0.002)
            _thread.interrupt_main()

    threads.append(threading.Thread(target=interrupt, daemon=True))
    signal.signal(signal.SIGINT, on_interrupt)
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while (len(back) < len(data) or threads[2].is_alive()) and time.monotonic() < until:
        with contextlib.suppress(KeyboardInterrupt):
            running = True
            try:
                loop.run_forever()
            finally:
                running = False
    threads[2].join()
    lost = len(data) - len(back)
    outcome = f"{abs(lost)} {'extra bytes' if lost < 0 else 'bytes missing'}"
    outcome = outcome if lost or back == data else "wrong bytes"
    return f"{interrupts} interrupts, {judged(back == data, outcome)}"


def signals_at_10_khz(factory: Factory) -> str:
    """SIGUSR1 is sent 10,000 times a second for 2 s while an echo runs."""
    loop = factory()
    seen = 0

    def on_signal() -> None:
        nonlocal seen
        seen += 1

    async def main() -> str:
        loop.add_signal_handler(signal.SIGUSR1, on_signal)
        transport, peer = await echo_pair(loop, Counts())
        stop = False

        def send() -> None:
            while not stop:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.00005)

        sender = threading.Thread(target=send)
        sender.start()
        began = time.monotonic()
        rounds = 0
        while time.monotonic() - began < 2:
            await loop.sock_sendall(peer, b"x" * 100)
            got = 0
            while got < 100:
                got += len(await loop.sock_recv(peer, 100 - got))
            rounds += 1
        stop = True
        sender.join()
        transport.close()
        peer.close()
        loop.remove_signal_handler(signal.SIGUSR1)
        return f"{seen / 2:.0f} signals and {rounds / 2:.0f} echoes a second"

    return str(loop.run_until_complete(main()))


def a_million_calls_of_threads(factory: Factory) -> str:
    """1,000,000 calls of `call_soon_threadsafe` from 8 threads."""
    loop = factory()
    each = 125_000
    last = [-1] * 8
    disorder = 0
    count = 0

    def called(thread: int, number: int) -> None:
        nonlocal disorder, count
        disorder += number != last[thread] + 1
        last[thread] = number
        count += 1
        if count == 8 * each:
            loop.stop()

    def call(thread: int) -> None:
        for number in range(each):
            loop.call_soon_threadsafe(called, thread, number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    loop.run_forever()
    took = time.monotonic() - began
    for thread in threads:
        thread.join()
    outcome = judged(count == 8 * each and not disorder, f"{count:,} ran, {disorder} out of order")
    return f"{outcome}, {took:.1f} s"


def another_user(factory: Factory) -> str:
    """The process changes to another user after the loop was made."""
    if os.geteuid() != 0:
        return "not tried: needs root"
    loop = factory()
    if hasattr(loop, "backend"):
        import uringloop

        async def open_in_a_thread() -> None:
            async with uringloop.open("/etc/shadow", opener=os.open):
                pass

        # The kernel may open the file at once, from its cache of names.
        async def open_in_the_ring() -> None:
            async with uringloop.open("/etc/shadow"):
                pass

        # The kernel does this in one of its workers.
        async def make_a_folder() -> None:
            folder = f"/run/uringloop-{os.getpid()}"
            await uringloop.fs.mkdir(folder)
            await uringloop.fs.rmdir(folder)

        ways = [open_in_a_thread, open_in_the_ring, make_a_folder]
    else:

        async def open_in_the_executor() -> None:
            (await loop.run_in_executor(None, open, "/etc/shadow")).close()

        ways = [open_in_the_executor]

    async def possible() -> list[str]:
        """Return which of the ways are possible."""
        done = []
        for way in ways:
            with contextlib.suppress(PermissionError):
                await way()
                done.append(way.__name__.replace("_", " "))
        return done

    # Starts the executor's threads and the kernel's workers before the change of user.
    before = loop.run_until_complete(possible())
    assert len(before) == len(ways)
    become_nobody()
    echoed = loop.run_until_complete(still_echoes(loop))
    after = loop.run_until_complete(possible())
    echo = judged(echoed, "an echo" if echoed else "no echo")
    return f"{echo}, {judged(not after, ', '.join(after) or 'cannot read /etc/shadow')}"


def from_another_thread(factory: Factory) -> str:
    """A loop is made in one thread, run in a second and a third, and closed in a fourth."""
    made: list[Any] = []
    echoes: list[bool] = []

    def run(step: Any) -> None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join(20)
        if thread.is_alive():
            raise TimeoutError

    def work() -> None:
        echoes.append(made[0].run_until_complete(still_echoes(made[0])))

    fds = open_fds()
    run(lambda: made.append(factory()))
    run(work)
    run(work)
    run(lambda: made[0].close())
    return f"{judged(echoes == [True, True], f'{sum(echoes)} of 2 echoes')}, {fds_left(fds)}"


def created_and_closed(factory: Factory) -> str:
    """5,000 loops are made, run and closed."""
    for _ in range(100):
        factory().close()
    gc.collect()
    before, fds = rss_bytes(os.getpid()), open_fds()
    began = time.monotonic()
    for _ in range(5000):
        loop = factory()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    took = time.monotonic() - began
    gc.collect()
    grown = (rss_bytes(os.getpid()) - before) // 1024
    growth = judged(grown < 4096, f"grows by {grown} KiB")
    return f"{took * 1e6 / 5000:.0f} us each, {growth}, {fds_left(fds)}"


class Failing(asyncio.Protocol):
    """Raises in each of its methods."""

    transport: Any

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(1000)
        self.fail("connection_made")

    def data_received(self, data: bytes) -> None:
        if data == b"write":
            self.transport.write(bytes(4 * MB))
        self.fail("data_received")

    def eof_received(self) -> None:
        self.fail("eof_received")

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail("connection_lost")

    def pause_writing(self) -> None:
        self.fail("pause_writing")

    def resume_writing(self) -> None:
        self.fail("resume_writing")


async def _protocols_fail(loop: Any, fail: Callable[[str], None]) -> None:
    server = await loop.create_server(lambda: Failing(fail), "127.0.0.1", 0)
    for first in (b"x", b"write"):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(first)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while await asyncio.wait_for(reader.read(MB), 0.3):
                pass
        writer.close()
    server.close()


async def _callbacks_fail(loop: Any, fail: Callable[[str], None]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def readable() -> None:
        loop.remove_reader(ours)
        fail("reader")

    loop.add_reader(ours, readable)
    theirs.send(b"x")
    loop.call_soon(fail, "call_soon")
    loop.call_later(0.001, fail, "call_later")
    loop.call_soon_threadsafe(fail, "call_soon_threadsafe")
    loop.add_signal_handler(signal.SIGUSR2, fail, "signal")
    os.kill(os.getpid(), signal.SIGUSR2)
    future = loop.create_future()
    future.add_done_callback(lambda future: fail("done_callback"))
    future.set_result(None)
    await asyncio.sleep(0.1)
    loop.remove_signal_handler(signal.SIGUSR2)
    ours.close()
    theirs.close()


def every_callback_raises(factory: Factory) -> str:
    """Exceptions in callbacks of protocols, readers, timers, signals and threads, then an echo."""
    loop = factory()
    counts = Counts()
    loop.set_exception_handler(counts.handler)
    raised: set[str] = set()

    def fail(name: str) -> None:
        raised.add(name)
        raise ArithmeticError(name)

    async def main() -> bool:
        await _protocols_fail(loop, fail)
        await _callbacks_fail(loop, fail)
        return await still_echoes(loop, counts)

    well = loop.run_until_complete(main())
    return f"{len(raised)} kinds raised, {judged(well, 'then an echo')}"


def run_within_a_run(factory: Factory) -> str:
    """A callback tries to run its own loop, to run another loop, and to close its own."""
    loop = factory()
    other = factory()
    refused = 0

    async def main() -> bool:
        nonlocal refused
        for attempt, *arguments in (
            (loop.run_forever,),
            (loop.run_until_complete, loop.create_future()),
            (other.run_until_complete, other.create_future()),
            (loop.close,),
        ):
            try:
                attempt(*arguments)
            except RuntimeError:
                refused += 1
        return await still_echoes(loop)

    well = loop.run_until_complete(main())
    other.close()
    loop.close()
    return judged(well and refused == 4, f"refused {refused} of 4 times, then an echo")


OTHER_INTERPRETER = """
import os, sys
sys.path[:0] = {path!r}
try:
    import {package}
    loop = {package}.new_event_loop()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    outcome = "runs there"
except BaseException as exc:
    outcome = type(exc).__name__
os.write({pipe}, outcome.encode())
"""


def another_interpreter(factory: Factory) -> str:
    """The loop's package is imported in a subinterpreter while the main interpreter's loop is
    open.
    """
    interpreters: Any = importlib.import_module(
        "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    )
    loop = factory()
    package = type(loop).__module__.partition(".")[0]
    reader, writer = os.pipe()
    other = interpreters.create()
    script = OTHER_INTERPRETER.format(path=sys.path, package=package, pipe=writer)
    interpreters.run_string(other, script)
    interpreters.destroy(other)
    well = loop.run_until_complete(still_echoes(loop))
    os.close(writer)
    with open(reader) as pipe:
        return f"{pipe.read()}, {judged(well, 'then an echo')}"


FAULTS: tuple[Fault, ...] = (
    fork_while_running,
    multiprocessing_both_ways,
    abandoned,
    interrupted_anywhere,
    signals_at_10_khz,
    a_million_calls_of_threads,
    another_user,
    from_another_thread,
    created_and_closed,
)

# Faults of the program itself; the table has them below the limits.
PROGRAM_FAULTS: tuple[Fault, ...] = (
    every_callback_raises,
    run_within_a_run,
    another_interpreter,
)
