"""What loops do about faults: `python benchmarks/faults [--loops A,B] [--only WORD]`.

Each fault of peers.py, life.py, limits.py and ends.py is tried on each
loop in a process of its own, and what came of it is a cell of the table: bytes lost, memory,
descriptors, how long until all was well again. What must not be is in bold.

The exit status is 0, or 1 if anything of this loop is.
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

from . import ends, life, limits, peers
from .common import Fault

FAULTS: tuple[Fault, ...] = (
    *peers.FAULTS,
    *life.FAULTS,
    *limits.FAULTS,
    *ends.FAULTS,
)
LOOPS = ("asyncio", "uvloop", "uringloop", "uringloop-soft")
PATIENCE_S = 120

# What the process of a single fault runs: this folder.
PROGRAM = Path(__file__).parent


def try_one(fault: Fault, loop: str) -> str:
    """Return what came of a fault, in a process of its own."""
    command = [sys.executable, str(PROGRAM), "--child", fault.__name__, "--loops", loop]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"**hangs** ({PATIENCE_S} s)"
    for line in done.stdout.splitlines():
        if line.startswith("result: "):
            return str(json.loads(line.removeprefix("result: ")))
    if done.returncode < 0:
        return f"**dies** of signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"**fails**: {last[:120]}"


def child(name: str, loop: str) -> int:
    """Try one fault here."""
    fault = next(fault for fault in FAULTS if fault.__name__ == name)
    # For a fault that needs a process of its own.
    os.environ["FAULTS_LOOP"] = loop
    factory = loops.load(loop)
    # What a process's first loop leaves behind for the next ones is none of a fault's.
    first = factory()
    first.run_until_complete(asyncio.sleep(0))
    first.close()
    result = fault(factory)
    print("result:", json.dumps(result), flush=True)
    # What the fault has left is not to be waited for.
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default=",".join(LOOPS), help="(%(default)s)")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.loops.split(",")
    if options.child:
        return child(options.child, names[0])
    rows = md.head(["", *names], ["", *names])
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
        title = (fault.__doc__ or fault.__name__).splitlines()[0].rstrip(".")
        rows.append(md.line([title, *cells]))
        print(rows[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n")
    return 1 if failed else 0
