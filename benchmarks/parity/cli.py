"""What asyncio promises and each loop does: `python benchmarks/parity [LOOP...]`.

Every probe is a small program on one feature, run in a process of its own, because some loops
abort, hang or crash where others raise. What happened becomes a word in a Markdown table on
stdout: yes; no (with the exception), hangs, dies. Nothing is asserted here:
tests/loop/test_parity.py does that for this package's own loop. `python benchmarks/parity
--probe NAME LOOP` runs one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .probes import PROBES

# Seconds after which a probe hangs: each takes milliseconds where it works.
PROBE_SECONDS = 10

# What the process of a single probe runs: this folder.
PROGRAM = Path(__file__).parent
LOOPS = ("asyncio", "uvloop", "rloop", "blazio", "zuvloop", "rsloop", "uringloop")


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "asyncio":
        return asyncio.SelectorEventLoop()
    loop: asyncio.AbstractEventLoop = importlib.import_module(name).new_event_loop()
    return loop


def run_one(name: str, loop_name: str) -> None:
    with asyncio.Runner(loop_factory=lambda: new_loop(loop_name)) as runner:

        async def main() -> None:
            await PROBES[name](asyncio.get_running_loop())

        runner.run(main())


def outcome(name: str, loop_name: str) -> str:
    """Run a probe in its own process; return the word for the table."""
    command = [sys.executable, str(PROGRAM), "--probe", name, loop_name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode < 0:
        return f"dies ({signal.Signals(-done.returncode).name})"
    if done.returncode == 0:
        return "yes"
    # The last exception; warnings of what it left behind may come after it.
    names = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception))\b", done.stderr, re.MULTILINE)
    return f"no ({names[-1]})" if names else f"no (exit status {done.returncode})"


def version_of(name: str) -> str:
    return platform.python_version() if name == "asyncio" else metadata.version(name)


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        run_one(*sys.argv[2:])
        return
    wanted = sys.argv[1:] or LOOPS
    loops = [name for name in wanted if importlib.util.find_spec(name) is not None]
    versions = ", ".join(f"{name} {version_of(name)}" for name in loops)
    print(f"CPython {platform.python_version()}: {versions}.\n")
    print("| | " + " | ".join(loops) + " |")
    print("| :-- |" + " :-: |" * len(loops))
    for name in PROBES:
        print(f"| {name} | " + " | ".join(outcome(name, loop) for loop in loops) + " |", flush=True)
