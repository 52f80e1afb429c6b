"""Asynchronous files compared: `python benchmarks/files.py [--quick] [--json FILE] [--plot FILE]`.

Ours on our loop, aiofiles and run_in_executor on uvloop, and plain calls without a loop. Each
measurement is a process of its own; the contenders take turns, and medians are compared. Files are
made in a folder of --folder, which should be on a disk: one in memory has nothing to sync.

The exit status is 0, or 1 when a measurement has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# For an interpreter that does not look beside the script (PYTHONSAFEPATH).
sys.path.insert(0, str(Path(__file__).parent))

import files_work

from uringloop.bench import environment
from uringloop.bench.loadgen import Histogram, LoadGenerator

ROUNDS = 5
SECONDS = 1.0
HELD_SECONDS = 3.0
ECHO_CLIENTS = 50
ECHO_BYTES = 128
ECHO_RATE = 10_000.0
ECHO_SECONDS = 5.0
# Beside the echo the plain calls would only show that they block. Each loop without any besides.
ECHO_CONTENDERS = ("none, uringloop", "uringloop", "none, uvloop", "aiofiles", "executor")

Result = dict[str, float]


def prepare(folder: Path) -> None:
    """Make the files, and have them in the page cache."""
    for name in ("small", "written"):
        (folder / name).mkdir()
        for number in range(files_work.SMALL_FILES):
            (folder / name / str(number)).write_bytes(bytes(files_work.SMALL_BYTES))
    for name, size in (("cached", files_work.CACHED_BYTES), ("big", files_work.BIG_BYTES)):
        with open(folder / name, "wb") as file:
            for _ in range(size // files_work.BIG_BLOCK):
                file.write(os.urandom(files_work.BIG_BLOCK))
    os.sync()
    for name in ("cached", "big"):
        with open(folder / name, "rb") as file:
            while file.read(files_work.BIG_BLOCK):
                pass


def command(contender: str, work: str, folder: Path, seconds: float) -> list[str]:
    return [
        sys.executable,
        files_work.__file__,
        contender,
        work,
        str(folder),
        str(seconds),
    ]


def have_memory(path: Path) -> None:
    """Have as much free memory as a file takes, for a second or two.

    The host of a virtual machine takes free memory back some seconds after it was freed, which
    takes a second of processor time, and gives it again page by page, which takes two: whoever
    writes then measures that. So memory is held until nothing that was freed before is left to
    take, and is freed just before it is needed.
    """
    with path.open("wb") as file:
        for _ in range(files_work.BIG_BYTES // files_work.BIG_BLOCK):
            file.write(bytes(files_work.BIG_BLOCK))
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


def echoed(contender: str, folder: Path, seconds: float) -> Result:
    """Ask an echo server that has file work to do beside; latencies from the scheduled time."""
    nothing, _, loop = contender.rpartition(", ")
    server = subprocess.Popen(
        command("executor" if loop == "uvloop" else loop, "echo", folder, 0 if nothing else 1),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server:
        port = json.loads(server.stdout.readline())["port"]
        load = LoadGenerator(("127.0.0.1", port), ECHO_CLIENTS, ECHO_BYTES, rate=ECHO_RATE)
        load.connect()
        found = load.run(seconds)
        load.drain()
        failures = load.failures()
        load.close()
        server.stdin.close()
        result = json.loads(server.stdout.readline())
    if any(failures.values()):
        raise RuntimeError(f"{contender}: {failures}")
    histogram = next(each for each in found if isinstance(each, Histogram))
    return {
        "p50_us": histogram.percentile(50) / 1000,
        "p99_us": histogram.percentile(99) / 1000,
        "files": result["operations"] / seconds,
    }


def compare(
    work: str, contenders: list[str], folder: Path, rounds: int, seconds: float
) -> dict[str, Result]:
    """Take all rounds of one kind of work; return the medians."""
    taken: dict[str, list[Result]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        # Each goes first in its turn: what one leaves behind, in memory or on disk, the next has.
        first = number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            print(f"{work}: {contender}, round {number + 1}", file=sys.stderr, flush=True)
            if work == "echo":
                taken[contender].append(echoed(contender, folder, max(seconds, 0.5)))
            else:
                taken[contender].append(measured(contender, work, folder, seconds))
    return {
        contender: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for contender, found in taken.items()
    }


# ── the report ───────────────────────────────────────────────────────────────────────────────


def table(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = [
        "| Work | Contender | Per second | To aiofiles | CPU each | Timer late by |",
        "|---|---|---|---|---|---|",
    ]
    echo: dict[str, Result] = report["works"].get("echo", {})
    for work, found in report["works"].items():
        if work == "echo":
            continue
        base = found["aiofiles"]["per_second"]
        for contender, each in found.items():
            late = f"{each['late_ms']:.1f} ms" if each["late_ms"] else ""
            lines.append(
                f"| {work} | {contender} | {each['per_second']:,.0f} | "
                f"{each['per_second'] / base:.2f} | {each['cpu_us']:,.2f} us | {late} |"
            )
    if echo:
        lines += ["", "| Echo beside file work of | p50 | p99 | Files/s |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {each['p50_us']:.0f} us | {each['p99_us']:.0f} us | {each['files']:.0f} |"
            for name, each in echo.items()
        ]
    head = [f"- {key}: {value}" for key, value in report["environment"].items()]
    return "\n".join(["# Files", "", *head, "", *lines, ""])


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw operations per second of each kind of work, relative to aiofiles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    works = [work for work in report["works"] if work != "echo"]
    figure = Figure(figsize=(9, 1.2 + 0.75 * len(works)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = list(files_work.CONTENDERS)
    for number, name in enumerate(names):
        ratios = [
            report["works"][work][name]["per_second"]
            / report["works"][work]["aiofiles"]["per_second"]
            for work in works
        ]
        places = [row + (number - (len(names) - 1) / 2) * 0.2 for row in range(len(works))]
        bars = axes.barh(places, ratios, height=0.19, label=name)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
    axes.set_yticks(range(len(works)), works)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("operations per second, as multiples of aiofiles on uvloop (log)")
    axes.legend(loc="lower right", fontsize=8)
    axes.set_title("Asynchronous files")
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--works", default=",".join(files_work.WORKS), help="which kinds of work")
    add("--rounds", type=int, default=ROUNDS)
    add("--seconds", type=float, default=SECONDS, help="of a round of reads")
    add("--quick", action="store_true", help="one short round: no figures to quote")
    add("--core", type=int, default=None, help="the only one that is used, but for echoes")
    add("--folder", type=Path, default=None, help="where the files are made")
    add("--json", type=Path)
    add("--markdown", type=Path)
    add("--plot", type=Path, help="needs matplotlib")
    options = parser.parse_args()
    if options.core is not None:
        # For the measurements to inherit.
        os.sched_setaffinity(0, {options.core})
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, options.seconds)
    folder = Path(tempfile.mkdtemp(prefix="uringloop-files-", dir=options.folder))
    works: dict[str, dict[str, Result]] = {}
    try:
        prepare(folder)
        for work in options.works.split(","):
            echo = work == "echo"
            if echo and options.core is not None:
                continue
            contenders = list(ECHO_CONTENDERS if echo else files_work.CONTENDERS)
            length = ECHO_SECONDS if echo and not options.quick else seconds
            works[work] = compare(work, contenders, folder, rounds, length)
    except subprocess.CalledProcessError as exc:
        print(exc.stderr, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        "environment": environment.describe(
            ["asyncio", "uvloop", "uringloop"],
            "not pinned" if options.core is None else f"all on core {options.core}",
        ),
        "works": works,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    if options.markdown:
        options.markdown.write_text(table(report))
    # Of echoes there is nothing to draw.
    if options.plot and set(works) - {"echo"}:
        draw(report, options.plot)
    print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
