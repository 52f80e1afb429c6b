"""asyncio's features on each loop: `python benchmarks/parity [LOOP...]`.

Each probe is a small program for one feature, and runs in a process of its own, because some loops
abort, hang or crash where others raise. The Markdown table on stdout shows the outcome of each
probe: yes, no (with the exception), hangs or dies. The exit status does not depend on the outcomes;
tests/loop/test_parity.py asserts those of uringloop. `python benchmarks/parity --probe NAME LOOP`
runs one probe.
"""

from __future__ import annotations

import asyncio
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

from uringloop.bench import loops
from uringloop.bench import markdown as md

from .probes import PROBES

# A probe that takes longer hangs; one that works takes milliseconds.
PROBE_SECONDS = 10

# The program that runs a single probe: this folder.
PROGRAM = Path(__file__).parent
LOOPS = ("asyncio", "uvloop", "rloop", "blazio", "zuvloop", "rsloop", "uringloop")


def run_one(name: str, loop_name: str) -> None:
    with asyncio.Runner(loop_factory=loops.load(loop_name)) as runner:

        async def main() -> None:
            await PROBES[name](asyncio.get_running_loop())

        runner.run(main())


def outcome(name: str, loop_name: str) -> str:
    """Run a probe in a process of its own; return the cell of the table."""
    command = [sys.executable, str(PROGRAM), "--probe", name, loop_name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode < 0:
        return f"dies ({signal.Signals(-done.returncode).name})"
    if done.returncode == 0:
        return "yes"
    # The last exception. Warnings of resources that the probe has not closed may follow it.
    names = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception))\b", done.stderr, re.MULTILINE)
    return f"no ({names[-1]})" if names else f"no (exit status {done.returncode})"


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        run_one(*sys.argv[2:])
        return
    wanted = sys.argv[1:] or LOOPS
    found = [name for name in wanted if loops.installed(name)]
    versions = ", ".join(f"{name} {loops.version(name)}" for name in found)
    print(f"CPython {platform.python_version()}: {versions}.\n")
    print(md.line(["feature", *found]))
    print(md.line([":--", *[":-:"] * len(found)]))
    for name in PROBES:
        print(md.line([name, *(outcome(name, loop) for loop in found)]), flush=True)
