"""Entry of `python benchmarks/parity`."""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of parity and of the packages in the same folder that it uses.
sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.cli import main

if __name__ == "__main__":
    main()
