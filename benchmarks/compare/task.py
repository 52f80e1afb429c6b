"""The process of one task: `python benchmarks/compare/task.py MODULE TASK`.

MODULE is `program`, `workers` or `loads`: its `run` takes its Task and returns its Reading. TASK is
JSON, and so is the last line of output: the Reading, or why there is none.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

# For imports of compare.
sys.path.insert(0, str(Path(__file__).parents[1]))

from compare import allocator
from uringloop.bench import process
from uringloop.bench.settings import refusal_of


def main(name: str, encoded: str) -> int:
    """Run the task; the exit status is 0 after a Reading and 1 after JSON with `error`."""
    process.end_with_parent()
    allocator.warm()
    module = importlib.import_module(f"compare.{name}")
    task = module.Task(**json.loads(encoded))
    try:
        reading = module.run(task)
    except Exception as exc:
        print(json.dumps(refusal_of(exc).json()))
        return 1
    print(json.dumps(asdict(reading)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
