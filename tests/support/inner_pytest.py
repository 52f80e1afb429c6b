"""A run of pytest in a process of its own, with the plugins that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def run_pytest(folder: Path, *arguments: str, plugins: Iterable[str] = ("asyncio",)) -> str:
    """Run pytest in *folder* with *plugins*; return what it prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    for plugin in plugins:
        command += ["-p", plugin]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        # Importing whatever else is installed takes three times as long as all the rest.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr
