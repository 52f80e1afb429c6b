"""What a program needs of this package and PyInstaller does not find in its source code.

The compiled modules share one file, which `_cpython/loading.py` opens by its path. Their own
imports are in C, and the package imports some public modules only when they are first named.
"""

from __future__ import annotations

from pathlib import Path

from PyInstaller.utils.hooks import collect_submodules, get_package_paths

# These run other programs, or need packages that a program may not have. PyInstaller finds them if
# the program imports them.
APART = (
    "uringloop.__main__",
    "uringloop._as_uvloop",
    "uringloop._pyinstaller",
    "uringloop.as_uvloop",
    "uringloop.bench",
    "uringloop.pytest_plugin",
    "uringloop.top",
    "uringloop.workers",
)

found = Path(get_package_paths("uringloop")[1])
if not list(found.glob("_compiled*.so")):
    raise SystemExit(
        f"{found} has no compiled modules: it is a clone of uringloop's sources. "
        "Run PyInstaller in another folder, where Python finds the installed package."
    )

hiddenimports = collect_submodules("uringloop", filter=lambda name: not name.startswith(APART))
