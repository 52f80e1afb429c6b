"""PyInstaller's hook for this package; the entry point `pyinstaller40` names `hook_dirs`."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the folder of the hook."""
    return [os.path.dirname(__file__)]
