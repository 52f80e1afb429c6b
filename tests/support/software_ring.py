"""Helpers of the tests of the software ring."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import seccomp

ROOT = Path(__file__).resolve().parents[2]


def compile_with_ring(program: Path, made: Path, *wrapped: str) -> Path:
    """Compile a C program with the software ring's sources into *made*.

    The calls of the functions *wrapped* go to the program's own ones.
    """
    if shutil.which("cc") is None or not Path("/usr/include/liburing.h").exists():
        pytest.skip("needs a C compiler and liburing")
    sources = [program, *sorted((ROOT / "uringloop/_softring").glob("*.c"))]
    options = ["-D_GNU_SOURCE", f"-I{ROOT / 'uringloop'}", "-pthread"]
    options += [f"-Wl,--wrap={name}" for name in wrapped]
    command = ["cc", *options, *map(str, sources), "-o", str(made), "-luring"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def output(script: str) -> str:
    """Run *script* in a child, which must exit with 0 and an empty stderr; return its output."""
    done = seccomp.run("-c", textwrap.dedent(script), URINGLOOP_BACKEND="soft")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Limit this process to *files* more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit bounds descriptor numbers, and the next file gets the lowest free one.
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
