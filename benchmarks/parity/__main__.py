"""Entry of `python benchmarks/parity`."""

from __future__ import annotations

import sys
from pathlib import Path

# The packages of this folder are imported by name: parity, and those that it shares code with.
sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.cli import main

if __name__ == "__main__":
    main()
