"""What the other files share: places, releases, the two architectures, and errors for the user."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "kernels"
# mkfs is in /usr/sbin, which is not on the PATH of ordinary users.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# Debian's releases, and the ring that a loop gets on their kernels: 5.10, 6.1, 6.12 and 7.x.
RELEASES = {
    "bullseye": "soft",
    "bookworm": "io_uring",
    "trixie": "io_uring",
    "sid": "io_uring",
    "experimental": "io_uring",
}
# The oldest release that has this Python. None has 3.12.
PYTHON_RELEASES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid", "3.15": "sid"}


@dataclass(frozen=True)
class Architecture:
    name: str  # As `uname -m` prints it.
    debian: str  # As dpkg names it.
    emulator: str  # Debian's package that has the emulator.
    machine: tuple[str, ...]  # Options of the emulator.
    command_line: str  # Parameters of the kernel.


# Without five-level page tables, which are slower. On a busy machine the emulated timer is late,
# and a kernel that checks it at its start panics.
X86_64 = Architecture(
    "x86_64",
    "amd64",
    "qemu-system-x86",
    ("-cpu", "max,la57=off"),
    "console=ttyS0 no_timer_check",
)
# A processor of servers (Graviton 2, Ampere Altra). It has the atomic instructions of ARMv8.1, but
# no pointer authentication, whose emulation takes most of the time of a system call.
AARCH64 = Architecture(
    "aarch64",
    "arm64",
    "qemu-system-arm",
    ("-machine", "virt", "-cpu", "neoverse-n1"),
    "console=ttyAMA0",
)
ARCHITECTURES = {each.name: each for each in (X86_64, AARCH64)}
HERE = ARCHITECTURES.get(os.uname().machine, X86_64)


class KernelsError(Exception):
    """An error message for the user."""


def required(*names: str) -> list[str]:
    """Return the requirements of these packages among those of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements: list[str] = project["optional-dependencies"]["test"]
    return [one for one in requirements if re.split(r"[<>=]", one)[0] in names]
