"""A long mixed load that checks every byte: `python benchmarks/soak.py --minutes 30`.

The load consists of connections over TCP, UNIX sockets and TLS that echo, end and are opened again,
and of datagrams, files, processes, timers, calls from threads, and tasks that are cancelled at any
time. Each second the program samples the size of the process, its descriptors and threads, Python's
blocks of memory, the memory allocated by malloc, and the loop's operations and buffers. At the end
it fits a line to each measure, without the first third, in which the allocators grow to their size.
A significant slope is a leak.

The exit status is 1 if a byte was wrong, a measure grows, the loop reported an error, or something
is left at the end, and otherwise 0.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import contextlib
import ctypes
import functools
import gc
import hashlib
import itertools
import json
import math
import os
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

# With PYTHONSAFEPATH the interpreter does not add this folder.
sys.path.insert(0, str(Path(__file__).parent))

from faults.common import open_fds
from parity.probes import tls_contexts

import uringloop
from uringloop.bench import markdown as md
from uringloop.bench.counters import rss_bytes

# The measures, each with the least growth per hour that counts: less may be chance.
MEASURES = {
    "rss_kb": 1024.0,
    "malloc_kb": 256.0,
    "blocks": 1000.0,
    "fds": 1.0,
    # Shown only: worker threads are started on demand, up to a limit, and stay while there is work.
    # None may be left at the end.
    "threads": math.inf,
    "operations": 1.0,
    "buffers_out": 1.0,
}
# What the table calls the measures.
NAMES = {
    "rss_kb": "size of the process, KiB",
    "malloc_kb": "allocated by malloc, KiB",
    "blocks": "blocks allocated by Python",
    "fds": "descriptors",
    "threads": "threads",
    "operations": "operations in flight",
    "buffers_out": "buffers in use",
}
WARM_UP = 1 / 3
SIZES = (1, 100, 1000, 10_000, 70_000, 300_000)


def threads() -> int:
    """Return how many threads this process has, including those not started by Python."""
    return len(os.listdir("/proc/self/task"))


class Mallinfo(ctypes.Structure):
    """struct mallinfo2 of the C library (glibc 2.33)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


C_LIBRARY = ctypes.CDLL(None)
C_LIBRARY.mallinfo2.restype = Mallinfo


def malloc_bytes() -> int:
    """Return the memory allocated by malloc, in its heaps and in separate mappings."""
    info = C_LIBRARY.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


