"""A measured server of any workload: `python benchmarks/compare/server.py --loop NAME --mode MODE`.

It is the server of `uringloop.bench`, with more modes and a warm allocator.
"""

from __future__ import annotations

import sys
from pathlib import Path

# For imports of compare.
sys.path.insert(0, str(Path(__file__).parents[1]))

from compare import allocator
from compare.workloads import SERVERS
from uringloop.bench import server

if __name__ == "__main__":
    allocator.warm()
    sys.exit(server.main(servers=SERVERS))
