"""python -m uringloop: show the version, the ring that a loop gets, and the available tools."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from uringloop import __version__
from uringloop.monitor import command_line
from uringloop.policy import describe_ring

PROGRAM = "python -m uringloop"
TOOLS = {
    "doctor": "report which ring a loop gets, why, and how to change that",
    "top": "show every second what the loops of running programs do",
    "bench": "compare event loops on this machine",
    "testing": "compare two traces of loops for tests",
    "as_uvloop": "run on uringloop a program that imports uvloop",
    "workers.granian": "run granian with uringloop in its workers",
    "workers.hypercorn": "run hypercorn with uringloop in its workers",
    "workers.uvicorn_server": "run uvicorn with uringloop in its workers",
}


def text() -> str:
    there = [name for name in TOOLS if importlib.util.find_spec(f"uringloop.{name}") is not None]
    width = max(map(len, there)) + 2
    return "\n".join(
        [
            f"uringloop {__version__}, an asyncio event loop for Linux on io_uring",
            f"Here a loop is on {describe_ring()}.",
            "",
            *(f"python -m uringloop.{name:<{width}}{TOOLS[name]}" for name in there),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show the version, the ring that a loop gets, and the available tools.",
    )
    parser.add_argument("--version", action="version", version=f"uringloop {__version__}")
    parser.parse_args(arguments)

    def show() -> int:
        print(text())
        return 0

    return command_line.run(PROGRAM, show)


if __name__ == "__main__":
    sys.exit(main())
