"""The C echo servers of benchmarks/reference: built for each run, each a column of the table."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from uringloop.bench.settings import BenchError

# The file of each server, by the name of its column.
REFERENCES = {"C epoll": "epoll_echo", "C io_uring": "uring_echo"}

_SOURCES = Path(__file__).parents[1] / "reference"


def _liburing_flags() -> list[str]:
    """Return the linker's flags; without pkg-config the default library path is tried."""
    try:
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "liburing"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return ["-luring"]
    return shlex.split(found.stdout) if found.returncode == 0 else ["-luring"]


def build(directory: Path) -> dict[str, Path]:
    """Compile the servers into *directory* and return the programs by the name of their column."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BenchError("neither $CC nor cc can be run")
    programs = {}
    for name, stem in REFERENCES.items():
        program = directory / stem
        source = _SOURCES / f"{stem}.c"
        libraries = _liburing_flags() if name == "C io_uring" else []
        command = [*compiler, "-O2", "-Wall", "-Wextra", str(source), "-o", str(program)]
        built = subprocess.run([*command, *libraries], capture_output=True, text=True)
        if built.returncode != 0:
            errors = [line for line in built.stderr.splitlines() if "error" in line]
            reason = (errors or built.stderr.splitlines() or ["no reason given"])[0]
            raise BenchError(f"{source.name} does not compile: {reason}")
        programs[name] = program
    return programs
