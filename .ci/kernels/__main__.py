"""Entry of `python .ci/kernels`."""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of kernels.
sys.path.insert(0, str(Path(__file__).parents[1]))

from kernels.base import KernelsError
from kernels.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernelsError as exc:
        sys.exit(str(exc))
