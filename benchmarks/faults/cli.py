"""Behaviour of event loops under faults: `python benchmarks/faults [--loops A,B] [--only WORD]`.

Runs each fault of peers.py, readiness.py, tls.py, life.py, threads.py, limits.py and ends.py on
each loop, in a process of its own. A cell of the table shows the outcome: bytes lost, memory,
descriptors, time to recovery. A violation is bold. The first paragraph of a fault's docstring is
the title of its row.

The exit status is 1 if a cell of uringloop or uringloop-soft has a violation, otherwise 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from uringloop.bench import loops
from uringloop.bench import markdown as md

from . import ends, life, limits, peers, readiness, threads, tls
from .common import Fault

FAULTS: tuple[Fault, ...] = (
    *peers.FAULTS,
    *readiness.FAULTS,
    *tls.FAULTS,
    *life.FAULTS,
    *threads.FAULTS,
    *limits.FAULTS,
    *life.PROGRAM_FAULTS,
    *ends.FAULTS,
)
LOOPS = ("asyncio", "uvloop", "uringloop", "uringloop-soft")
# The names of columns, where they differ from the loops' names.
HEADINGS = {"uringloop-soft": "uringloop, software ring"}
# A fault that takes longer hangs.
TIMEOUT_S = 120

# The program that runs a single fault: this folder.
PROGRAM = Path(__file__).parent


def title(fault: Fault) -> str:
    """Return the first paragraph of a fault's docstring in one line, without its full stop."""
    first = (fault.__doc__ or fault.__name__).partition("\n\n")[0]
    return " ".join(first.split()).rstrip(".")


def try_one(fault: Fault, loop: str) -> str:
    """Run a fault in a process of its own; return the cell of the table."""
    command = [sys.executable, str(PROGRAM), "--child", fault.__name__, "--loops", loop]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"**hangs** ({TIMEOUT_S} s)"
    for line in done.stdout.splitlines():
        if line.startswith("result: "):
            return str(json.loads(line.removeprefix("result: ")))
    if done.returncode < 0:
        return f"**dies** of signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"**fails**: {last[:120]}"


def child(name: str, loop: str) -> int:
    """Run one fault in this process and print its outcome."""
    fault = next(fault for fault in FAULTS if fault.__name__ == name)
    # For faults that start another process with this loop.
    os.environ["FAULTS_LOOP"] = loop
    factory = loops.load(loop)
    # Allocations that the first loop of a process makes once are not counted as growth.
    first = factory()
    first.run_until_complete(asyncio.sleep(0))
    first.close()
    result = fault(factory)
    print("result:", json.dumps(result), flush=True)
    # Do not wait for threads and children that the fault has left.
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default=",".join(LOOPS), help="loops to run (%(default)s)")
    parser.add_argument("--only", default="", help="run the faults whose name contains this word")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument(
        "--child", metavar="FAULT", help="run one fault in this process, which may print more"
    )
    options = parser.parse_args()
    names = options.loops.split(",")
    if options.child:
        return child(options.child, names[0])
    headings = ["Fault", *(HEADINGS.get(name, name) for name in names)]
    rows = md.head(headings, headings)
    print("\n".join(rows))
    failed = False
    for fault in FAULTS:
        if options.only not in fault.__name__:
            continue
        cells = []
        for loop in names:
            cell = try_one(fault, loop)
            failed |= "**" in cell and loop.startswith("uringloop")
            cells.append(cell)
        rows.append(md.line([title(fault), *cells]))
        print(rows[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n")
    return 1 if failed else 0
