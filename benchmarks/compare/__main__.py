"""Entry of `python benchmarks/compare`."""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of compare and of the packages in the same folder that it uses.
sys.path.insert(0, str(Path(__file__).parents[1]))

from compare.cli import main

if __name__ == "__main__":
    sys.exit(main())
