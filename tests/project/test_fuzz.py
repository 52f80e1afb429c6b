"""The program for random input to the software ring compiles, without a fuzzer."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support.sources import ROOT

SOURCES = [ROOT / "tests" / "fuzz" / name for name in ("alone.c", "softring.c")]


@pytest.mark.skipif(
    not (shutil.which("cc") and all(source.exists() for source in SOURCES)),
    reason="needs a C compiler, and the C files of a clone",
)
def test_the_fuzzed_program_compiles_without_a_warning() -> None:
    ring = sorted(ROOT.glob("uringloop/_softring/*.c"))
    options = ["-D_GNU_SOURCE", "-Iuringloop", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    compiled = subprocess.run(
        ["cc", *options, *SOURCES, *ring], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (compiled.returncode, compiled.stderr) == (0, "")
