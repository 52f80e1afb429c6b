"""The C echo servers of benchmarks/reference: built from the source tree for each run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from .loops import REFERENCES
from .settings import BenchError

_SOURCES = Path(__file__).resolve().parents[2] / "benchmarks" / "reference"


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
    """Compile the servers into *directory* and return the programs by their name in the table."""
    if not _SOURCES.is_dir():
        raise BenchError(
            "--reference needs the source tree: an installed package has no benchmarks/reference"
        )
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BenchError("--reference needs a C compiler: neither $CC nor cc can be run")
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
            raise BenchError(f"--reference: {source.name} does not compile: {reason}")
        programs[name] = program
    return programs
