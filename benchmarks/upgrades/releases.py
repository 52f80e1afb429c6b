"""Two releases of the package in folders of their own, and the link `current` to one of them.

Both are copies of the installed package with other version numbers. A service finds the package at
`current`, as it does if a link leads to the environment of a release.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import uringloop

PROGRAMS = Path(__file__).parent / "programs"
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
RELEASES = ("old", "new")


class Side(NamedTuple):
    """What a service runs on before or after an upgrade: a *loop*, and a release of uringloop."""

    loop: str
    release: str

    def name(self) -> str:
        """Return how the answers of the service name it, without the version of uvloop."""
        return f"uringloop {version_of(self.release)}" if self.loop == "uringloop" else "uvloop "


def version_of(release: str) -> str:
    return f"{uringloop.__version__}+{release}"


class Releases:
    """Both releases, and the files of the service, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = Path(uringloop.__file__).parent
        left_out = shutil.ignore_patterns("__pycache__", "*.pyx", "*.c", "*.h")
        for release in RELEASES:
            copy = folder / release / "uringloop"
            shutil.copytree(package, copy, ignore=left_out, copy_function=os.symlink)
            init = copy / "__init__.py"
            text = init.read_text()
            init.unlink()
            init.write_text(VERSION.sub(f'__version__ = "{version_of(release)}"', text))
        self.choose("old")

    def choose(self, release: str) -> None:
        """Let `current` lead to *release*; there is no moment without the link."""
        link = self.folder / "current.next"
        link.symlink_to(release)
        link.replace(self.folder / "current")

    def environment(self) -> dict[str, str]:
        variables = {**os.environ, "PYTHONPATH": f"{self.folder / 'current'}:{PROGRAMS.parents[1]}"}
        variables.pop("PYTHONSAFEPATH", None)
        return {**variables, "URINGLOOP_WARN_FALLBACK": "0"}