class Soak:
    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        # Arrays of floats: lists of objects would show up as growth themselves.
        self.samples = {name: array.array("d") for name in ("second", *MEASURES)}
        self.stopping = False
        self.server_tls, self.client_tls = tls_contexts()

    def check(self, what: str, sent: bytes, received: bytes) -> None:
        """Count a piece of work, and record an error if the bytes differ."""
        self.done[what] += 1
        self.done[f"{what}, bytes"] += len(sent)
        if hashlib.sha256(sent).digest() != hashlib.sha256(received).digest():
            self.wrong.append(f"{what}: {len(received)} of {len(sent)} bytes, or wrong bytes")

    # ── the load ─────────────────────────────────────────────────────────────────────────────

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def stream(self, what: str, connect: Callable[[], Awaitable[Any]]) -> None:
        """Echo up to 29 times over one connection, then close or abort it."""
        reader, writer = await connect()
        try:
            for _ in range(self.rng.randrange(1, 30)):
                data = self.rng.randbytes(self.rng.choice(SIZES))
                reading = asyncio.ensure_future(reader.readexactly(len(data)))
                try:
                    for start in range(0, len(data), 50_000):
                        writer.write(data[start : start + 50_000])
                        await writer.drain()
                    self.check(what, data, await reading)
                finally:
                    reading.cancel()
        finally:
            if self.rng.random() < 0.2:
                writer.transport.abort()
            else:
                writer.close()

    async def datagrams(self, address: Any) -> None:
        """Echo datagrams; the kernel may lose a datagram, but must not change it."""
        got: asyncio.Queue[bytes] = asyncio.Queue()

        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, sender: Any) -> None:
                got.put_nowait(data)

        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Receiver, remote_addr=address
        )
        try:
            for _ in range(20):
                data = self.rng.randbytes(self.rng.randrange(1, 9000))
                transport.sendto(data)
                with contextlib.suppress(TimeoutError):
                    self.check("datagrams", data, await asyncio.wait_for(got.get(), 5))
        finally:
            transport.close()

    async def files(self) -> None:
        path = self.folder / f"{self.rng.random()}"
        data = self.rng.randbytes(self.rng.choice(SIZES))
        async with uringloop.open(path, "w+b") as file:
            await file.write(data)
            await file.flush()
            await file.seek(0)
            self.check("files", data, await file.read())
        await uringloop.fs.write_atomic(path, data[::-1])
        self.check("files, at once", data[::-1], await uringloop.fs.read_bytes(path))
        await uringloop.fs.unlink(path)

    async def processes(self) -> None:
        data = self.rng.randbytes(self.rng.choice(SIZES))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        try:
            out, _ = await process.communicate(data)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # If the output exceeded the reader's limit, the pipe is paused: wait() alone would wait
            # for the pipe's EOF, as on asyncio.
            assert process.stdout is not None
            while await process.stdout.read(1 << 16):
                pass
            await process.wait()
            raise
        self.check("processes", data, out)
        await asyncio.sleep(0.1)

    async def timers(self) -> None:
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        handles = [loop.call_later(self.rng.random() / 50, ran.append, n) for n in range(100)]
        for handle in handles[::2]:
            handle.cancel()
        await asyncio.sleep(0.03)
        self.check("timers", bytes(range(1, 100, 2)), bytes(sorted(ran)))

    async def threads(self) -> None:
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        await loop.run_in_executor(
            None, lambda: [loop.call_soon_threadsafe(ran.append, n) for n in range(50)]
        )
        await asyncio.sleep(0)
        self.check("calls from threads", bytes(range(50)), bytes(ran))

    async def again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat *work* until the end of the run; cancel one in ten at a random time."""
        while not self.stopping:
            task: asyncio.Future[None] = asyncio.ensure_future(work())
            if self.rng.random() < 0.1:
                await asyncio.wait([task], timeout=self.rng.random() / 50)
                if not task.done():
                    self.done["cancelled"] += 1
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise
            except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError) as exc:
                self.wrong.append(repr(exc))

    # ── the run ──────────────────────────────────────────────────────────────────────────────

    async def run(self, minutes: float) -> None:
        loop: Any = asyncio.get_running_loop()

        class Echo(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, address: Any) -> None:
                self.transport.sendto(data, address)

        path = str(self.folder / "socket")
        tcp = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        tls = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.server_tls)
        unix = await asyncio.start_unix_server(self.serve, path)
        udp, _ = await loop.create_datagram_endpoint(Echo, ("127.0.0.1", 0))
        tcp_address, tls_address = (s.sockets[0].getsockname() for s in (tcp, tls))
        connects: list[tuple[str, int, Callable[[], Awaitable[Any]]]] = [
            ("TCP", 12, lambda: asyncio.open_connection(*tcp_address)),
            ("UNIX", 8, lambda: asyncio.open_unix_connection(path)),
            (
                "TLS",
                4,
                lambda: asyncio.open_connection(
                    *tls_address, ssl=self.client_tls, server_hostname="localhost"
                ),
            ),
        ]
        load = [
            self.again_and_again(functools.partial(self.stream, what, connect))
            for what, count, connect in connects
            for _ in range(count)
        ]
        address = udp.get_extra_info("sockname")
        load += [self.again_and_again(lambda: self.datagrams(address)) for _ in range(2)]
        load += [self.again_and_again(self.files) for _ in range(3)]
        load += [self.again_and_again(work) for work in (self.processes, self.timers, self.threads)]
        tasks = [asyncio.ensure_future(work) for work in load]
        end = time.monotonic() + 60 * minutes
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(1.0, left))
            self.sample(loop.stats())
        self.stopping = True
        await asyncio.wait(tasks, timeout=60)
        for task in tasks:
            if not task.done():
                self.wrong.append(f"does not end: {task}")
                task.cancel()
            elif task.exception() is not None:
                self.wrong.append(repr(task.exception()))
        for server in (tcp, tls, unix):
            server.close()
        udp.close()
        await asyncio.sleep(0.5)

    def sample(self, stats: dict[str, Any]) -> None:
        self.samples["second"].append(time.monotonic())
        # Return free memory to the kernel: the allocator's reserve takes hours to settle.
        C_LIBRARY.malloc_trim(0)
        self.samples["rss_kb"].append(rss_bytes(os.getpid()) / 1024)
        self.samples["malloc_kb"].append(malloc_bytes() / 1024)
        self.samples["blocks"].append(sys.getallocatedblocks())
        self.samples["fds"].append(open_fds())
        self.samples["threads"].append(threads())
        self.samples["operations"].append(stats["operations"])
        self.samples["buffers_out"].append(stats["buffers_out"])


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the growth per hour and its 95 % interval, by least squares.

    Neighbouring samples are correlated: the variance is corrected for the autocorrelation of the
    residuals.
    """
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rate = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = [y - mean_y - rate * (x - mean_x) for x, y in points]
    variance = sum(r * r for r in rest) / max(1, count - 2)
    squares = sum(r * r for r in rest) or 1
    alike = sum(a * b for a, b in itertools.pairwise(rest)) / squares
    alike = min(max(alike, 0.0), 0.99)
    effective = variance * (1 + alike) / (1 - alike)
    return rate * 3600, 1.96 * math.sqrt(effective / spread) * 3600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="length of the run (%(default)s)")
    parser.add_argument("--backend", default="auto", help="auto, io_uring or soft (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the samples to this file")
    parser.add_argument("--plot", type=Path, help="draw the samples into this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options.seed, Path(folder))
        fds, threads_before = open_fds(), threads()
        loop = uringloop.Loop(backend=options.backend)
        backend = loop.backend
        reported: list[Any] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        loop.run_until_complete(soak.run(options.minutes))
        loop.run_until_complete(loop.shutdown_default_executor())
        gc.collect()
        left = loop.stats()
        loop.close()
    left_fds = open_fds() - fds
    # Idle worker threads of the kernel end after some seconds.
    deadline = time.monotonic() + 30
    while threads() > threads_before and time.monotonic() < deadline:
        time.sleep(0.1)
    left_threads = threads() - threads_before
    for what, count in sorted(soak.done.items()):
        print(f"{what}: {count:,}")
    first = int(len(soak.samples["second"]) * WARM_UP)
    samples = {name: values[first:] for name, values in soak.samples.items()}
    grows = []
    print(f"\n{backend}, {options.minutes:g} minutes, {len(samples['second'])} samples\n")
    headings = ["Quantity", "Median", "Growth per hour", "± (95 %)"]
    print(*md.head(headings, headings[:1]), sep="\n")
    for name, least in MEASURES.items():
        rate, off = slope(list(zip(samples["second"], samples[name], strict=True)))
        middle = statistics.median(samples[name])
        print(md.line([NAMES[name], f"{middle:,.0f}", f"{rate:+,.1f}", f"{off:,.1f}"]))
        if rate - off > least:
            grows.append(name)
    print(
        f"\nwrong: {len(soak.wrong)}; left: {left_fds} descriptors, "
        f"{left['operations']} operations, {left['buffers_out']} buffers, "
        f"{left_threads} threads; errors reported: {len(reported)}"
    )
    for text in [*soak.wrong[:5], *map(str, reported[:5])]:
        print(text)
    if options.json:
        options.json.write_text(
            json.dumps({"backend": backend, **{k: list(v) for k, v in soak.samples.items()}})
        )
    if options.plot:
        plot(soak.samples, options.plot, f"{backend}, {options.minutes:g} minutes")
    if grows:
        print("grows:", ", ".join(grows))
    remains = left["operations"] or left["buffers_out"] or left_fds or left_threads
    return 1 if soak.wrong or grows or reported or remains else 0


def plot(samples: dict[str, array.array[float]], path: Path, title: str) -> None:
    """Draw the samples over time, a panel for each measure."""
    from uringloop.bench import charts

    minutes = [(second - samples["second"][0]) / 60 for second in samples["second"]]
    with charts.styled() as figure:
        figure.set_size_inches(8, 10)
        panels = figure.subplots(len(MEASURES), 1, sharex=True)
        for panel, name in zip(panels, MEASURES, strict=True):
            panel.plot(minutes, samples[name], linewidth=0.8)
            panel.set_ylabel(name)
            panel.set_ylim(bottom=0)
        panels[0].set_title(title)
        panels[-1].set_xlabel("minutes")
        figure.savefig(path, dpi=charts.DENSITY)


if __name__ == "__main__":
    sys.exit(main())
