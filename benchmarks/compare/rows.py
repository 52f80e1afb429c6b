"""The list of all rows of the comparison: each has a name, a goal and a method of measurement.

A goal is a ratio: the cost on uvloop divided by the cost on this loop. With a goal of 1.4, a
request that costs uvloop 14 us may cost 10 us. A row with the goal None is not judged.

A column is a loop or, in a merged report, a loop and its Python: `uringloop (3.13)`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from uringloop.bench import rows
from uringloop.bench.rows import BASELINE, OK, SUBJECT, Quantity, median_of
from uringloop.bench.settings import BenchError

from . import threads
from .databases import postgresql, redis
from .databases import tls as tls_server
from .methods import Echo, Http, Load, Method, Program, Tail, importing
from .reference import REFERENCES
from .threads import ThreadRow

# Connections of an idle-rss row, for which there is a goal.
IDLE = 10_000

# The most connections in the rows that the picture shows as curves.
CONNECTIONS_MAX = 50_000

# The transports of aiofastnet, which use add_reader and add_writer, on three loops.
AIOFASTNET = ("aiofastnet+asyncio", "aiofastnet+uvloop", "aiofastnet+uringloop")

# aiofiles takes two switches of threads for each call.
FILES_GOAL = 15.0

TAIL = (
    "an open loop at 80 % of the rate that uvloop reaches in a closed loop; server and load"
    " generator have a core each if there are two; latencies count from the scheduled time"
)


def loop_of(column: str) -> str:
    """Return the loop of a column, without the version of Python in merged reports."""
    return column.partition(" (")[0]


def python_of(column: str) -> str:
    """Return the suffix that merging has added to a column, such as ` (3.13)`, or nothing."""
    return column.removeprefix(loop_of(column))


@dataclass
class Row(rows.Row[float]):
    """One line of the table, which shows *figure* of the figures that its method takes."""

    goal: float | None
    # None in a row that was read from a report.
    method: Method | None
    figure: str = "cpu"
    # The kind of operation, for the reader.
    unit: str = "request"
    # Whether the C servers can take part.
    references: bool = False
    # Loops that take part in this row only.
    layers: tuple[str, ...] = ()
    # A note for below the table.
    remark: str = ""
    # The column to which the goal applies.
    subject: str = SUBJECT

    def quantity(self, column: str) -> Quantity | None:
        """Return the median of a column; None if it has no figures or does not take part."""
        cell = self.cells.get(column)
        return median_of(cell.rounds) if cell and cell.rounds and cell.status == OK else None

    def ratio(self, column: str) -> float | None:
        """Return the median of the baseline under the same Python, divided by the column's."""
        base, own = self.quantity(BASELINE + python_of(column)), self.quantity(column)
        return base.value / own.value if base and own and own.value > 0 else None

    def share_of_c(self, column: str) -> float | None:
        """Return the median of the cheaper C server, divided by the column's, under one Python."""
        own = self.quantity(column)
        servers = [name + python_of(column) for name in REFERENCES]
        costs = [found.value for name in servers if (found := self.quantity(name))]
        return min(costs) / own.value if costs and own and own.value > 0 else None

    def met(self, column: str) -> bool | None:
        """Return whether a column meets the goal; None if there is no goal or no ratio."""
        ratio = self.ratio(column)
        return None if ratio is None or self.goal is None else ratio >= self.goal


def echo(group: str, mode: str, goal: float | None, *cells: str, unix: bool = False) -> list[Row]:
    """Return one row for each `BYTESxCLIENTS`."""
    rows = []
    for cell in cells:
        size, _, clients = cell.partition("x")
        method = Echo(mode, int(size), int(clients), unix)
        rows.append(Row(f"{group}/{cell}", goal, method, references=True))
    return rows


# The transports of aiofastnet for TLS, in addition to those of the loops.
TLS_LAYERS = AIOFASTNET[:2]


def tls(cell: str, goal: float) -> Row:
    size, _, clients = cell.partition("x")
    method = Load("tls", "tls", int(size), int(clients))
    return Row(f"tls/{cell}", goal, method, layers=TLS_LAYERS)


