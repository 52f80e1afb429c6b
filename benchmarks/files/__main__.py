"""Entry of `python benchmarks/files`."""

from __future__ import annotations

import sys
from pathlib import Path

# The packages of this folder are imported by name: files, and those that it shares code with.
sys.path.insert(0, str(Path(__file__).parents[1]))

from files.cli import main

if __name__ == "__main__":
    sys.exit(main())
