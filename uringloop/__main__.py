"""python -m uringloop: the version, the ring that a loop gets here, and the tools there are."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from uringloop import __version__
from uringloop._monitor import command_line
from uringloop.policy import ring_here

PROGRAM = "python -m uringloop"
TOOLS = {
    "doctor": "which ring a loop gets here, why, and what to do about it",
    "top": "what the loops of a running program do, once in a second",
    "bench": "event loops compared on this machine",
    "as_uvloop": "run a program that asks for uvloop on this loop",
    "workers.granian": "granian's command, with this loop for its workers",
}


def text() -> str:
    there = [name for name in TOOLS if importlib.util.find_spec(f"uringloop.{name}") is not None]
    width = max(map(len, there)) + 2
    return "\n".join(
        [
            f"uringloop {__version__}, an asyncio event loop for Linux on io_uring",
            f"Here a loop is on {ring_here()}.",
            "",
            *(f"python -m uringloop.{name:<{width}}{TOOLS[name]}" for name in there),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Tell the version, the ring that a loop gets here, and the tools there are.",
    )
    parser.add_argument("--version", action="version", version=f"uringloop {__version__}")
    parser.parse_args(arguments)

    def tell() -> int:
        print(text())
        return 0

    return command_line.run(PROGRAM, tell)


if __name__ == "__main__":
    sys.exit(main())