def of_tls(
    name: str, goal: float, method: Method, unit: str, figure: str = "cpu", remark: str = ""
) -> Row:
    """Return another TLS row."""
    return Row(f"tls-{name}", goal, method, figure, unit, layers=TLS_LAYERS, remark=remark)


RESUMED = "clients of other loops and transports resume no sessions"


def idle(clients: int, goal: float | None) -> Row:
    """Return the row of a server's memory for each of *clients* connections that do nothing."""
    method = Load("protocol", "idle", 128, clients)
    return Row(f"idle-rss/128x{clients}", goal, method, "memory", "connection", references=True)


def aiofastnet(group: str, cell: str, goal: float, method: Method) -> Row:
    """Return a row that compares aiofastnet's transports with those of the loops themselves."""
    subject = f"aiofastnet+{SUBJECT}"
    remark = f"the goal is that of {subject}"
    name = f"aiofastnet-{group}/{cell}"
    return Row(name, goal, method, layers=AIOFASTNET, subject=subject, remark=remark)


def of_files(name: str, unit: str) -> Row:
    """Return the row of a program that uses files, which are aiofiles' on other loops."""
    remark = "files are uringloop's own on uringloop, and those of aiofiles on other loops; the CPU"
    remark += " time includes the threads of aiofiles"
    return Row(name, FILES_GOAL, Program(name), unit=unit, remark=remark)


def scheduling(name: str, goal: float | None, unit: str, figure: str = "cpu") -> Row:
    """Return the row of a program; its name may have a figure after a slash."""
    return Row(name, goal, Program(name.partition("/")[0]), figure, unit)


ECHOES = [
    *echo("tcp-protocol", "protocol", 1.40, "128x50", "128x300", "128x1000"),
    *echo("tcp-protocol", "protocol", 1.40, "1000x50", "1000x300", "1000x1000"),
    *echo("tcp-buffered", "buffered", 1.40, "128x50", "128x300", "128x1000"),
    *echo("tcp-buffered", "buffered", 1.40, "1000x50", "1000x300", "1000x1000"),
    *echo("tcp-10k", "protocol", 1.25, "10000x50", "10000x300"),
    *echo("tcp-100k", "protocol", 1.20, "100000x50"),
    *echo("tcp-one", "protocol", 1.0, "1000x1", "100000x1"),
    *echo("tcp-one-buffered", "buffered", 1.0, "100000x1"),
    *echo("tcp-one-streams", "streams", 1.0, "100000x1"),
    *echo("unix-protocol", "protocol", 1.7, "128x50", "1000x50", unix=True),
    *echo("streams-tcp", "streams", 1.5, "1000x50", "1000x1000"),
    *echo("streams-unix", "streams", 1.9, "1000x50", unix=True),
    *echo("compiled-streams-tcp", "compiled-streams", 2.0, "1000x50", "1000x1000"),
    *echo("compiled-streams-unix", "compiled-streams", 2.5, "1000x50", unix=True),
    *echo("sockets-tcp", "sockets", 2.5, "128x50"),
    *echo("sockets-unix", "sockets", 3.0, "128x50", unix=True),
]

CURVE = [
    *echo("curve", "protocol", None, "128x1", "128x10", "128x50", "128x100"),
    *echo("curve", "protocol", None, "128x300", "128x1000", "128x3000", "128x10000"),
    *echo("curve", "protocol", None, "128x16000", f"128x{CONNECTIONS_MAX}"),
]

