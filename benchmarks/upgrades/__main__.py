"""Entry of `python benchmarks/upgrades`."""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of this package and of servers.py.
sys.path.insert(0, str(Path(__file__).parents[1]))

from upgrades.cli import main

if __name__ == "__main__":
    sys.exit(main())
