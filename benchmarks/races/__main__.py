"""Entry of `python benchmarks/races`."""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of races and of its modules.
sys.path.insert(0, str(Path(__file__).parents[1]))

from races.cli import main

if __name__ == "__main__":
    sys.exit(main())
