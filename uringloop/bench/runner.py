"""One fresh server and one load generator per measurement, the loops interleaved.

A server lives for one loop, one cell and one round: it does not inherit the heap, the caches or the
connections of another, peak memory belongs to its cell, and no other server is idle beside it.
Rounds go A B C A B C, so that a machine that slows down does so for every loop.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from . import loops
from .child import STOP_TIMEOUT, Child, Refused, ask
from .client import Measurement, Task
from .placement import Placement
from .settings import HOST, Address, BenchError, Cell, Settings

# Seconds; plenty for an interpreter that imports from a cold disk.
_START_TIMEOUT = 30.0

# Exit status of the reference servers (echo.h) if the address is in use.
_EXIT_ADDRESS_IN_USE = 98


@dataclass
class Row:
    """One loop in one cell, with its rounds."""

    loop: str
    cell: Cell
    status: str = "ok"
    note: str = ""
    rounds: list[Measurement] = field(default_factory=list)

    def give_up(self, status: str, note: str) -> None:
        """Measure no more rounds; note the status and the reason."""
        self.status = status
        self.note = note


class Runner:
    """Measures the rows that *settings* define; *programs* are the built reference servers."""

    def __init__(
        self, settings: Settings, placement: Placement, programs: dict[str, Path], directory: Path
    ) -> None:
        self.settings = settings
        self.placement = placement
        self.programs = programs
        self.directory = directory
        self._sockets = 0

    def run(self, progress: Callable[[Row, Measurement | None], None]) -> list[Row]:
        """Measure every row in every round; call *progress* after each step."""
        rows: list[Row] = []
        names = [*self.settings.loops, *self.programs]
        for cell in self.settings.cells:
            group = [Row(name, cell) for name in names]
            rows += group
            for _ in range(self.settings.rounds):
                for row in group:
                    progress(row, self._measure_row(row))
        return rows

    def _measure_row(self, row: Row) -> Measurement | None:
        """Measure one round of a row, unless an earlier round has given up."""
        if row.status != "ok":
            return None
        if row.loop not in self.programs and not loops.installed(row.loop):
            row.give_up("not installed", f"{row.loop} is not installed")
            return None
        try:
            measurement = self.measure(row.loop, row.cell)
        except Refused as exc:
            row.give_up(exc.kind, exc.reason)
            return None
        row.rounds.append(measurement)
        if measurement.failure is not None:
            row.give_up("failed", measurement.failure)
        return measurement

    def measure(self, name: str, cell: Cell) -> Measurement:
        """Start a server, put it under load, and stop it."""
        with self.serving(name) as (server, address):
            try:
                measurement = self._load(server, address, cell)
            except Refused:
                self.refuse_dead(server)
                raise
            if measurement.failure is not None:
                self.refuse_dead(server)
            return measurement

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[tuple[Child, Address]]:
        """Run a fresh server meanwhile; yield it and its address when it is ready."""
        server = Child(self._server_command(name), self.placement.server_cpu, self.placement.shared)
        try:
            yield server, self._wait_until_ready(name, server)
        finally:
            server.stop()
            # The server may not have created the socket, and not every server removes it.
            Path(self._path()).unlink(missing_ok=True)

    def _server_command(self, name: str) -> list[str]:
        """Return the command that starts a server; a UNIX socket gets a new path every time."""
        port = str(self.settings.port)
        self._sockets += 1
        if name in self.programs:
            where = [self._path()] if self.settings.unix else [HOST, port]
            return [str(self.programs[name]), *where]
        where = ["--path", self._path()] if self.settings.unix else ["--port", port]
        command = [sys.executable, "-m", "uringloop.bench.server"]
        settled = ["--settled"] if self.settings.settled else []
        return [*command, "--loop", name, "--mode", self.settings.mode, *where, *settled]

    def _wait_until_ready(self, name: str, server: Child) -> Address:
        line = server.read_line(_START_TIMEOUT)
        if not line:
            self._refuse_early_exit(server)
        if name in self.programs:
            return self._path() if self.settings.unix else (HOST, int(line))
        ready = json.loads(line)
        if ready.get("kind") == "address in use":
            raise BenchError(f"port {self.settings.port} is in use")
        if "error" in ready:
            raise Refused(ready["kind"], ready["error"])
        return ready["path"] if "path" in ready else (ready["host"], ready["port"])

    def _path(self) -> str:
        """Return the path of the current server's UNIX socket."""
        return str(self.directory / f"echo-{self._sockets}")

    def _refuse_early_exit(self, server: Child) -> NoReturn:
        try:
            status = server.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Refused("failed", "the server did not become ready") from None
        if status == _EXIT_ADDRESS_IN_USE:
            raise BenchError(f"port {self.settings.port} is in use")
        raise Refused("failed", f"the server did not start: {server.complaint()}")

    def refuse_dead(self, server: Child) -> None:
        """Raise Refused with the server's last words if it has died."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The connections of a dying server close a moment before wait() returns.
            server.process.wait(0.2)
            raise Refused("failed", f"the server died: {server.complaint()}")

    def _load(self, server: Child, address: Address, cell: Cell) -> Measurement:
        settings = self.settings
        task = Task(
            address=address,
            server_pid=server.process.pid,
            clients=cell.clients,
            size=cell.size,
            rate=settings.rate,
            warm_up=settings.warm_up,
            duration=settings.duration,
            counting=settings.counting,
            spinning=not self.placement.shared,
        )
        command = [sys.executable, "-m", "uringloop.bench.client", json.dumps(asdict(task))]
        # Connecting and draining have their own time limits, which are reached before this one.
        timeout = 180.0 + 3 * settings.duration
        where = self.placement
        result = ask("the load generator", command, where.client_cpu, where.shared, timeout)
        if result.get("kind") == "no io_uring":
            raise BenchError(result["error"])
        if "error" in result:
            raise Refused("failed", result["error"])
        return Measurement(**result)
