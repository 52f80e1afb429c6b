"""Runs a new server and a new load generator for each measurement.

A server lives for one round of one cell: it does not inherit the heap, the caches or the
connections of another, its peak memory is that of the cell, and no idle server runs alongside it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .child import Child, run_for_json
from .client import Measurement, Task
from .placement import Placement
from .rows import OK, Cell, Row, cells_of, require_installed
from .settings import HOST, Address, BenchError, EchoLoad, Refused, Settings

# Seconds; plenty for an interpreter that imports from a cold disk.
_START_TIMEOUT = 30.0

# With many connections, the measurement lasts for CIRCUITS_MIN answers to each of them, and the
# warm-up for one answer. REQUEST_SECONDS is a generous time for a request.
CIRCUITS_MIN = 3
REQUEST_SECONDS = 20e-6


@dataclass
class EchoRow(Row[Measurement]):
    """The echo under one load."""

    load: EchoLoad


def command_of(loop: str, mode: str) -> list[str]:
    """Return the command of a server, without the option of its address: `--path` or `--port`."""
    return [sys.executable, "-m", "uringloop.bench.server", "--loop", loop, "--mode", mode]


class Runner:
    """Measures the rows that *settings* define, on servers that are started by a *command*."""

    def __init__(
        self,
        settings: Settings,
        placement: Placement,
        directory: Path,
        command: Callable[[str, str], list[str]] = command_of,
    ) -> None:
        self.settings = settings
        self.placement = placement
        self.directory = directory
        self.command = command
        self._sockets = 0

    def run(self, progress: Callable[[EchoRow, Cell[Measurement]], None]) -> list[EchoRow]:
        """Measure every row; call *progress* after each round of a cell."""
        loops, loads = self.settings.loops, self.settings.loads
        made = [EchoRow(str(load), load, cells=cells_of(loops)) for load in loads]
        for row in made:
            self._measure_row(row, progress)
        return made

    def _measure_row(
        self, row: EchoRow, progress: Callable[[EchoRow, Cell[Measurement]], None]
    ) -> None:
        def measure(loop: str) -> Measurement:
            require_installed(loop)
            return self.measure(loop, row.load)

        def step(cell: Cell[Measurement]) -> None:
            if cell.status == OK and (failure := cell.rounds[-1].failure) is not None:
                # The round stays, for the report to count its failures.
                cell.give_up("failed", failure)
            progress(row, cell)

        row.measure(self.settings.rounds, measure, step)

    def measure(self, name: str, load: EchoLoad) -> Measurement:
        """Start a server, run the load generator against it, and stop it."""
        with self.serving(name) as (server, address):
            try:
                measurement = self._load(server, address, load)
            except Refused:
                self.refuse_dead(server)
                raise
            if measurement.failure is not None:
                self.refuse_dead(server)
            return measurement

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[tuple[Child, Address]]:
        """Run a new server during the block; yield it and its address when it is ready."""
        server = Child(self._server_command(name), self.placement.server_cpu, self.placement.shared)
        try:
            yield server, self._wait_until_ready(server)
        finally:
            server.stop()
            # The server may not have created the socket, and not every server removes it.
            Path(self._path()).unlink(missing_ok=True)

    def _server_command(self, name: str) -> list[str]:
        """Return the command that starts a server; a UNIX socket gets a new path every time."""
        settings = self.settings
        self._sockets += 1
        where = ["--path", self._path()] if settings.unix else ["--port", str(settings.port)]
        return [*self.command(name, settings.mode), *where]

    def _wait_until_ready(self, server: Child) -> Address:
        try:
            ready = server.read_answer("the server", _START_TIMEOUT)
        except Refused as exc:
            if exc.kind == "address in use":
                raise BenchError(f"port {self.settings.port} is in use") from None
            raise
        return self._path() if self.settings.unix else (HOST, ready["port"])

    def _path(self) -> str:
        """Return the path of the current server's UNIX socket."""
        return str(self.directory / f"echo-{self._sockets}")

    def refuse_dead(self, server: Child) -> None:
        """Raise Refused with the server's last line on standard error if it has died."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The connections of a dying server close a moment before wait() returns.
            server.process.wait(0.2)
            raise Refused("failed", f"the server died: {server.last_error()}")

    def _load(self, server: Child, address: Address, load: EchoLoad) -> Measurement:
        settings = self.settings
        circuit = load.clients * REQUEST_SECONDS
        task = Task(
            address=address,
            server_pid=server.process.pid,
            clients=load.clients,
            size=load.size,
            rate=settings.rate,
            warm_up=max(settings.warm_up, circuit),
            duration=max(settings.duration, CIRCUITS_MIN * circuit),
            counting=settings.counting,
            spinning=not self.placement.shared,
        )
        command = [sys.executable, "-m", "uringloop.bench.client", json.dumps(asdict(task))]
        # Connecting and draining have their own time limits, which are reached before this one.
        timeout = 180.0 + 3 * task.duration
        where = self.placement
        try:
            result = run_for_json(
                "the load generator", command, where.client_cpu, where.shared, timeout
            )
        except Refused as exc:
            if exc.kind == "no io_uring":
                raise BenchError(exc.reason) from None
            raise
        return Measurement(**result)