ROWS: list[Row] = [
    *ECHOES,
    Row("connect", 1.3, Load("protocol", "connect", 128, 50), unit="connection", references=True),
    Row("connecting", 1.0, Program("connecting"), unit="connection"),
    Row("one-way/receive", 1.1, Load("sink", "upload"), unit="MiB"),
    Row("one-way/send", 1.1, Load("source", "download"), unit="MiB"),
    Row("udp", 1.5, Load("datagrams", "datagrams", 100, 16), unit="datagram"),
    tls("1000x50", 1.5),
    tls("100000x50", 1.5),
    of_tls("one-way/receive", 1.1, Load("tls-sink", "tls-upload"), "MiB"),
    of_tls("one-way/send", 1.1, Load("tls-source", "tls-download"), "MiB"),
    of_tls("connect/full", 1.0, Load("tls-rsa", "tls-full", 1), "connection"),
    of_tls("connect/resumed", 1.0, Load("tls-rsa", "tls-resumed", 1), "connection"),
    of_tls("connecting/full", 1.0, Program("tls-connecting-full", tls_server), "connection"),
    of_tls(
        "connecting/resumed",
        1.0,
        Program("tls-connecting-resumed", tls_server),
        "connection",
        remark=RESUMED,
    ),
    of_tls("idle-rss/1000", 1.0, Load("tls", "tls-idle", 128, 1000), "connection", "memory"),
    aiofastnet("tcp", "128x50", 1.15, Echo("protocol", 128, 50)),
    aiofastnet("tcp", "128x1", 1.02, Echo("protocol", 128, 1)),
    aiofastnet("tls", "1000x50", 1.4, Load("tls", "tls", 1000, 50)),
    aiofastnet("tls", "100000x50", 1.4, Load("tls", "tls", 100_000, 50)),
    Row("http-raw", 1.35, Http("http-raw")),
    Row("uvicorn", 1.55, Http("uvicorn")),
    Row("uvicorn-sync", 1.25, Http("uvicorn-sync")),
    Row("aiohttp", 1.2, Http("aiohttp")),
    Row("redis-get", 1.15, Program("redis-get", redis)),
    Row("asyncpg-select", 1.15, Program("asyncpg-select", postgresql)),
    scheduling("sleep-1", 2.0, "turn"),
    scheduling("sleep-100", 1.3, "wake-up"),
    scheduling("call-soon", 1.5, "turn"),
    scheduling("call-soon-batch", 1.5, "callback"),
    scheduling("future", 1.5, "wake-up"),
    scheduling("call-later-cancel", 1.5, "timer"),
    scheduling("timers", 1.5, "timer"),
    scheduling("queue-1", 1.5, "item"),
    scheduling("queue-100", 1.5, "item"),
    scheduling("threadsafe", 1.2, "wake-up"),
    scheduling("threadsafe/wall", 1.2, "wake-up", "wall"),
    Row(
        "threadsafe-4",
        2.0,
        Program("threadsafe-4", cores=2),
        "wall",
        "call",
        remark="a loop and four threads that call it, on two cores if there are two",
    ),
    scheduling("executor-1", 2.5, "call"),
    scheduling("executor-100", 4.0, "call"),
    scheduling("to-thread-100", 3.0, "call"),
    scheduling("numeric-host", 3.0, "answer"),
    scheduling("localhost", 1.2, "answer"),
    scheduling("create-task", 1.3, "task"),
    scheduling("gather", 1.3, "task"),
    scheduling("timeout", 1.3, "timeout"),
    scheduling("wait-for", 1.3, "timeout"),
    scheduling("lock", 1.3, "hold"),
    scheduling("event", 1.3, "answer"),
    scheduling("semaphore", 1.3, "hold"),
    scheduling("subprocess", 2.6, "process", "wall"),
    of_files("file-read", "seek and read"),
    of_files("file-read-16", "seek and read"),
    of_files("file-lines", "line"),
    of_files("file-readline", "line"),
    idle(1000, None),
    # At most 0.8 of uvloop's memory.
    idle(IDLE, 1.25),
    idle(CONNECTIONS_MAX, None),
    Row("import", 1.0, importing, "wall", "import"),
    scheduling("create", 1.0, "loop"),
    Row("tail", 1.0, Tail(1000, 50), "p99", remark=TAIL),
    *CURVE,
]


def named(patterns: Sequence[str]) -> list[Row | ThreadRow]:
    """Return the rows whose name or group matches a pattern; without patterns, all rows."""
    names = [pattern for pattern in patterns if pattern]
    every: list[Row | ThreadRow] = [*ROWS, *threads.ROWS]
    for pattern in names:
        if not any(matches(row, pattern) for row in every):
            raise BenchError(f"--rows: no row is named {pattern!r}; --list shows them")
    return [row for row in every if not names or any(matches(row, name) for name in names)]


def matches(row: Row | ThreadRow, pattern: str) -> bool:
    group = row.name.partition("/")[0]
    return fnmatch.fnmatchcase(row.name, pattern) or fnmatch.fnmatchcase(group, pattern)
