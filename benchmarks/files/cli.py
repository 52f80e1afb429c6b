"""Compares asynchronous files: `python benchmarks/files [--quick] [--json FILE] [--plot FILE]`.

The contenders are uringloop's files on uringloop, aiofiles and run_in_executor on uvloop, and plain
calls without a loop. Each measurement is a process of its own; the contenders take turns, and the
report compares medians. The files are created in a new folder inside --folder, which should be on a
disk: a file system in memory has nothing to sync. Idle processors are kept awake where that is
permitted, because a call that waits for a worker thread also waits until its processor wakes;
--may-sleep lets them sleep.

The exit status is 0, 1 if a measurement failed, or 2 for invalid options.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from uringloop.bench import charts, environment, placement, terminal
from uringloop.bench import markdown as md
from uringloop.bench.cli import check_file, check_picture, guarded
from uringloop.bench.loadgen import Histogram, LoadGenerator
from uringloop.bench.rows import Cell, Row, cells_of, median_of

from .work import (
    BIG_BLOCK,
    BIG_BYTES,
    CACHED_BYTES,
    CONTENDERS,
    LINE_SIZES,
    LINES_BYTES,
    SMALL_BYTES,
    SMALL_FILES,
    WORKS,
)

ROUNDS = 5
SECONDS = 1.0
HELD_SECONDS = 3.0
ECHO_CLIENTS = 50
ECHO_BYTES = 128
ECHO_RATE = 10_000.0
# Each process alternates between turns without (False) and with file work (True), so that changes
# of the machine affect both. Turns are short, so that most contain no stall of the whole machine.
ECHO_SECONDS = 0.5
ECHO_TURNS = (False, True, True, False) * 6
ECHO_WARM_UP = 0.1
# Without plain: its calls block the loop, so an echo beside them would only show that.
ECHO_CONTENDERS = ("uringloop", "aiofiles", "executor")

Result = dict[str, float]


def prepare(folder: Path) -> None:
    """Create the files and read them into the page cache."""
    for name in ("small", "written"):
        (folder / name).mkdir()
        for number in range(SMALL_FILES):
            (folder / name / str(number)).write_bytes(bytes(SMALL_BYTES))
    for name, size in (("cached", CACHED_BYTES), ("big", BIG_BYTES)):
        with open(folder / name, "wb") as file:
            for _ in range(size // BIG_BLOCK):
                file.write(os.urandom(BIG_BLOCK))
    for size in LINE_SIZES:
        line = b"x" * (size - 1) + b"\n"
        for part, count in (("", LINES_BYTES // size), ("-part", 10_000)):
            (folder / f"lines-{size}{part}").write_bytes(line * count)
    os.sync()
    for name in ("cached", "big"):
        with open(folder / name, "rb") as file:
            while file.read(BIG_BLOCK):
                pass


def command(contender: str, work: str, folder: Path, seconds: float = 0.0) -> list[str]:
    """Return the command of one measurement; the echo server runs until EOF on its stdin."""
    return [
        sys.executable,
        str(Path(__file__).with_name("work.py")),
        contender,
        work,
        str(folder),
        str(seconds),
    ]


def have_memory(path: Path) -> None:
    """Make as much memory free as a big file takes, for a second or two.

    The host of a virtual machine reclaims free memory some seconds after it was freed, which costs
    a second of processor time, and returns it page by page, which costs two: a write during that
    time would measure it. So this function fills the page cache, waits until the host has reclaimed
    everything that was freed before, and frees the memory immediately before the write.
    """
    with path.open("wb") as file:
        for _ in range(BIG_BYTES // BIG_BLOCK):
            file.write(bytes(BIG_BLOCK))
    time.sleep(HELD_SECONDS)
    path.unlink()


def measured(contender: str, work: str, folder: Path, seconds: float) -> Result:
    """Take one measurement."""
    if work == "big-write":
        have_memory(folder / "out")
    done = subprocess.run(
        command(contender, work, folder, seconds), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    (folder / "out").unlink(missing_ok=True)
    return {
        "per_second": found["operations"] / found["seconds"],
        "cpu_us": 1e6 * found["cpu"] / found["operations"],
        "late_ms": found["late_ms"],
    }


@contextlib.contextmanager
def echo_server(contender: str, folder: Path) -> Iterator[tuple[int, Callable[[str], Result]]]:
    """Run an echo server that does file work on request.

    Yield its port and a function that sends "work" or "rest" and returns the numbers of reads and
    writes that the server has done so far.
    """
    with subprocess.Popen(
        command(contender, "echo", folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def request(line: str) -> Result:
            requests.write(line + "\n")
            requests.flush()
            answer: Result = json.loads(answers.readline())
            return answer

        yield json.loads(answers.readline())["port"], request
        requests.close()
        answers.read()
    if server.returncode:
        raise subprocess.CalledProcessError(server.returncode, server.args)


def paired(turns: list[Result]) -> list[Result]:
    """Pair each turn that has file work with its neighbour; return both and the difference."""
    pairs = []
    for number in range(0, len(turns), 2):
        alone, beside = turns[number : number + 2]
        if ECHO_TURNS[number]:
            alone, beside = beside, alone
        pairs.append(
            beside
            | {f"alone_{key}": alone[key] for key in ("p50_us", "p99_us")}
            | {f"added_{key}": beside[key] - alone[key] for key in ("p50_us", "p99_us")}
        )
    return pairs


def echoed(contender: str, folder: Path, seconds: float) -> list[Result]:
    """Load an echo server, with and without file work; latencies count from the scheduled time."""
    turns: list[Result] = []
    with echo_server(contender, folder) as (port, request):
        load = LoadGenerator(("127.0.0.1", port), ECHO_CLIENTS, ECHO_BYTES, rate=ECHO_RATE)
        load.connect()
        load.run(ECHO_WARM_UP)
        for beside in ECHO_TURNS:
            before = request("work" if beside else "rest")
            found = load.run(seconds)
            after = request("rest")
            histogram = next(each for each in found if isinstance(each, Histogram))
            done = {f"{name}_s": (after[name] - before[name]) / seconds for name in after}
            turns.append({f"p{n}_us": histogram.percentile(n) / 1000 for n in (50, 99)} | done)
            # File work that is still in progress ends between the turns.
            load.run(ECHO_WARM_UP)
        load.drain()
        failures = load.failures()
        load.close()
    if any(failures.values()):
        raise RuntimeError(f"{contender}: {failures}")
    return paired(turns)


def medians(cell: Cell[list[Result]]) -> Result:
    """Return the median of each figure over all rounds of a contender."""
    found = list(itertools.chain.from_iterable(cell.rounds))
    return {key: median_of([each[key] for each in found]).value for key in found[0]}


def measured_all(options: argparse.Namespace) -> dict[str, dict[str, Result]]:
    """Create the files, take all chosen measurements, and remove the files."""
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, options.seconds)
    works = [work for work in options.works.split(",") if work != "echo" or options.core is None]
    rows = [
        Row[list[Result]](work, cells=cells_of(ECHO_CONTENDERS if work == "echo" else CONTENDERS))
        for work in works
    ]
    folder = Path(tempfile.mkdtemp(prefix="uringloop-files-", dir=options.folder))

    def measure(work: str, contender: str) -> list[Result]:
        if work == "echo":
            return echoed(contender, folder, seconds if options.quick else ECHO_SECONDS)
        return [measured(contender, work, folder, seconds)]

    try:
        prepare(folder)
        with terminal.progress(rounds * sum(len(row.cells) for row in rows)) as step:
            for row in rows:
                # Rotate the order: a contender leaves state in memory and on disk to the next one.
                row.measure(
                    rounds,
                    functools.partial(measure, row.name),
                    functools.partial(report_round, row.name, step),
                    rotating=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {row.name: {name: medians(cell) for name, cell in row.cells.items()} for row in rows}


def report_round(work: str, step: terminal.Step, cell: Cell[list[Result]]) -> None:
    step(f"{work}: {cell.loop}, round {len(cell.rounds)}")


# ── the report ───────────────────────────────────────────────────────────────────────────────


def table(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    works = dict(report["works"])
    echo: dict[str, Result] = works.pop("echo", {})
    lines = []
    if works:
        headings = ["Work", "Contender", "Per second", "Relative to aiofiles"]
        headings += ["CPU time of each", "Timer late by"]
        lines += md.table(headings, rows_of_works(works), headings[:2])
    if echo:
        headings = ["Echo during file work of", "p50 without work", "p50 with work", "p50 added"]
        headings += ["p99 without work", "p99 with work", "p99 added", "Reads/s", "Writes/s"]
        lines += ["", *md.table(headings, rows_of_echo(echo), headings[:1])]
    return "\n".join(["# Files", "", *md.facts(report["environment"]), "", *lines, ""])


def rows_of_works(works: dict[str, dict[str, Result]]) -> Iterator[list[str]]:
    for work, found in works.items():
        base = found["aiofiles"]["per_second"]
        for contender, each in found.items():
            yield [
                work,
                contender,
                f"{each['per_second']:,.0f}",
                f"{each['per_second'] / base:.2f}",
                f"{each['cpu_us']:,.2f} us",
                f"{each['late_ms']:.1f} ms" if each["late_ms"] else "",
            ]


def rows_of_echo(echo: dict[str, Result]) -> Iterator[list[str]]:
    times = [f"{kind}p{n}_us" for n in (50, 99) for kind in ("alone_", "", "added_")]
    for name, each in echo.items():
        counts = [f"{each[key]:.0f}" for key in ("reads_s", "writes_s")]
        yield [name, *(f"{each[key]:.0f} us" for key in times), *counts]


def draw_work(axes: Any, works: dict[str, dict[str, Result]]) -> None:
    """Draw operations per second of each kind of work, relative to aiofiles."""
    names = list(CONTENDERS)
    for number, name in enumerate(names):
        bases = [each["aiofiles"]["per_second"] for each in works.values()]
        found = [each[name]["per_second"] for each in works.values()]
        ratios = [rate / base for rate, base in zip(found, bases, strict=True)]
        places = [row + (number - (len(names) - 1) / 2) * 0.2 for row in range(len(works))]
        bars = axes.barh(places, ratios, height=0.19, label=name)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
    axes.set_yticks(range(len(works)), works)
    axes.set_xscale("log")
    axes.set_xlabel("operations per second, as multiples of aiofiles on uvloop (log)")


def draw_echo(axes: Any, echo: dict[str, Result]) -> None:
    """Draw the 99th percentile of the latency of echoes, with and without file work."""
    for number, (key, label) in enumerate((("alone_p99_us", "alone"), ("p99_us", "beside files"))):
        times = [each[key] for each in echo.values()]
        places = [row + (number - 0.5) * 0.3 for row in range(len(echo))]
        bars = axes.barh(places, times, height=0.28, label=label)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=7)
    axes.set_yticks(range(len(echo)), echo)
    axes.set_xlabel("p99 of an echo, us")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report: a panel for the kinds of work and one for the echoes."""
    works = dict(report["works"])
    echo = works.pop("echo", {})
    # For each panel with figures: the function that draws it, the figures, the height in inches.
    panels: list[tuple[Callable[[Any, Any], None], dict[str, Any], float]] = [
        panel
        for panel in ((draw_work, works, 0.75 * len(works)), (draw_echo, echo, 0.5 * len(echo)))
        if panel[1]
    ]
    heights = [height for _, _, height in panels]
    with charts.styled() as figure:
        figure.set_size_inches(9, 1.2 * len(panels) + sum(heights))
        places = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
        for (axes,), (draw_panel, found, _) in zip(places, panels, strict=True):
            draw_panel(axes, found)
            axes.invert_yaxis()
            axes.margins(x=0.12)
            axes.legend(loc="lower right", fontsize=8)
        figure.suptitle("Asynchronous files")
        figure.savefig(path, dpi=charts.DENSITY)


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--works", default=",".join(WORKS), help="kinds of work, separated by commas (%(default)s)")
    add("--rounds", type=int, default=ROUNDS)
    add("--seconds", type=float, default=SECONDS, help="length of a round of reads")
    add("--quick", action="store_true", help="one short round; do not quote its figures")
    add("--core", type=int, default=None, help="run on this core only, without the echoes")
    add("--may-sleep", action="store_true", help="do not keep idle processors awake")
    add("--folder", type=Path, default=None, help="folder for the files")
    add("--json", type=Path)
    add("--markdown", type=Path)
    add("--plot", type=Path, help="draw the report into this file (needs matplotlib)")
    options = parser.parse_args()
    check_picture(options.plot)
    for path in (options.json, options.markdown, options.plot):
        check_file(path)
    pinned = options.core is not None
    core = placement.inherited(options.core, False) if pinned else contextlib.nullcontext()
    awake = contextlib.nullcontext("may sleep") if options.may_sleep else placement.awake()
    try:
        with core, awake as idle:
            works = measured_all(options)
    except subprocess.CalledProcessError as exc:
        print(exc, exc.stderr or "", sep="\n", file=sys.stderr)
        return 1
    pinning = f"all on core {options.core}" if pinned else "not pinned"
    report = {
        "environment": environment.describe(["asyncio", "uvloop", "uringloop"], pinning, idle),
        "works": works,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    if options.markdown:
        options.markdown.write_text(table(report))
    if options.plot:
        draw(report, options.plot)
    print(table(report))
    return 0


def main() -> int:
    """Compare and return the exit status."""
    return guarded("files", run)
