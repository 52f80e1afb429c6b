"""The methods of measurement: each starts processes and returns the figures of one round.

A method is a context manager that yields a function; the function takes the name of a loop and
returns its figures. Resources for all rounds of a row, such as a database server, live as long as
the context. Each measured process is new, and shares a core and the scheduling policy with its
load. Nothing is measured in this process.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uringloop.bench import counters, loops, process
from uringloop.bench.child import Child, run_for_json
from uringloop.bench.client import Measurement
from uringloop.bench.loadgen import Histogram
from uringloop.bench.placement import Placement, choose
from uringloop.bench.rows import BASELINE
from uringloop.bench.runner import Runner
from uringloop.bench.settings import Address, EchoLoad, Refused, Settings

from . import databases, loads, program

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The program of a task.
TASK = (sys.executable, str(Path(__file__).with_name("task.py")))

# By name: nanoseconds of CPU and of wall time per operation, bytes, percentiles of latency.
Figures = dict[str, float]
Measure = Callable[[str], Figures]

# With --quick, transfers, operations of programs and idle connections are scaled by this.
QUICK = 1 / 16

# Bytes of a transfer in one direction.
TRANSFER_BYTES = 2**30

# Latencies of all loops are measured at this share of the baseline's maximum rate.
TAIL_LOAD = 0.8

# Processes answer in seconds; a process that takes longer than this hangs.
ANSWER_SECONDS = 120.0


def task_command(module: str, task: DataclassInstance) -> list[str]:
    """Return the command that runs a task of a module."""
    return [*TASK, module, json.dumps(asdict(task))]


@dataclass(frozen=True)
class Bench:
    """Settings that all measurements of a run share."""

    placement: Placement
    directory: Path
    duration: float
    quick: bool = False
    # Paths of the C servers, by the name of their column.
    programs: dict[str, Path] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """Factor for amounts that do not depend on the duration."""
        return QUICK if self.quick else 1.0

    def runner(self, mode: str, *, unix: bool = False, rate: float = 0.0) -> Runner:
        """Return a runner for servers of *mode*."""
        settings = Settings(
            mode=mode,
            duration=self.duration,
            unix=unix,
            rate=rate,
            same_core=True,
        )
        return Runner(settings, self.placement, self.directory, self.command_of)

    def command_of(self, name: str, mode: str) -> list[str]:
        """Return the command of the server of a column: one in C, or one on a loop."""
        if name in self.programs:
            return [str(self.programs[name])]
        return [*databases.SERVER, "--loop", name, "--mode", mode]

    def run_task(self, what: str, module: str, task: DataclassInstance) -> dict[str, Any]:
        """Run a task of a module in a process of its own; raise Refused if it fails."""
        return self.run_command(what, task_command(module, task))

    def run_command(self, what: str, command: list[str]) -> dict[str, Any]:
        """Run a process that prints one line of JSON, on the core of the servers."""
        where = self.placement
        return run_for_json(what, command, where.server_cpu, where.shared, ANSWER_SECONDS)


Method = Callable[[Bench], AbstractContextManager[Measure]]


def require_descriptors(clients: int) -> None:
    """Raise Refused if a process may not have this number of connections."""
    if clients > (most := process.connections_max()):
        raise Refused("missing", f"{clients} connections need as many open files: {most} are left")


# ── the load generator ───────────────────────────────────────────────────────────────────────


def checked(measurement: Measurement) -> Measurement:
    """Return the measurement; raise Refused if it failed or answered no request."""
    if measurement.failure is not None:
        raise Refused("failed", measurement.failure)
    if not measurement.answers:
        raise Refused("failed", "no request was answered")
    return measurement


@dataclass(frozen=True)
class Echo:
    """An echo server under the compiled load generator."""

    mode: str
    size: int
    clients: int
    unix: bool = False

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        require_descriptors(self.clients)
        runner = bench.runner(self.mode, unix=self.unix)

        def measure(loop: str) -> Figures:
            one = checked(runner.measure(loop, EchoLoad(self.size, self.clients)))
            figures = {"cpu": one.server_cpu_ns / one.answers}
            figures["wall"] = one.elapsed_ns / one.requests
            if one.kernel_entries is not None and one.kernel_entries_requests:
                figures["entries"] = one.kernel_entries / one.kernel_entries_requests
            return figures

        yield measure


@dataclass(frozen=True)
class Tail:
    """Latencies under an open-loop load, at one rate for all: a share of the baseline's maximum.

    Server and load generator have a core each, if there are two.
    """

    size: int
    clients: int

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        echo = EchoLoad(self.size, self.clients)
        if not loops.installed(BASELINE):
            raise Refused("missing", f"{BASELINE}, whose rate sets the load, is not installed")
        # On one core the load generator would be the limit: keeping its schedule costs more CPU
        # than answering costs the server.
        apart = replace(bench, placement=choose(False))
        closed = apart.runner("protocol")
        most = [checked(closed.measure(BASELINE, echo)) for _ in range(3)]
        rate = TAIL_LOAD * statistics.median(one.requests / one.elapsed_ns * 1e9 for one in most)
        runner = apart.runner("protocol", rate=rate)

        def measure(loop: str) -> Figures:
            one = checked(runner.measure(loop, echo))
            latencies = Histogram.from_items(one.latencies)
            figures = {f"p{part:g}": float(latencies.percentile(part)) for part in (50, 99, 99.9)}
            return figures | {"cpu": one.server_cpu_ns / one.answers, "rate": rate}

        yield measure


# ── other loads ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Load:
    """A server under one of the simple loads."""

    mode: str
    load: str
    size: int = 0
    clients: int = 1

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        many = self.load in ("idle", "tls-idle") and bench.quick
        clients = max(round(self.clients * QUICK), 1) if many else self.clients
        require_descriptors(clients)
        runner = bench.runner(self.mode)

        def measure(loop: str) -> Figures:
            with runner.serving(loop) as (server, address):
                task = self.task(bench, clients, server, address)
                try:
                    answer = bench.run_task("the load", "loads", task)
                except Refused:
                    runner.refuse_dead(server)
                    raise
            reading = loads.Reading(**answer)
            return {
                "cpu": reading.server_cpu_ns / reading.operations,
                "wall": reading.elapsed_ns / reading.operations,
                "memory": reading.rss_growth_bytes / reading.operations,
            }

        yield measure

    def task(self, bench: Bench, clients: int, server: Child, address: Address) -> loads.Task:
        assert not isinstance(address, str)
        return loads.Task(
            load=self.load,
            host=address[0],
            port=address[1],
            server_pid=server.process.pid,
            clients=clients,
            size=self.size,
            warm_up=bench.duration / 4,
            duration=bench.duration,
            total=round(TRANSFER_BYTES * bench.scale),
        )


@dataclass(frozen=True)
class Http:
    """An HTTP server under wrk, one thread and fifty connections."""

    mode: str

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        wrk = shutil.which("wrk")
        if wrk is None:
            raise Refused("missing", "wrk is not installed")
        runner = bench.runner(self.mode)
        # wrk counts in whole seconds.
        seconds = max(round(bench.duration), 1)

        def load(url: str) -> int:
            client = Child(
                [wrk, "-t1", "-c50", f"-d{seconds}s", url],
                bench.placement.client_cpu,
                bench.placement.shared,
            )
            try:
                output = client.read_all(10.0 + 2 * seconds)
            finally:
                client.stop()
            return requests_of(output)

        def measure(loop: str) -> Figures:
            with runner.serving(loop) as (server, address):
                url = f"http://{address[0]}:{address[1]}/"
                load(url)
                cpu_ns = counters.cpu_ns(server.process.pid)
                requests = load(url)
                cpu_ns = counters.cpu_ns(server.process.pid) - cpu_ns
            return {"cpu": cpu_ns / requests, "wall": seconds * 1e9 / requests}

        yield measure


def requests_of(output: str) -> int:
    """Return how many requests wrk reports; raise Refused if a request failed."""
    for failure in ("Socket errors", "Non-2xx"):
        if (failed := re.search(f"{failure}.*", output)) is not None:
            raise Refused("failed", f"wrk: {failed[0]}")
    found = re.search(r"(\d+) requests in", output)
    if found is None or not int(found[1]):
        raise Refused("failed", "wrk: no request was answered")
    return int(found[1])


# ── programs ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Program:
    """A program that measures itself; with *backend*, the client of a database."""

    name: str
    backend: databases.Backend | None = None
    # A program with threads that shall run at the same time has two cores, if there are two.
    cores: int = 1

    @contextlib.contextmanager
    def __call__(self, bench: Bench) -> Iterator[Measure]:
        backend = self.backend or databases.nothing
        apart = choose(False)
        cpus = () if self.cores == 1 else (apart.server_cpu, apart.client_cpu)
        with backend(bench.placement, bench.directory) as address:

            def measure(loop: str) -> Figures:
                task = program.Task(loop, self.name, bench.scale, address, cpus)
                answer = bench.run_task("the program", "program", task)
                reading = program.Reading(**answer)
                return {
                    "cpu": reading.cpu_ns / reading.operations,
                    "wall": reading.elapsed_ns / reading.operations,
                }

            yield measure


# Imports no module of this package: that would import the loop whose import is measured.
IMPORT = """
import asyncio, importlib, json, sys, time
cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
importlib.import_module(sys.argv[1])
wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
print(json.dumps({"cpu": cpu_ns, "wall": wall_ns}))
"""

# Processes for each round: one import takes only milliseconds.
IMPORTS = 5


@contextlib.contextmanager
def importing(bench: Bench) -> Iterator[Measure]:
    """Import a loop's module in a process that has imported asyncio."""

    def measure(loop: str) -> Figures:
        module = loops.target_of(loop).partition(":")[0]
        command = [sys.executable, "-c", IMPORT, module]
        each = [bench.run_command("the import", command) for _ in range(IMPORTS)]
        return {name: statistics.median(one[name] for one in each) for name in each[0]}

    yield measure
