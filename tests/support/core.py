"""The core as a package of its own, without its neighbours.

    python tests/support/core.py FOLDER

copies what is needed to build it into FOLDER, which must be empty.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sources import PACKAGE, ROOT

ARCHITECTURE = ROOT / "docs" / "project" / "architecture.md"


def packages_in_order() -> list[str]:
    """Return the packages and the public modules of the document, the lowest first."""
    (block,) = re.findall(r"^```text\n(bench .*?)^```", ARCHITECTURE.read_text(), re.M | re.S)
    return [line.split()[0] for line in reversed(block.splitlines())]


ORDER = packages_in_order()
# What an event loop consists of: the document's list up to `policy`. All others are its neighbours,
# and the core works without them.
CORE = set(ORDER[: ORDER.index("policy") + 1])
NEIGHBOURS = set(ORDER) - CORE - {"__init__"}
# In place of the public front, which names the neighbours.
FRONT = '''\
"""The core of uringloop, without its neighbours."""

import uringloop._cpython.loading
from uringloop._loop.stats import Stats
from uringloop._net.servers import Server
from uringloop.loop import Loop
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

__version__ = "0.0.0"
'''
# What a build needs besides the package.
BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


def parts_of_the_core(package: Path) -> list[Path]:
    """Return its folders and files in *package*, the source tree's or an installed one."""
    return [path for path in package.iterdir() if path.stem in CORE]


def copy_sources(folder: Path) -> None:
    """Copy what is needed to build the core alone into *folder*."""
    package = folder / PACKAGE.name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FRONT)
    for name in BUILT_FROM:
        shutil.copy2(ROOT / name, folder)
    shutil.copytree(ROOT / "licenses", folder / "licenses")
    for path in parts_of_the_core(PACKAGE):
        if path.is_dir():
            shutil.copytree(path, package / path.name)
        else:
            shutil.copy2(path, package)


if __name__ == "__main__":
    copy_sources(Path(sys.argv[1]))
