"""The wheel that is tested: what its name says, and an interpreter for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kernels.base import KernelsError


class Wheel(NamedTuple):
    path: Path
    version: str  # Of Python, as in the names of its programs: 3.13, 3.14t.
    abi: str
    platforms: list[str]

    @property
    def architecture(self) -> str:
        return "aarch64" if self.platforms[0].endswith("_aarch64") else "x86_64"

    def is_for_musl(self) -> bool:
        return self.platforms[0].startswith("musllinux")

    def runs_here(self) -> bool:
        """Return whether the interpreter that runs this can import the wheel."""
        here = f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
        machine = os.uname().machine
        return (self.version, self.architecture) == (here, machine) and not self.is_for_musl()


def wheel_of(path: Path) -> Wheel:
    """Parse the name of a wheel: NAME-VERSION-PYTHON-ABI-PLATFORMS.whl."""
    found = re.fullmatch(r".+-cp3(\d+)-(cp3\d+(t?))-([\w.]*linux\w*)\.whl", path.name)
    if found is None:
        raise KernelsError(f"{path.name}: not a wheel of a compiled package for Linux")
    return Wheel(path, f"3.{found[1]}{found[3]}", found[2], found[4].split("."))


def install(wheel: Wheel, requirements: list[str], folder: Path) -> None:
    """Install the wheel and *requirements* into *folder*, for the wheel's Python and platform."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--abi", wheel.abi]
    command += ["--python-version", wheel.version.rstrip("t")]
    command += [word for name in wheel.platforms for word in ("--platform", name)]
    subprocess.run([*command, str(wheel.path), *requirements], check=True)


def same_python(wheel: Wheel) -> str | None:
    """Return an interpreter of this machine that compiles files for the wheel's Python, or None."""
    version = wheel.version.rstrip("t")
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    # pyenv has a program for each version, which fails if another one is chosen.
    tried = subprocess.run([found, "-c", ""], capture_output=True, check=False)
    return found if tried.returncode == 0 else None
